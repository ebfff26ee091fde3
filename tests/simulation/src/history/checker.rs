//! The checker: decides whether a history keeps every promise.

use super::instance::Instances;
use super::lineage::Lineage;
use super::single::Single;
use super::{Calendar, Entry, Invariant, Micros, Report, Violation};
use jobwire_core::JobId;
use std::collections::HashMap;

/// The requirements on a history beyond the safety of each job.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Whether everything was healed and drained at its end: no job may be left executable or
    /// waiting.
    pub drained: bool,
    /// Whether it holds the place of every job at the end.
    pub found: bool,
    /// Whether handlers recorded their starts and ends.
    pub handlers: bool,
    /// Maximum number of jobs that the sweeper may have hinted again.
    pub rehints: Option<u64>,
    /// The number of strikes from which a job may become a dead letter whatever its handler
    /// answered. The strikes are in the history.
    pub quarantine: Option<usize>,
    /// The disturbances of the run.
    pub calendar: Calendar,
    /// Maximum time from the end of a dead holder's lease to the next lock (at p99, without
    /// disturbances).
    pub takeover: Option<Micros>,
    /// The time for which an elder exclusive job must have been ready to count as overtaken.
    pub order_slack: Micros,
    /// The time after which a job whose holder died is hinted a second time, if no node has locked
    /// it. The time doubles with each further hint.
    pub hinted_after: Option<Micros>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            drained: true,
            found: false,
            handlers: true,
            rehints: None,
            quarantine: None,
            calendar: Calendar::default(),
            takeover: None,
            order_slack: 0,
            hinted_after: None,
        }
    }
}

/// Verifies a history, in O(n log n).
///
/// | | holds | how it is checked |
/// | --- | --- | --- |
/// | I1 | every committed job was executed and finished, once all was healed and drained | every job created; a COMMIT without an answer counts as committed if the database shows the job, and otherwise not at all. A completion without a run of the handler under its lock |
/// | I2 | a job that did not commit is never hinted, locked, run or kept | any event of a job without a committed creation; a hint published before the commit |
/// | I3 | a job is completed exactly once, with its follow-up jobs and its rows | completions; rows of the completing transaction; children; occurrences of a series |
/// | I4 | no two holders: a lock is granted only when the previous one ended or expired, and only the holder changes the job | locks against leases; every change against the current lock; a completion against the handler that ran under its lock |
/// | I5 | at most one exclusive job of an instance runs, and the eldest ready one first | intervals of locks; spans in which elder jobs were ready |
/// | I6 | fences grow, per job and per instance; the newest one completes | locks |
/// | I7 | a failure costs exactly one attempt; a crash, a conflict, a snooze, a stop cost none | attempts left, against the handler's answer |
/// | I8 | every job is in exactly one place, the one that its history leads to | moves, and the place at the end |
/// | I9 | every delivery is accounted for | **not here**: a history has no deliveries. The chaos suite compares what its last nodes counted ([`HintAccount`](super::HintAccount)), and the transports' conformance suite settles each delivery |
/// | I10 | no job runs before its due date; a series fires neither too often nor too early | locks and moves of timers; due dates of a series |
/// | I11 | the sweeper hints no more than was lost | **as a bound on the total** ([`Limits::rehints`]): a history does not show which hint was lost. After the end of a dead holder's lease, by the growing pauses ([`Limits::hinted_after`]) |
/// | I12 | no id is reused for another job | **in another form**: jobs keep their id through all moves, so an id that is created twice breaks it |
/// | I13 | a job whose holder died is locked again within a sweep interval and two seconds of the end of its lease | **at p99** ([`Limits::takeover`]), without takeovers during an outage or a jump of the clock ([`Limits::calendar`]) |
/// | I14 | a strike is one death of a holder, taken back at most once; quarantine needs all of them | every change of strikes against the ends of leases |
/// | I15 | never more jobs of a key run at once, or start in a period, than their limit says | **apart**, by [`permits::judge`](super::permits::judge): the runs of all nodes by one clock |
///
/// Call [`Checker::job`] with the entries of one job after the other, each job's in order, and then
/// [`finish`](Checker::finish) for the report. The checker keeps only the state that concerns
/// several jobs: the locks of exclusive jobs, parents, series. [`Checker::check`] takes a whole
/// history at once.
#[derive(Debug, Default)]
pub struct Checker {
    limits: Limits,
    report: Report,
    instances: Instances,
    lineage: Lineage,
}

impl Checker {
    /// Creates a checker with these limits.
    #[must_use]
    pub fn new(limits: Limits) -> Checker {
        Checker {
            limits,
            ..Checker::default()
        }
    }

    /// Judges all entries of one job, in order.
    pub fn job(&mut self, history: &[Entry]) {
        let Checker {
            limits,
            report,
            instances,
            lineage,
        } = self;
        Single::judge(limits, report, instances, lineage, history);
    }

    /// Judges the state that concerns several jobs, and returns the report.
    #[must_use]
    pub fn finish(self) -> Report {
        let Checker {
            limits,
            mut report,
            instances,
            lineage,
        } = self;
        instances.judge(limits.order_slack, &mut report);
        lineage.judge(&mut report);
        if let Some(bound) = limits.takeover {
            report.judge_takeovers(bound, limits.calendar.expects_calm());
        }
        let rehints = report.counts.rehints;
        if let Some(most) = limits.rehints.filter(|most| rehints > *most) {
            report.add(Violation {
                invariant: Invariant::I11,
                jobs: Vec::new(),
                what: format!("the sweeper hinted {rehints} jobs again, at most {most} may have lost their hint"),
                history: Vec::new(),
            });
        }
        report
    }

    /// Judges a whole history, in any order.
    #[must_use]
    pub fn check(limits: Limits, entries: impl IntoIterator<Item = Entry>) -> Report {
        let mut jobs: HashMap<JobId, Vec<Entry>> = HashMap::new();
        for entry in entries {
            jobs.entry(entry.job).or_default().push(entry);
        }
        let mut ids: Vec<JobId> = jobs.keys().copied().collect();
        ids.sort_unstable();
        let mut checker = Checker::new(limits);
        for id in ids {
            if let Some(history) = jobs.get_mut(&id) {
                history.sort_by_key(|entry| entry.number);
                checker.job(history);
            }
        }
        let mut report = checker.finish();
        for violation in report.kept.iter_mut().filter(|v| v.history.is_empty()) {
            let histories = violation.jobs.iter().filter_map(|id| jobs.get(id));
            violation.history = histories.flatten().cloned().collect();
            violation
                .history
                .sort_by_key(|entry| (entry.at, entry.number));
        }
        report
    }
}

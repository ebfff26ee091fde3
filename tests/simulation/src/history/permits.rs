//! Judges limits: no more runs of a key at once, and no more starts in a period, than the limit says.
//!
//! The runs of all nodes are compared by the clock of the machine since its start, which no fault
//! shifts. A run counts from its first record to its last. One without an end, or whose lease was taken
//! off its node, counts only at its start: nobody saw when it ended, or it ran beyond its lease.

use super::{Calendar, Invariant, Micros, Report, Violation};
use jobwire_core::JobId;
use std::collections::{BTreeMap, VecDeque};

/// The clock of the machine has this resolution, in milliseconds.
const RESOLUTION: i64 = 20;

/// A limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// At most this many runs at once.
    Running(usize),
    /// At most `number` starts in any period of this many milliseconds.
    Rate {
        /// The number of starts.
        number: usize,
        /// The period.
        millis: i64,
    },
}

/// A run of a job with a limit.
#[derive(Clone, Debug)]
pub struct LimitedRun {
    /// The job.
    pub job: JobId,
    /// The key of the limit.
    pub key: String,
    /// When the start was recorded, by the clock of the database.
    pub at: Micros,
    /// The time of the start, in milliseconds since the start of the machine.
    pub start: i64,
    /// The time of the end, if the run kept its lease until then.
    pub end: Option<i64>,
}

/// Judges the runs of one type, in any order. What happened within `doubted` after a jump of the
/// database's clock does not count: a new leader may have believed the clock.
pub fn judge(
    bound: Bound,
    runs: Vec<LimitedRun>,
    calendar: &Calendar,
    doubted: Micros,
    report: &mut Report,
) {
    let mut keys: BTreeMap<String, Vec<LimitedRun>> = BTreeMap::new();
    for run in runs {
        keys.entry(run.key.clone()).or_default().push(run);
    }
    for (key, mut runs) in keys {
        runs.sort_by_key(|run| run.start);
        let mut before: VecDeque<&LimitedRun> = VecDeque::new();
        for run in &runs {
            report.counts.limited_runs += 1;
            let most = match bound {
                Bound::Running(most) => most,
                Bound::Rate { number, .. } => number,
            };
            before.retain(|of| match bound {
                Bound::Running(_) => of.end.is_some_and(|end| run.start + RESOLUTION < end),
                Bound::Rate { millis, .. } => run.start - of.start + RESOLUTION < millis,
            });
            before.push_back(run);
            let found = before.len() as u64;
            report.counts.most_limited = report.counts.most_limited.max(found);
            if matches!(bound, Bound::Rate { .. }) {
                report.counts.most_rated = report.counts.most_rated.max(found);
            }
            let first = before.front().map_or(run.at, |first| first.at);
            if before.len() > most && !calendar.jumped_between(first - doubted, run.at) {
                report.add(Violation {
                    invariant: Invariant::I15,
                    jobs: before.iter().map(|of| of.job).collect(),
                    what: format!("{} jobs of key `{key}` under {bound:?}", before.len()),
                    history: Vec::new(),
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: i64, end: Option<i64>) -> LimitedRun {
        LimitedRun {
            job: JobId::generate(),
            key: "a".to_owned(),
            at: start * 1_000,
            start,
            end,
        }
    }

    fn judged(bound: Bound, runs: Vec<LimitedRun>, calendar: &Calendar) -> Report {
        let mut report = Report::default();
        judge(bound, runs, calendar, 1_000_000, &mut report);
        report
    }

    #[test]
    fn runs_that_overlap_are_counted_and_those_without_an_end_are_not() {
        let runs = || {
            vec![
                run(500, Some(900)),
                run(0, Some(1_000)),
                run(100, None),
                run(1_000, Some(1_100)),
            ]
        };
        let calm = Calendar::default();
        assert!(judged(Bound::Running(2), runs(), &calm).holds());
        let wrong = judged(Bound::Running(1), runs(), &calm);
        assert!(wrong.breaks(Invariant::I15));
        assert_eq!(wrong.counts.limited_runs, 4);
        let mut other = runs();
        other[0].key = "b".to_owned();
        let first = other.remove(0);
        assert!(judged(Bound::Running(1), vec![first], &calm).holds());
    }

    #[test]
    fn starts_within_a_period_are_counted_and_a_jump_of_the_clock_excuses_them() {
        let runs = || [0, 900, 1_000, 1_950].map(|at| run(at, None)).to_vec();
        let rate = |number| Bound::Rate {
            number,
            millis: 1_000,
        };
        let calm = Calendar::default();
        let right = judged(rate(2), runs(), &calm);
        assert!(right.holds());
        assert_eq!(right.counts.most_rated, 2);
        assert_eq!(judged(rate(1), runs(), &calm).violations, 3);
        let mut jumped = Calendar::default();
        jumped.jump(950_000, 60_000_000, 0);
        let before_the_jump = judged(rate(1), runs(), &jumped).violations;
        assert_eq!(before_the_jump, 1);
    }
}

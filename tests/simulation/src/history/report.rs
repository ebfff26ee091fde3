//! The result of the checker.

use super::{Entry, Micros};
use jobwire_core::JobId;
use std::fmt;

/// The number of violations kept with their histories. All are counted.
const KEPT: usize = 50;
/// The number of takeovers that a violation names.
const SHOWN: usize = 10;

/// The invariants, as they are numbered in the documentation of the [checker](super::Checker).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs, reason = "the checker's documentation has the table")]
pub enum Invariant {
    I1,
    I2,
    I3,
    I4,
    I5,
    I6,
    I7,
    I8,
    I9,
    I10,
    I11,
    I12,
    I13,
    I14,
    I15,
}

/// A promise that was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The invariant.
    pub invariant: Invariant,
    /// The jobs that broke it; empty if it concerns the whole history.
    pub jobs: Vec<JobId>,
    /// A description.
    pub what: String,
    /// All recorded events of the jobs.
    pub history: Vec<Entry>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.invariant)?;
        for job in &self.jobs {
            write!(f, ", job {job}")?;
        }
        writeln!(f, ": {}", self.what)?;
        let first = self.history.first().map_or(0, |entry| entry.at);
        for entry in &self.history {
            let job = entry.job;
            let at = seconds(entry.at - first);
            let visible = seconds(entry.visible - first);
            write!(f, "    {at:>12} (visible {visible:>12}) #{} ", entry.number)?;
            if self.jobs.len() > 1 {
                write!(f, "{job} ")?;
            }
            writeln!(f, "{:?}", entry.event)?;
        }
        Ok(())
    }
}

/// Formats microseconds as seconds.
#[allow(clippy::cast_precision_loss, reason = "for people")]
fn seconds(micros: Micros) -> String {
    format!("{:.6}s", micros as f64 / 1e6)
}

/// Counts over the history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Jobs that were created and committed.
    pub committed: u64,
    /// Jobs whose transaction was rolled back.
    pub rolled_back: u64,
    /// Jobs without a row whose transaction has an unknown outcome.
    pub unknown: u64,
    /// Completions.
    pub completed: u64,
    /// Dead letters at the end.
    pub dead: u64,
    /// Jobs found anywhere else at the end.
    pub left: u64,
    /// Locks.
    pub locks: u64,
    /// Locks made by the transaction that made the job ready: single due timers.
    pub timer_locks: u64,
    /// Row locks held while their jobs ran.
    pub row_locks: u64,
    /// Completions by the holders of row locks.
    pub row_completions: u64,
    /// Renewals.
    pub renewals: u64,
    /// Runs of handlers.
    pub runs: u64,
    /// Locks taken over after their lease had expired.
    pub takeovers: u64,
    /// The time from the end of a lease to the next lock, in microseconds, at p99 of the
    /// undisturbed takeovers.
    pub takeover_p99: Micros,
    /// Takeovers that were judged apart, since nothing else was broken.
    pub calm_takeovers: u64,
    /// Takeovers disturbed by an outage, a jump of the clock or faults of several nodes. They are
    /// not judged.
    pub disturbed_takeovers: u64,
    /// The longest time from the end of a lease to the next lock.
    pub slowest_takeover: Micros,
    /// The sum of these times, for the mean.
    pub takeover_total: Micros,
    /// Runs concurrent with another run of the same job whose lease had expired.
    pub duplicate_runs: u64,
    /// Failed attempts that counted.
    pub failures: u64,
    /// Attempts that did not count.
    pub free_attempts: u64,
    /// Releases.
    pub releases: u64,
    /// Jobs hinted again by the sweeper.
    pub rehints: u64,
    /// Of these, jobs that a single node serves: their hints are dropped while it is away.
    pub rare_rehints: u64,
    /// Of the others, hints after the end of a dead holder's lease, until the next lock.
    pub takeover_rehints: u64,
    /// Hints published.
    pub published: u64,
    /// Exclusive locks whose instance and order were checked.
    pub exclusive_locks: u64,
    /// Runs of jobs with a limit.
    pub limited_runs: u64,
    /// The largest number of them with one key that was found at once, or in a period.
    pub most_limited: u64,
    /// The largest number of those of a rate that started in a period.
    pub most_rated: u64,
}

/// The verdict.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The counts.
    pub counts: Counts,
    /// The number of violations.
    pub violations: u64,
    /// The first violations, with their histories.
    pub kept: Vec<Violation>,
    /// The duration of each undisturbed takeover.
    takeovers: Vec<(Micros, JobId)>,
    /// The durations of the takeovers that are judged apart.
    calm_takeovers: Vec<(Micros, JobId)>,
}

impl Report {
    /// Returns whether there is no violation.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.violations == 0
    }

    /// Returns whether this invariant is among the violations that were kept.
    #[must_use]
    pub fn breaks(&self, invariant: Invariant) -> bool {
        self.kept.iter().any(|v| v.invariant == invariant)
    }

    pub(super) fn takeover(&mut self, job: JobId, late: Micros, disturbed: bool, calm: bool) {
        let counts = &mut self.counts;
        counts.takeovers += 1;
        counts.takeover_total += late;
        counts.slowest_takeover = counts.slowest_takeover.max(late);
        if calm {
            self.calm_takeovers.push((late, job));
        } else if disturbed {
            counts.disturbed_takeovers += 1;
        } else {
            self.takeovers.push((late, job));
        }
    }

    /// Checks that at most 1 % of the takeovers, rounded up, took longer than `bound`. Takeovers in
    /// the calm are judged apart; if `expected`, there must be some.
    pub(super) fn judge_takeovers(&mut self, bound: Micros, expected: bool) {
        let (mut all, mut calm) = (
            std::mem::take(&mut self.takeovers),
            std::mem::take(&mut self.calm_takeovers),
        );
        let p99 = self.judge_some(&mut all, bound);
        let calm_p99 = self.judge_some(&mut calm, bound);
        self.counts.takeover_p99 = p99.max(calm_p99);
        self.counts.calm_takeovers = calm.len() as u64;
        if expected && calm.is_empty() {
            self.add(Violation {
                invariant: Invariant::I13,
                jobs: Vec::new(),
                what: "the node that was killed in the calm left no job to take over".to_owned(),
                history: Vec::new(),
            });
        }
    }

    fn judge_some(&mut self, takeovers: &mut [(Micros, JobId)], bound: Micros) -> Micros {
        takeovers.sort_unstable();
        let all = takeovers.len();
        let few = all.div_ceil(100);
        let over: Vec<_> = (takeovers.iter())
            .filter(|(late, _)| *late > bound)
            .copied()
            .collect();
        if over.len() > few {
            // The slowest come last.
            let slowest = over[over.len().saturating_sub(SHOWN)..].iter();
            let times: Vec<String> = slowest.clone().map(|(late, _)| seconds(*late)).collect();
            self.add(Violation {
                invariant: Invariant::I13,
                jobs: slowest.map(|(_, job)| *job).collect(),
                what: format!(
                    "{} of {all} takeovers took longer than {}; the slowest: {}",
                    over.len(),
                    seconds(bound),
                    times.join(", ")
                ),
                history: Vec::new(),
            });
        }
        let p99 = all.checked_sub(few + 1).map(|at| takeovers[at].0);
        p99.unwrap_or(0)
    }

    /// Adds a violation.
    pub fn add(&mut self, violation: Violation) {
        self.violations += 1;
        if self.kept.len() < KEPT {
            self.kept.push(violation);
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} violations; {:?}", self.violations, self.counts)?;
        for violation in &self.kept {
            write!(f, "{violation}")?;
        }
        Ok(())
    }
}

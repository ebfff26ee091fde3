//! What the checker found.

use super::{Entry, Micros};
use jobwire_core::JobId;
use std::fmt;

/// So many violations are kept with their histories; all are counted.
const KEPT: usize = 50;

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
}

/// A promise that was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which.
    pub invariant: Invariant,
    /// By what happened to these jobs; none where it is about the whole.
    pub jobs: Vec<JobId>,
    /// What is wrong.
    pub what: String,
    /// Everything that is known of them.
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

/// Microseconds as seconds, for people.
#[allow(clippy::cast_precision_loss, reason = "for people")]
fn seconds(micros: Micros) -> String {
    format!("{:.6}s", micros as f64 / 1e6)
}

/// What was counted on the way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Jobs that were created and committed.
    pub committed: u64,
    /// Jobs whose transaction was undone.
    pub rolled_back: u64,
    /// Jobs of whose transaction nobody knows, and which are not there.
    pub unknown: u64,
    /// Completions.
    pub completed: u64,
    /// Dead letters at the end.
    pub dead: u64,
    /// Jobs found anywhere else at the end.
    pub left: u64,
    /// Locks.
    pub locks: u64,
    /// Those of them that came with what made their job ready: timers that were due alone.
    pub timer_locks: u64,
    /// Rows that were held while their jobs ran.
    pub row_locks: u64,
    /// Completions by those who held them.
    pub row_completions: u64,
    /// Renewals.
    pub renewals: u64,
    /// Runs of handlers.
    pub runs: u64,
    /// Locks that were taken over after they had expired.
    pub takeovers: u64,
    /// From the end of a lease to the next lock, in microseconds: those that nothing disturbed, at p99.
    pub takeover_p99: Micros,
    /// How many were judged apart, since nothing else was broken.
    pub calm_takeovers: u64,
    /// How many were disturbed by an outage or a jump of the clock.
    pub disturbed_takeovers: u64,
    /// The longest and the sum.
    pub slowest_takeover: Micros,
    /// Sum of the same, for the mean.
    pub takeover_total: Micros,
    /// Runs beside another run of the same job, each after its lease had expired.
    pub duplicate_runs: u64,
    /// Attempts that failed and counted.
    pub failures: u64,
    /// Attempts that did not count.
    pub free_attempts: u64,
    /// Releases.
    pub releases: u64,
    /// Jobs hinted again by the sweeper.
    pub rehints: u64,
    /// The same of jobs that a single node serves: their hints are dropped while it is away.
    pub rare_rehints: u64,
    /// Hints that left.
    pub published: u64,
    /// Exclusive locks whose instance and order were checked.
    pub exclusive_locks: u64,
}

/// The verdict.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was counted.
    pub counts: Counts,
    /// How many violations there are.
    pub violations: u64,
    /// The first of them, with their histories.
    pub kept: Vec<Violation>,
    /// How long each takeover took that nothing disturbed.
    takeovers: Vec<(Micros, JobId)>,
    /// The same of those that are judged apart.
    calm_takeovers: Vec<(Micros, JobId)>,
}

impl Report {
    /// Nothing is wrong.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.violations == 0
    }

    /// Whether this invariant is among those that were broken (and kept).
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

    /// One of a hundred may take longer, and one of few; of those in the calm `expected`, too, and there must be some.
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
            let slow: Vec<String> = over.iter().map(|(late, _)| seconds(*late)).collect();
            self.add(Violation {
                invariant: Invariant::I13,
                jobs: over.iter().map(|(_, job)| *job).collect(),
                what: format!(
                    "{} of {all} takeovers took longer than {}: {}",
                    over.len(),
                    seconds(bound),
                    slow.join(", ")
                ),
                history: Vec::new(),
            });
        }
        let p99 = all.checked_sub(few + 1).map(|at| takeovers[at].0);
        p99.unwrap_or(0)
    }

    pub(crate) fn add(&mut self, violation: Violation) {
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

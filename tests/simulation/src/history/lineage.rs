//! Jobs created by jobs: children of a completing transaction, and occurrences of a repeating job.

use super::{Creation, Invariant, Micros, Outcome, Report, Violation};
use jobwire_core::JobId;
use std::collections::HashMap;
use uuid::Uuid;

/// Due dates are stored in milliseconds and computed with fractions of seconds.
const ROUNDING: Micros = 2_000;

#[derive(Clone, Copy, Debug)]
struct Occurrence {
    job: JobId,
    left: u32,
    due: Option<Micros>,
    every: Micros,
    completed: bool,
}

/// The descent of jobs.
#[derive(Debug, Default)]
pub(super) struct Lineage {
    /// Children expected and seen, by parent.
    parents: HashMap<JobId, (u32, u32)>,
    series: HashMap<Uuid, Vec<Occurrence>>,
}

impl Lineage {
    /// Adds a job, and whether it was completed.
    pub(super) fn add(&mut self, job: JobId, creation: &Creation, completed: bool) {
        let exists = creation.outcome == Outcome::Committed;
        if let Some(parent) = creation.parent.filter(|_| exists) {
            self.parents.entry(parent).or_default().1 += 1;
        }
        if creation.children > 0 && completed {
            self.parents.entry(job).or_default().0 += creation.children;
        }
        if let Some(series) = creation.series.filter(|_| exists) {
            self.series.entry(series.id).or_default().push(Occurrence {
                job,
                left: series.left,
                due: creation.due,
                every: series.every,
                completed,
            });
        }
    }

    /// Judges all parents and series.
    pub(super) fn judge(self, report: &mut Report) {
        let mut add = |invariant, jobs, what| {
            report.add(Violation {
                invariant,
                jobs,
                what,
                history: Vec::new(),
            });
        };
        for (parent, (expected, seen)) in self.parents {
            if expected != seen {
                let what =
                    format!("its completing transaction created {seen} jobs, not {expected}");
                add(Invariant::I3, vec![parent], what);
            }
        }
        for (id, mut occurrences) in self.series {
            occurrences.sort_unstable_by_key(|occurrence| std::cmp::Reverse(occurrence.left));
            for pair in occurrences.windows(2) {
                let [one, next] = pair else { continue };
                let jobs = vec![one.job, next.job];
                if next.left + 1 != one.left || !one.completed {
                    let what =
                        format!("the series {id} forks or has a gap: {one:?}, then {next:?}");
                    add(Invariant::I3, jobs, what);
                } else if let (Some(due), Some(next_due)) = (one.due, next.due)
                    && next_due + ROUNDING < due + one.every
                {
                    let what = format!("the series {id} fires too early: {one:?}, then {next:?}");
                    add(Invariant::I10, jobs, what);
                }
            }
            if let Some(last) = occurrences.last()
                && last.completed
                && last.left > 1
            {
                let what = format!(
                    "the series {id} ended although {} occurrences are left",
                    last.left - 1
                );
                add(Invariant::I3, vec![last.job], what);
            }
        }
    }
}

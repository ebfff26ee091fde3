//! The end of a suspension or a pause, and the pages of the jobs that waited for it.

pub(super) mod list;

use chrono::{DateTime, Utc};

use crate::hint::Ready;
use crate::job::JobId;
use crate::job::gate::Gate;

/// Maximum number of jobs that one statement brings back, or marks to be hinted.
pub(super) const PAGE: i64 = 5_000;

/// The jobs that a gate has refused, and that wait for their hints after its end: one page of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The gate, which has ended.
    pub gate: Gate,
    /// Only jobs that became ready before this time of the database's clock: later jobs have a hint
    /// of their own. `None` on the first page.
    pub before: Option<DateTime<Utc>>,
    /// The page begins after this job.
    pub after: Option<JobId>,
    /// Maximum number of jobs.
    pub at_most: i64,
}

impl Waiting {
    /// Returns the first page of the jobs that waited for the end of this gate.
    #[must_use]
    pub fn first(gate: Gate) -> Self {
        Self {
            gate,
            before: None,
            after: None,
            at_most: PAGE,
        }
    }

    /// Returns the page of these jobs, which are in the order of their ids, and the next page.
    pub(super) fn page(&self, before: DateTime<Utc>, ready: Vec<Ready>) -> Lifted {
        let is_full = i64::try_from(ready.len()).unwrap_or(i64::MAX) >= self.at_most;
        let last = ready.last().map(|ready| ready.hint.id);
        Lifted {
            next: last.filter(|_| is_full).map(|last| Self {
                before: Some(before),
                after: Some(last),
                ..self.clone()
            }),
            was_there: true,
            brought_back: 0,
            ready,
        }
    }
}

/// The end of a suspension or a pause, with the first page of the jobs to hint; or a later page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lifted {
    /// Whether there was such a suspension or pause.
    pub was_there: bool,
    /// Number of jobs that the end of a suspension brought back from the suspended table.
    pub brought_back: u64,
    /// Jobs to hint.
    pub ready: Vec<Ready>,
    /// The next page, for [`Store::waited`](super::Store::waited).
    pub next: Option<Waiting>,
}

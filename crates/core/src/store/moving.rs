//! Moving jobs to another lane.

use uuid::Uuid;

use super::Origin;
use crate::hint::Ready;
use crate::job::{JobId, JobState, Lane};

/// A page of jobs that move to another lane.
#[derive(Clone, Debug)]
pub struct LanePage {
    /// The lane that they leave.
    pub from: Lane,
    /// The lane that they get.
    pub to: Lane,
    /// The state of the jobs. Of executable jobs only unlocked ones move.
    pub state: JobState,
    /// Continue after this id.
    pub after: Option<JobId>,
    /// Maximum number of jobs.
    pub at_most: i64,
    /// The origin, which shows who hints the ready jobs: the caller or the leader.
    pub origin: Origin,
}

/// The result of moving a page.
#[derive(Debug, Default)]
pub struct MovedPage {
    /// Number of jobs that moved.
    pub moved: u64,
    /// The moved jobs to hint; of an instance only the first ready one.
    pub ready: Vec<Ready>,
    /// The id after which to continue; `None` if all rows have been looked at.
    pub after: Option<JobId>,
}

/// Maximum number of rows that a page looks at, even if few of them are in its lane.
pub(crate) const LANE_SLICE: i64 = 20_000;

impl LanePage {
    /// Returns the id after which to continue, if `found` are the jobs among `seen` rows up to
    /// `last`.
    pub(crate) fn next(&self, found: &[Uuid], last: Option<Uuid>, seen: i64) -> Option<Uuid> {
        if i64::try_from(found.len()).is_ok_and(|n| n >= self.at_most) {
            found.last().copied()
        } else if seen >= LANE_SLICE {
            last
        } else {
            None
        }
    }
}

//! Jobs that change their lane.

use uuid::Uuid;

use super::Origin;
use crate::hint::Ready;
use crate::job::{JobId, JobState, Lane};

/// A page of jobs that change their lane.
#[derive(Clone, Debug)]
pub struct LanePage {
    /// The lane that they leave.
    pub from: Lane,
    /// The lane that they get.
    pub to: Lane,
    /// Those of this state; of executable ones the unlocked.
    pub state: JobState,
    /// Go on behind this id.
    pub after: Option<JobId>,
    /// At most so many.
    pub at_most: i64,
    /// Who hints what is ready: the caller, or a leader that finds it.
    pub origin: Origin,
}

/// What became of it.
#[derive(Debug, Default)]
pub struct MovedPage {
    /// Jobs that changed their lane.
    pub moved: u64,
    /// Those of them to hint; of an instance only the first ready one.
    pub ready: Vec<Ready>,
    /// Behind which id to go on; `None` where everything has been looked at.
    pub after: Option<JobId>,
}

/// Rows that a page looks at, however few of them are of its lane.
pub(crate) const LANE_SLICE: i64 = 20_000;

impl LanePage {
    /// Behind which id to go on, having found these among `seen` rows up to `last`.
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

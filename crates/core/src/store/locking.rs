//! Taking jobs: by their hints, or from the database.

use std::sync::Arc;
use std::time::Duration;

use super::{HeldRows, RowTerms};
use crate::hint::Hint;
use crate::job::scope::{Needs, Scope};
use crate::job::{JobId, Lane, LockedJob, NodeId, text_enum};

/// Under which terms a node locks jobs.
#[derive(Clone, Debug)]
pub struct LockTerms {
    /// The node.
    pub owner: NodeId,
    /// How long the lease lasts from the moment of the lock.
    pub lease: Duration,
    /// The handler types that the node serves; others are refused as [`Refusal::Unserved`].
    pub types: Arc<[String]>,
    /// Which jobs of these types it takes; others are refused so, too.
    pub scope: Arc<Scope>,
    /// Which of them may be held by row locks.
    pub rows: RowTerms,
}

text_enum! {
    /// Why a hinted job was not locked. All but [`Refusal::Busy`] settle the hint.
    Refusal {
        /// No such executable job: done, moved, deleted, or never there.
        Gone = "gone",
        /// Another lock on it lives.
        Locked = "locked",
        /// Another exclusive job of its instance runs; whoever finishes takes the next.
        InstanceHeld = "instance-held",
        /// The job, or what it belongs to, is suspended.
        Suspended = "suspended",
        /// No handler for its type on this node, or not in its scope.
        Unserved = "unserved",
        /// The database refuses to lock it, and locks others: the sweeper hints it again, at growing distances.
        Refused = "refused",
        /// Its row was busy for an instant: try again, here.
        Busy = "busy",
    }
}

/// What became of a batch of hints.
#[derive(Debug, Default)]
pub struct Locked {
    /// Ours to run now.
    pub jobs: Vec<LockedJob>,
    /// Ours, too, as long as a transaction lasts.
    pub rows: Option<HeldRows>,
    /// Each hinted job that is not in `jobs`, with the reason. For an exclusive hint the job taken may
    /// be another one of the same instance; the hinted id then stands in neither list.
    pub refused: Vec<(JobId, Refusal)>,
    /// What a node must serve, for each that is refused as [`Refusal::Unserved`]: to run the job itself, or the first
    /// job of its instance.
    pub unserved: Vec<(JobId, Needs)>,
    /// A part of the batch was not decided for one of its rows, and all hints of that part are busy: ask for fewer.
    pub is_cut: bool,
}

/// An instance whose first ready job was tried.
#[derive(Debug)]
pub(crate) struct Tried {
    pub(crate) instance: String,
    pub(crate) result: Result<Box<LockedJob>, Refusal>,
    /// What its first job needs, where that is not served here.
    pub(crate) unserved: Option<Needs>,
}

impl Locked {
    /// What became of the hinted jobs of an instance that was tried. Only one of them is locked; the others are taken in
    /// turn when that one ends.
    pub(crate) fn note_instance(&mut self, hinted: Vec<JobId>, tried: Tried) {
        match tried.result {
            Ok(job) => {
                let others = hinted.into_iter().filter(|id| *id != job.job.id);
                let others = others.map(|id| (id, Refusal::InstanceHeld));
                self.refused.extend(others);
                self.jobs.push(*job);
            }
            Err(why) => {
                for id in hinted {
                    let needs = tried.unserved.clone();
                    self.unserved.extend(needs.map(|needs| (id, needs)));
                    self.refused.push((id, why));
                }
            }
        }
    }
}

/// What a node that hints don't reach takes from a lane (protocol rule 28).
#[derive(Clone, Debug)]
pub struct ClaimPage {
    /// The lane.
    pub lane: Lane,
    /// Which jobs of it.
    pub of: ClaimOf,
    /// At most so many: the free slots.
    pub at_most: i64,
}

/// Which jobs of a lane are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimOf {
    /// Those whose last node died: their lease lost its owner, and they are no suspects.
    Rescued {
        /// Go on behind this id.
        after: Option<JobId>,
    },
    /// Those of which two nodes or more have died.
    Suspects {
        /// Go on behind this id.
        after: Option<JobId>,
    },
    /// All others, in the order of their ids.
    Next {
        /// Go on behind this id.
        after: Option<JobId>,
        /// Look at so many rows, however few of them can be taken.
        look_at: i64,
    },
}

/// A page of jobs that could be locked.
#[derive(Debug, Default)]
pub struct Claimable {
    /// These, in the order of their ids.
    pub hints: Vec<Hint>,
    /// Behind which id to go on; `None` where the lane was looked through to its end.
    pub after: Option<JobId>,
}

impl Claimable {
    /// Found in a slice that ends with this job, where there is more behind it.
    pub(super) fn of(hints: Vec<Hint>, slice_end: Option<JobId>, page: &ClaimPage) -> Self {
        let full = i64::try_from(hints.len()).is_ok_and(|found| found >= page.at_most);
        let after = match hints.last() {
            Some(last) if full => Some(last.id),
            _ => slice_end,
        };
        Self { hints, after }
    }
}

/// What was taken.
#[derive(Debug, Default)]
pub struct Claimed {
    /// Ours to run now.
    pub jobs: Vec<LockedJob>,
    /// Jobs of the page that nothing was decided about, since the database refused one of them: to be locked in parts.
    pub undecided: Vec<Hint>,
    /// Behind which id to go on; `None` where the lane was looked through to its end.
    pub after: Option<JobId>,
}

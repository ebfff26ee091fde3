//! Locking jobs, by their hints or without them.

use std::sync::Arc;
use std::time::Duration;

use super::{HeldRows, RowTerms};
use crate::hint::Hint;
use crate::job::scope::{Needs, Scope};
use crate::job::{JobId, Lane, LockedJob, NodeId, text_enum};

/// The terms under which a node locks jobs.
#[derive(Clone, Debug)]
pub struct LockTerms {
    /// The node.
    pub owner: NodeId,
    /// The length of the lease, from the moment of the lock.
    pub lease: Duration,
    /// The types that the node serves. Other jobs are refused as [`Refusal::Unserved`].
    pub types: Arc<[String]>,
    /// The jobs of these types that the node takes. Others are refused as [`Refusal::Unserved`],
    /// too.
    pub scope: Arc<Scope>,
    /// The jobs that may be held by row locks.
    pub rows: RowTerms,
}

impl LockTerms {
    /// Returns the same terms for jobs of these types only.
    pub(crate) fn of(mut self, types: Arc<[String]>) -> Self {
        self.types = types;
        self
    }
}

text_enum! {
    /// The reason why a hinted job was not locked. All but [`Refusal::Busy`] settle the hint.
    Refusal {
        /// The executable job does not exist: it is done, moved or deleted, or never existed.
        Gone = "gone",
        /// Another lock on the job is valid.
        Locked = "locked",
        /// Another exclusive job of its instance runs. Its handoff takes the next one.
        InstanceHeld = "instance-held",
        /// The job, or its process instance, process definition, type or tenant, is suspended.
        Suspended = "suspended",
        /// The node has no handler for its type, or the job is not in the node's scope.
        Unserved = "unserved",
        /// The database refuses to lock it, and locks others. The sweeper hints it again, at
        /// growing intervals.
        Refused = "refused",
        /// Its row was locked for a moment. The same node tries again.
        Busy = "busy",
    }
}

/// The result of locking a batch of hints.
#[derive(Debug, Default)]
pub struct Locked {
    /// The locked jobs, which this node runs now.
    pub jobs: Vec<LockedJob>,
    /// More locked jobs, held by row locks as long as a transaction lasts.
    pub rows: Option<HeldRows>,
    /// Each hinted job that is not in `jobs`, with the reason. For an exclusive hint the locked job
    /// may be another one of the same instance. The hinted one is then refused as
    /// [`Refusal::InstanceHeld`].
    pub refused: Vec<(JobId, Refusal)>,
    /// Each job that is refused as [`Refusal::Unserved`], with the properties that a node must
    /// serve to run it or the first job of its instance.
    pub unserved: Vec<(JobId, Needs)>,
    /// A part of the batch is undecided because of one of its rows. All hints of that part are
    /// busy, and the caller should lock fewer hints at once.
    pub is_cut: bool,
}

/// An instance whose first ready job the store tried to lock.
#[derive(Debug)]
pub(crate) struct Tried {
    pub(crate) instance: String,
    pub(crate) result: Result<Box<LockedJob>, Refusal>,
    /// The needs of its first job, if this node does not serve it.
    pub(crate) unserved: Option<Needs>,
}

impl Locked {
    /// Records the results of the hinted jobs of an instance that was tried. Only one of them is
    /// locked; the others follow in turn when it ends.
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

/// A page of jobs that a node in fallback claims from a lane (protocol rule 28).
#[derive(Clone, Debug)]
pub struct ClaimPage {
    /// The lane.
    pub lane: Lane,
    /// The jobs of the lane to look at.
    pub of: ClaimOf,
    /// Maximum number of jobs: the free slots.
    pub at_most: i64,
}

/// The jobs of a lane that a claim looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimOf {
    /// Jobs whose last holder died: their lease lost its owner, and they are no suspects.
    Rescued {
        /// Continue after this id.
        after: Option<JobId>,
    },
    /// Jobs of which two or more holders have died.
    Suspects {
        /// Continue after this id.
        after: Option<JobId>,
    },
    /// All other jobs, in the order of their ids.
    Next {
        /// Continue after this id.
        after: Option<JobId>,
        /// Maximum number of rows to look at, even if few of them can be locked.
        look_at: i64,
    },
}

/// A page of jobs that could be locked.
#[derive(Debug, Default)]
pub struct Claimable {
    /// The jobs, in the order of their ids.
    pub hints: Vec<Hint>,
    /// The id after which to continue; `None` at the end of the lane.
    pub after: Option<JobId>,
}

impl Claimable {
    /// Returns a page of `hints` that were found in a slice of the lane. `slice_end` is the last
    /// job of the slice, if there is more behind it.
    pub(super) fn of(hints: Vec<Hint>, slice_end: Option<JobId>, page: &ClaimPage) -> Self {
        let full = i64::try_from(hints.len()).is_ok_and(|found| found >= page.at_most);
        let after = match hints.last() {
            Some(last) if full => Some(last.id),
            _ => slice_end,
        };
        Self { hints, after }
    }
}

/// The result of a claim.
#[derive(Debug, Default)]
pub struct Claimed {
    /// The locked jobs, which this node runs now.
    pub jobs: Vec<LockedJob>,
    /// Jobs of the page that are undecided because the database refused one of them. The caller
    /// locks them in parts.
    pub undecided: Vec<Hint>,
    /// The id after which to continue; `None` at the end of the lane.
    pub after: Option<JobId>,
}

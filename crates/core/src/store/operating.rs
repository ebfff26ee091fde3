//! Requests of operators.

use std::collections::HashSet;

use chrono::{DateTime, Utc};

use crate::event::{JobEvent, JobEventKind};
use crate::hint::Ready;
use crate::job::JobId;
use crate::store::change::Change;

/// The result of an operator's request for one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operated {
    /// Done.
    Done,
    /// No such job exists.
    NotFound,
    /// The job is running. It has to finish or lose its lock first. A cancel is committed, and ends
    /// the job soon.
    Running,
    /// The job is in a state that the request does not apply to. Nothing was changed.
    OtherState,
}

/// The result of a request for many jobs. Each requested job is in one of `operated` and `refused`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperatedJobs {
    /// The result for each job.
    pub operated: Vec<(JobId, Operated)>,
    /// Jobs that the database refused to change, with the reason. They are unchanged.
    pub refused: Vec<(JobId, String)>,
    /// Those of `operated` that had been cancelled before, so that an unlock deleted them.
    pub cancelled: Vec<JobId>,
    /// Jobs to hint.
    pub ready: Vec<Ready>,
    /// The instances that exclusive jobs left in the caller's transaction. Their next jobs are
    /// [looked up](crate::store::SqlStore::next_of) after its commit.
    pub left: Vec<String>,
    /// The earliest due date that was written, if any.
    pub timer: Option<DateTime<Utc>>,
}

/// An operator's action on jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Makes them executable now, with this number of attempts.
    Retry(i32),
    /// Deletes those that do not run.
    Delete,
    /// Deletes them, and marks those that run as cancelled.
    Cancel,
    /// Changes those that do not run.
    Change(Change),
    /// Takes their locks from their nodes.
    Unlock,
}

impl Action {
    /// The name of the action among the statements of the metrics.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Retry(_) => "retry",
            Self::Delete => "delete",
            Self::Cancel => "cancel",
            Self::Change(_) => "change",
            Self::Unlock => "unlock",
        }
    }

    /// Returns whether the action may close the incident of a dead letter.
    pub(crate) fn closes_incidents(&self) -> bool {
        matches!(self, Self::Retry(_) | Self::Delete | Self::Cancel)
    }

    /// Returns the events of the jobs that the action changed. `cancelled` are the jobs that an unlock
    /// deleted, and `open` those that had an open incident before.
    pub(crate) fn events(
        &self,
        operated: &[(JobId, Operated)],
        cancelled: &[JobId],
        open: &[JobId],
    ) -> Vec<JobEvent> {
        let kinds = match self {
            Self::Retry(_) | Self::Change(Change::MakeExecutable) => {
                vec![JobEventKind::Rescheduled { due_at: None }]
            }
            Self::Delete | Self::Cancel => vec![JobEventKind::Cancelled],
            Self::Unlock => vec![JobEventKind::Rejected],
            Self::Change(Change::Reschedule(date)) => vec![JobEventKind::Rescheduled {
                due_at: Some(*date),
            }],
            Self::Change(Change::MakeDeadLetter(reason)) => vec![
                JobEventKind::DeadLettered,
                JobEventKind::IncidentOpened {
                    message: reason.clone(),
                },
            ],
            Self::Change(
                Change::Suspend | Change::Activate | Change::SetRetries(_) | Change::SetPriority(_),
            ) => Vec::new(),
        };
        let open: HashSet<&JobId> = open.iter().collect();
        let done = operated.iter().filter(|(_, how)| *how == Operated::Done);
        let mut events = Vec::new();
        for (job, _) in done {
            if cancelled.contains(job) {
                events.push(JobEvent::of_id(*job, JobEventKind::Cancelled));
                continue;
            }
            let of_job = kinds.iter().map(|kind| JobEvent::of_id(*job, kind.clone()));
            events.extend(of_job);
            if open.contains(job) {
                events.push(JobEvent::of_id(*job, JobEventKind::IncidentClosed));
            }
        }
        events
    }
}

/// The result of a suspension.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suspended {
    /// Number of jobs that moved to the suspended table.
    pub moved: u64,
    /// Jobs to hint. If the first job of an instance was suspended, the next one is ready.
    pub ready: Vec<Ready>,
    /// Jobs that the database refused to move, with the reason. They stay in their tables, and no
    /// node locks them before the suspension ends.
    pub refused: Vec<(JobId, String)>,
}

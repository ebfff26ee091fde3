//! Attempts, errors and incidents: what became of jobs, kept for a time.
//!
//! * An **attempt** is one call of a handler under one lock. It is recorded for handlers with
//!   [`HandlerOptions::keep_attempts`](crate::HandlerOptions::keep_attempts) only, by the statement
//!   or the transaction that commits its outcome, or by the leader cycle that ends its lease because
//!   its node died. So an attempt has a row if and only if its end was committed.
//! * An **incident** is a dead letter. It is opened when a job becomes one, and resolved when the
//!   job is revived or deleted. Triggers of the dead-letter table keep it.
//! * An **error** is a message of a type, with the jobs that have it now and the attempts that ended
//!   with it.

mod check;
mod cursor;
mod outcome;
mod query;
mod sort;

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::job::{Fence, JobId, NodeId, text_enum};

pub use cursor::{AttemptCursor, BadAttemptCursor};
pub use outcome::AttemptOutcome;
pub use query::{AttemptField, AttemptQuery};
pub use sort::AttemptSort;

/// The types whose attempts are recorded, and the time for which a row of each type is kept.
pub type AttemptsKept = BTreeMap<String, Duration>;

/// An attempt that is to be recorded with its outcome.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The handler type.
    pub job_type: String,
    /// The process instance.
    pub process_instance: Option<String>,
    /// The tenant.
    pub tenant: Option<String>,
    /// The duration, by the node's monotonic clock.
    pub ran: Duration,
    /// The outcome, as in the metric `jobwire_execution_seconds`.
    pub outcome: &'static str,
    /// The reason for which the handler has cancelled the job.
    pub reason: Option<String>,
    /// The time for which the row is kept.
    pub keep: Duration,
}

/// A recorded attempt.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct AttemptView {
    /// The job.
    pub job: JobId,
    /// The fence of the lock. It identifies the attempt.
    pub fence: Fence,
    /// The handler type.
    #[serde(rename = "type")]
    pub job_type: String,
    /// The process instance.
    pub process_instance: Option<String>,
    /// The tenant.
    pub tenant: Option<String>,
    /// The node that ran it.
    pub node: NodeId,
    /// The start, by the database's clock. With the outcome `node-died` or `lost-lock`: the time of
    /// the lock. The handler started a moment later, or not at all.
    pub started_at: DateTime<Utc>,
    /// The end, by the database's clock. With the outcome `node-died` or `lost-lock`: the time at
    /// which the leader ended the lease, up to a lease and a cycle after the node's last renewal.
    pub ended_at: DateTime<Utc>,
    /// The outcome: `done`, `retry`, `dead-letter`, `snooze`, `conflict`, `panic`, `timeout`,
    /// `cancelled`, `node-died` (the node died while it held the job) or `lost-lock` (the node
    /// counted as dead, and lives).
    pub outcome: String,
    /// The message of a failure, or the reason of a handler that has cancelled its job.
    pub message: Option<String>,
    /// The stack of a failure.
    pub stack: Option<String>,
}

/// A page of a list of attempts.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AttemptPage {
    /// The attempts.
    pub attempts: Vec<AttemptView>,
    /// The place at which the next page begins, for [`AttemptQuery::after`]. `None` if this page has
    /// fewer attempts than the limit, so it is the last one.
    pub next: Option<AttemptCursor>,
}

text_enum! {
    /// The way in which an incident was resolved.
    Resolution {
        /// The job was made executable again.
        Revived = "revived",
        /// The job was deleted.
        Deleted = "deleted",
    }
}

/// A dead letter, of the present or of the past.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Incident {
    /// The job.
    pub job: JobId,
    /// The handler type.
    #[serde(rename = "type")]
    pub job_type: String,
    /// The process instance.
    pub process_instance: Option<String>,
    /// The process definition.
    pub process_definition: Option<String>,
    /// The element.
    pub element: Option<String>,
    /// The tenant.
    pub tenant: Option<String>,
    /// The message of the failure.
    pub message: Option<String>,
    /// The time at which the job became a dead letter.
    pub opened_at: DateTime<Utc>,
    /// The time at which it was revived or deleted; `None` while it is a dead letter.
    pub resolved_at: Option<DateTime<Utc>>,
    /// The way in which it was resolved.
    pub resolution: Option<Resolution>,
}

/// The condition of a list of incidents. The default: the open ones, at most 100.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct IncidentFilter {
    /// Only of this job.
    pub job: Option<JobId>,
    /// Only of this handler type.
    pub job_type: Option<String>,
    /// Whether resolved incidents are listed, too. Default: no.
    pub resolved: bool,
    /// The number of incidents to skip.
    pub offset: i64,
    /// Maximum number of incidents. Default 100.
    pub limit: i64,
}

impl Default for IncidentFilter {
    fn default() -> Self {
        Self {
            job: None,
            job_type: None,
            resolved: false,
            offset: 0,
            limit: 100,
        }
    }
}

crate::setters! {
    IncidentFilter {
        job: Option<JobId>,
        job_type: Option<String>,
        resolved: bool,
        offset: i64,
        limit: i64,
    }
}

/// Failures of one type with one message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ErrorGroup {
    /// The handler type.
    #[serde(rename = "type")]
    pub job_type: String,
    /// The message.
    pub message: String,
    /// The number of jobs whose last failure has this message: dead letters, waiting retries and
    /// others.
    pub jobs: i64,
    /// The number of recorded attempts that ended with this message.
    pub attempts: i64,
    /// The end of the last recorded attempt with this message.
    pub last_at: Option<DateTime<Utc>>,
}

//! Arguments and results of the statements about periodic jobs.

use chrono::{DateTime, Utc};

use crate::hint::Ready;
use crate::job::JobId;

/// A periodic job, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeriodicView {
    /// The name.
    pub name: String,
    /// The version of the declaration that is in effect.
    pub version: i64,
    /// The schedule, as text.
    pub schedule: String,
    /// The fields of the jobs that it creates, as a JSON object.
    pub template: String,
    /// Whether it is paused.
    pub paused: bool,
    /// The next due date; `None` if the schedule has ended. A paused schedule gets another one when
    /// it is resumed.
    pub next_due: Option<DateTime<Utc>>,
    /// The last due date that has passed.
    pub last_due: Option<DateTime<Utc>>,
    /// The time of the first declaration.
    pub created_at: DateTime<Utc>,
    /// The time of the last change by a declaration or an operator.
    pub changed_at: DateTime<Utc>,
}

/// The periodic jobs that are due.
#[derive(Clone, Debug, Default)]
pub struct DuePeriodicJobs {
    /// Their names, the longest due first.
    pub names: Vec<String>,
    /// The next due date of the others.
    pub next_due: Option<DateTime<Utc>>,
    /// The database's clock.
    pub now: DateTime<Utc>,
}

/// The jobs that a periodic job created.
#[derive(Clone, Debug, Default)]
pub struct Fired {
    /// Jobs to hint.
    pub ready: Vec<Ready>,
    /// Whether the schedule has advanced. False if it was not due, or if another node has locked
    /// it.
    pub advanced: bool,
}

/// The job that an operator's request created.
#[derive(Clone, Debug)]
pub struct Triggered {
    /// The job.
    pub job: JobId,
    /// Its hint.
    pub ready: Vec<Ready>,
}

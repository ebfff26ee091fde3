//! Requests of operators.

use chrono::{DateTime, Utc};

use crate::hint::Ready;
use crate::job::JobId;

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
    /// Jobs to hint.
    pub ready: Vec<Ready>,
    /// The earliest due date that was written, if any.
    pub timer: Option<DateTime<Utc>>,
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

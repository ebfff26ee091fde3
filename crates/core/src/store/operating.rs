//! What operators ask for.

use crate::hint::Ready;
use crate::job::JobId;

/// What a suspension names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SuspensionScope {
    /// One process instance.
    ProcessInstance(String),
    /// All instances of a definition.
    ProcessDefinition(String),
    /// One handler type (job definition).
    Type(String),
    /// One tenant.
    Tenant(String),
}

impl SuspensionScope {
    /// The word in the table, and the value.
    #[must_use]
    pub fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::ProcessInstance(v) => ("process_instance", v),
            Self::ProcessDefinition(v) => ("process_definition", v),
            Self::Type(v) => ("type", v),
            Self::Tenant(v) => ("tenant", v),
        }
    }
}

/// What an operator's call did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operated {
    /// Done.
    Done,
    /// No such job.
    NotFound,
    /// The job runs; it has to finish or lose its lock first.
    Running,
}

/// What a call did to many jobs. Each job that was asked for is in one of the two lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OperatedJobs {
    /// What became of each.
    pub operated: Vec<(JobId, Operated)>,
    /// Jobs that the database refused to change, and why. They are as they were.
    pub refused: Vec<(JobId, String)>,
    /// What is to be hinted.
    pub ready: Vec<Ready>,
}

/// What a suspension did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suspended {
    /// So many jobs were put aside.
    pub moved: u64,
    /// What is to be hinted: where the first job of an instance was put aside, the next one is ready.
    pub ready: Vec<Ready>,
    /// Jobs that the database refused to put aside, and why. They stay where they are, and no node locks them before the
    /// suspension ends.
    pub refused: Vec<(JobId, String)>,
}

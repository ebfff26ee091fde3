//! The end of an instance, an execution or a definition: all its jobs are deleted.

use std::borrow::Cow;

use crate::job::JobId;
use crate::job::definition_key::DefinitionKey;

/// The jobs that end together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndedScope {
    /// All jobs of a process instance.
    ProcessInstance(String),
    /// All jobs of an execution.
    Execution(String),
    /// All jobs of a process definition, by its exact id, those of its instances included.
    ProcessDefinition(String),
    /// All jobs of a process definition in every version of its tenant, those of its instances
    /// included.
    DefinitionKey(DefinitionKey),
    /// The start timers of a process definition, by its exact id: its jobs of the kind timer that
    /// belong to no process instance.
    StartTimers(String),
    /// The start timers of a process definition in every version of its tenant.
    StartTimersOfKey(DefinitionKey),
}

impl EndedScope {
    /// Returns the name of the instance, the execution or the definition, or the value of the key.
    pub(crate) fn value(&self) -> Cow<'_, str> {
        match self {
            Self::ProcessInstance(value)
            | Self::Execution(value)
            | Self::ProcessDefinition(value)
            | Self::StartTimers(value) => value.into(),
            Self::DefinitionKey(key) | Self::StartTimersOfKey(key) => key.value().into(),
        }
    }
}

/// The result of ending a scope.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// The jobs that were deleted.
    pub deleted: Vec<JobId>,
    /// Those of `deleted` that were dead letters.
    pub dead_letters: Vec<JobId>,
    /// The jobs that run. They are cancelled: each is deleted when its handler ends, and the handlers are
    /// asked to stop after the commit. The own job of a handler that ends its scope is not cancelled.
    pub running: Vec<JobId>,
    /// The instances that exclusive jobs left. The next exclusive jobs of other executions are
    /// [looked up](crate::store::SqlStore::next_of) after the commit.
    pub left: Vec<String>,
}

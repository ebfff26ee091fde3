//! What operators ask for.

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

//! The error for a field that no job may have.

use crate::job::repeat::BadRepeat;

/// The error for an invalid field, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("field `{field}` {problem}; {remedy}")]
pub struct InvalidJob {
    /// The field's name in JSON and SQL.
    pub field: &'static str,
    /// The problem.
    pub problem: String,
    /// The remedy.
    pub remedy: &'static str,
}

impl InvalidJob {
    pub(crate) fn new(
        field: &'static str,
        problem: impl Into<String>,
        remedy: &'static str,
    ) -> Self {
        Self {
            field,
            problem: problem.into(),
            remedy,
        }
    }

    /// Creates the error for a repeat that can't be read.
    pub(crate) fn repeat(error: &BadRepeat) -> Self {
        Self::new("repeat", error.to_string(), "use for example `R3/PT10M`")
    }
}

//! The error for a field that no job may have.

use crate::job::calendar::CalendarFault;
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

    /// Creates the error for a repeat that can't be read, or gives no date.
    pub(crate) fn repeat(error: &BadRepeat) -> Self {
        match error {
            BadRepeat::Fault(fault) => Self::fault("repeat", fault, fault.remedy()),
            BadRepeat::Never(_) => Self::new(
                "repeat",
                format!("can't be computed: {error}"),
                "choose dates in the future, and before the end if there is one",
            ),
            _ => Self::new("repeat", error.to_string(), "use for example `R3/PT10M`"),
        }
    }

    /// Creates the error for a field whose date a calendar does not give.
    pub(crate) fn fault(field: &'static str, fault: &CalendarFault, remedy: &'static str) -> Self {
        Self::new(field, format!("can't be computed: {fault}"), remedy)
    }
}

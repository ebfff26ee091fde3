//! A fault of the database during an attempt.

use crate::store::StoreError;

/// A fault of the database that the job did not cause. Nothing was committed.
pub(super) struct Fault {
    pub(super) error: String,
    /// Whether two transactions were in conflict.
    pub(super) is_conflict: bool,
    /// Whether the handler had run before.
    pub(super) handler_ran: bool,
}

impl Fault {
    /// Returns the fault of a transaction that could not be opened.
    pub(super) fn before_handler(error: &StoreError) -> Self {
        Self {
            is_conflict: error.is_conflict(),
            error: error.to_string(),
            handler_ran: false,
        }
    }

    /// Returns the fault of a transaction that could not be completed.
    pub(super) fn after_handler(error: &StoreError) -> Self {
        Self {
            handler_ran: true,
            ..Self::before_handler(error)
        }
    }

    /// Returns the fault of a transaction that lost its connection.
    pub(super) fn of_connection(error: String) -> Self {
        Self {
            error,
            is_conflict: false,
            handler_ran: true,
        }
    }
}

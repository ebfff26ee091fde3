//! Activiti 6.0 and 7.1 on PostgreSQL: its differences from Flowable, as data for the shared rules.
//!
//! * Jobs have no time of creation, so the jobs of an instance have no order, and the waiting time
//!   of a job is unknown.
//! * Instances have no lock owner. The engine alone locks them.
//! * There is no REST interface for jobs: the execution endpoint runs them.
//! * A job that the engine gives back has a new id.

use std::sync::LazyLock;

use crate::act::{Family, Statements};
pub use crate::decode::OTHER;
use crate::options::Execution;

/// The types of Activiti's job handlers. Jobs of other handlers have the type [`OTHER`].
pub const HANDLER_TYPES: [&str; 7] = [
    "activate-processdefinition",
    "async-continuation",
    "event",
    OTHER,
    "suspend-processdefinition",
    "timer-start-event",
    "trigger-timer",
];

static ENDPOINT: LazyLock<Statements> =
    LazyLock::new(|| Statements::of(&FAMILY, Execution::Endpoint));

/// The description of Activiti.
pub(crate) static FAMILY: Family = Family {
    engine: "activiti",
    title: "Activiti",
    types: &HANDLER_TYPES,
    lacking: &[
        ("category_", "text"),
        ("element_id_", "text"),
        ("element_name_", "text"),
        ("scope_id_", "text"),
        ("sub_scope_id_", "text"),
        ("scope_type_", "text"),
        ("scope_definition_id_", "text"),
        ("correlation_id_", "text"),
        ("custom_values_id_", "text"),
        ("create_time_", "timestamp"),
        ("e.lock_owner_", "text"),
    ],
    has_external_jobs: false,
    foreign: Some(("scope_type_", "Flowable")),
    versions: &["6.0.", "7.1."],
    known: "Activiti 6.0 and 7.1",
    hand_over: "asyncExecutorActivate=false",
};

/// Returns its statements.
pub(crate) fn statements() -> &'static Statements {
    &ENDPOINT
}

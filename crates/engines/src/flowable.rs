//! Flowable 6.8 to 8.0 on PostgreSQL: its description, as data for the shared rules.
//!
//! Version 8 has no REST interface for jobs, so its jobs are executed over the endpoint. The jobs
//! of the other versions are executed over REST or the endpoint.

use std::sync::LazyLock;

use crate::act::{Family, Statements};
pub use crate::decode::OTHER;
use crate::options::Execution;

/// The types of Flowable's job handlers. Jobs of other handlers have the type [`OTHER`].
pub const HANDLER_TYPES: [&str; 18] = [
    "activate-processdefinition",
    "async-after",
    "async-complete-call-actiivty",
    "async-continuation",
    "async-send-event",
    "async-trigger",
    "bpmn-history-cleanup",
    "event",
    "external-worker-complete",
    "parallel-multi-instance-complete",
    "parallel-multi-instance-no-waits-async-leave",
    "process-migration",
    "process-migration-status",
    "set-async-variables",
    "suspend-processdefinition",
    "timer-start-event",
    "trigger-timer",
    OTHER,
];

static REST: LazyLock<Statements> = LazyLock::new(|| Statements::of(&FAMILY, Execution::Rest));
static ENDPOINT: LazyLock<Statements> =
    LazyLock::new(|| Statements::of(&FAMILY, Execution::Endpoint));

/// The description of Flowable.
pub(crate) static FAMILY: Family = Family {
    engine: "flowable",
    title: "Flowable",
    types: &HANDLER_TYPES,
    lacking: &[],
    has_external_jobs: true,
    foreign: None,
    versions: &["6.8.", "7.", "8.0."],
    known: "Flowable 6.8, 7 and 8.0",
    hand_over: "flowable.async-executor-activate=false",
};

/// Returns its statements for this way of execution.
pub(crate) fn statements(execution: Execution) -> &'static Statements {
    match execution {
        Execution::Endpoint => &ENDPOINT,
        _ => &REST,
    }
}

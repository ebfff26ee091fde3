//! Checks the event stream: its triggers, the broker, and the events that wait.

use jobwire_core::Store;

use super::finding::Findings;
use crate::commands::events::problem;
use crate::error::Error;
use crate::settings::Settings;

pub(super) async fn examine(settings: &Settings, store: &dyn Store, findings: &mut Findings) {
    let state = match store.event_stream_state().await {
        Ok(state) => state,
        Err(error) => return findings.error("events", Error::Store(error)),
    };
    if let Some((found, remedy)) = problem(settings, &state) {
        return findings.wrong("events", found, remedy);
    }
    match state.stream {
        None => findings.fine(
            "events",
            "the event stream is off; `jobwire events on` publishes the events of jobs",
        ),
        Some(_) => findings.fine("events", "the event stream is on"),
    }
}

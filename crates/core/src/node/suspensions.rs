//! The built-in handler of the jobs that suspend, activate, pause or resume at a date.

use std::sync::Arc;
use std::time::Duration;

use crate::producer::commit_hook::CommitHook;
use crate::producer::gate_change::GateChange;
use crate::store::{MAX_NAMES, SUSPENSION_TYPE, Store, StoreError};
use crate::worker::handler::{HandlerError, Handlers, Outcome, Running};

/// The time after which a change looks again whether those with earlier dates are made.
const IN_TURN: Duration = Duration::from_secs(2);

/// Adds the handler, unless the user has registered one for this type, the node has as many types
/// as it may have, or the store has no suspensions.
pub(super) fn serve(handlers: &mut Handlers, store: &Arc<dyn Store>, hook: &CommitHook) {
    let known = handlers.types();
    let has_room = known.len() < MAX_NAMES;
    if !store.has_suspensions() || !has_room || handlers.get(SUSPENSION_TYPE).is_some() {
        return;
    }
    let (store, hook) = (store.clone(), hook.clone());
    handlers.add(
        SUSPENSION_TYPE,
        move |job: Running<Box<serde_json::value::RawValue>>| {
            let (store, hook) = (store.clone(), hook.clone());
            async move {
                let change =
                    GateChange::parse(job.payload.get()).map_err(HandlerError::unrecoverable)?;
                // The look comes first: see `GateChange::earlier`.
                let earlier = GateChange::earlier(&*store, &job.job).await;
                let earlier = match earlier.map_err(failed) {
                    // An end is made all the same, and looks again after that.
                    Err(error) if change.begins() => return Err(error),
                    Ok(earlier) if change.begins() && (earlier.begins || earlier.ends) => {
                        return Ok(Outcome::Snooze(IN_TURN));
                    }
                    earlier => earlier,
                };
                let changed = change.make(&*store, &hook).await.map_err(failed)?;
                let earlier = earlier?;
                // What ends nothing and runs again is not told.
                if !changed.changed && earlier.begins {
                    return Ok(Outcome::Snooze(IN_TURN));
                }
                tracing::info!(
                    action = change.action(),
                    scope = change.gate().scope(),
                    value = %change.gate().name(),
                    changed = changed.changed,
                    moved = changed.moved,
                    hinted = changed.hinted,
                    refused = changed.refused.len(),
                    "a suspension or pause was changed at its date"
                );
                if earlier.begins {
                    return Ok(Outcome::Snooze(IN_TURN));
                }
                Ok(Outcome::Done)
            }
        },
    );
}

/// An error of a database that is away, or lacks resources, spends no attempt: nothing else ends a pause at its date. A
/// statement that takes too long does, so that an operator learns of it.
fn failed(error: StoreError) -> HandlerError {
    if error.is_unanswered() {
        HandlerError::conflict(error.to_string())
    } else {
        HandlerError::retry(error.to_string())
    }
}

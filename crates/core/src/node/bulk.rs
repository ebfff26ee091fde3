//! The built-in handler of bulk operations.

use std::sync::Arc;

use crate::producer::bulk::{BULK_TYPE, BulkAccount, BulkOperation};
use crate::producer::commit_hook::CommitHook;
use crate::store::{MAX_NAMES, Store, StoreError};
use crate::worker::checkpoint::CheckpointError;
use crate::worker::handler::{HandlerError, Handlers, Outcome, Running};

/// Adds the handler, unless the user has registered one for this type, the node has as many types
/// as it may have, or the store is that of an engine.
pub(super) fn serve(handlers: &mut Handlers, store: &Arc<dyn Store>, hook: &CommitHook) {
    let has_room = handlers.types().len() < MAX_NAMES;
    if !store.has_batches() || !has_room || handlers.get(BULK_TYPE).is_some() {
        return;
    }
    let (store, hook) = (store.clone(), hook.clone());
    handlers.add(
        BULK_TYPE,
        move |job: Running<Box<serde_json::value::RawValue>>| {
            let (store, hook) = (store.clone(), hook.clone());
            async move { run(&*store, &hook, &job).await }
        },
    );
}

async fn run(
    store: &dyn Store,
    hook: &CommitHook,
    job: &Running<Box<serde_json::value::RawValue>>,
) -> Result<Outcome, HandlerError> {
    let operation = BulkOperation::parse(job.payload.get()).map_err(HandlerError::unrecoverable)?;
    let saved: Option<BulkAccount> = job.checkpoint().await.map_err(not_saved)?;
    let mut account = saved.unwrap_or_default();
    if account.total.is_none() {
        account.total = Some(operation.total(store, &job.job).await.map_err(failed)?);
    }
    job.progress(account.progress());
    while operation
        .page(store, hook, &job.job, &mut account)
        .await
        .map_err(failed)?
    {
        crash_point!("bulk-page-done");
        job.save_checkpoint(&account).await.map_err(not_saved)?;
        job.progress(account.progress());
        if job.stop.is_cancelled() {
            return Err(HandlerError::conflict("the operation was asked to stop"));
        }
    }
    tracing::info!(
        job = %job.job.id,
        action = ?operation.action(),
        done = account.done,
        skipped = account.skipped,
        refused = account.refused,
        "a bulk operation has ended"
    );
    Ok(Outcome::Done)
}

/// An error of a database that is away spends no attempt.
fn failed(error: StoreError) -> HandlerError {
    if error.is_transient() && !error.is_answer() {
        HandlerError::conflict(error.to_string())
    } else {
        HandlerError::retry(error.to_string())
    }
}

fn not_saved(error: CheckpointError) -> HandlerError {
    match error {
        CheckpointError::Store(error) => failed(error),
        other => HandlerError::retry(other.to_string()),
    }
}

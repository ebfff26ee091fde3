//! The built-in handler of bulk operations.

use std::sync::Arc;

use crate::job::JobId;
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
    let is_new = saved.is_none();
    let mut account = saved.unwrap_or_default();
    if is_new {
        account.total = counted(operation.total(store, &job.job).await, job.job.id)?;
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

/// Returns the number of matching jobs, if they could be counted. It is only for the progress, so the
/// operation goes on without it. Fails if the database is away.
fn counted(total: Result<u64, StoreError>, job: JobId) -> Result<Option<u64>, HandlerError> {
    match total {
        Ok(total) => Ok(Some(total)),
        Err(error) if error.is_answer() || matches!(error, StoreError::Timeout(_)) => {
            tracing::info!(
                %job, %error,
                "could not count the jobs of a bulk operation; its progress has no total"
            );
            Ok(None)
        }
        Err(error) => Err(failed(error)),
    }
}

/// A conflict, and an error of a database that is away or lacks resources, spend no attempt.
fn failed(error: StoreError) -> HandlerError {
    if error.is_conflict() || error.is_unanswered() {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::error::tests::said;
    use crate::worker::outcome::Verdict;

    #[test]
    fn an_operation_whose_jobs_cannot_be_counted_goes_on_without_a_total() {
        let job = JobId::generate();
        assert_eq!(counted(Ok(7), job).unwrap(), Some(7));
        // A statement timeout, and no answer in time.
        let slow = StoreError::Timeout(Duration::from_secs(17));
        for error in [said("57014"), slow] {
            assert_eq!(counted(Err(error), job).unwrap(), None);
        }
        let away = counted(Err(said("57P01")), job).unwrap_err();
        assert_eq!(away.verdict, Verdict::Conflict);
    }

    #[test]
    fn a_conflict_and_an_absent_database_spend_no_attempt_of_an_operation() {
        for (code, verdict) in [
            ("40001", Verdict::Conflict),
            ("55P03", Verdict::Conflict),
            ("08006", Verdict::Conflict),
            ("57014", Verdict::Retry(None)),
            ("42501", Verdict::Retry(None)),
        ] {
            assert_eq!(failed(said(code)).verdict, verdict, "{code}");
        }
    }
}

//! The client's operations on batches.

use std::collections::HashSet;

use metrics::counter;

use crate::job::batch::BatchView;
use crate::job::{BatchId, JobId};
use crate::producer::client::Client;
use crate::producer::commit_hook::CommitHook;
use crate::store::{Action, Operated, SqlStore, Store, StoreError};
use crate::telemetry::metrics as m;
use crate::transport::Control;

/// Maximum number of members that are deleted in one transaction.
const PAGE: i64 = 500;

/// The result of the cancel of a batch.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct BatchCancelled {
    /// False if the batch had ended, or was cancelled before.
    pub changed: bool,
    /// The members that were deleted.
    pub deleted: Vec<JobId>,
    /// The members that run. Their handlers are asked to stop, and they are deleted then.
    pub running: Vec<JobId>,
    /// The members that the database refused to delete, and why.
    pub refused: Vec<(JobId, String)>,
}

/// Cancels a batch and the open batches inside it: their ends create no job, and their members are
/// deleted. An interrupted cancel is continued by another call: it finds the batches inside by the
/// members that this call forgets last.
///
/// # Errors
/// A database error.
pub async fn cancel(
    store: &dyn Store,
    hook: &CommitHook,
    batch: BatchId,
) -> Result<BatchCancelled, StoreError> {
    let mut cancelled = BatchCancelled {
        changed: mark(store, batch).await?,
        ..BatchCancelled::default()
    };
    // By SQL, batches may be inside each other in a circle.
    let (mut seen, mut left) = (HashSet::from([batch]), vec![batch]);
    let mut nesting = Vec::new();
    while let Some(batch) = left.pop() {
        let mut after = None;
        loop {
            let page = store.batch_members(batch, after, PAGE).await?;
            let Some(last) = page.jobs.last() else { break };
            after = Some(*last);
            // The batches inside come first: one that has ended meanwhile has created its job, and
            // the page's jobs are deleted afterwards.
            let nests = !page.inner.is_empty();
            for inner in page.inner {
                if seen.insert(inner) {
                    cancelled.changed |= mark(store, inner).await?;
                    left.push(inner);
                }
            }
            delete(store, hook, &page.jobs, &mut cancelled).await?;
            if nests {
                nesting.push((batch, page.jobs));
            } else {
                store.forget_batch_members(batch, &page.jobs).await?;
            }
        }
    }
    for (batch, members) in nesting {
        store.forget_batch_members(batch, &members).await?;
    }
    Ok(cancelled)
}

/// Marks a batch as cancelled, if it is open.
async fn mark(store: &dyn Store, batch: BatchId) -> Result<bool, StoreError> {
    let changed = store.cancel_batch(batch).await?;
    if changed {
        counter!(m::BATCHES_ENDED, "outcome" => "cancelled").increment(1);
    }
    Ok(changed)
}

async fn delete(
    store: &dyn Store,
    hook: &CommitHook,
    jobs: &[JobId],
    cancelled: &mut BatchCancelled,
) -> Result<(), StoreError> {
    let deleted = store.delete_many(jobs).await?;
    hook.operated(store, deleted.ready).await;
    cancelled.refused.extend(deleted.refused);
    for (job, mut operated) in deleted.operated {
        if operated == Operated::Running {
            let (now, ready) = store.cancel(job).await?;
            hook.operated(store, ready).await;
            operated = now;
        }
        match operated {
            Operated::Done => cancelled.deleted.push(job),
            Operated::Running => {
                hook.tell(Control::Cancel { job });
                cancelled.running.push(job);
            }
            _ => {}
        }
    }
    Ok(())
}

impl<S: SqlStore> Client<S> {
    /// Returns a batch with its numbers of members; `None` if it does not exist. Ended batches are
    /// kept as long as [resolved incidents](crate::NodeOptions::incidents_kept). Reads the members.
    ///
    /// # Errors
    /// A database error.
    pub async fn batch(&self, batch: BatchId) -> Result<Option<BatchView>, StoreError> {
        self.store.batch(batch).await
    }

    /// Returns the open batches, the latest first, at most `limit`. Reads their members.
    ///
    /// # Errors
    /// A database error.
    pub async fn open_batches(&self, limit: i64) -> Result<Vec<BatchView>, StoreError> {
        self.store.batches(false, limit).await
    }

    /// Returns all batches, the latest first, at most `limit`. Reads their members.
    ///
    /// # Errors
    /// A database error.
    pub async fn batches(&self, limit: i64) -> Result<Vec<BatchView>, StoreError> {
        self.store.batches(true, limit).await
    }

    /// Cancels a batch: its end creates no job, no job can be added, and its members are deleted,
    /// also those that run. Open batches whose jobs at the end are members are cancelled, too.
    ///
    /// # Errors
    /// A database error: another call continues.
    pub async fn cancel_batch(&self, batch: BatchId) -> Result<BatchCancelled, StoreError> {
        let cancelled = cancel(&self.store, &self.hook, batch).await?;
        let of = |jobs: &[JobId], how| jobs.iter().map(|job| (*job, how)).collect::<Vec<_>>();
        let mut told = of(&cancelled.deleted, Operated::Done);
        told.extend(of(&cancelled.running, Operated::Running));
        self.tell(&Action::Cancel, &told, &[]);
        Ok(cancelled)
    }
}

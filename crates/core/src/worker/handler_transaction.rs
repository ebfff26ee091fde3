//! The transaction in which a handler works and which completes its job.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMappedMutexGuard, OwnedMutexGuard};

use crate::job::batch::Batch;
use crate::job::new_job::NewJob;
use crate::job::sealed::Encryption;
use crate::job::{BatchId, JobId};
use crate::store::transaction::JobTransaction;
use crate::store::{CompletingTransaction, Creation, SqlStore, StoreError};

/// The open transaction, until it is completed or rolled back.
type Open = Option<Box<dyn CompletingTransaction>>;
type Slot = Arc<Mutex<Open>>;

/// The slot in which a handler finds its transaction.
#[derive(Clone, Default)]
pub(crate) struct HandlerTransaction {
    slot: Option<Slot>,
    encryption: Option<Encryption>,
}

impl HandlerTransaction {
    /// Holds a transaction whose new jobs are encrypted in this way.
    pub(crate) fn holding(
        transaction: Box<dyn CompletingTransaction>,
        encryption: Option<Encryption>,
    ) -> Self {
        Self {
            slot: Some(Arc::new(Mutex::new(Some(transaction)))),
            encryption,
        }
    }

    /// Returns whether the handler works in a transaction.
    pub(crate) fn is_there(&self) -> bool {
        self.slot.is_some()
    }

    pub(crate) async fn lock<S: SqlStore>(&self) -> Result<TransactionGuard<S>, TransactionError> {
        let slot = self.slot.clone().ok_or(TransactionError::NotRegistered)?;
        let guard = slot.lock_owned().await;
        if guard.is_none() {
            return Err(TransactionError::Ended);
        }
        fn downcast<S: SqlStore>(open: &mut Open) -> Option<&mut JobTransaction<S>> {
            open.as_mut()?.as_any().downcast_mut()
        }
        let mut transaction = OwnedMutexGuard::try_map(guard, downcast::<S>)
            .map_err(|_| TransactionError::OtherStore)?;
        transaction.encrypt_with(self.encryption.clone());
        Ok(TransactionGuard(transaction))
    }

    /// Takes the transaction back after the handler ended. Returns `None` if a task of the handler
    /// still holds a guard. Nothing may be committed then, because the task may still write.
    pub(crate) fn take(&self) -> Option<Box<dyn CompletingTransaction>> {
        self.slot.as_ref()?.try_lock().ok()?.take()
    }
}

/// The reason why a handler gets no transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransactionError {
    /// The handler is not registered [`in_transaction`](crate::HandlerOptions::in_transaction).
    #[error("the handler is not registered with `HandlerOptions::in_transaction`")]
    NotRegistered,
    /// The node works on another kind of store.
    #[error("the node has another kind of store; name that store in `Running::transaction`")]
    OtherStore,
    /// The handler has ended.
    #[error("the transaction has ended; use it before the handler returns")]
    Ended,
}

/// The completing transaction, while the handler works in it. It dereferences to the connection:
/// `sqlx::query(…).execute(&mut *tx)`. Drop it before the handler returns.
pub struct TransactionGuard<S: SqlStore>(OwnedMappedMutexGuard<Open, JobTransaction<S>>);

impl<S: SqlStore> TransactionGuard<S> {
    /// Creates a job that exists if and only if this one is completed.
    ///
    /// # Errors
    /// The same as those of [`JobTransaction::create`].
    pub async fn create(&mut self, job: NewJob) -> Result<JobId, StoreError> {
        self.0.create(job).await
    }

    /// Creates a job unless another one has its unique key; see [`JobTransaction::create_unique`].
    ///
    /// # Errors
    /// The same as those of [`JobTransaction::create`].
    pub async fn create_unique(&mut self, job: NewJob) -> Result<Creation, StoreError> {
        self.0.create_unique(job).await
    }

    /// Creates many jobs in few statements. Returns their ids in the same order.
    ///
    /// # Errors
    /// The same as those of [`JobTransaction::create`].
    pub async fn create_many(&mut self, jobs: Vec<NewJob>) -> Result<Vec<JobId>, StoreError> {
        self.0.create_many(jobs).await
    }

    /// Creates a batch and its first jobs; see [`JobTransaction::create_batch`].
    ///
    /// # Errors
    /// The same as those of [`JobTransaction::create_batch`].
    pub async fn create_batch(&mut self, batch: Batch) -> Result<BatchId, StoreError> {
        self.0.create_batch(batch).await
    }

    /// Returns the transaction, for code that is shared with producers.
    pub fn transaction(&mut self) -> &mut JobTransaction<S> {
        &mut self.0
    }
}

impl<S: SqlStore> Deref for TransactionGuard<S> {
    type Target = <S::Db as sqlx::Database>::Connection;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<S: SqlStore> DerefMut for TransactionGuard<S> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

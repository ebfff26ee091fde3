//! The transaction in which a handler works and which completes its job.

use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::store::transaction::JobTransaction;
use crate::store::{CompletingTransaction, SqlStore};

/// The open transaction, until it is completed or rolled back.
type Slot = Arc<Mutex<Option<Box<dyn CompletingTransaction>>>>;

/// Where a handler finds its transaction.
#[derive(Clone, Default)]
pub(crate) struct HandlerTransaction(Option<Slot>);

impl HandlerTransaction {
    pub(crate) fn holding(transaction: Box<dyn CompletingTransaction>) -> Self {
        Self(Some(Arc::new(Mutex::new(Some(transaction)))))
    }

    pub(crate) async fn lock<S: SqlStore>(&self) -> Result<TransactionGuard<S>, TransactionError> {
        let slot = self.0.clone().ok_or(TransactionError::NotRegistered)?;
        let mut guard = slot.lock_owned().await;
        let transaction = guard.as_mut().ok_or(TransactionError::Ended)?;
        if !transaction.as_any().is::<JobTransaction<S>>() {
            return Err(TransactionError::OtherStore);
        }
        Ok(TransactionGuard {
            guard,
            store: std::marker::PhantomData,
        })
    }

    /// Take it back after the handler ended. `None` where the handler kept a guard alive in a task of
    /// its own: its writes can't be told from a later job's, so nothing may commit.
    pub(crate) fn take(&self) -> Option<Box<dyn CompletingTransaction>> {
        self.0.as_ref()?.try_lock().ok()?.take()
    }
}

/// Why a handler gets no transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransactionError {
    /// Register the handler with [`HandlerOptions::in_transaction`](crate::HandlerOptions::in_transaction).
    #[error("this handler is not registered `in_transaction`")]
    NotRegistered,
    /// The node's store is of another database.
    #[error("the node works on another kind of store; ask for that one's transaction")]
    OtherStore,
    /// The handler has ended.
    #[error("the transaction has ended with its handler")]
    Ended,
}

/// The completing transaction, while the handler works in it.
pub struct TransactionGuard<S: SqlStore> {
    guard: OwnedMutexGuard<Option<Box<dyn CompletingTransaction>>>,
    store: std::marker::PhantomData<S>,
}

impl<S: SqlStore> TransactionGuard<S> {
    /// The transaction.
    ///
    /// # Errors
    /// [`TransactionError::Ended`], never while the handler runs.
    pub fn get(&mut self) -> Result<&mut JobTransaction<S>, TransactionError> {
        self.guard
            .as_mut()
            .and_then(|tx| tx.as_any().downcast_mut())
            .ok_or(TransactionError::Ended)
    }
}

//! A caller: its transactions, and what its client publishes.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use jobwire_core::chrono::{DateTime, Utc};
use jobwire_core::hint::Marker;
use jobwire_core::store::{Change, Operated, SuspensionScope};
use jobwire_core::transport::{Control, Publisher, TransportError, TransportHealth};
use jobwire_core::{
    Client, CommitHook, Hint, HookOptions, JobId, JobTransaction, Lane, StoreError, TransactionHook,
};

use super::super::world::{SqlBench, World};

/// What a client has published.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Told {
    pub(super) hints: Vec<JobId>,
    pub(super) timers: Vec<DateTime<Utc>>,
    pub(super) stop: Vec<JobId>,
}

/// A broker that records what is published.
#[derive(Clone, Default)]
pub(super) struct Outlet(Arc<Mutex<Told>>);

impl Outlet {
    pub(super) fn told(&self) -> Told {
        self.0.lock().unwrap().clone()
    }

    pub(super) fn client<S: SqlBench>(&self, w: &World<S>) -> Client<S> {
        let hook = CommitHook::start(Arc::new(self.clone()), HookOptions::default());
        Client::new(w.store.clone(), hook)
    }
}

#[async_trait]
impl Publisher for Outlet {
    async fn publish(&self, _lane: &Lane, hints: Vec<Hint>) -> Result<(), TransportError> {
        let hints = hints.into_iter().map(|hint| hint.id);
        self.0.lock().unwrap().hints.extend(hints);
        Ok(())
    }

    async fn publish_marker(&self, _lane: &Lane, _marker: Marker) -> Result<(), TransportError> {
        Ok(())
    }

    fn tell(&self, control: Control) -> bool {
        let mut told = self.0.lock().unwrap();
        match control {
            Control::TimerSet { due } => told.timers.push(due),
            Control::Cancel { job } => told.stop.push(job),
            _ => {}
        }
        true
    }

    fn health(&self) -> TransportHealth {
        TransportHealth {
            publishing: true,
            ..TransportHealth::default()
        }
    }
}

/// The two kinds of a caller's transaction.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    OfTheClient,
    OfTheCaller,
}

pub(super) const KINDS: [Kind; 2] = [Kind::OfTheClient, Kind::OfTheCaller];

pub(super) enum Transaction<S: SqlBench> {
    OfTheClient(JobTransaction<S>),
    OfTheCaller(sqlx::Transaction<'static, S::Db>, TransactionHook<S>),
}

#[derive(Clone, Debug)]
pub(super) enum Operation {
    Retry,
    RetryMany,
    Delete,
    DeleteMany,
    Cancel,
    Unlock,
    Change(Change),
}

/// The attempts that a retry gives.
pub(super) const RETRIED: i32 = 7;

impl<S: SqlBench> Transaction<S> {
    /// Begins a transaction, and writes a row of the caller.
    pub(super) async fn begin(kind: Kind, client: &Client<S>) -> Self {
        const ROW: &str = "INSERT INTO {s}orders (number) VALUES (17)";
        match kind {
            Kind::OfTheClient => {
                let mut tx = client.begin().await.unwrap();
                S::execute_in(&mut tx, ROW).await;
                Self::OfTheClient(tx)
            }
            Kind::OfTheCaller => {
                let mut tx = client.store().begin().await.unwrap();
                S::execute_in(&mut tx, ROW).await;
                Self::OfTheCaller(tx, client.hook())
            }
        }
    }

    /// Performs an operation on these jobs; one for a single job on the first.
    pub(super) async fn operate(
        &mut self,
        operation: &Operation,
        ids: &[JobId],
    ) -> Result<Vec<(JobId, Operated)>, StoreError> {
        let id = ids[0];
        let alone = |told: Result<Operated, StoreError>| told.map(|how| vec![(id, how)]);
        match self {
            Self::OfTheClient(tx) => match operation {
                Operation::Retry => alone(tx.retry(id, RETRIED).await),
                Operation::RetryMany => tx.retry_many(ids, RETRIED).await,
                Operation::Delete => alone(tx.delete(id).await),
                Operation::DeleteMany => tx.delete_many(ids).await,
                Operation::Cancel => alone(tx.cancel(id).await),
                Operation::Unlock => alone(tx.unlock(id).await),
                Operation::Change(change) => tx.change(ids, change).await,
            },
            Self::OfTheCaller(tx, hook) => match operation {
                Operation::Retry => alone(hook.retry(tx, id, RETRIED).await),
                Operation::RetryMany => hook.retry_many(tx, ids, RETRIED).await,
                Operation::Delete => alone(hook.delete(tx, id).await),
                Operation::DeleteMany => hook.delete_many(tx, ids).await,
                Operation::Cancel => alone(hook.cancel(tx, id).await),
                Operation::Unlock => alone(hook.unlock(tx, id).await),
                Operation::Change(change) => hook.change(tx, ids, change).await,
            },
        }
    }

    pub(super) async fn suspend(&mut self, scope: &SuspensionScope) -> Result<bool, StoreError> {
        match self {
            Self::OfTheClient(tx) => tx.suspend(scope).await,
            Self::OfTheCaller(tx, hook) => hook.suspend(tx, scope).await,
        }
    }

    pub(super) async fn activate(
        &mut self,
        scope: &SuspensionScope,
    ) -> Result<Option<u64>, StoreError> {
        match self {
            Self::OfTheClient(tx) => tx.activate(scope).await,
            Self::OfTheCaller(tx, hook) => hook.activate(tx, scope).await,
        }
    }

    pub(super) async fn commit(self) -> Result<(), StoreError> {
        match self {
            Self::OfTheClient(tx) => tx.commit().await,
            Self::OfTheCaller(tx, hook) => hook.commit(tx).await,
        }
    }

    pub(super) async fn rollback(self) {
        match self {
            Self::OfTheClient(tx) => tx.rollback().await.unwrap(),
            Self::OfTheCaller(tx, hook) => {
                tx.rollback().await.unwrap();
                drop(hook);
            }
        }
    }
}

pub(super) async fn with_orders<S: SqlBench>(w: &World<S>) {
    let table = "CREATE TABLE {s}orders (number bigint)";
    w.store.execute(table).await;
}

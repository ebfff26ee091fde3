//! Jobs inside transactions: the creator's, and the one that completes a job.
//!
//! # Creating
//! A job exists if and only if the transaction that created it committed; its hint leaves after the
//! commit returned. Two ways, the same promise:
//!
//! ```no_run
//! # async fn example(jobs: jobwire_core::Jobs<jobwire_core::PgStore>, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! use jobwire_core::NewJob;
//!
//! // Jobwire's transaction: `commit` publishes.
//! let mut tx = jobs.begin().await?;
//! sqlx::query("INSERT INTO orders (id) VALUES (17)").execute(&mut **tx).await?;
//! tx.create(NewJob::of("send-invoice", &17).instance("order-17")).await?;
//! tx.commit().await?;
//!
//! // Your own transaction: the hook commits it, or is fired after your commit. A hook that is dropped
//! // instead costs latency, not the job: the sweeper finds it.
//! let mut tx = pool.begin().await?;
//! let mut hook = jobs.hook();
//! sqlx::query("INSERT INTO orders (id) VALUES (18)").execute(&mut *tx).await?;
//! hook.create(&mut tx, NewJob::of("send-invoice", &18).instance("order-18")).await?;
//! hook.commit(tx).await?; // or tx.commit().await?, then hook.fire(): see there
//! # Ok(()) }
//! ```
//!
//! # Completing
//! A handler that is registered `in_transaction` gets the same [`JobTransaction`] from
//! [`Running::transaction`](crate::Running::transaction): its writes, the jobs it creates and the
//! completion of its own job commit together.

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit};

use crate::commit_hook::CommitHook;
use crate::error::StoreError;
use crate::job::{JobId, NodeId};
use crate::new_job::NewJob;
use crate::store::{
    CompletingTransaction, Completion, Created, Fate, HandOver, Origin, Settled, SqlStore,
    answer_within,
};

/// Creates jobs: a store, and the hook that publishes after commit. Cheap to clone.
#[derive(Clone)]
pub struct Jobs<S: SqlStore> {
    store: S,
    hook: CommitHook,
    origin: Origin,
}

impl<S: SqlStore> Jobs<S> {
    /// Jobs whose hints leave through `hook`.
    #[must_use]
    pub fn new(store: S, hook: CommitHook) -> Self {
        Self {
            store,
            hook,
            origin: Origin::Hook,
        }
    }

    /// Jobs of a process that has no transport: the sweeper hints them.
    #[must_use]
    pub fn without_hints(store: S) -> Self {
        Self {
            store,
            hook: CommitHook::disconnected(),
            origin: Origin::Sql,
        }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Open a transaction whose [`commit`](JobTransaction::commit) publishes.
    ///
    /// # Errors
    /// What the database says.
    pub async fn begin(&self) -> Result<JobTransaction<S>, StoreError> {
        let turn = self.store.turn_to_hold().await?;
        Ok(self.over(self.store.begin().await?, turn))
    }

    /// The same over a transaction that is open already.
    pub(crate) fn over(
        &self,
        inner: sqlx::Transaction<'static, S::Db>,
        turn: Option<OwnedSemaphorePermit>,
    ) -> JobTransaction<S> {
        JobTransaction {
            inner,
            created: Created::default(),
            jobs: self.clone(),
            _turn: turn,
        }
    }

    /// Create one job in a transaction of its own.
    ///
    /// # Errors
    /// [`StoreError::InvalidJob`], or what the database says.
    pub async fn create(&self, job: NewJob) -> Result<JobId, StoreError> {
        let mut tx = self.begin().await?;
        let id = tx.create(job).await?;
        tx.commit().await?;
        Ok(id)
    }

    /// A hook for a transaction of your own.
    pub fn hook(&self) -> TransactionHook<S> {
        TransactionHook {
            jobs: self.clone(),
            created: Created::default(),
        }
    }
}

/// Collects what is created in a transaction of yours; [`fire`](Self::fire) it after your commit.
#[must_use = "fire the hook after your commit, else the sweeper has to find the jobs"]
pub struct TransactionHook<S: SqlStore> {
    jobs: Jobs<S>,
    created: Created,
}

impl<S: SqlStore> TransactionHook<S> {
    /// Create a job over a connection that is inside your transaction.
    ///
    /// # Errors
    /// [`StoreError::InvalidJob`], or what the database says.
    pub async fn create(
        &mut self,
        connection: &mut <S::Db as sqlx::Database>::Connection,
        job: NewJob,
    ) -> Result<JobId, StoreError> {
        let id = job.id();
        self.create_many(connection, vec![job]).await?;
        Ok(id)
    }

    /// Create many jobs in few statements.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub async fn create_many(
        &mut self,
        connection: &mut <S::Db as sqlx::Database>::Connection,
        jobs: Vec<NewJob>,
    ) -> Result<(), StoreError> {
        let created = self
            .jobs
            .store
            .insert(connection, jobs, self.jobs.origin)
            .await?;
        self.created.merge(created);
        Ok(())
    }

    /// Commit your transaction; then the hints leave.
    ///
    /// # Errors
    /// [`StoreError::TransactionFailed`] where one of its statements had failed: then nothing exists and nothing is
    /// published. Otherwise as [`JobTransaction::commit`].
    pub async fn commit(
        self,
        mut transaction: sqlx::Transaction<'_, S::Db>,
    ) -> Result<(), StoreError> {
        let Self { jobs, created } = self;
        let intact = jobs.store.ensure_intact(&mut transaction);
        answer(&jobs.store, 1, intact)
            .await
            .map_err(failed_before)?;
        let committing = async { Ok(transaction.commit().await?) };
        committed(&jobs.store, &created, committing).await?;
        jobs.hook.committed(created);
        Ok(())
    }

    /// Your transaction has committed: let the hints leave. Never waits.
    ///
    /// That COMMIT was answered without an error is not enough on PostgreSQL: where a statement of the transaction had
    /// failed, COMMIT rolls back, and sqlx answers `Ok`. Commit only where every statement has succeeded, or let
    /// [`commit`](Self::commit) see to it. Hints of jobs that do not exist cost a refused lock each and nothing more.
    pub fn fire(self) {
        self.jobs.hook.committed(self.created);
    }
}

/// A transaction in which jobs are created beside your own statements. Dereferences to
/// [`sqlx::Transaction`]. Dropping it rolls back.
pub struct JobTransaction<S: SqlStore> {
    inner: sqlx::Transaction<'static, S::Db>,
    created: Created,
    jobs: Jobs<S>,
    /// See [`SqlStore::turn_to_hold`].
    _turn: Option<OwnedSemaphorePermit>,
}

impl<S: SqlStore> Deref for JobTransaction<S> {
    type Target = sqlx::Transaction<'static, S::Db>;
    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl<S: SqlStore> DerefMut for JobTransaction<S> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.inner
    }
}

impl<S: SqlStore> JobTransaction<S> {
    /// Create a job.
    ///
    /// # Errors
    /// [`StoreError::InvalidJob`], or what the database says.
    pub async fn create(&mut self, job: NewJob) -> Result<JobId, StoreError> {
        let id = job.id();
        self.create_many(vec![job]).await?;
        Ok(id)
    }

    /// Create many jobs in few statements.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub async fn create_many(&mut self, jobs: Vec<NewJob>) -> Result<(), StoreError> {
        let Jobs { store, origin, .. } = &self.jobs;
        // Many jobs are several statements.
        let statements = u32::try_from(1 + jobs.len() / 500).unwrap_or(u32::MAX);
        let created = store.insert(&mut self.inner, jobs, *origin);
        let created = answer(store, statements, created).await?;
        self.created.merge(created);
        Ok(())
    }

    /// Commit; then the hints leave, without anybody waiting for the broker.
    ///
    /// # Errors
    /// What the database says: then nothing exists and nothing is published.
    /// [`StoreError::TransactionFailed`] where one of your statements had failed before, also if its error was passed over.
    /// (On SQLite a statement that fails undoes only itself, and the rest is committed.)
    /// [`StoreError::CommitUnknown`] where the answer was lost and the transaction's fate can't be
    /// learned: then the sweeper hints the jobs if they exist.
    pub async fn commit(self) -> Result<(), StoreError> {
        let Self {
            inner,
            created,
            jobs,
            _turn,
        } = self;
        committed(&jobs.store, &created, jobs.store.commit(inner)).await?;
        jobs.hook.committed(created);
        Ok(())
    }

    /// Undo everything.
    ///
    /// # Errors
    /// What the database says; the transaction is undone all the same when the connection closes.
    pub async fn roll_back(self) -> Result<(), StoreError> {
        let undone = self.inner.rollback();
        answer(&self.jobs.store, 1, async { Ok(undone.await?) }).await
    }
}

/// Wait for a COMMIT, and learn what became of it.
async fn committed<S: SqlStore>(
    store: &S,
    created: &Created,
    committing: impl Future<Output = Result<(), StoreError>>,
) -> Result<(), StoreError> {
    crash_point!("before-commit");
    let answer = answer(store, 1, async { Ok(committing.await) }).await;
    match answer.unwrap_or_else(|_| Err(lost_answer(store.deadline()).into())) {
        Ok(()) => {}
        // A refusal by the database is final.
        Err(refusal @ StoreError::Database(sqlx::Error::Database(_)))
            if !refusal.server_is_away() =>
        {
            return Err(failed_before(refusal));
        }
        Err(StoreError::Database(error)) => {
            let fate = learn_fate(store, created, error).await;
            fate.map_err(failed_before)?;
        }
        Err(error) => return Err(error),
    }
    crash_point!("committed");
    Ok(())
}

/// A statement was refused since an earlier one has failed.
fn failed_before(error: StoreError) -> StoreError {
    match error.sqlstate().as_deref() {
        Some("25P02") => StoreError::TransactionFailed,
        _ => error,
    }
}

/// Wait for the answer to so many statements.
async fn answer<S: SqlStore, T>(
    store: &S,
    statements: u32,
    question: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let within = store.deadline().saturating_mul(statements);
    answer_within(within, || store.suspect_connections(), question).await
}

/// Nobody answered in time, as on a connection whose other end is gone.
fn lost_answer(deadline: Duration) -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(
        std::io::ErrorKind::TimedOut,
        format!("no answer to COMMIT within {deadline:?}"),
    ))
}

/// COMMIT failed with its connection, which says nothing: ask for the transaction by its id (protocol rule 29).
async fn learn_fate<S: SqlStore>(
    store: &S,
    created: &Created,
    error: sqlx::Error,
) -> Result<(), StoreError> {
    let Some(transaction) = &created.transaction else {
        return Err(StoreError::CommitUnknown(error));
    };
    for wait in [0_u64, 50, 200, 1000, 2000] {
        tokio::time::sleep(Duration::from_millis(wait)).await;
        match store.committed(transaction).await {
            Ok(Fate::Committed) if is_there(store, created).await => return Ok(()),
            Ok(Fate::Committed) => return Err(StoreError::CommitUnknown(error)),
            Ok(Fate::RolledBack) => return Err(error.into()),
            Ok(Fate::Unknown) | Err(_) => {}
        }
    }
    Err(StoreError::CommitUnknown(error))
}

/// Is a job there that this transaction created? PostgreSQL may give the id of a transaction that a crash
/// undid to a later one, which then commits in its name. (A job that is not there may also be done already.)
async fn is_there<S: SqlStore>(store: &S, created: &Created) -> bool {
    match created.witness {
        Some(job) => matches!(store.get(job).await, Ok(Some(_))),
        None => false,
    }
}

#[async_trait]
impl<S: SqlStore> CompletingTransaction for JobTransaction<S> {
    fn as_any(&mut self) -> &mut (dyn Any + Send) {
        self
    }

    fn line_ends(&self) -> BoxFuture<'static, ()> {
        self.jobs.store.line_ends()
    }

    async fn complete(
        mut self: Box<Self>,
        owner: NodeId,
        completion: &Completion,
        then: &HandOver,
    ) -> Result<Settled, StoreError> {
        let store = &self.jobs.store;
        let settled = store.complete_in(&mut self.inner, owner, completion, then);
        // Its instance, itself, its next occurrence, and who comes next.
        let mut settled = answer(store, 4, settled).await.map_err(failed_before)?;
        if settled.applied.is_empty() {
            let _ = self.roll_back().await;
            return Err(StoreError::LostLock(completion.held.id));
        }
        crash_point!("completion-uncommitted");
        // Its last statement has just succeeded, so that COMMIT commits.
        let Self {
            inner,
            created,
            jobs,
            _turn,
        } = *self;
        let committing = async { Ok(inner.commit().await?) };
        committed(&jobs.store, &created, committing).await?;
        jobs.hook.committed(created);
        if !settled.unseen.is_empty() {
            match jobs.store.next_of(&settled.unseen).await {
                Ok(ready) => settled.ready.extend(ready),
                Err(error) => tracing::warn!(
                    %error, job = %completion.held.id,
                    "the next job of an instance could not be hinted; the sweeper will find it"
                ),
            }
        }
        Ok(settled)
    }

    async fn roll_back(self: Box<Self>) -> Result<(), StoreError> {
        JobTransaction::roll_back(*self).await
    }
}

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

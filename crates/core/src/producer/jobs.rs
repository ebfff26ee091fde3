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

use std::sync::Arc;

use crate::job::JobId;
use crate::job::new_job::NewJob;
use crate::producer::commit_hook::CommitHook;
#[cfg(feature = "postgres")]
use crate::store::postgres::PgStore;
#[cfg(feature = "sqlite")]
use crate::store::sqlite::SqliteStore;
use crate::store::transaction::{JobTransaction, answer, committed, failed_before};
use crate::store::{Created, Origin, SqlStore, StoreError};

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
        let turn = self.store.hold_permit().await?;
        let begun = self.store.begin().await?;
        let after = Arc::new(self.hook.clone());
        let store = self.store.clone();
        Ok(JobTransaction::over(store, begun, turn, self.origin, after))
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

#[cfg(feature = "postgres")]
impl PgStore {
    /// Creates jobs in this store. Their hints are published through `hook`.
    #[must_use]
    pub fn jobs(&self, hook: CommitHook) -> Jobs<Self> {
        Jobs::new(self.clone(), hook)
    }
}

#[cfg(feature = "sqlite")]
impl SqliteStore {
    /// Creates jobs in this store. Their hints are published through `hook`.
    #[must_use]
    pub fn jobs(&self, hook: CommitHook) -> Jobs<Self> {
        Jobs::new(self.clone(), hook)
    }
}

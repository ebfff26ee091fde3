//! The client: creates jobs inside transactions, and operates on jobs.
//!
//! # Creating jobs
//! A job exists if and only if the transaction that created it committed. Its hint is published
//! after COMMIT has returned. Both forms give the same guarantee:
//!
//! ```no_run
//! # async fn example(client: jobwire_core::Client<jobwire_core::PgStore>, pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! use jobwire_core::NewJob;
//!
//! // A transaction of the client: `commit` publishes.
//! let mut tx = client.begin().await?;
//! sqlx::query("INSERT INTO orders (id) VALUES (17)").execute(&mut *tx).await?;
//! tx.create(NewJob::of("send-invoice", &17).instance("order-17")).await?;
//! tx.commit().await?;
//!
//! // A transaction of your own: the hook commits it, or is fired after your commit. A hook that is
//! // dropped instead costs latency, not the job: the sweeper finds it.
//! let mut tx = pool.begin().await?;
//! let mut hook = client.hook();
//! sqlx::query("INSERT INTO orders (id) VALUES (18)").execute(&mut *tx).await?;
//! hook.create(&mut tx, NewJob::of("send-invoice", &18).instance("order-18")).await?;
//! hook.commit(tx).await?; // or tx.commit().await?, then hook.fire()
//! # Ok(()) }
//! ```
//!
//! # Operating on jobs
//! [`get`](Client::get), [`list`](Client::list), [`count`](Client::count),
//! [`retry`](Client::retry), [`delete`](Client::delete), [`cancel`](Client::cancel),
//! [`suspend`](Client::suspend), [`activate`](Client::activate), [`change`](Client::change),
//! [`unlock`](Client::unlock), [`end`](Client::end). Each publishes the hints of the
//! jobs that it made ready. For a client [without hints](Client::without_hints) the leader
//! publishes them.
//!
//! A [`JobTransaction`] and a [`TransactionHook`] have the methods `retry`, `delete`, `cancel`, `change`,
//! `unlock` and `end`, too. These commit with your statements or not at all.
//!
//! # Completing jobs
//! A handler that is registered `in_transaction` creates jobs in the transaction that completes its
//! own job: [`Running::transaction`](crate::Running::transaction).

use std::sync::Arc;

use crate::event::JobListener;
use crate::job::batch::Batch;
use crate::job::definition_key::DefinitionKey;
use crate::job::new_job::NewJob;
use crate::job::sealed::Encryption;
use crate::job::{BatchId, JobId};
use crate::producer::commit_hook::CommitHook;
use crate::store::created::{Noted, events_of_end};
#[cfg(feature = "postgres")]
use crate::store::postgres::PgStore;
#[cfg(feature = "sqlite")]
use crate::store::sqlite::SqliteStore;
use crate::store::transaction::operations::{committed_soon, committed_with};
use crate::store::transaction::{
    JobTransaction, answer, batch_parts, check_key, committed, dated, failed_before, sealed,
};
use crate::store::{Created, Creation, Ended, EndedScope, Origin, SqlStore, StoreError};

/// Creates jobs and operates on them, and publishes their hints through its hook. Needs no node.
/// Cheap to clone.
#[derive(Clone)]
pub struct Client<S: SqlStore> {
    pub(super) store: S,
    /// Shared with every transaction.
    pub(super) hook: Arc<CommitHook>,
    pub(super) origin: Origin,
    pub(super) encryption: Option<Encryption>,
}

impl<S: SqlStore> Client<S> {
    /// Creates a client that publishes hints through `hook`: the hook of a
    /// [node](crate::Node::hook) of the same process, or one that was [started](CommitHook::start)
    /// on a transport.
    #[must_use]
    pub fn new(store: S, hook: CommitHook) -> Self {
        Self {
            store,
            hook: Arc::new(hook),
            origin: Origin::Hook,
            encryption: None,
        }
    }

    /// Creates a client for a process without a transport. The leader publishes the hints in its
    /// next cycle, or within a second on SQLite with the in-process transport. A node learns of a
    /// [`cancel`](Self::cancel) with the next renewal of the lease.
    #[must_use]
    pub fn without_hints(store: S) -> Self {
        Self {
            store,
            hook: Arc::new(CommitHook::disconnected()),
            origin: Origin::Sql,
            encryption: None,
        }
    }

    /// Adds a [listener](crate::event) to this client and its later clones. It is told the events of
    /// what they create and change. A client over the hook of a node tells the node's listeners, too.
    #[must_use = "the listener belongs to the returned client"]
    pub fn listener(mut self, listener: impl JobListener) -> Self {
        self.hook = Arc::new(CommitHook::clone(&self.hook).listener(listener));
        self
    }

    /// Encrypts the payloads of the jobs that this client creates, and of the [periodic
    /// jobs](crate::PeriodicJob) that it declares. Give the nodes the [same
    /// encryption](crate::NodeOptions::encryption) first. Jobs of plain SQL stay plaintext.
    #[must_use]
    pub fn encrypting(mut self, encryption: Encryption) -> Self {
        self.encryption = Some(encryption);
        self
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Opens a transaction whose [`commit`](JobTransaction::commit) publishes the hints.
    ///
    /// # Errors
    /// A database error.
    pub async fn begin(&self) -> Result<JobTransaction<S>, StoreError> {
        let permit = self.store.hold_permit().await?;
        let begun = self.store.begin().await?;
        let after = self.hook.clone();
        let store = self.store.clone();
        let transaction = JobTransaction::over(store, begun, permit, self.origin, after);
        Ok(transaction.encrypting(self.encryption.clone()))
    }

    /// Creates one job in a separate transaction.
    ///
    /// # Errors
    /// [`StoreError::InvalidJob`], or a database error.
    pub async fn create(&self, job: NewJob) -> Result<JobId, StoreError> {
        self.create_unique(job).await.map(Creation::id)
    }

    /// Creates one job in a separate transaction, unless another one has its
    /// [unique key](NewJob::unique), and tells which of the two it was.
    ///
    /// # Errors
    /// The same as those of [`create`](Self::create).
    pub async fn create_unique(&self, job: NewJob) -> Result<Creation, StoreError> {
        let mut tx = self.begin().await?;
        let creation = tx.create_unique(job).await?;
        tx.commit().await?;
        Ok(creation)
    }

    /// Creates many jobs in one transaction. Returns their ids in the same order.
    ///
    /// # Errors
    /// [`StoreError::InvalidJob`], or a database error. Then none of the jobs exists.
    pub async fn create_many(&self, jobs: Vec<NewJob>) -> Result<Vec<JobId>, StoreError> {
        let mut tx = self.begin().await?;
        let ids = tx.create_many(jobs).await?;
        tx.commit().await?;
        Ok(ids)
    }

    /// Creates a [batch](Batch) and its first jobs in one transaction.
    ///
    /// # Errors
    /// The same as those of [`JobTransaction::create_batch`] and [`JobTransaction::commit`].
    pub async fn create_batch(&self, batch: Batch) -> Result<BatchId, StoreError> {
        let mut tx = self.begin().await?;
        let id = tx.create_batch(batch).await?;
        tx.commit().await?;
        Ok(id)
    }

    /// Returns a hook for your own transaction.
    pub fn hook(&self) -> TransactionHook<S> {
        TransactionHook {
            client: self.clone(),
            created: Created::default(),
        }
    }
}

/// Collects the jobs that your own transaction creates and changes. [Fire](Self::fire) it after your
/// commit.
///
/// The hook does not see a rollback to a savepoint of yours. Use one hook for each savepoint around
/// [`cancel`](Self::cancel) and other operations, and drop the hook when you roll back to the savepoint.
#[must_use = "fire the hook after your commit, else the sweeper has to find the jobs"]
pub struct TransactionHook<S: SqlStore> {
    pub(super) client: Client<S>,
    pub(super) created: Created,
}

impl<S: SqlStore> TransactionHook<S> {
    /// Creates a job over a connection that is inside your transaction.
    ///
    /// # Errors
    /// [`StoreError::InvalidJob`], or a database error.
    pub async fn create(
        &mut self,
        connection: &mut <S::Db as sqlx::Database>::Connection,
        job: NewJob,
    ) -> Result<JobId, StoreError> {
        let creation = self.create_unique(connection, job).await;
        creation.map(Creation::id)
    }

    /// Creates a job unless another one has its unique key; see [`JobTransaction::create_unique`].
    ///
    /// # Errors
    /// The same as those of [`create`](Self::create).
    pub async fn create_unique(
        &mut self,
        connection: &mut <S::Db as sqlx::Database>::Connection,
        job: NewJob,
    ) -> Result<Creation, StoreError> {
        let own = job.id();
        let ids = self.create_many(connection, vec![job]).await?;
        Ok(Creation::of(own, &ids))
    }

    /// Creates many jobs in few statements. Returns their ids in the same order.
    ///
    /// # Errors
    /// The same as those of [`create`](Self::create).
    pub async fn create_many(
        &mut self,
        connection: &mut <S::Db as sqlx::Database>::Connection,
        jobs: Vec<NewJob>,
    ) -> Result<Vec<JobId>, StoreError> {
        let ids = jobs.iter().map(NewJob::id).collect();
        let Client {
            store,
            origin,
            hook,
            encryption,
        } = &self.client;
        let jobs = dated(jobs, store.calendars())?;
        let jobs = sealed(encryption.as_ref(), jobs)?;
        let noted = Noted::of(hook.listeners().any(), &jobs);
        let mut created = store.insert(connection, jobs, *origin).await?;
        noted.note(&mut created);
        let ids = created.stands_for(ids);
        self.created.merge(created);
        Ok(ids)
    }

    /// Creates a batch and its first jobs; see [`JobTransaction::create_batch`].
    ///
    /// # Errors
    /// The same as those of [`JobTransaction::create_batch`].
    pub async fn create_batch(
        &mut self,
        connection: &mut <S::Db as sqlx::Database>::Connection,
        batch: Batch,
    ) -> Result<BatchId, StoreError> {
        let (row, jobs) = batch_parts(self.client.encryption.as_ref(), batch)?;
        self.client.store.insert_batch(connection, &row).await?;
        if !jobs.is_empty() {
            self.create_many(connection, jobs).await?;
        }
        Ok(row.id)
    }

    /// Deletes all jobs of a scope with your transaction; see [`JobTransaction::end`].
    ///
    /// # Errors
    /// The same as those of [`JobTransaction::end`].
    pub async fn end(
        &mut self,
        connection: &mut <S::Db as sqlx::Database>::Connection,
        scope: &EndedScope,
    ) -> Result<Ended, StoreError> {
        let ended = self.client.store.end(connection, scope, None).await?;
        self.created.end(&ended, None);
        if self.client.hook.listeners().any() {
            self.created.events.extend(events_of_end(&ended));
        }
        Ok(ended)
    }

    /// Replaces the start timers of a process definition; see
    /// [`JobTransaction::replace_start_timers`].
    ///
    /// # Errors
    /// The same as those of [`JobTransaction::replace_start_timers`].
    pub async fn replace_start_timers(
        &mut self,
        connection: &mut <S::Db as sqlx::Database>::Connection,
        process_definition: impl Into<String>,
        timers: Vec<NewJob>,
    ) -> Result<Ended, StoreError> {
        let obsolete = EndedScope::StartTimers(process_definition.into());
        let ended = self.end(connection, &obsolete).await?;
        self.create_many(connection, timers).await?;
        Ok(ended)
    }

    /// Replaces the start timers of a process definition in every version of its tenant; see
    /// [`JobTransaction::replace_start_timers_of_key`].
    ///
    /// # Errors
    /// The same as those of [`JobTransaction::replace_start_timers_of_key`].
    pub async fn replace_start_timers_of_key(
        &mut self,
        connection: &mut <S::Db as sqlx::Database>::Connection,
        key: &DefinitionKey,
        timers: Vec<NewJob>,
    ) -> Result<Ended, StoreError> {
        check_key(key, &timers)?;
        let obsolete = EndedScope::StartTimersOfKey(key.clone());
        let ended = self.end(connection, &obsolete).await?;
        self.create_many(connection, timers).await?;
        Ok(ended)
    }

    /// Commits your transaction and publishes the hints.
    ///
    /// # Errors
    /// [`StoreError::TransactionFailed`] if a statement of the transaction failed before, or an operation
    /// on jobs was interrupted: then nothing is committed and no hint is published. Otherwise as
    /// [`JobTransaction::commit`].
    pub async fn commit(
        self,
        mut transaction: sqlx::Transaction<'_, S::Db>,
    ) -> Result<(), StoreError> {
        let Self { client, created } = self;
        let intact = client.store.ensure_intact(&mut transaction);
        answer(&client.store, 1, intact)
            .await
            .map_err(failed_before)?;
        let committing = async { Ok(transaction.commit().await?) };
        committed(&client.store, &created, committing).await?;
        committed_with(&client.store, client.origin, &*client.hook, created).await;
        Ok(())
    }

    /// Publishes the hints after you have committed the transaction. Never waits.
    ///
    /// On PostgreSQL an answer to COMMIT without an error is not enough: if a statement of the
    /// transaction failed, COMMIT rolls back, and sqlx returns `Ok`. Commit only if every statement
    /// succeeded, or use [`commit`](Self::commit), which checks it. A hint of a job that does not
    /// exist costs one refused lock. The hook of a savepoint that was rolled back must not be fired: the
    /// message of a [`cancel`](Self::cancel) would stop a handler, and listeners would be told.
    ///
    /// The next jobs of instances that exclusive jobs left are looked up in a task of the runtime that
    /// calls this. Without a runtime the sweeper finds them.
    pub fn fire(self) {
        let Client {
            store,
            origin,
            hook,
            ..
        } = self.client;
        committed_soon(store, origin, hook, self.created);
    }
}

#[cfg(feature = "postgres")]
impl PgStore {
    /// Creates a [`Client`] of this store that publishes hints through `hook`.
    #[must_use]
    pub fn client(&self, hook: CommitHook) -> Client<Self> {
        Client::new(self.clone(), hook)
    }
}

#[cfg(feature = "sqlite")]
impl SqliteStore {
    /// Creates a [`Client`] of this store that publishes hints through `hook`.
    #[must_use]
    pub fn client(&self, hook: CommitHook) -> Client<Self> {
        Client::new(self.clone(), hook)
    }
}

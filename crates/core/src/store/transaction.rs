//! A transaction that creates jobs, operates on jobs, and may complete a job.
//!
//! After its COMMIT it passes the jobs that became ready to an [`AfterCommit`]. If the answer to COMMIT is
//! lost, the store is asked about the transaction by its id (protocol rule 29).

pub(crate) mod gates;
pub(crate) mod operations;

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    BatchOutcome, CompletingTransaction, Completion, Created, Creation, Ended, EndedScope, Fate,
    Handoff, Origin, SqlStore, StoreError, answer_within,
};
use crate::job::batch::Batch;
use crate::job::calendar::Calendars;
use crate::job::definition_key::DefinitionKey;
use crate::job::new_job::{InvalidJob, NewJob};
use crate::job::sealed::Encryption;
use crate::job::{BatchId, JobId, NodeId};
use crate::store::batches::NewBatch;
use crate::store::created::{Noted, events_of_end};

/// Receives the jobs that a transaction created, after its COMMIT.
pub trait AfterCommit: Send + Sync {
    /// Returns whether anyone listens to the events of the jobs. If not, the transaction notes none.
    fn listens(&self) -> bool {
        false
    }

    /// Receives the jobs of a committed transaction. Must not wait.
    fn committed(&self, created: Created);

    /// Waits until there is room for the hints of many more jobs. Returns false if the earlier ones do not
    /// leave.
    fn room(&self) -> BoxFuture<'_, bool> {
        Box::pin(std::future::ready(true))
    }
}

/// A transaction that creates jobs beside your own statements. It dereferences to the connection:
/// `sqlx::query(…).execute(&mut *tx)`. Dropping it rolls back.
pub struct JobTransaction<S: SqlStore> {
    inner: sqlx::Transaction<'static, S::Db>,
    /// Whether it is known that no statement has failed: each was a statement of the store, and has
    /// succeeded. If not, the transaction may be one that COMMIT rolls back.
    intact: bool,
    created: Created,
    store: S,
    origin: Origin,
    after: Arc<dyn AfterCommit>,
    encryption: Option<Encryption>,
    /// The job that this transaction completes, if it is that of a handler.
    own: Option<JobId>,
    /// See [`SqlStore::hold_permit`].
    _permit: Option<OwnedSemaphorePermit>,
}

impl<S: SqlStore> Deref for JobTransaction<S> {
    type Target = <S::Db as sqlx::Database>::Connection;
    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl<S: SqlStore> DerefMut for JobTransaction<S> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.intact = false;
        &mut self.inner
    }
}

impl<S: SqlStore> JobTransaction<S> {
    /// Wraps a transaction that has just begun.
    pub(crate) fn over(
        store: S,
        inner: sqlx::Transaction<'static, S::Db>,
        permit: Option<OwnedSemaphorePermit>,
        origin: Origin,
        after: Arc<dyn AfterCommit>,
    ) -> Self {
        Self {
            inner,
            intact: true,
            created: Created::default(),
            store,
            origin,
            after,
            encryption: None,
            own: None,
            _permit: permit,
        }
    }

    /// Encrypts the jobs that are created from now on.
    pub(crate) fn encrypting(mut self, encryption: Option<Encryption>) -> Self {
        self.encrypt_with(encryption);
        self
    }

    pub(crate) fn encrypt_with(&mut self, encryption: Option<Encryption>) {
        self.encryption = encryption;
    }

    /// Creates a job.
    ///
    /// # Errors
    /// [`StoreError::InvalidJob`], or a database error.
    pub async fn create(&mut self, job: NewJob) -> Result<JobId, StoreError> {
        self.create_unique(job).await.map(Creation::id)
    }

    /// Creates a job unless another one has its [unique key](NewJob::unique), and tells which of
    /// the two it was. Waits for a transaction that is creating a job with the same key.
    ///
    /// # Errors
    /// The same as those of [`create`](Self::create).
    pub async fn create_unique(&mut self, job: NewJob) -> Result<Creation, StoreError> {
        let own = job.id();
        let ids = self.create_many(vec![job]).await?;
        Ok(Creation::of(own, &ids))
    }

    /// Creates many jobs in few statements. Returns their ids in the same order: for a unique job
    /// whose key another one has, the id of that one.
    ///
    /// # Errors
    /// The same as those of [`create`](Self::create).
    pub async fn create_many(&mut self, jobs: Vec<NewJob>) -> Result<Vec<JobId>, StoreError> {
        let ids = jobs.iter().map(NewJob::id).collect();
        let Self {
            store,
            origin,
            inner,
            intact,
            after,
            encryption,
            ..
        } = self;
        let jobs = dated(jobs, store.calendars())?;
        let jobs = sealed(encryption.as_ref(), jobs)?;
        // Many jobs take several statements.
        let statements = u32::try_from(1 + jobs.len() / 500).unwrap_or(u32::MAX);
        let noted = Noted::of(after.listens(), &jobs);
        let created = store.insert(inner, jobs, *origin);
        let mut created = own(intact, answer(store, statements, created)).await?;
        noted.note(&mut created);
        let ids = created.stands_for(ids);
        self.created.merge(created);
        Ok(ids)
    }

    /// Creates a [batch](Batch) and its first jobs. Returns its id, for jobs that are
    /// [added](NewJob::batch) later.
    ///
    /// # Errors
    /// [`StoreError::InvalidJob`]: the name, the job at the end, or a member.
    /// [`StoreError::BatchEnded`]: one of these jobs belongs to another batch that is not open.
    /// Otherwise a database error.
    pub async fn create_batch(&mut self, batch: Batch) -> Result<BatchId, StoreError> {
        let (row, jobs) = batch_parts(self.encryption.as_ref(), batch)?;
        let Self {
            store,
            inner,
            intact,
            ..
        } = self;
        own(intact, answer(store, 3, store.insert_batch(inner, &row))).await?;
        if !jobs.is_empty() {
            self.create_many(jobs).await?;
        }
        Ok(row.id)
    }

    /// Deletes all jobs of a scope, whatever their state, with this transaction: an instance that
    /// ends, or a definition that is removed. Jobs that run are cancelled with it, as by
    /// [`cancel`](Self::cancel): each is deleted when its handler ends, whatever it answers, and no
    /// occurrence follows it. They are in [`running`](Ended::running). After the commit a message asks
    /// their nodes to stop the handlers, and the next exclusive jobs are hinted.
    ///
    /// In a [handler's transaction](crate::Running::transaction) the handler's own job is not cancelled:
    /// it is completed, and the next occurrence of its series is created.
    ///
    /// The leases of the jobs that run are locked until this transaction ends, so their nodes can neither
    /// renew nor end them: commit soon.
    ///
    /// # Errors
    /// [`StoreError::RowLocked`] if another transaction locked one of the rows for two seconds:
    /// roll back and try again. Otherwise a database error. Under REPEATABLE READ or SERIALIZABLE it
    /// [is a conflict](StoreError::is_conflict) if a node has locked, renewed or ended one of the jobs
    /// since the snapshot of this transaction: repeat the transaction.
    pub async fn end(&mut self, scope: &EndedScope) -> Result<Ended, StoreError> {
        let Self {
            store,
            inner,
            intact,
            own: own_job,
            ..
        } = self;
        let ending = store.end(inner, scope, *own_job);
        let ended = own(intact, answer(store, 6, ending)).await?;
        self.created.end(&ended, self.own);
        if self.after.listens() {
            self.created.events.extend(events_of_end(&ended));
        }
        Ok(ended)
    }

    /// Replaces the start timers of a process definition: deletes those that exist, and creates
    /// these jobs.
    ///
    /// An occurrence that runs is cancelled, so its series ends with it. It is in
    /// [`running`](Ended::running).
    ///
    /// # Errors
    /// The same as those of [`end`](Self::end) and [`create_many`](Self::create_many).
    pub async fn replace_start_timers(
        &mut self,
        process_definition: impl Into<String>,
        timers: Vec<NewJob>,
    ) -> Result<Ended, StoreError> {
        let obsolete = EndedScope::StartTimers(process_definition.into());
        let ended = self.end(&obsolete).await?;
        self.create_many(timers).await?;
        Ok(ended)
    }

    /// Replaces the start timers of a process definition in every version of its tenant, as process
    /// engines do when they deploy a new version: deletes those that exist, and creates these jobs.
    /// They name the new version.
    ///
    /// ```no_run
    /// # async fn example(client: jobwire_core::Client<jobwire_core::PgStore>) -> Result<(), Box<dyn std::error::Error>> {
    /// use jobwire_core::NewJob;
    /// use jobwire_core::job::definition_key::DefinitionKey;
    ///
    /// let key = DefinitionKey::new("invoice")?.of_tenant("acme");
    /// let start = NewJob::of("start", &()).repeat_text("R/P1D").tenant("acme");
    /// let mut tx = client.begin().await?;
    /// tx.replace_start_timers_of_key(&key, vec![start.process_definition("invoice:4:5120")]).await?;
    /// tx.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`StoreError::InvalidJob`] if one of these jobs belongs to another key or tenant: then nothing is
    /// changed. Otherwise as [`replace_start_timers`](Self::replace_start_timers).
    pub async fn replace_start_timers_of_key(
        &mut self,
        key: &DefinitionKey,
        timers: Vec<NewJob>,
    ) -> Result<Ended, StoreError> {
        check_key(key, &timers)?;
        let obsolete = EndedScope::StartTimersOfKey(key.clone());
        let ended = self.end(&obsolete).await?;
        self.create_many(timers).await?;
        Ok(ended)
    }

    /// Commits and then publishes the hints. The caller does not wait for the broker.
    ///
    /// # Errors
    /// A database error: then no job exists and no hint is published.
    /// [`StoreError::TransactionFailed`] if one of your statements failed before, even if its error
    /// was ignored, or if an operation on jobs was interrupted. (On SQLite a failed statement undoes only
    /// itself, and the rest is committed.)
    /// [`StoreError::CommitUnknown`] if the answer was lost and the result of the transaction can't
    /// be determined: then the sweeper hints the jobs if they exist.
    pub async fn commit(self) -> Result<(), StoreError> {
        let Self {
            inner,
            intact,
            created,
            store,
            origin,
            after,
            _permit: permit,
            ..
        } = self;
        let committing = async {
            if intact {
                Ok(inner.commit().await?)
            } else {
                store.commit(inner).await
            }
        };
        committed(&store, &created, committing).await?;
        // Moving the jobs of a suspension may take minutes, and uses other connections.
        drop(permit);
        operations::committed_with(&store, origin, &*after, created).await;
        Ok(())
    }

    /// Rolls back.
    ///
    /// # Errors
    /// A database error. The transaction is rolled back anyway when the connection closes.
    pub async fn rollback(self) -> Result<(), StoreError> {
        let undone = self.inner.rollback();
        answer(&self.store, 1, async { Ok(undone.await?) }).await
    }
}

/// Checks that new jobs belong to a definition key: the next replacement has to find them.
pub(crate) fn check_key(key: &DefinitionKey, jobs: &[NewJob]) -> Result<(), StoreError> {
    let other = jobs.iter().find(|job| {
        let definition = job.process_definition.as_deref();
        !key.covers(definition, job.tenant.as_deref())
    });
    let Some(other) = other else {
        return Ok(());
    };
    let source = InvalidJob::new(
        "process_definition",
        format!("and `tenant` are not those of the definition key {key}"),
        "give the job the id of the new version, `key:version:id`, and the tenant of the key",
    );
    Err(StoreError::InvalidJob {
        id: other.id(),
        source,
    })
}

/// Waits for statements of the store. Unless they succeed, it is no longer known whether the
/// transaction is intact, even if this future is dropped before.
async fn own<T>(
    intact: &mut bool,
    statements: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let was_intact = std::mem::take(intact);
    let answer = statements.await?;
    *intact = was_intact;
    Ok(answer)
}

/// Returns the row of a batch, and its members.
pub(crate) fn batch_parts(
    encryption: Option<&Encryption>,
    mut batch: Batch,
) -> Result<(NewBatch, Vec<NewJob>), StoreError> {
    if let Some(then) = batch.then.take() {
        batch.then = sealed(encryption, vec![then])?.pop();
    }
    let row = NewBatch::of(&batch)?;
    let jobs = batch.jobs.into_iter().map(|job| match job.batch {
        Some(other) if other != row.id => Err(StoreError::InvalidJob {
            id: job.id,
            source: InvalidJob::new(
                "batch",
                "is another batch than the one that the job is created with",
                "leave it out",
            ),
        }),
        _ => Ok(job.batch(row.id)),
    });
    let jobs = jobs.collect::<Result<_, _>>()?;
    Ok((row, jobs))
}

/// Encrypts new jobs, if there is an encryption.
pub(crate) fn sealed(
    encryption: Option<&Encryption>,
    jobs: Vec<NewJob>,
) -> Result<Vec<NewJob>, StoreError> {
    let Some(encryption) = encryption else {
        return Ok(jobs);
    };
    let seal = |job: NewJob| {
        let id = job.id();
        let sealed = encryption.seal_job(job);
        sealed.map_err(|source| StoreError::InvalidJob { id, source })
    };
    jobs.into_iter().map(seal).collect()
}

/// Gives new jobs the dates that depend on the calendars of this program.
pub(crate) fn dated(
    mut jobs: Vec<NewJob>,
    calendars: &Calendars,
) -> Result<Vec<NewJob>, StoreError> {
    for job in &mut jobs {
        job.date(calendars)
            .map_err(|source| StoreError::InvalidJob { id: job.id, source })?;
    }
    Ok(jobs)
}

/// Waits for a COMMIT and determines its result.
pub(crate) async fn committed<S: SqlStore>(
    store: &S,
    created: &Created,
    committing: impl Future<Output = Result<(), StoreError>>,
) -> Result<(), StoreError> {
    if created.unfinished {
        return Err(StoreError::TransactionFailed);
    }
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

/// Returns [`StoreError::TransactionFailed`] for a statement that was refused because an earlier
/// one failed.
pub(crate) fn failed_before(error: StoreError) -> StoreError {
    match error.sqlstate().as_deref() {
        Some("25P02") => StoreError::TransactionFailed,
        _ => error,
    }
}

/// Waits for the answer to this number of statements.
pub(crate) async fn answer<S: SqlStore, T>(
    store: &S,
    statements: u32,
    question: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let within = store.deadline().saturating_mul(statements);
    answer_within(within, || store.suspect_connections(), question).await
}

/// Creates the error for a COMMIT that got no answer in time, as on a broken connection.
fn lost_answer(deadline: Duration) -> sqlx::Error {
    sqlx::Error::Io(std::io::Error::new(
        std::io::ErrorKind::TimedOut,
        format!("no answer to COMMIT within {deadline:?}"),
    ))
}

/// Asks for a transaction by its id, after COMMIT failed with its connection (protocol rule 29).
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

/// Returns whether a job that this transaction created exists. PostgreSQL may give the id of a
/// transaction that a crash undid to a later one, which then commits under this id. (The job may
/// also be missing because it is already done.)
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

    fn completes(&mut self, job: JobId) {
        self.own = Some(job);
    }

    fn line_ends(&self) -> BoxFuture<'static, ()> {
        self.store.line_ends()
    }

    async fn complete(
        mut self: Box<Self>,
        owner: NodeId,
        completion: &Completion,
        then: &Handoff,
    ) -> Result<BatchOutcome, StoreError> {
        let store = &self.store;
        let settled = store.complete_in(&mut self.inner, owner, completion, then);
        // The instance, the job, its next occurrence, and the next job.
        let mut settled = answer(store, 4, settled).await.map_err(failed_before)?;
        if settled.applied.is_empty() {
            let _ = self.rollback().await;
            return Err(StoreError::LostLock(completion.held.id));
        }
        crash_point!("completion-uncommitted");
        // The last statement has succeeded, so COMMIT commits.
        let Self {
            inner,
            created,
            store,
            origin,
            after,
            _permit,
            ..
        } = *self;
        let committing = async { Ok(inner.commit().await?) };
        committed(&store, &created, committing).await?;
        // The next job is locked already, so nothing may take long.
        operations::committed_soon(store.clone(), origin, after, created);
        if !settled.unseen.is_empty() {
            match store.next_of(&settled.unseen).await {
                Ok(ready) => settled.ready.extend(ready),
                Err(error) => tracing::warn!(
                    %error, job = %completion.held.id,
                    "the next job of an instance could not be hinted; the sweeper will find it"
                ),
            }
        }
        Ok(settled)
    }

    async fn rollback(self: Box<Self>) -> Result<(), StoreError> {
        JobTransaction::rollback(*self).await
    }
}

//! Operations on existing jobs in the caller's transaction.
//!
//! Each is one action of the store, which succeeds for all of its jobs or changes nothing. The jobs that
//! it made ready are added to [`Created`] and hinted after the commit, like those that the transaction
//! creates.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use tokio::runtime::Handle;

use super::gates::{self, GatesChanged};
use super::{AfterCommit, JobTransaction, answer, failed_before, own};
use crate::job::JobId;
use crate::store::{Action, Change, Created, Operated, Origin, SqlStore, Store, StoreError};

impl<S: SqlStore> JobTransaction<S> {
    /// Makes a job executable now, with this number of attempts; see
    /// [`Client::retry`](crate::Client::retry).
    ///
    /// # Errors
    /// Then nothing is changed, and the transaction can go on. [`StoreError::RowLocked`] if another
    /// transaction locked the row for two seconds. [`StoreError::TooIsolated`] if this transaction is
    /// isolated more strictly than READ COMMITTED. [`StoreError::TransactionFailed`] if one of your
    /// statements failed before. Otherwise a database error.
    pub async fn retry(&mut self, id: JobId, attempts: i32) -> Result<Operated, StoreError> {
        let retried = self.operate(&[id], Action::Retry(attempts)).await;
        retried.map(of_one)
    }

    /// [Retries](Self::retry) many jobs. Returns the result for each job.
    ///
    /// # Errors
    /// The same as those of [`retry`](Self::retry). Then none of the jobs is changed.
    pub async fn retry_many(
        &mut self,
        ids: &[JobId],
        attempts: i32,
    ) -> Result<Vec<(JobId, Operated)>, StoreError> {
        self.operate(ids, Action::Retry(attempts)).await
    }

    /// Deletes a job in any state, unless it is running.
    ///
    /// # Errors
    /// The same as those of [`retry`](Self::retry).
    pub async fn delete(&mut self, id: JobId) -> Result<Operated, StoreError> {
        self.operate(&[id], Action::Delete).await.map(of_one)
    }

    /// [Deletes](Self::delete) many jobs. Returns the result for each job.
    ///
    /// # Errors
    /// The same as those of [`retry`](Self::retry). Then none of the jobs is deleted.
    pub async fn delete_many(
        &mut self,
        ids: &[JobId],
    ) -> Result<Vec<(JobId, Operated)>, StoreError> {
        self.operate(ids, Action::Delete).await
    }

    /// Deletes a job, also one that runs; see [`Client::cancel`](crate::Client::cancel).
    ///
    /// The lease of a running job is locked until this transaction ends, so its node can neither renew
    /// nor end it: commit soon. The message to the node is sent after the commit.
    ///
    /// # Errors
    /// The same as those of [`retry`](Self::retry).
    pub async fn cancel(&mut self, id: JobId) -> Result<Operated, StoreError> {
        self.operate(&[id], Action::Cancel).await.map(of_one)
    }

    /// Changes jobs: see [`Change`] for the changes, and the states that each one applies to. Returns
    /// the result for each job.
    ///
    /// # Errors
    /// [`StoreError::InvalidChange`], and the same as those of [`retry`](Self::retry). Then none of the
    /// jobs is changed.
    pub async fn change(
        &mut self,
        ids: &[JobId],
        change: &Change,
    ) -> Result<Vec<(JobId, Operated)>, StoreError> {
        self.operate(ids, Action::Change(change.clone())).await
    }

    /// Takes the lock of a job from its node; see [`Client::unlock`](crate::Client::unlock). The job is
    /// ready again with the commit. Commit soon, as after a [`cancel`](Self::cancel).
    ///
    /// # Errors
    /// The same as those of [`retry`](Self::retry).
    pub async fn unlock(&mut self, id: JobId) -> Result<Operated, StoreError> {
        self.operate(&[id], Action::Unlock).await.map(of_one)
    }

    async fn operate(
        &mut self,
        ids: &[JobId],
        action: Action,
    ) -> Result<Vec<(JobId, Operated)>, StoreError> {
        let Self {
            store,
            inner,
            intact,
            created,
            after,
            ..
        } = self;
        let acting = operate(store, inner, created, ids, &action, after.listens());
        // Statements for the savepoints, the incidents, the locks, the rows, the instances and the ends.
        own(intact, answer(store, 12, acting)).await
    }
}

/// Performs an operator's action in a transaction, and adds its hints and events to `created`. If the
/// future is dropped before its end, the transaction can't be [`committed`](super::committed).
pub(crate) async fn operate<S: SqlStore>(
    store: &S,
    connection: &mut <S::Db as sqlx::Database>::Connection,
    created: &mut Created,
    ids: &[JobId],
    action: &Action,
    listens: bool,
) -> Result<Vec<(JobId, Operated)>, StoreError> {
    if let Action::Change(change) = action {
        change.validate()?;
    }
    let ids = Vec::from_iter(BTreeSet::from_iter(ids.iter().copied()));
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let open = if listens && action.closes_incidents() {
        let open = store.open_incidents_in(connection, &ids).await;
        match open.map_err(failed_before) {
            Ok(open) => open,
            Err(StoreError::TransactionFailed) => return Err(StoreError::TransactionFailed),
            Err(error) => unknown_incidents(&error, ids.len()),
        }
    } else {
        Vec::new()
    };
    // An earlier operation may have been interrupted.
    let unfinished = std::mem::replace(&mut created.unfinished, true);
    let acted = store.operate(connection, &ids, action).await;
    created.unfinished = unfinished;
    let acted = acted.map_err(failed_before)?;
    created.act(action, &acted);
    if listens {
        let events = action.events(&acted.operated, &acted.cancelled, &open);
        created.events.extend(events);
    }
    Ok(acted.operated)
}

/// The queries that a transaction needs after its commit.
struct ToLookUp {
    /// The instances that exclusive jobs have left.
    left: Vec<String>,
    /// The jobs that operations made ready.
    operated: Vec<JobId>,
    /// The suspensions that began and ended.
    gates: GatesChanged,
    /// The jobs that are hinted already.
    hinted: HashSet<JobId>,
}

/// Hands over the jobs, events and messages of a committed transaction, and returns the queries that it
/// needs. Does not wait.
fn hand_over(after: &dyn AfterCommit, mut created: Created) -> Option<ToLookUp> {
    let left = std::mem::take(&mut created.left);
    let operated = std::mem::take(&mut created.operated);
    let gates = std::mem::take(&mut created.gates);
    let is_done = left.is_empty() && operated.is_empty() && gates.is_empty();
    let to_look_up = (!is_done).then(|| {
        let hinted = created.ready.iter().chain(&created.next);
        ToLookUp {
            left,
            operated,
            gates,
            hinted: hinted.map(|job| job.hint.id).collect(),
        }
    });
    after.committed(created);
    to_look_up
}

/// Hands over the jobs, events and messages of a committed transaction. Then looks up the next jobs of the
/// instances that exclusive jobs have left, and [settles](gates::settle) what the transaction suspended and
/// activated. Without a transport, notes these jobs for a leader, and those that operations made ready. If a query fails, the sweeper finds the jobs.
pub(crate) async fn committed_with<S: SqlStore>(
    store: &S,
    origin: Origin,
    after: &dyn AfterCommit,
    created: Created,
) {
    if let Some(what) = hand_over(after, created) {
        look_up(store, origin, after, what).await;
    }
}

/// Like [`committed_with`], but looks up in a task of the runtime. Without a runtime, the sweeper finds
/// the jobs.
pub(crate) fn committed_soon<S: SqlStore>(
    store: S,
    origin: Origin,
    after: Arc<dyn AfterCommit>,
    created: Created,
) {
    let Some(what) = hand_over(&*after, created) else {
        return;
    };
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(async move { look_up(&store, origin, &*after, what).await });
    }
}

/// Maximum number of instances in one query.
const AT_ONCE: usize = 1_000;

async fn look_up<S: SqlStore>(
    store: &S,
    origin: Origin,
    after: &dyn AfterCommit,
    mut what: ToLookUp,
) {
    what.left.sort_unstable();
    what.left.dedup();
    for left in what.left.chunks(AT_ONCE) {
        match store.next_of(left).await {
            Ok(mut next) => {
                what.operated.extend(next.iter().map(|job| job.hint.id));
                next.retain(|job| !what.hinted.contains(&job.hint.id));
                after.committed(Created {
                    next,
                    ..Created::default()
                });
            }
            Err(error) => {
                tracing::warn!(
                    %error, instances = left.len(),
                    "the next jobs of instances could not be looked up; the sweeper will find them"
                );
                // The other queries would wait for the same database.
                if error.is_unanswered() {
                    break;
                }
            }
        }
    }
    if origin != Origin::Hook && !what.operated.is_empty() {
        note(store, &what.operated).await;
    }
    gates::settle(store, origin, after, what.gates, &what.hinted).await;
}

/// Notes jobs that became ready and that no hint announces.
pub(crate) async fn note(store: &dyn Store, jobs: &[JobId]) {
    if let Err(error) = store.note_unannounced(jobs).await {
        tracing::warn!(
            jobs = jobs.len(), %error,
            "jobs are ready that no hint announces; the sweeper of a running node finds them"
        );
    }
}

/// Reports that the open incidents of jobs could not be found before an operation, which may succeed
/// all the same.
pub(crate) fn unknown_incidents(error: &StoreError, jobs: usize) -> Vec<JobId> {
    tracing::warn!(
        %error, jobs,
        "could not find the incidents of jobs; listeners are not told which of them the next \
         operation closes"
    );
    Vec::new()
}

/// Returns the result for the only job of an action.
pub(crate) fn of_one(operated: Vec<(JobId, Operated)>) -> Operated {
    let first = operated.first().map(|(_, operated)| *operated);
    first.unwrap_or(Operated::NotFound)
}

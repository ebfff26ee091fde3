//! Suspending and activating a scope in the caller's transaction.
//!
//! The suspension is a row, which commits with the statements of the caller. From the commit on no job of the
//! scope starts. Its jobs move to the suspended table after the commit, in parts, so that the caller's
//! transaction locks no job. If the process dies before, they wait where they are.
//!
//! An activation moves the jobs back within the transaction: a job that stayed in the suspended table after
//! the end of its suspension would wait for ever.

use std::collections::HashSet;
use std::mem;

use super::operations::note;
use super::{AfterCommit, JobTransaction, answer, failed_before, own};
use crate::hint::Ready;
use crate::job::JobId;
use crate::store::{
    Created, Lifted, Origin, SqlStore, StoreError, Suspended, SuspensionScope, Waiting,
};

impl<S: SqlStore> JobTransaction<S> {
    /// Suspends the jobs of a scope with this transaction: from its commit on none of them starts, neither
    /// an existing one nor one that is created later. Running jobs continue. Returns false if the scope is
    /// suspended already; then it stays so until the commit.
    ///
    /// Existing jobs move to the suspended table after the commit. [`commit`](Self::commit) waits for
    /// that, and a handler's transaction does not. A job that can't be moved does not start either.
    ///
    /// ```no_run
    /// # async fn example(client: jobwire_core::Client<jobwire_core::PgStore>) -> Result<(), jobwire_core::StoreError> {
    /// use jobwire_core::store::SuspensionScope;
    ///
    /// let acme = SuspensionScope::Tenant("acme".to_owned());
    /// let mut tx = client.begin().await?;
    /// sqlx::query("UPDATE tenants SET held = true WHERE name = 'acme'").execute(&mut *tx).await?;
    /// tx.suspend(&acme).await?;
    /// tx.commit().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Then nothing is changed, and the transaction can go on. [A conflict](StoreError::is_conflict) if
    /// another transaction has locked the suspension for two seconds, or, under a level stricter than READ
    /// COMMITTED, has changed it. [`StoreError::TransactionFailed`] if one of your statements failed before.
    /// Otherwise a database error.
    pub async fn suspend(&mut self, scope: &SuspensionScope) -> Result<bool, StoreError> {
        let Self {
            store,
            inner,
            intact,
            created,
            ..
        } = self;
        let suspending = suspend(store, inner, created, scope);
        // The savepoint and its end, the row, and the lock of the row.
        own(intact, answer(store, 6, suspending)).await
    }

    /// Ends a suspension with this transaction: its jobs return to the tables that they came from, and the
    /// commit hints those that are ready. Returns the number of jobs that came back, or `None` if there is
    /// no such suspension.
    ///
    /// Until this transaction ends, no other suspension ends, and the failure of a job of any suspended
    /// scope is not recorded: commit soon. For a scope of many thousand jobs, call
    /// [`Client::activate`](crate::Client::activate) after your commit. It works in parts.
    ///
    /// # Errors
    /// Then nothing is changed, and the transaction can go on. [A conflict](StoreError::is_conflict) if
    /// another transaction has locked a suspension, or one of the jobs, for two seconds.
    /// [`StoreError::TooIsolated`] if this transaction is isolated more strictly than READ COMMITTED.
    /// [`StoreError::TransactionFailed`] if one of your statements failed before. Otherwise a database
    /// error.
    pub async fn activate(&mut self, scope: &SuspensionScope) -> Result<Option<u64>, StoreError> {
        let Self {
            store,
            inner,
            intact,
            created,
            ..
        } = self;
        let activating = activate(store, inner, created, scope);
        // The isolation, the savepoint and its end, and some parts of four statements.
        own(intact, answer(store, 12, activating)).await
    }
}

/// Suspends a scope in a transaction, and notes in `created` that its jobs are to be moved. If the future is
/// dropped before its end, the transaction can't be [`committed`](super::committed).
pub(crate) async fn suspend<S: SqlStore>(
    store: &S,
    connection: &mut <S::Db as sqlx::Database>::Connection,
    created: &mut Created,
    scope: &SuspensionScope,
) -> Result<bool, StoreError> {
    let unfinished = mem::replace(&mut created.unfinished, true);
    let suspended = store.suspend_in(connection, scope).await;
    created.unfinished = unfinished;
    let is_new = suspended.map_err(failed_before)?;
    created.gates.suspended.push(scope.clone());
    Ok(is_new)
}

/// Activates a scope in a transaction, and notes in `created` that its jobs are to be hinted. If the future is
/// dropped before its end, the transaction can't be [`committed`](super::committed).
pub(crate) async fn activate<S: SqlStore>(
    store: &S,
    connection: &mut <S::Db as sqlx::Database>::Connection,
    created: &mut Created,
    scope: &SuspensionScope,
) -> Result<Option<u64>, StoreError> {
    let unfinished = mem::replace(&mut created.unfinished, true);
    let activated = store.activate_in(connection, scope).await;
    created.unfinished = unfinished;
    let moved = activated.map_err(failed_before)?;
    if moved.is_some() {
        created.gates.activated.push(scope.clone());
    }
    Ok(moved)
}

/// The suspensions that a transaction began and ended.
#[derive(Debug, Default)]
pub(crate) struct GatesChanged {
    suspended: Vec<SuspensionScope>,
    activated: Vec<SuspensionScope>,
}

impl GatesChanged {
    pub(crate) fn is_empty(&self) -> bool {
        self.suspended.is_empty() && self.activated.is_empty()
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.suspended.extend(other.suspended);
        self.activated.extend(other.activated);
    }
}

/// Moves the jobs of the suspensions that a committed transaction began, and hints those that waited for
/// the end of one. A suspension that does not exist, because a savepoint of the caller undid it or it has
/// ended since, moves no job.
pub(super) async fn settle<S: SqlStore>(
    store: &S,
    origin: Origin,
    after: &dyn AfterCommit,
    gates: GatesChanged,
    hinted: &HashSet<JobId>,
) {
    for scope in &gates.suspended {
        match store.move_suspended(scope).await {
            Ok(Suspended { ready, refused, .. }) => {
                if let Some((job, reason)) = refused.first() {
                    tracing::warn!(
                        jobs = refused.len(), %job, reason,
                        "the database refused to move jobs of a suspension; they stay where they are \
                         and do not start"
                    );
                }
                hint(store, origin, after, ready, hinted).await;
            }
            Err(error) => tracing::warn!(
                %error,
                "not all jobs of a suspension could be moved; they stay where they are and do not start"
            ),
        }
    }
    for scope in gates.activated {
        hint_waiting(store, origin, after, Waiting::first(scope.into()), hinted).await;
    }
}

/// Hints the jobs that waited for the end of a suspension, page by page.
async fn hint_waiting<S: SqlStore>(
    store: &S,
    origin: Origin,
    after: &dyn AfterCommit,
    first: Waiting,
    hinted: &HashSet<JobId>,
) {
    let mut next = Some(first);
    while let Some(page) = next.take() {
        let why = if after.room().await {
            match store.waited(&page).await {
                Ok(Lifted {
                    ready, next: then, ..
                }) => {
                    hint(store, origin, after, ready, hinted).await;
                    next = then;
                    continue;
                }
                Err(error) => error.to_string(),
            }
        } else {
            "the broker does not confirm them".to_owned()
        };
        tracing::warn!(
            why,
            "not all jobs that waited for the end of a suspension could be hinted; the sweeper will \
             find the rest"
        );
    }
}

/// Hints jobs, unless the transaction has hinted them. Without a transport, notes them for a leader.
async fn hint<S: SqlStore>(
    store: &S,
    origin: Origin,
    after: &dyn AfterCommit,
    mut ready: Vec<Ready>,
    hinted: &HashSet<JobId>,
) {
    ready.retain(|job| !hinted.contains(&job.hint.id));
    if ready.is_empty() {
        return;
    }
    if origin != Origin::Hook {
        let jobs: Vec<JobId> = ready.iter().map(|job| job.hint.id).collect();
        note(store, &jobs).await;
    }
    after.committed(Created {
        next: ready,
        ..Created::default()
    });
}

//! The client's operations on existing jobs.

use std::collections::BTreeMap;

use crate::job::JobId;
use crate::producer::client::Client;
use crate::producer::lane_move::{LaneMove, LaneMoved};
use crate::producer::purge::{KeptSettings, Purge, Purged};
use crate::store::transaction::operations::of_one;
use crate::store::{
    Action, Change, Ended, EndedScope, Operated, OperatedJobs, SqlStore, StoreError,
};
use crate::transport::Control;

impl<S: SqlStore> Client<S> {
    /// Makes a job executable now, with this number of attempts. The job may be a dead letter, a
    /// waiting retry, a timer or a suspended job, but must not be running. The hint of an
    /// executable job is published again.
    ///
    /// # Errors
    /// A database error.
    pub async fn retry(&self, id: JobId, attempts: i32) -> Result<Operated, StoreError> {
        let open = self.open_incidents(&[id]).await;
        let (operated, ready) = self.store.retry(id, attempts).await?;
        self.tell(&Action::Retry(attempts), &[(id, operated)], &open);
        self.hook.operated(&self.store, ready).await;
        Ok(operated)
    }

    /// [Retries](Self::retry) many jobs in one transaction. A job that the database refuses to
    /// change stays as it was and is in [`refused`](OperatedJobs::refused).
    ///
    /// # Errors
    /// A database error.
    pub async fn retry_many(
        &self,
        ids: &[JobId],
        attempts: i32,
    ) -> Result<OperatedJobs, StoreError> {
        let open = self.open_incidents(ids).await;
        let operated = self.store.retry_many(ids, attempts).await?;
        self.tell(&Action::Retry(attempts), &operated.operated, &open);
        Ok(self.published(operated).await)
    }

    /// Deletes a job in any state, unless it is running.
    ///
    /// # Errors
    /// A database error.
    pub async fn delete(&self, id: JobId) -> Result<Operated, StoreError> {
        let open = self.open_incidents(&[id]).await;
        let (operated, ready) = self.store.delete(id).await?;
        self.tell(&Action::Delete, &[(id, operated)], &open);
        self.hook.operated(&self.store, ready).await;
        Ok(operated)
    }

    /// [Deletes](Self::delete) many jobs in one transaction. A job that the database refuses to
    /// delete stays as it was and is in [`refused`](OperatedJobs::refused).
    ///
    /// # Errors
    /// A database error.
    pub async fn delete_many(&self, ids: &[JobId]) -> Result<OperatedJobs, StoreError> {
        let open = self.open_incidents(ids).await;
        let operated = self.store.delete_many(ids).await?;
        self.tell(&Action::Delete, &operated.operated, &open);
        Ok(self.published(operated).await)
    }

    /// Deletes a job, also one that runs.
    ///
    /// The cancel of a running job is committed when this returns [`Operated::Running`]: it is a
    /// mark in the lease of the job, and a message tells the node at once. If the message is lost,
    /// the node learns of the cancel with its next renewal, after a third of the lease at most. Then
    /// [`Running::stop`](crate::Running::stop) is cancelled. A handler that has not ended two seconds
    /// later is dropped. The job is deleted, whatever it answers, and no occurrence follows it. If
    /// the handler answers `Ok`, the job counts as done, otherwise as `cancelled`. The mark also
    /// holds if the node dies, or gives the job back: the job does not start again.
    ///
    /// # Errors
    /// A database error.
    pub async fn cancel(&self, id: JobId) -> Result<Operated, StoreError> {
        let open = self.open_incidents(&[id]).await;
        let (operated, ready) = self.store.cancel(id).await?;
        self.tell(&Action::Cancel, &[(id, operated)], &open);
        self.hook.operated(&self.store, ready).await;
        if operated == Operated::Running {
            self.hook.tell(Control::Cancel { job: id });
        }
        Ok(operated)
    }

    /// Changes jobs: see [`Change`] for the changes, and the states that each one applies to.
    ///
    /// The jobs whose rows are free are changed in one transaction. A row that another transaction
    /// locks is tried for two seconds more, in transactions of its own. A job that is in
    /// [`refused`](OperatedJobs::refused) was not changed, unless its reason is a lost connection:
    /// then look at the job.
    ///
    /// # Errors
    /// [`StoreError::InvalidChange`] before anything is changed, or a database error.
    pub async fn change(&self, ids: &[JobId], change: &Change) -> Result<OperatedJobs, StoreError> {
        let changed = self.store.change_many(ids, change).await?;
        let action = Action::Change(change.clone());
        self.tell(&action, &changed.operated, &[]);
        self.hook.timer_set(changed.timer);
        Ok(self.published(changed).await)
    }

    /// Takes the lock of a job from its node: the job is ready again, and no attempt is spent.
    ///
    /// Meant for a handler that never ends on a node that lives. The node learns of it with its
    /// next renewal and stops the handler. Until then the handler may still work while another node
    /// runs the job, or the next exclusive job of its instance. It can't complete the job: its
    /// fence is no longer valid. Use [`cancel`](Self::cancel) first: the unlock of a job that has been
    /// cancelled deletes it, and listeners are told that it was cancelled.
    ///
    /// # Errors
    /// A database error.
    pub async fn unlock(&self, id: JobId) -> Result<Operated, StoreError> {
        let unlocked = self.store.unlock(id).await?;
        let (operated, cancelled) = (&unlocked.operated, &unlocked.cancelled);
        self.tell_of(&Action::Unlock, operated, cancelled, &[]);
        Ok(of_one(self.published(unlocked).await.operated))
    }

    /// Deletes all jobs of a scope in one transaction of its own; see
    /// [`JobTransaction::end`](crate::JobTransaction::end).
    ///
    /// # Errors
    /// The same as those of [`JobTransaction::end`](crate::JobTransaction::end) and
    /// [`commit`](crate::JobTransaction::commit).
    pub async fn end(&self, scope: &EndedScope) -> Result<Ended, StoreError> {
        let mut tx = self.begin().await?;
        let ended = tx.end(scope).await?;
        tx.commit().await?;
        Ok(ended)
    }

    /// Counts the rows that a [purge](Self::purge) would delete now, by table. Changes nothing.
    ///
    /// # Errors
    /// [`StoreError::InvalidChange`] for an empty name, or a database error.
    pub async fn purgeable(
        &self,
        purge: &Purge,
    ) -> Result<BTreeMap<&'static str, u64>, StoreError> {
        purge.count(&self.store).await
    }

    /// Returns the settings that name the scope of a [purge](Self::purge), which leaves them.
    ///
    /// # Errors
    /// [`StoreError::InvalidChange`] for an empty name, or a database error.
    pub async fn kept_by_purge(&self, purge: &Purge) -> Result<KeptSettings, StoreError> {
        purge.kept(&self.store).await
    }

    /// Removes every trace of a process instance or a tenant, in slices: jobs of all states, with
    /// stacks, progress, checkpoints, attempts, incidents, unique keys, events, keys of limits and
    /// suspensions. Running jobs are named, or [cancelled](Purge::cancel_running); purge again after
    /// their end. Settings that name the scope [stay](Purged::kept).
    ///
    /// # Errors
    /// [`StoreError::InvalidChange`] for an empty name, or a database error: another call continues.
    pub async fn purge(&self, purge: &Purge) -> Result<Purged, StoreError> {
        purge.run(&self.store, &self.hook).await
    }

    /// Moves the jobs of a lane to another one.
    ///
    /// # Errors
    /// A database error.
    pub async fn move_lane(&self, plan: &LaneMove) -> Result<LaneMoved, StoreError> {
        plan.run(&self.store, &self.hook, |_| {}).await
    }

    async fn published(&self, mut operated: OperatedJobs) -> OperatedJobs {
        let ready = std::mem::take(&mut operated.ready);
        self.hook.operated(&self.store, ready).await;
        operated
    }
}

//! Operations on existing jobs in a transaction of your own.

use crate::job::JobId;
use crate::producer::client::TransactionHook;
use crate::store::transaction::gates;
use crate::store::transaction::operations::{of_one, operate};
use crate::store::{Action, Change, Operated, SqlStore, StoreError, SuspensionScope};

impl<S: SqlStore> TransactionHook<S> {
    /// Makes a job executable now, with your transaction; see
    /// [`JobTransaction::retry`](crate::JobTransaction::retry).
    ///
    /// # Errors
    /// The same as those of [`JobTransaction::retry`](crate::JobTransaction::retry).
    pub async fn retry(
        &mut self,
        connection: &mut <S::Db as sqlx::Database>::Connection,
        id: JobId,
        attempts: i32,
    ) -> Result<Operated, StoreError> {
        let retried = self
            .operate(connection, &[id], Action::Retry(attempts))
            .await;
        retried.map(of_one)
    }

    /// [Retries](Self::retry) many jobs. Returns the result for each job.
    ///
    /// # Errors
    /// The same as those of [`JobTransaction::retry_many`](crate::JobTransaction::retry_many).
    pub async fn retry_many(
        &mut self,
        connection: &mut <S::Db as sqlx::Database>::Connection,
        ids: &[JobId],
        attempts: i32,
    ) -> Result<Vec<(JobId, Operated)>, StoreError> {
        self.operate(connection, ids, Action::Retry(attempts)).await
    }

    /// Deletes a job in any state, unless it is running.
    ///
    /// # Errors
    /// The same as those of [`JobTransaction::delete`](crate::JobTransaction::delete).
    pub async fn delete(
        &mut self,
        connection: &mut <S::Db as sqlx::Database>::Connection,
        id: JobId,
    ) -> Result<Operated, StoreError> {
        let deleted = self.operate(connection, &[id], Action::Delete).await;
        deleted.map(of_one)
    }

    /// [Deletes](Self::delete) many jobs. Returns the result for each job.
    ///
    /// # Errors
    /// The same as those of [`JobTransaction::delete_many`](crate::JobTransaction::delete_many).
    pub async fn delete_many(
        &mut self,
        connection: &mut <S::Db as sqlx::Database>::Connection,
        ids: &[JobId],
    ) -> Result<Vec<(JobId, Operated)>, StoreError> {
        self.operate(connection, ids, Action::Delete).await
    }

    /// Deletes a job, also one that runs; see
    /// [`JobTransaction::cancel`](crate::JobTransaction::cancel).
    ///
    /// # Errors
    /// The same as those of [`JobTransaction::cancel`](crate::JobTransaction::cancel).
    pub async fn cancel(
        &mut self,
        connection: &mut <S::Db as sqlx::Database>::Connection,
        id: JobId,
    ) -> Result<Operated, StoreError> {
        let cancelled = self.operate(connection, &[id], Action::Cancel).await;
        cancelled.map(of_one)
    }

    /// Changes jobs with your transaction; see
    /// [`JobTransaction::change`](crate::JobTransaction::change).
    ///
    /// # Errors
    /// The same as those of [`JobTransaction::change`](crate::JobTransaction::change).
    pub async fn change(
        &mut self,
        connection: &mut <S::Db as sqlx::Database>::Connection,
        ids: &[JobId],
        change: &Change,
    ) -> Result<Vec<(JobId, Operated)>, StoreError> {
        let action = Action::Change(change.clone());
        self.operate(connection, ids, action).await
    }

    /// Takes the lock of a job from its node; see
    /// [`JobTransaction::unlock`](crate::JobTransaction::unlock).
    ///
    /// # Errors
    /// The same as those of [`JobTransaction::unlock`](crate::JobTransaction::unlock).
    pub async fn unlock(
        &mut self,
        connection: &mut <S::Db as sqlx::Database>::Connection,
        id: JobId,
    ) -> Result<Operated, StoreError> {
        let unlocked = self.operate(connection, &[id], Action::Unlock).await;
        unlocked.map(of_one)
    }

    /// Suspends the jobs of a scope with your transaction; see
    /// [`JobTransaction::suspend`](crate::JobTransaction::suspend). [`commit`](Self::commit) waits until
    /// its jobs are moved. After [`fire`](Self::fire), a task of the runtime moves them.
    ///
    /// # Errors
    /// The same as those of [`JobTransaction::suspend`](crate::JobTransaction::suspend).
    pub async fn suspend(
        &mut self,
        connection: &mut <S::Db as sqlx::Database>::Connection,
        scope: &SuspensionScope,
    ) -> Result<bool, StoreError> {
        gates::suspend(&self.client.store, connection, &mut self.created, scope).await
    }

    /// Ends a suspension with your transaction; see
    /// [`JobTransaction::activate`](crate::JobTransaction::activate).
    ///
    /// # Errors
    /// The same as those of [`JobTransaction::activate`](crate::JobTransaction::activate).
    pub async fn activate(
        &mut self,
        connection: &mut <S::Db as sqlx::Database>::Connection,
        scope: &SuspensionScope,
    ) -> Result<Option<u64>, StoreError> {
        gates::activate(&self.client.store, connection, &mut self.created, scope).await
    }

    async fn operate(
        &mut self,
        connection: &mut <S::Db as sqlx::Database>::Connection,
        ids: &[JobId],
        action: Action,
    ) -> Result<Vec<(JobId, Operated)>, StoreError> {
        let listens = self.client.hook.listeners().any();
        let (store, created) = (&self.client.store, &mut self.created);
        operate(store, connection, created, ids, &action, listens).await
    }
}

//! Transactions that applications and handlers share with the store.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{Sqlite, SqliteConnection};

use super::{SqliteStore, acting, attempts, batches, complete, ending, exclusive, gate, insert};
use crate::hint::Ready;
use crate::job::new_job::NewJob;
use crate::job::{JobId, NodeId};
use crate::store::answer::timed;
use crate::store::batches::NewBatch;
use crate::store::error::StoreError;
use crate::store::statements::Database;
use crate::store::{
    Action, BatchOutcome, Completion, Created, Ended, EndedScope, Handoff, OperatedJobs, Origin,
    Result, SqlStore, SuspensionScope,
};

#[async_trait]
impl SqlStore for SqliteStore {
    type Db = Sqlite;

    fn deadline(&self) -> Duration {
        self.deadline
    }

    async fn begin(&self) -> Result<sqlx::Transaction<'static, Sqlite>> {
        tokio::time::timeout(self.deadline, self.write())
            .await
            .unwrap_or(Err(StoreError::Timeout(self.deadline)))
    }

    /// Fails if SQLite has ended the transaction. A failed statement is usually undone and leaves
    /// its transaction open. If SQLite has ended the transaction, `BEGIN` succeeds here, and the
    /// owner of the connection rolls the new transaction back.
    async fn ensure_intact(&self, connection: &mut SqliteConnection) -> Result<()> {
        match sqlx::raw_sql("BEGIN").execute(connection).await {
            Ok(_) => Err(StoreError::TransactionFailed),
            Err(_) => Ok(()),
        }
    }

    async fn commit(&self, mut transaction: sqlx::Transaction<'static, Sqlite>) -> Result<()> {
        self.ensure_intact(&mut transaction).await?;
        Ok(transaction.commit().await?)
    }

    async fn insert(
        &self,
        connection: &mut SqliteConnection,
        jobs: Vec<NewJob>,
        origin: Origin,
    ) -> Result<Created> {
        timed("insert", insert::insert(connection, jobs, origin)).await
    }

    async fn insert_batch(
        &self,
        connection: &mut SqliteConnection,
        batch: &NewBatch,
    ) -> Result<()> {
        batches::create(connection, batch).await
    }

    async fn end(
        &self,
        connection: &mut SqliteConnection,
        scope: &EndedScope,
        own: Option<JobId>,
    ) -> Result<Ended> {
        timed("end", ending::end(connection, scope, own)).await
    }

    async fn operate(
        &self,
        connection: &mut SqliteConnection,
        ids: &[JobId],
        action: &Action,
    ) -> Result<OperatedJobs> {
        timed(action.name(), acting::operate(connection, ids, action)).await
    }

    async fn next_of(&self, instances: &[String]) -> Result<Vec<Ready>> {
        self.run("next_of", || async {
            exclusive::next(&mut *self.readers.acquire().await?, instances).await
        })
        .await
    }

    async fn suspend_in(
        &self,
        connection: &mut SqliteConnection,
        scope: &SuspensionScope,
    ) -> Result<bool> {
        timed("suspend", gate::suspend(connection, scope)).await
    }

    async fn activate_in(
        &self,
        connection: &mut SqliteConnection,
        scope: &SuspensionScope,
    ) -> Result<Option<u64>> {
        timed("activate", gate::activate(connection, scope)).await
    }

    async fn open_incidents_in(
        &self,
        connection: &mut SqliteConnection,
        jobs: &[JobId],
    ) -> Result<Vec<JobId>> {
        attempts::open(connection, jobs).await
    }

    async fn complete_in(
        &self,
        connection: &mut SqliteConnection,
        owner: NodeId,
        completion: &Completion,
        then: &Handoff,
    ) -> Result<BatchOutcome> {
        complete::complete_in(connection, owner, std::slice::from_ref(completion), then).await
    }
}

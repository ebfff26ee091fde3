//! Transactions that applications and handlers share with the store.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use sqlx::{Executor, PgConnection, Postgres};
use tokio::sync::OwnedSemaphorePermit;

use super::{PgStore, acting, batches, begin, complete, ending, exclusive, gate, insert};
use crate::hint::Ready;
use crate::job::new_job::NewJob;
use crate::job::{JobId, NodeId};
use crate::store::answer::timed;
use crate::store::batches::NewBatch;
use crate::store::statements::Database;
use crate::store::{
    Action, BatchOutcome, Completion, Created, Ended, EndedScope, Handoff, OperatedJobs, Origin,
    Result, SqlStore, SuspensionScope,
};

#[async_trait]
impl SqlStore for PgStore {
    type Db = Postgres;

    fn deadline(&self) -> Duration {
        self.pool.within
    }

    fn suspect_connections(&self) {
        self.pool.suspect();
    }

    fn line_ends(&self) -> BoxFuture<'static, ()> {
        Box::pin(self.pool.ends())
    }

    async fn hold_permit(&self) -> Result<Option<OwnedSemaphorePermit>> {
        let permit = self.permits.clone().acquire_owned();
        match tokio::time::timeout(self.pool.inner.options().get_acquire_timeout(), permit).await {
            // The semaphore is never closed.
            Ok(permit) => Ok(permit.ok()),
            Err(_) => Err(sqlx::Error::PoolTimedOut.into()),
        }
    }

    async fn begin(&self) -> Result<sqlx::Transaction<'static, Postgres>> {
        let isolation = *self.told_isolation();
        begin::begin_creating(&self.pool, isolation).await
    }

    async fn ensure_intact(&self, connection: &mut PgConnection) -> Result<()> {
        begin::ensure_intact(connection).await
    }

    async fn commit(&self, transaction: sqlx::Transaction<'static, Postgres>) -> Result<()> {
        Ok(begin::commit_intact(transaction).await?)
    }

    async fn insert(
        &self,
        connection: &mut PgConnection,
        jobs: Vec<NewJob>,
        origin: Origin,
    ) -> Result<Created> {
        timed("insert", insert::insert(connection, jobs, origin)).await
    }

    async fn insert_batch(&self, connection: &mut PgConnection, batch: &NewBatch) -> Result<()> {
        batches::create(connection, batch).await
    }

    async fn next_of(&self, instances: &[String]) -> Result<Vec<Ready>> {
        self.run("next_of", || async {
            let mut connection = self.pool.inner.acquire().await?;
            exclusive::next(&mut connection, instances).await
        })
        .await
    }

    async fn end(
        &self,
        connection: &mut PgConnection,
        scope: &EndedScope,
        own: Option<JobId>,
    ) -> Result<Ended> {
        timed("end", ending::end(connection, scope, own)).await
    }

    async fn operate(
        &self,
        connection: &mut PgConnection,
        ids: &[JobId],
        action: &Action,
    ) -> Result<OperatedJobs> {
        timed(action.name(), acting::operate(connection, ids, action)).await
    }

    async fn suspend_in(
        &self,
        connection: &mut PgConnection,
        scope: &SuspensionScope,
    ) -> Result<bool> {
        timed("suspend", gate::suspend(connection, scope)).await
    }

    async fn activate_in(
        &self,
        connection: &mut PgConnection,
        scope: &SuspensionScope,
    ) -> Result<Option<u64>> {
        timed("activate", gate::activate(connection, scope)).await
    }

    async fn open_incidents_in(
        &self,
        connection: &mut PgConnection,
        jobs: &[JobId],
    ) -> Result<Vec<JobId>> {
        acting::open_incidents(connection, jobs).await
    }

    async fn complete_in(
        &self,
        connection: &mut PgConnection,
        owner: NodeId,
        completion: &Completion,
        then: &Handoff,
    ) -> Result<BatchOutcome> {
        // From now on the transaction holds the lease, and the node does not think between statements.
        if let Some(silence) = self.pool.silence {
            let limit = sqlx::AssertSqlSafe(begin::limit_silence(silence));
            connection.execute(sqlx::raw_sql(limit)).await?;
        }
        complete::complete_in(connection, owner, std::slice::from_ref(completion), then).await
    }
}

//! The connections as the transitions use them, and the abilities of SQLite alone.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::SqliteStore;
use crate::job::NodeId;
use crate::job::calendar::Calendars;
use crate::store::statements::{Database, Statements};
use crate::store::transaction::{AfterCommit, JobTransaction};
use crate::store::{
    CompletingTransaction, Origin, ProcessLock, Result, SchemaStatus, SqlStore, Succession,
    measured, schema_status,
};

impl Statements for SqliteStore {}

impl Database for SqliteStore {
    const NAME: &'static str = "sqlite";

    async fn run<T, F, Fut>(&self, statement: &'static str, transition: F) -> Result<T>
    where
        T: Send,
        F: Fn() -> Fut + Send,
        Fut: Future<Output = Result<T>> + Send,
    {
        measured(statement, self.deadline, transition).await
    }

    fn known_calendars(&self) -> &Calendars {
        &self.calendars
    }

    fn within(&self) -> Duration {
        self.deadline
    }

    async fn read_schema(&self) -> Result<SchemaStatus> {
        let (server, exists): (String, bool) = sqlx::query_as(
            "SELECT sqlite_version(), EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'schema_version')",
        )
        .fetch_one(&self.readers)
        .await?;
        let newest: Option<(i32, i32)> = if exists {
            sqlx::query_as(
                "SELECT version, readable_by FROM schema_version ORDER BY version DESC LIMIT 1",
            )
            .fetch_optional(&self.readers)
            .await?
        } else {
            None
        };
        Ok(schema_status(newest, server))
    }

    async fn open_completing(
        &self,
        after: Arc<dyn AfterCommit>,
    ) -> Result<Box<dyn CompletingTransaction>> {
        let permit = self.hold_permit().await?;
        let begun = self.begin().await?;
        let store = self.clone();
        Ok(Box::new(JobTransaction::over(
            store,
            begun,
            permit,
            Origin::Hook,
            after,
        )))
    }

    /// Returns a number that changes with every commit of a connection other than the watcher's, in
    /// any process. Reads no table and takes no lock. `None` in memory, where there are no other
    /// connections.
    async fn version(&self) -> Result<Option<i64>> {
        let Some(watcher) = &self.watcher else {
            return Ok(None);
        };
        self.run("data_version", || async {
            Ok(sqlx::query_scalar("PRAGMA data_version")
                .fetch_optional(watcher)
                .await?)
        })
        .await
    }

    async fn succeed_to(&self, node: NodeId) -> Result<Succession> {
        let Some(path) = &self.lock_file else {
            return Ok(Succession::Unknown);
        };
        let mut lock = match ProcessLock::take(path) {
            Ok(Succession::Ours(lock)) => lock,
            Ok(theirs) => return Ok(theirs),
            Err(error) => {
                tracing::warn!(
                    file = %path.display(), %error,
                    "cannot lock the node file; after a crash, the jobs of the dead node wait \
                     until their leases expire"
                );
                return Ok(Succession::Unknown);
            }
        };
        let predecessor = lock.predecessor();
        let jobs = self.run("succeed", || self.take_over(predecessor)).await?;
        if let Some(dead) = predecessor {
            tracing::info!(
                node = %dead,
                jobs,
                "the previous node of this database died; its leases end now"
            );
        }
        if let Err(error) = lock.name(node) {
            tracing::warn!(
                file = %path.display(), %error,
                "cannot write the node id to the node file; after a crash, the jobs of this node \
                 wait until their leases expire"
            );
        }
        Ok(Succession::Ours(lock))
    }

    async fn disconnect(&self) {
        if let Some(watcher) = &self.watcher {
            watcher.close().await;
        }
        self.readers.close().await;
        self.writer.close().await;
    }
}

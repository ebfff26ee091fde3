//! The connections as the transitions use them, and the abilities of PostgreSQL alone.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use super::{PgStore, begin, session, tap};
use crate::job::JobId;
use crate::job::calendar::Calendars;
use crate::store::statements::{Database, Statements};
use crate::store::transaction::{AfterCommit, JobTransaction};
use crate::store::{
    CompletingTransaction, Fate, Marked, Origin, Result, SchemaStatus, SqlStore, TapOffer,
    TransactionId, measured, schema_status,
};

impl Statements for PgStore {}

impl Database for PgStore {
    const NAME: &'static str = "postgres";

    async fn run<T, F, Fut>(&self, statement: &'static str, transition: F) -> Result<T>
    where
        T: Send,
        F: Fn() -> Fut + Send,
        Fut: Future<Output = Result<T>> + Send,
    {
        // The pool's own deadline comes first: it suspects the connection before the connection is
        // dropped.
        let deadline = self.pool.within + Duration::from_secs(1);
        let pool = &self.pool;
        // Boxed: the future is moved several times and takes many kilobytes.
        let answer = measured(statement, deadline, move || {
            pool.answer(transition().boxed())
        })
        .await;
        self.presence.note(&answer);
        answer
    }

    fn known_calendars(&self) -> &Calendars {
        &self.calendars
    }

    fn within(&self) -> Duration {
        self.pool.within
    }

    async fn read_schema(&self) -> Result<SchemaStatus> {
        session::ensure_fit(&self.pool, &self.renewals).await?;
        self.open_hot().await?;
        let (server, exists): (String, bool) = sqlx::query_as(
            "SELECT current_setting('server_version'), to_regclass('jobwire.schema_version') IS \
             NOT NULL",
        )
        .fetch_one(&self.pool.inner)
        .await?;
        let newest: Option<(i32, i32)> = if exists {
            sqlx::query_as(
                "SELECT version, readable_by FROM jobwire.schema_version ORDER BY version DESC LIMIT 1",
            )
            .fetch_optional(&self.pool.inner)
            .await?
        } else {
            None
        };
        Ok(schema_status(newest, server))
    }

    async fn is_there(&self) -> Result<()> {
        self.run("answers", || async {
            sqlx::query("SELECT").execute(&self.pool.inner).await?;
            Ok(())
        })
        .await
    }

    async fn why_absent(&self) -> Option<String> {
        let ask = async {
            sqlx::query("SELECT").execute(&self.renewals.inner).await?;
            Ok(())
        };
        self.presence.absence(ask).await
    }

    fn found_changes(&self) -> u64 {
        self.fences.changes()
    }

    async fn leap(&self) -> Result<()> {
        self.run("begin_locking", || self.fences.begin(&self.pool))
            .await
    }

    async fn open_completing(
        &self,
        after: Arc<dyn AfterCommit>,
    ) -> Result<Box<dyn CompletingTransaction>> {
        let permit = self.hold_permit().await?;
        let begun = begin::begin_handlers(&self.pool).await?;
        let store = self.clone();
        Ok(Box::new(JobTransaction::over(
            store,
            begun,
            permit,
            Origin::Hook,
            after,
        )))
    }

    async fn fate(&self, transaction: &TransactionId) -> Result<Fate> {
        self.run("committed", || async {
            let status: Option<String> =
                sqlx::query_scalar("SELECT pg_xact_status($1::text::xid8)")
                    .bind(&transaction.0)
                    .fetch_one(&self.pool.inner)
                    .await?;
            Ok(match status.as_deref() {
                Some("committed") => Fate::Committed,
                Some("aborted") => Fate::RolledBack,
                _ => Fate::Unknown,
            })
        })
        .await
    }

    async fn offer_tap(&self) -> Result<TapOffer> {
        self.open_tap().await
    }

    async fn mark_tapped(&self, jobs: &[JobId]) -> Result<Marked> {
        self.run("mark_hinted", || tap::mark(&self.cache, jobs))
            .await
    }

    async fn disconnect(&self) {
        // Each pool waits for its busy connections no longer than one statement may take.
        self.cache.clear();
        for pool in [&self.renewals, self.cache.pool(), &self.pool] {
            let _ = tokio::time::timeout(pool.within, pool.inner.close()).await;
        }
    }
}

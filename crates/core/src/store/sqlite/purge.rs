//! Purges of instances and tenants.

use sqlx::Row;

use super::{SqliteStore, decode};
use crate::job::JobId;
use crate::store::error::StoreError;
use crate::store::purging::{
    BATCHES, EVENTS, KEYS, PurgeScope, PurgeableJob, TableCount, count_of, state_of, statements,
};
use crate::store::statements::Purging;

statements!(
    "",
    "''",
    "IN (SELECT value FROM json_each($1))",
    "CASE WHEN json_valid(callback) THEN callback ->> '",
    "' END",
    ""
);

impl Purging for SqliteStore {
    async fn count_purgeable(&self, scope: &PurgeScope) -> Result<Vec<TableCount>, StoreError> {
        let rows = sqlx::query(scope.of(SCOPES).count)
            .bind(scope.value())
            .fetch_all(&self.readers)
            .await?;
        let mut counts = Vec::with_capacity(rows.len());
        for row in rows {
            counts.extend(count_of(&decode::text(&row, 0)?, row.try_get(1)?));
        }
        if let Some(key) = scope.permit_key() {
            for (table, count, _) in OF_PERMITS.rows {
                let count = sqlx::query_scalar(count).bind(&key);
                counts.extend(count_of(table, count.fetch_one(&self.readers).await?));
            }
        }
        Ok(counts)
    }

    async fn purgeable_page(
        &self,
        scope: &PurgeScope,
        after: Option<JobId>,
        at_most: i64,
    ) -> Result<Vec<PurgeableJob>, StoreError> {
        let rows = sqlx::query(scope.of(SCOPES).page)
            .bind(scope.value())
            .bind(after.map(|id| id.to_string()))
            .bind(at_most)
            .fetch_all(&self.readers)
            .await?;
        let mut jobs = Vec::with_capacity(rows.len());
        for row in rows {
            jobs.push(PurgeableJob {
                id: decode::job_id(&row)?,
                state: state_of(&decode::text(&row, 1)?)?,
                has_stack: row.try_get(2)?,
                has_progress: row.try_get(3)?,
            });
        }
        Ok(jobs)
    }

    async fn purge_of_jobs(&self, jobs: &[JobId]) -> Result<Vec<TableCount>, StoreError> {
        let jobs = decode::array(jobs)?;
        let mut tx = self.write().await?;
        let mut counts = Vec::new();
        for (table, delete) in OF_JOBS {
            let deleted = sqlx::query(delete).bind(&jobs).execute(&mut *tx).await?;
            counts.push((table, deleted.rows_affected()));
        }
        tx.commit().await?;
        Ok(counts)
    }

    async fn purge_records(
        &self,
        scope: &PurgeScope,
        at_most: i64,
    ) -> Result<(Vec<TableCount>, Vec<JobId>), StoreError> {
        let mut tx = self.write().await?;
        let (mut counts, mut jobs) = (Vec::new(), Vec::new());
        for (table, delete) in scope.of(SCOPES).records {
            let of = sqlx::query(delete)
                .bind(scope.value())
                .bind(at_most)
                .fetch_all(&mut *tx)
                .await?;
            counts.push((table, of.len() as u64));
            jobs.extend(decode::readable_job_ids(&of));
        }
        tx.commit().await?;
        Ok((counts, jobs))
    }

    async fn purge_batches(
        &self,
        scope: &PurgeScope,
        at_most: i64,
    ) -> Result<Vec<TableCount>, StoreError> {
        let mut tx = self.write().await?;
        let batches = sqlx::query(scope.of(SCOPES).batches)
            .bind(scope.value())
            .bind(BATCHES)
            .fetch_all(&mut *tx)
            .await?;
        let batches = decode::texts(&batches)?;
        let mut counts = Vec::new();
        if !batches.is_empty() {
            let batches = decode::array(&batches)?;
            let close = sqlx::query(OF_BATCHES.close).bind(&batches);
            close.execute(&mut *tx).await?;
            let members = sqlx::query(OF_BATCHES.members).bind(&batches).bind(at_most);
            let members = members.execute(&mut *tx).await?.rows_affected();
            let over = sqlx::query(OF_BATCHES.batches).bind(&batches);
            let over = over.execute(&mut *tx).await?.rows_affected();
            counts = vec![("batch_member", members), ("batch", over)];
        }
        tx.commit().await?;
        Ok(counts)
    }

    async fn purge_rest(&self, scope: &PurgeScope) -> Result<Vec<TableCount>, StoreError> {
        let mut counts = Vec::new();
        for (table, select, delete) in scope.of(SCOPES).keys {
            loop {
                let mut tx = self.write().await?;
                let jobs = sqlx::query(*select)
                    .bind(scope.value())
                    .bind(KEYS)
                    .fetch_all(&mut *tx)
                    .await?;
                if jobs.is_empty() {
                    break;
                }
                let jobs = decode::array(&decode::texts(&jobs)?)?;
                let deleted = sqlx::query(*delete).bind(jobs).execute(&mut *tx).await?;
                tx.commit().await?;
                counts.push((*table, deleted.rows_affected()));
                // The keys that were selected have jobs by now, or names that can't be read.
                if deleted.rows_affected() == 0 {
                    break;
                }
            }
        }
        let mut tx = self.write().await?;
        for (table, delete) in scope.of(SCOPES).rest {
            let deleted = sqlx::query(*delete)
                .bind(scope.value())
                .execute(&mut *tx)
                .await?;
            counts.push((*table, deleted.rows_affected()));
        }
        if let Some(key) = scope.permit_key() {
            for (table, _, delete) in OF_PERMITS.rows {
                let deleted = sqlx::query(delete).bind(&key).execute(&mut *tx).await?;
                counts.push((table, deleted.rows_affected()));
            }
        }
        tx.commit().await?;
        Ok(counts)
    }

    async fn purge_events(&self, scope: &PurgeScope) -> Result<u64, StoreError> {
        let mut tx = self.write().await?;
        let delete = sqlx::query(scope.of(SCOPES).events);
        let delete = delete.bind(scope.value()).bind(EVENTS);
        let deleted = delete.execute(&mut *tx).await?.rows_affected();
        tx.commit().await?;
        Ok(deleted)
    }

    async fn limits_held(&self, scope: &PurgeScope) -> Result<Vec<String>, StoreError> {
        let Some(key) = scope.permit_key() else {
            return Ok(Vec::new());
        };
        let held = sqlx::query_scalar(OF_PERMITS.held).bind(key);
        Ok(held.fetch_all(&self.readers).await?)
    }
}

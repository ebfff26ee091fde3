//! The ranks of ready jobs, for nodes with a start order.

use sqlx::Row;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::PgStore;
use crate::job::JobId;
use crate::lane::start_order::Rank;
use crate::store::error::StoreError;
use crate::store::statements::Ranking;

const READ: &str = "
SELECT j.id, j.priority, j.kind = 'timer', coalesce(j.due_at, j.ready_at) FROM jobwire.job j WHERE j.id = ANY($1)";

impl Ranking for PgStore {
    async fn read_ranks(&self, jobs: &[JobId]) -> Result<Vec<(JobId, Rank)>, StoreError> {
        let jobs: Vec<Uuid> = jobs.iter().map(|id| id.0).collect();
        let mut connection = self.cache.acquire().await?;
        let rows = sqlx::query(READ)
            .bind(jobs)
            .fetch_all(&mut *connection)
            .await?;
        connection.keep();
        let rank = |row: &PgRow| -> Result<(JobId, Rank), StoreError> {
            let rank = Rank {
                priority: row.try_get(1)?,
                timer: row.try_get(2)?,
                due_at: row.try_get(3)?,
            };
            Ok((JobId(row.try_get(0)?), rank))
        };
        rows.iter().map(rank).collect()
    }
}

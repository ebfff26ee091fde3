//! The ranks of ready jobs, for nodes with a start order.

use sqlx::Row;

use super::{SqliteStore, decode};
use crate::job::JobId;
use crate::lane::start_order::Rank;
use crate::store::error::StoreError;
use crate::store::statements::Ranking;

const READ: &str = "
SELECT j.id, j.priority, j.kind = 'timer' AS timer, coalesce(j.due_at, j.ready_at) AS due_at
FROM json_each(?1) asked CROSS JOIN job j ON j.id = asked.value";

impl Ranking for SqliteStore {
    async fn read_ranks(&self, jobs: &[JobId]) -> Result<Vec<(JobId, Rank)>, StoreError> {
        let rows = sqlx::query(READ)
            .bind(decode::array(jobs)?)
            .fetch_all(&self.readers)
            .await?;
        let rank = |row| -> Result<(JobId, Rank), StoreError> {
            let rank = Rank {
                priority: Row::try_get(row, 1)?,
                timer: Row::try_get(row, 2)?,
                due_at: decode::moment(Row::try_get(row, 3)?)?,
            };
            Ok((decode::job_id(row)?, rank))
        };
        rows.iter().map(rank).collect()
    }
}

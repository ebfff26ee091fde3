//! Gives all jobs back to the engine by clearing the locks of Jobwire.

use jobwire_core::StoreError;
use sqlx::PgPool;

use super::Act;

const JOBS: &str = "
UPDATE act_ru_job SET lock_owner_ = NULL, lock_exp_time_ = NULL WHERE starts_with(lock_owner_, 'jobwire:')";
pub(super) const INSTANCES: &str = "
UPDATE act_ru_execution SET {no instance lock} WHERE {our instance lock}";

impl Act {
    /// Clears all locks of Jobwire's nodes. Returns the number of jobs that had one.
    pub(super) async fn release_locks(&self, pool: &PgPool) -> Result<u64, StoreError> {
        let mut tx = pool.begin().await?;
        sqlx::query(self.sql.release_instances)
            .execute(&mut *tx)
            .await?;
        let released = sqlx::query(JOBS).execute(&mut *tx).await?.rows_affected();
        tx.commit().await?;
        Ok(released)
    }
}

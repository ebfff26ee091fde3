//! Handing everything back to the engine: no lock of Jobwire stays.

use jobwire_core::StoreError;
use sqlx::PgPool;

const JOBS: &str = "
UPDATE act_ru_job SET lock_owner_ = NULL, lock_exp_time_ = NULL WHERE starts_with(lock_owner_, 'jobwire:')";
const INSTANCES: &str = "
UPDATE act_ru_execution SET lock_owner_ = NULL, lock_time_ = NULL WHERE starts_with(lock_owner_, 'jobwire:')";

/// Clears all locks of Jobwire's nodes. Returns the number of jobs that had one.
pub(super) async fn release_all(pool: &PgPool) -> Result<u64, StoreError> {
    let mut tx = pool.begin().await?;
    sqlx::query(INSTANCES).execute(&mut *tx).await?;
    let released = sqlx::query(JOBS).execute(&mut *tx).await?.rows_affected();
    tx.commit().await?;
    Ok(released)
}

//! Gives all jobs back to the engine by clearing the locks of Jobwire whose executions have ended.

use jobwire_core::StoreError;
use sqlx::PgPool;

use super::Camunda;
use crate::released::{Released, has_ended};
use crate::zone::moment_of;

/// Clears the locks of jobs. Leaves rows that the engine has locked. `$1`: the zone, `$2`: the patience.
const JOBS: &str = concat!(
    "
UPDATE act_ru_job SET lock_owner_ = NULL, lock_exp_time_ = NULL WHERE id_ IN (
    SELECT j.id_ FROM act_ru_job j WHERE starts_with(j.lock_owner_, 'jobwire:') AND ",
    has_ended!("j.lock_exp_time_"),
    "
    FOR NO KEY UPDATE SKIP LOCKED)"
);

/// Counts the locks that are left, and selects the end of the last one. `$1`: the zone.
const LEFT: &str = concat!(
    "
SELECT count(*), max(",
    moment_of!("j.lock_exp_time_"),
    ") FROM act_ru_job j WHERE starts_with(j.lock_owner_, 'jobwire:')"
);

impl Camunda {
    /// Clears the locks of Jobwire's nodes whose executions have ended.
    pub(super) async fn release_locks(&self, pool: &PgPool) -> Result<Released, StoreError> {
        let clear = sqlx::query(JOBS)
            .bind(self.zone.name())
            .bind(self.patience)
            .execute(pool);
        let released = clear.await?.rows_affected();
        let left = sqlx::query(LEFT)
            .bind(self.zone.name())
            .fetch_one(pool)
            .await?;
        Released::of(released, &left)
    }
}

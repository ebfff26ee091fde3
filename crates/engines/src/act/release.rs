//! Gives all jobs back to the engine by clearing the locks of Jobwire whose executions have ended.
//!
//! Rows that the engine has locked are left, and no statement waits for one.

use jobwire_core::StoreError;
use sqlx::PgPool;

use super::Act;
use crate::released::{Released, has_ended};
use crate::zone::moment_of;

/// Clears the locks of jobs. `$1`: the zone, `$2`: the patience.
const JOBS: &str = concat!(
    "
UPDATE act_ru_job SET lock_owner_ = NULL, lock_exp_time_ = NULL WHERE id_ IN (
    SELECT j.id_ FROM act_ru_job j WHERE starts_with(j.lock_owner_, 'jobwire:') AND ",
    has_ended!("j.lock_exp_time_"),
    "
    FOR NO KEY UPDATE SKIP LOCKED)"
);

/// Clears the locks of instances whose jobs have no lock of Jobwire. `$1`: the zone, `$2`: the patience.
pub(super) const INSTANCES: &str = concat!(
    "
UPDATE act_ru_execution SET {no instance lock} WHERE id_ IN (
    SELECT e.id_ FROM act_ru_execution e WHERE {our instance lock} AND ",
    has_ended!("e.lock_time_"),
    " AND NOT EXISTS (
        SELECT FROM act_ru_job j WHERE j.process_instance_id_ = e.id_ AND starts_with(j.lock_owner_, 'jobwire:'))
    FOR NO KEY UPDATE SKIP LOCKED)"
);

/// Counts the locks that are left, and selects the end of the last one. The locks of a job and its
/// instance count once. `$1`: the zone.
pub(super) const LEFT: &str = concat!(
    "
SELECT count(*), max(",
    moment_of!("l.until"),
    ") FROM (
    SELECT j.lock_exp_time_ AS until FROM act_ru_job j WHERE starts_with(j.lock_owner_, 'jobwire:')
    UNION ALL SELECT e.lock_time_ FROM act_ru_execution e WHERE {our instance lock} AND NOT EXISTS (
        SELECT FROM act_ru_job j WHERE j.process_instance_id_ = e.id_ AND starts_with(j.lock_owner_, 'jobwire:'))
) l"
);

impl Act {
    /// Clears the locks of Jobwire's nodes whose executions have ended.
    pub(super) async fn release_locks(&self, pool: &PgPool) -> Result<Released, StoreError> {
        let mut tx = pool.begin().await?;
        let clear = |statement: &'static str| {
            sqlx::query(statement)
                .bind(self.zone.name())
                .bind(self.patience)
        };
        let cleared = clear(JOBS).execute(&mut *tx).await?.rows_affected();
        // Its snapshot is younger, so it sees which jobs have kept their locks.
        let instances = clear(self.sql.release_instances);
        instances.execute(&mut *tx).await?;
        let left = sqlx::query(self.sql.release_left)
            .bind(self.zone.name())
            .fetch_one(&mut *tx)
            .await?;
        tx.commit().await?;
        Released::of(cleared, &left)
    }
}

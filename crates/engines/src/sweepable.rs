//! The dry run of a sweep: the numbers of jobs that the leader would rescue or hint, by class.

use jobwire_core::StoreError;
use jobwire_core::job::query::Sweepable;
use jobwire_core::job::scope::Services;
use sqlx::{PgPool, Row};

use crate::dialect::Dialect;

/// True if a tap reports new jobs of this database, so that the leader's looks report none.
macro_rules! is_tapped {
    () => {
        "EXISTS (SELECT FROM pg_replication_slots r
            WHERE r.active AND r.database = current_database() AND starts_with(r.slot_name, 'jobwire_engine'))"
    };
}
pub(crate) use is_tapped;

/// Counts the jobs with the statement of a dialect. Reads every executable job.
pub(crate) async fn count(
    dialect: &dyn Dialect,
    pool: &PgPool,
    engine: &str,
    services: &Services,
) -> Result<Sweepable, StoreError> {
    let Some(statement) = dialect.sweepable() else {
        return Err(StoreError::Config(format!(
            "the bridge to `{engine}` does not support a dry run of the sweeper"
        )));
    };
    let row = sqlx::query(statement.sql)
        .bind(dialect.zone().name())
        .bind(statement.patience)
        .bind(engine)
        .bind(services.bound())
        .fetch_one(pool)
        .await?;
    Ok(Sweepable {
        now: row.try_get(0)?,
        expired: row.try_get(1)?,
        unhinted: row.try_get(2)?,
        left_over_instances: row.try_get(3)?,
        ready: row.try_get(4)?,
        instance_held: row.try_get(5)?,
        suspended: row.try_get(6)?,
        unserved: row.try_get(7)?,
        running: row.try_get(8)?,
        // All jobs of an engine have one lane, which the store compares.
        unreceived: 0,
        // Engines keep no permits of limits.
        waiting: 0,
    })
}

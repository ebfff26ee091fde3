//! Reads the rows of `event_log` that the jobs wrote, and the database's clock.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use futures_util::TryStreamExt;
use jobwire_core::{JobId, StoreError};
use sqlx::Row;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use crate::connect::Database;

/// The row of one job.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) job: JobId,
    pub(super) case: String,
    pub(super) activity: String,
    pub(super) position: i64,
    pub(super) fence: i64,
    pub(super) node: Uuid,
    pub(super) started_at: DateTime<Utc>,
    pub(super) ended_at: DateTime<Utc>,
}

const COLUMNS: &str =
    "job_id, process_instance, activity, position, fence, node, started_at, ended_at";

/// Returns the rows of these jobs since the given time.
pub(super) async fn entries(
    database: &Database,
    since: DateTime<Utc>,
    jobs: &HashSet<JobId>,
) -> Result<Vec<Entry>, StoreError> {
    let mut entries = Vec::with_capacity(jobs.len());
    match database {
        Database::Postgres(store) => {
            let sql = format!("SELECT {COLUMNS} FROM jobwire.event_log WHERE started_at >= $1");
            let mut rows = sqlx::query(sqlx::AssertSqlSafe(sql))
                .bind(since)
                .fetch(store.pool());
            while let Some(row) = rows.try_next().await? {
                entries.extend(Some(of_postgres(&row)?).filter(|e| jobs.contains(&e.job)));
            }
        }
        Database::Sqlite(store) => {
            let sql = format!("SELECT {COLUMNS} FROM event_log WHERE started_at >= ?1");
            let since = since.timestamp_micros();
            let mut rows = sqlx::query(sqlx::AssertSqlSafe(sql))
                .bind(since)
                .fetch(store.pool());
            while let Some(row) = rows.try_next().await? {
                entries.extend(Some(of_sqlite(&row)?).filter(|e| jobs.contains(&e.job)));
            }
        }
    }
    Ok(entries)
}

fn of_postgres(row: &PgRow) -> Result<Entry, sqlx::Error> {
    Ok(Entry {
        job: JobId::from_uuid(row.try_get(0)?),
        case: row.try_get(1)?,
        activity: row.try_get(2)?,
        position: row.try_get(3)?,
        fence: row.try_get(4)?,
        node: row.try_get(5)?,
        started_at: row.try_get(6)?,
        ended_at: row.try_get(7)?,
    })
}

fn of_sqlite(row: &SqliteRow) -> Result<Entry, sqlx::Error> {
    let id = |index| {
        let text: String = row.try_get(index)?;
        Uuid::parse_str(&text).map_err(|e| sqlx::Error::Decode(Box::new(e)))
    };
    let time = |index| {
        let micros: i64 = row.try_get(index)?;
        DateTime::from_timestamp_micros(micros)
            .ok_or_else(|| sqlx::Error::Decode("a time out of range".into()))
    };
    Ok(Entry {
        job: JobId::from_uuid(id(0)?),
        case: row.try_get(1)?,
        activity: row.try_get(2)?,
        position: row.try_get(3)?,
        fence: row.try_get(4)?,
        node: id(5)?,
        started_at: time(6)?,
        ended_at: time(7)?,
    })
}

/// Returns the number of rows.
pub(super) async fn count(database: &Database) -> Result<i64, StoreError> {
    Ok(match database {
        Database::Postgres(store) => {
            sqlx::query_scalar("SELECT count(*) FROM jobwire.event_log")
                .fetch_one(store.pool())
                .await?
        }
        Database::Sqlite(store) => {
            sqlx::query_scalar("SELECT count(*) FROM event_log")
                .fetch_one(store.pool())
                .await?
        }
    })
}

/// The database's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    ahead: chrono::Duration,
}

impl Clock {
    /// Compares the database's clock with this machine's, by the quickest of several answers.
    pub(super) async fn of(database: &Database) -> Result<Self, StoreError> {
        let Database::Postgres(store) = database else {
            return Ok(Self {
                ahead: chrono::Duration::zero(),
            });
        };
        let mut best: Option<(chrono::Duration, chrono::Duration)> = None;
        for _ in 0..5 {
            let asked = Utc::now();
            let theirs: DateTime<Utc> = sqlx::query_scalar("SELECT clock_timestamp()")
                .fetch_one(store.pool())
                .await?;
            let took = Utc::now() - asked;
            if best.is_none_or(|(quickest, _)| took < quickest) {
                best = Some((took, theirs - (asked + took / 2)));
            }
        }
        Ok(Self {
            ahead: best.map_or_else(chrono::Duration::zero, |(_, ahead)| ahead),
        })
    }

    /// Returns the current time of the database's clock.
    pub(super) fn now(self) -> DateTime<Utc> {
        Utc::now() + self.ahead
    }
}

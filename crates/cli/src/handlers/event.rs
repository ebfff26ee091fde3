//! `event`: one activity of a replayed process. It writes a row of `event_log` (case, activity,
//! position, start and end) in the transaction that completes its job, so the row exists if and
//! only if the job was finished, and exactly once.
//!
//! Start and end are times of the database's clock. The start is that of the transaction, which is
//! after the lock. The end is that of the insert, which is before the end of the lease.

use async_trait::async_trait;
use jobwire_core::worker::handler_transaction::TransactionError;
use jobwire_core::{Handler, HandlerError, HandlerResult, Outcome, PgStore, Running, SqliteStore};
use serde::Deserialize;

/// The handler type.
pub const TYPE: &str = "event";

/// The payload of an `event` job; other fields are ignored.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Event {
    /// Its position in its case, from 1.
    pub position: i64,
}

/// Writes the row. See the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct EventHandler;

const INSERT_POSTGRES: &str = "INSERT INTO jobwire.event_log \
     (job_id, process_instance, activity, position, fence, node, started_at, ended_at) \
     VALUES ($1, $2, $3, $4, $5, $6, transaction_timestamp(), clock_timestamp())";
const INSERT_SQLITE: &str = "INSERT INTO event_log \
     (job_id, process_instance, activity, position, fence, node, started_at, ended_at) \
     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, max(?7, CAST(unixepoch('subsec') * 1000000 AS INTEGER)))";

#[async_trait]
impl Handler for EventHandler {
    async fn run(&self, job: Running) -> HandlerResult<Outcome> {
        let event: Event = job.job.decode().map_err(|e| {
            HandlerError::unrecoverable(format!(
                "field `payload` of an `event` job: {e}; give, for example, {{\"position\": 1}}"
            ))
        })?;
        record(&job, event.position).await?;
        Ok(Outcome::Done)
    }
}

/// Writes the row of a job that runs `in_transaction` into its transaction.
pub(crate) async fn record<P: Sync>(job: &Running<P>, position: i64) -> Result<(), HandlerError> {
    // SQLite's clock is this machine's.
    let started_at = chrono::Utc::now().timestamp_micros();
    let case = required(
        job.job.process_instance.as_deref(),
        "process_instance",
        "the case",
    )?;
    let activity = required(job.job.element.as_deref(), "element", "the activity")?;
    match job.transaction::<PgStore>().await {
        Ok(mut guard) => {
            sqlx::query(INSERT_POSTGRES)
                .bind(job.job.id.uuid())
                .bind(case)
                .bind(activity)
                .bind(position)
                .bind(job.fence.number())
                .bind(job.node.uuid())
                .execute(&mut *guard)
                .await?;
        }
        Err(TransactionError::OtherStore) => {
            let mut guard = job.transaction::<SqliteStore>().await?;
            sqlx::query(INSERT_SQLITE)
                .bind(job.job.id.to_string())
                .bind(case)
                .bind(activity)
                .bind(position)
                .bind(job.fence.number())
                .bind(job.node.to_string())
                .bind(started_at)
                .execute(&mut *guard)
                .await?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn required<'a>(
    value: Option<&'a str>,
    field: &str,
    meaning: &str,
) -> Result<&'a str, HandlerError> {
    value.ok_or_else(|| {
        HandlerError::unrecoverable(format!(
            "field `{field}` is missing; an `event` job needs it: it names {meaning}"
        ))
    })
}

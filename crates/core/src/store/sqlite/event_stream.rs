//! The event stream: its options, and the events that wait ([`crate::event::stream`]).
//!
//! [`triggers`](super::event_triggers) write the events. Where the tables do not show why a job is
//! moved or deleted, the transaction writes a [`Cause`] before, and deletes it afterwards.

use std::time::Duration;

use chrono::{DateTime, Utc};
use metrics::counter;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use super::event_triggers::{NAMES, triggers};
use super::{SqliteStore, decode};
use crate::event::stream::{COUNTED_EVENTS, EventStream, EventStreamState, StreamedEvent};
use crate::job::{JobId, NodeId};
use crate::store::decode::events;
use crate::store::error::StoreError;
use crate::store::statements::Streaming;
use crate::telemetry::metrics as m;

/// Why the next statements of a transaction move or delete jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// An operator has cancelled the jobs.
    Cancelled,
    /// The jobs have not failed: they wait for another date.
    Snoozed,
    /// An operator makes the jobs executable.
    Retried,
    /// An operator gives the jobs another date.
    Rescheduled,
    /// A suspension moves the jobs.
    Suspended,
    /// The jobs become dead letters without having failed.
    SetAside,
}

impl Cause {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Snoozed => "snoozed",
            Self::Retried => "retried",
            Self::Rescheduled => "rescheduled",
            Self::Suspended => "suspended",
            Self::SetAside => "set-aside",
        }
    }
}

const BEGIN_CAUSE: &str =
    "INSERT INTO event_cause (cause) SELECT ?1 WHERE EXISTS (SELECT 1 FROM event_stream)";
/// Without the condition, SQLite writes the page of the table even if it is empty.
const END_CAUSE: &str = "DELETE FROM event_cause WHERE true";

/// Notes the cause of the next statements, if the stream is switched on.
pub(super) async fn begin_cause(
    connection: &mut SqliteConnection,
    cause: Cause,
) -> Result<(), StoreError> {
    let query = sqlx::query(BEGIN_CAUSE).bind(cause.as_str());
    query.execute(connection).await?;
    Ok(())
}

/// Deletes the cause.
pub(super) async fn end_cause(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    sqlx::query(END_CAUSE).execute(connection).await?;
    Ok(())
}

const SWITCH_ON: &str = "
INSERT INTO event_stream (only_row, source, kinds, types, keep, since) VALUES (1, ?1, ?2, ?3, ?4, ?5)
ON CONFLICT (only_row) DO UPDATE SET source = excluded.source, kinds = excluded.kinds, types = excluded.types,
    keep = excluded.keep";
const SWITCH_OFF: &str = "DELETE FROM event_stream";
const DROP_ALL: &str = "DELETE FROM event";

const STREAM: &str = "SELECT source, kinds, types, keep FROM event_stream";

const TRIGGERS: &str = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name IN (SELECT value FROM json_each(?1))";

const WAITING: &str = "
SELECT (SELECT count(*) FROM (SELECT 1 FROM event LIMIT ?1)), (SELECT at FROM event ORDER BY seq LIMIT 1)";

const PAGE: &str = "
SELECT job_id, seq, id, at, kind, type, process_instance, process_definition, element, tenant, category, correlation_id,
    trace_parent, attempt, retries, due_at, message, node, fence
FROM event ORDER BY seq LIMIT ?1";

/// A number is given once: there is no standby, and `AUTOINCREMENT` remembers the last one.
const FORGET: &str = "DELETE FROM event WHERE seq IN (SELECT value FROM json_each(?1))";

/// The oldest events only: their numbers grow with their times.
macro_rules! old {
    () => {
        "SELECT e.seq FROM (SELECT seq, at FROM event ORDER BY seq LIMIT ?2) AS e
    WHERE e.at < ?1 - (SELECT keep FROM event_stream)"
    };
}

const HAS_OLD: &str = concat!("SELECT EXISTS (", old!(), ")");

const DROP_OLD: &str = concat!("DELETE FROM event WHERE seq IN (", old!(), ")");

/// The events of keys that failed for long.
const DROP_FAILED: &str = "
DELETE FROM event WHERE seq IN (SELECT value FROM json_each(?2)) AND at < ?1 - (SELECT keep FROM event_stream)";

fn names(text: &str) -> Result<Vec<String>, StoreError> {
    serde_json::from_str(text)
        .map_err(|e| StoreError::BadRow(format!("the options of the event stream: {e}")))
}

fn uuid(row: &SqliteRow, column: &str) -> Result<Option<uuid::Uuid>, StoreError> {
    let text = decode::maybe_text(row, column)?;
    let parse = |text: &str| {
        uuid::Uuid::parse_str(text)
            .map_err(|e| StoreError::BadRow(format!("the column {column} of an event: {e}")))
    };
    text.as_deref().map(parse).transpose()
}

fn event(row: &SqliteRow) -> Result<StreamedEvent, StoreError> {
    Ok(StreamedEvent {
        job: JobId(uuid(row, "job_id")?.unwrap_or_default()),
        seq: row.try_get("seq")?,
        id: uuid(row, "id")?.unwrap_or_default(),
        at: decode::moment(row.try_get("at")?)?,
        kind: decode::text(row, "kind")?,
        job_type: decode::text(row, "type")?,
        process_instance: decode::maybe_text(row, "process_instance")?,
        process_definition: decode::maybe_text(row, "process_definition")?,
        element: decode::maybe_text(row, "element")?,
        tenant: decode::maybe_text(row, "tenant")?,
        category: decode::maybe_text(row, "category")?,
        correlation_id: uuid(row, "correlation_id")?,
        trace_parent: decode::maybe_text(row, "trace_parent")?,
        attempt: row.try_get("attempt")?,
        retries: row.try_get("retries")?,
        due_at: decode::maybe_moment(row.try_get("due_at")?)?,
        message: decode::maybe_text(row, "message")?,
        node: uuid(row, "node")?.map(NodeId),
        fence: row.try_get("fence")?,
    })
}

impl SqliteStore {
    async fn delete_numbers(&self, numbers: &[i64]) -> Result<u64, StoreError> {
        let mut tx = self.write().await?;
        let query = sqlx::query(FORGET).bind(decode::array(numbers)?);
        let gone = query.execute(&mut *tx).await?.rows_affected();
        tx.commit().await?;
        Ok(gone)
    }
}

impl Streaming for SqliteStore {
    async fn switch_stream(&self, stream: Option<&EventStream>) -> Result<u64, StoreError> {
        let mut tx = self.write().await?;
        for name in NAMES {
            let drop = format!("DROP TRIGGER IF EXISTS {name}");
            sqlx::query(sqlx::AssertSqlSafe(drop))
                .execute(&mut *tx)
                .await?;
        }
        let mut dropped = 0;
        if let Some(stream) = stream {
            let types = stream.types.as_ref().map(decode::array).transpose()?;
            let keep = i64::try_from(stream.keep.as_micros()).unwrap_or(i64::MAX);
            sqlx::query(SWITCH_ON)
                .bind(&stream.source)
                .bind(decode::array(&stream.kinds)?)
                .bind(types)
                .bind(keep)
                .bind(decode::now_micros())
                .execute(&mut *tx)
                .await?;
            for trigger in triggers() {
                sqlx::query(sqlx::AssertSqlSafe(trigger))
                    .execute(&mut *tx)
                    .await?;
            }
        } else {
            sqlx::query(SWITCH_OFF).execute(&mut *tx).await?;
            let gone = sqlx::query(DROP_ALL).execute(&mut *tx).await?;
            dropped = gone.rows_affected();
        }
        tx.commit().await?;
        Ok(dropped)
    }

    async fn read_stream(&self) -> Result<Option<EventStream>, StoreError> {
        let Some(row) = sqlx::query(STREAM).fetch_optional(&self.readers).await? else {
            return Ok(None);
        };
        let types = decode::maybe_text(&row, 2)?;
        let mut stream = EventStream::new(decode::text(&row, 0)?);
        stream.kinds = names(&decode::text(&row, 1)?)?;
        stream.types = types.as_deref().map(names).transpose()?;
        let keep = u64::try_from(row.try_get::<i64, _>(3)?).unwrap_or(0);
        stream.keep = Duration::from_micros(keep);
        Ok(Some(stream))
    }

    async fn stream_state(&self) -> Result<EventStreamState, StoreError> {
        let stream = self.read_stream().await?;
        let triggers: Vec<String> = sqlx::query_scalar(TRIGGERS)
            .bind(decode::array(NAMES)?)
            .fetch_all(&self.readers)
            .await?;
        let wanted = if stream.is_some() { NAMES.len() } else { 0 };
        let (waiting, oldest) = self.count_events().await?;
        Ok(EventStreamState::new(
            stream,
            triggers.len() == wanted,
            waiting,
            oldest,
        ))
    }

    async fn count_events(&self) -> Result<(i64, Option<DateTime<Utc>>), StoreError> {
        let row = sqlx::query(WAITING).bind(COUNTED_EVENTS);
        let row = row.fetch_one(&self.readers).await?;
        Ok((row.try_get(0)?, decode::maybe_moment(row.try_get(1)?)?))
    }

    async fn events_page(&self, at_most: i64) -> Result<Vec<StreamedEvent>, StoreError> {
        let rows = sqlx::query(PAGE).bind(at_most);
        let rows = rows.fetch_all(&self.readers).await?;
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            found.push((row.try_get("seq")?, event(row)));
        }
        let (events, unreadable) = events(found.into_iter());
        if !unreadable.is_empty() {
            let dropped = self.delete_numbers(&unreadable).await?;
            counter!(m::STREAM_DROPPED).increment(dropped);
        }
        Ok(events)
    }

    async fn delete_events(&self, published: &[(i64, uuid::Uuid)]) -> Result<u64, StoreError> {
        let numbers: Vec<i64> = published.iter().map(|(number, _)| *number).collect();
        self.delete_numbers(&numbers).await
    }

    async fn delete_old_events(&self, at_most: i64) -> Result<u64, StoreError> {
        let now = decode::now_micros();
        // Most calls find nothing, and need no lock.
        let has_old = sqlx::query_scalar(HAS_OLD).bind(now).bind(at_most);
        let has_old: bool = has_old.fetch_one(&self.readers).await?;
        if !has_old {
            return Ok(0);
        }
        let mut tx = self.write().await?;
        let query = sqlx::query(DROP_OLD).bind(now).bind(at_most);
        let gone = query.execute(&mut *tx).await?.rows_affected();
        tx.commit().await?;
        Ok(gone)
    }

    async fn delete_failed_events(&self, failed: &[(i64, uuid::Uuid)]) -> Result<u64, StoreError> {
        let numbers: Vec<i64> = failed.iter().map(|(number, _)| *number).collect();
        let mut tx = self.write().await?;
        let query = sqlx::query(DROP_FAILED).bind(decode::now_micros());
        let query = query.bind(decode::array(numbers)?);
        let gone = query.execute(&mut *tx).await?.rows_affected();
        tx.commit().await?;
        Ok(gone)
    }
}

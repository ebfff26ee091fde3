//! The event stream: its options, and the events that wait ([`crate::event::stream`]). The triggers
//! that write them are in migration 0012.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use metrics::counter;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::PgStore;
use super::event_position::{EventPosition, Seen};
use crate::event::stream::{COUNTED_EVENTS, EventStream, EventStreamState, StreamedEvent};
use crate::job::{JobId, NodeId};
use crate::store::decode::events;
use crate::store::error::StoreError;
use crate::store::statements::Streaming;
use crate::telemetry::metrics as m;

const SWITCH: &str = "SELECT jobwire.switch_events($1, $2, $3, $4)";

/// Arrays of other programs may begin at any number, and the driver reads those that begin at 1.
const STREAM: &str = "
SELECT source, ARRAY(SELECT k FROM unnest(kinds) k WHERE k IS NOT NULL),
    CASE WHEN types IS NOT NULL THEN ARRAY(SELECT t FROM unnest(types) t WHERE t IS NOT NULL) END,
    (extract(epoch FROM keep) * 1000)::bigint FROM jobwire.event_stream";

/// The number of triggers, and the number that the kinds of the stream need.
const TRIGGERS: &str = "
SELECT (SELECT count(*) FROM pg_trigger
        WHERE tgname IN ('event_added', 'event_removed', 'event_changed') AND tgenabled IN ('O', 'A')
            AND tgrelid IN ('jobwire.job'::regclass, 'jobwire.timer_job'::regclass, 'jobwire.suspended_job'::regclass,
                'jobwire.dead_letter_job'::regclass, 'jobwire.job_lease'::regclass)),
    coalesce((SELECT CASE WHEN 'locked' = ANY (kinds) THEN 11 ELSE 9 END FROM jobwire.event_stream), 0)::bigint";

const WAITING: &str = "
SELECT (SELECT count(*) FROM (SELECT FROM jobwire.event LIMIT $1) e), (SELECT at FROM jobwire.event ORDER BY seq LIMIT 1)";

const PAGE: &str = "
SELECT seq, id, at, kind, job_id, type, process_instance, process_definition, element, tenant, category, correlation_id,
    trace_parent, attempt, retries, due_at, message, node, fence,
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint, pg_current_xact_id()::text::bigint
FROM jobwire.event WHERE seq >= $2 ORDER BY seq LIMIT $1";

const FORGET: &str = "
DELETE FROM jobwire.event e USING unnest($1::bigint[], $2::uuid[]) AS p (seq, id) WHERE e.seq = p.seq AND e.id = p.id";

/// Deletes the oldest events only: their numbers grow with their times, apart from transactions that
/// run at once.
const DROP_OLD: &str = "
DELETE FROM jobwire.event WHERE seq = ANY(ARRAY(
    SELECT e.seq FROM (SELECT seq, at FROM jobwire.event ORDER BY seq LIMIT $1) e
    WHERE e.at < clock_timestamp() - (SELECT keep FROM jobwire.event_stream)))";

/// The events of keys that failed for long.
const DROP_FAILED: &str = "
DELETE FROM jobwire.event e USING unnest($1::bigint[], $2::uuid[]) AS p (seq, id)
WHERE e.seq = p.seq AND e.id = p.id AND e.at < clock_timestamp() - (SELECT keep FROM jobwire.event_stream)";

fn event(row: &PgRow) -> Result<StreamedEvent, StoreError> {
    Ok(StreamedEvent {
        seq: row.try_get(0)?,
        id: row.try_get(1)?,
        at: row.try_get(2)?,
        kind: row.try_get(3)?,
        job: JobId(row.try_get(4)?),
        job_type: row.try_get(5)?,
        process_instance: row.try_get(6)?,
        process_definition: row.try_get(7)?,
        element: row.try_get(8)?,
        tenant: row.try_get(9)?,
        category: row.try_get(10)?,
        correlation_id: row.try_get(11)?,
        trace_parent: row.try_get(12)?,
        attempt: row.try_get(13)?,
        retries: row.try_get(14)?,
        due_at: row.try_get(15)?,
        message: row.try_get(16)?,
        node: row.try_get::<Option<_>, _>(17)?.map(NodeId),
        fence: row.try_get(18)?,
    })
}

impl PgStore {
    fn event_position(&self) -> MutexGuard<'_, EventPosition> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the rows of a page, and what they tell about its place.
    async fn page_from(
        &self,
        from: i64,
        at_most: i64,
    ) -> Result<(Vec<PgRow>, Option<Seen>), StoreError> {
        let query = sqlx::query(PAGE).bind(at_most).bind(from);
        let rows = match query.fetch_all(&self.pool.inner).await {
            Ok(rows) => rows,
            Err(error) => {
                self.event_position().begin_anew();
                return Err(error.into());
            }
        };
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
            return Ok((rows, None));
        };
        let seen = Seen {
            first: first.try_get(0)?,
            last: last.try_get(0)?,
            oldest_running: first.try_get(19)?,
            own: first.try_get(20)?,
        };
        Ok((rows, Some(seen)))
    }
}

impl Streaming for PgStore {
    async fn switch_stream(&self, stream: Option<&EventStream>) -> Result<u64, StoreError> {
        let dropped: i64 = sqlx::query_scalar(SWITCH)
            .bind(stream.map(|stream| &stream.source))
            .bind(stream.map(|stream| &stream.kinds))
            .bind(stream.and_then(|stream| stream.types.as_ref()))
            .bind(stream.map(|stream| stream.keep))
            .fetch_one(&self.patient().await?)
            .await?;
        Ok(dropped.unsigned_abs())
    }

    async fn read_stream(&self) -> Result<Option<EventStream>, StoreError> {
        let row = sqlx::query(STREAM).fetch_optional(&self.pool.inner).await?;
        let Some(row) = row else { return Ok(None) };
        let mut stream = EventStream::new(row.try_get::<String, _>(0)?);
        stream.kinds = row.try_get(1)?;
        stream.types = row.try_get(2)?;
        stream.keep = Duration::from_millis(u64::try_from(row.try_get::<i64, _>(3)?).unwrap_or(0));
        Ok(Some(stream))
    }

    async fn stream_state(&self) -> Result<EventStreamState, StoreError> {
        let stream = self.read_stream().await?;
        let (triggers, wanted): (i64, i64) =
            sqlx::query_as(TRIGGERS).fetch_one(&self.pool.inner).await?;
        let (waiting, oldest) = self.count_events().await?;
        Ok(EventStreamState::new(
            stream,
            triggers == wanted,
            waiting,
            oldest,
        ))
    }

    async fn count_events(&self) -> Result<(i64, Option<DateTime<Utc>>), StoreError> {
        let query = sqlx::query_as(WAITING).bind(COUNTED_EVENTS);
        Ok(query.fetch_one(&self.pool.inner).await?)
    }

    async fn events_page(&self, at_most: i64) -> Result<Vec<StreamedEvent>, StoreError> {
        let from = self.event_position().from();
        let (mut rows, seen) = self.page_from(from, at_most).await?;
        if let Some(seen) = seen {
            if self.event_position().went_back(seen) {
                self.event_position().begin_anew();
                (rows, _) = self.page_from(i64::MIN, at_most).await?;
            } else {
                self.event_position().read(from, seen);
            }
        }
        let mut found = Vec::with_capacity(rows.len());
        for row in &rows {
            found.push(((row.try_get(0)?, row.try_get(1)?), event(row)));
        }
        let (events, unreadable) = events(found.into_iter());
        if !unreadable.is_empty() {
            let dropped = self.delete_events(&unreadable).await?;
            counter!(m::STREAM_DROPPED).increment(dropped);
        }
        Ok(events)
    }

    async fn delete_events(&self, published: &[(i64, uuid::Uuid)]) -> Result<u64, StoreError> {
        let (numbers, ids): (Vec<i64>, Vec<uuid::Uuid>) = published.iter().copied().unzip();
        let query = sqlx::query(FORGET).bind(numbers).bind(ids);
        Ok(query.execute(&self.pool.inner).await?.rows_affected())
    }

    async fn delete_old_events(&self, at_most: i64) -> Result<u64, StoreError> {
        let query = sqlx::query(DROP_OLD).bind(at_most);
        Ok(query.execute(&self.pool.inner).await?.rows_affected())
    }

    async fn delete_failed_events(&self, failed: &[(i64, uuid::Uuid)]) -> Result<u64, StoreError> {
        let (numbers, ids): (Vec<i64>, Vec<uuid::Uuid>) = failed.iter().copied().unzip();
        let query = sqlx::query(DROP_FAILED).bind(numbers).bind(ids);
        Ok(query.execute(&self.pool.inner).await?.rows_affected())
    }
}

//! Timers: due ones become executable, in batches. Several nodes may move timers at once.

use std::sync::Arc;

use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row};
use uuid::Uuid;

use super::PgStore;
use super::aside;
use super::begin::begin_part;
use super::connection_cache::ConnectionCache;
use super::connection_pool::ConnectionPool;
use super::decode;
use super::session::wait_for_disk;
use super::sql::{job_columns, moved_columns, nothing_suspended, ready_columns, served, unleased};
use crate::job::{Fence, JobId, Lane, LockedJob};
use crate::store::error::StoreError;
use crate::store::statements::Timers;
use crate::store::{LockTerms, MovedTimers};

/// Moves due timers. All steps after the first one read by the given keys. A join with `due` would
/// read the whole table twice, to delete and to find the next timer (for 100,000 due timers that
/// took most of the time).
macro_rules! move_due {
    ($where:expr, $returning:expr, $then:expr, $columns:expr, $joins:expr) => {
        concat!(
            "
WITH due AS (
    SELECT id FROM jobwire.timer_job WHERE due_at <= statement_timestamp()",
            $where,
            "
    ORDER BY due_at LIMIT $1
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM jobwire.timer_job t WHERE t.id = ANY(ARRAY(SELECT id FROM due)) RETURNING t.*
), moved AS (
    INSERT INTO jobwire.job (",
            moved_columns!(),
            ")
    SELECT id, seq, least(revision, 999999999) + 1, kind, type, payload, process_instance, execution, process_definition, element, tenant,
        category, deployment, priority, exclusive, retries, failures, retry_policy, due_at, repeat, repeat_until,
        correlation_id, created_at, lane, origin, exception_message, custom_values, trace_parent, clock_timestamp(), 1,
        lane_named
    FROM gone ORDER BY due_at, seq
    RETURNING ",
            $returning,
            "
)",
            $then,
            "
SELECT ",
            ready_columns!("moved"),
            ", clock_timestamp(), moved.due_at,
    (SELECT due_at FROM jobwire.timer_job t WHERE id NOT IN (SELECT id FROM due) ORDER BY due_at LIMIT 1)",
            $columns,
            "
FROM (SELECT) AS one LEFT JOIN moved ON true",
            $joins
        )
    };
}

macro_rules! move_plainly {
    ($where:expr) => {
        move_due!(
            $where,
            "id, lane, exclusive, process_instance, trace_parent, type, due_at",
            "",
            "",
            ""
        )
    };
}

const MOVE_DUE: &str = move_plainly!("");

/// Like [`MOVE_DUE`], for given timers, in the search for a refused row.
const MOVE_THESE: &str = move_plainly!(" AND id = ANY($2)");

/// Selects the oldest and the newest due timers.
const DUE: &str = "
SELECT id, due_at FROM (
    (SELECT id, due_at FROM jobwire.timer_job WHERE due_at <= statement_timestamp() ORDER BY due_at LIMIT $1)
    UNION
    (SELECT id, due_at FROM jobwire.timer_job WHERE due_at <= statement_timestamp() ORDER BY due_at DESC LIMIT $1)
) due ORDER BY due_at";

/// Moves a few due timers, and inserts a lease for each one that may run here.
macro_rules! take_due {
    ($where:expr) => {
        move_due!(
            $where,
            "*",
            concat!(
                ", here AS MATERIALIZED (
    SELECT nextval('jobwire.fence_seq') AS next_fence, moved.* FROM moved
    WHERE NOT exclusive AND lane = ANY($3) AND ",
                served!("moved", "$2", "$6::jsonb"),
                " AND ",
                nothing_suspended!(),
                " AND ",
                unleased!("moved"),
                "
), leased AS (
    INSERT INTO jobwire.job_lease (job_id, owner, fence, locked_at, expires_at)
    SELECT id, $4, next_fence, clock_timestamp(), clock_timestamp() + $5
    FROM here
)"
            ),
            concat!(", here.next_fence, ", job_columns!("here")),
            " LEFT JOIN here ON here.id = moved.id
ORDER BY moved.due_at, moved.seq"
        )
    };
}

const TAKE_DUE: &str = take_due!("");

/// The statement for connections whose commits return soon. Its commit waits for the disk: a move
/// that a crash undoes would leave hints without a ready job.
const TAKE_DUE_DURABLY: &str = take_due!(concat!(" AND ", wait_for_disk!()));

/// The first columns of the timer's and of the lock's values.
const MOVED: usize = 6;
const LOCKED: usize = 9;

async fn move_due(pool: &PgPool, at_most: i64) -> Result<MovedTimers, StoreError> {
    let query = sqlx::query(MOVE_DUE).bind(at_most);
    let rows = aside::rows(&mut *pool.acquire().await?, query).await?;
    moved(&rows, |_| Ok(None))
}

/// Returns the ids of due timers: up to `at_most` of the oldest, and as many of the newest.
async fn due(pool: &PgPool, at_most: i64) -> Result<Vec<JobId>, StoreError> {
    let ids: Vec<Uuid> = sqlx::query_scalar(DUE)
        .bind(at_most)
        .fetch_all(pool)
        .await?;
    Ok(ids.into_iter().map(JobId).collect())
}

async fn move_these(pool: &ConnectionPool, ids: &[JobId]) -> Result<MovedTimers, StoreError> {
    let at_most = i64::try_from(ids.len()).unwrap_or(i64::MAX);
    let mut tx = begin_part(pool, ids).await?;
    let ids: Vec<Uuid> = ids.iter().map(|id| id.0).collect();
    let query = sqlx::query(MOVE_THESE).bind(at_most).bind(ids);
    let rows = aside::rows(&mut tx, query).await?;
    tx.commit().await?;
    moved(&rows, |_| Ok(None))
}

async fn take_due(
    cache: &ConnectionCache,
    terms: &LockTerms,
    lanes: &[Lane],
    at_most: i64,
) -> Result<MovedTimers, StoreError> {
    let lanes: Vec<&str> = lanes.iter().map(|lane| &*lane.0).collect();
    let mut connection = cache.acquire().await?;
    let take = if cache.commits_soon() {
        TAKE_DUE_DURABLY
    } else {
        TAKE_DUE
    };
    let query = sqlx::query(take)
        .bind(at_most)
        .bind(&terms.types[..])
        .bind(lanes)
        .bind(terms.owner.0)
        .bind(terms.lease)
        .bind(terms.scope.bound());
    let rows = aside::rows(&mut connection, query).await?;
    connection.keep();
    moved(&rows, |row| {
        let Some(fence) = row.try_get(LOCKED)? else {
            return Ok(None);
        };
        Ok(Some(LockedJob {
            fence: Fence(fence),
            strikes: 0,
            locked_at: row.try_get(MOVED)?,
            job: Arc::new(decode::job(row, LOCKED + 1)?),
        }))
    })
}

/// Converts the rows; `locked` reads the job that is to run here.
fn moved(
    rows: &[PgRow],
    locked: impl Fn(&PgRow) -> Result<Option<LockedJob>, StoreError>,
) -> Result<MovedTimers, StoreError> {
    let mut result = MovedTimers::default();
    for row in rows {
        result.now = row.try_get(MOVED)?;
        result.next_due = row.try_get(MOVED + 2)?;
        if row.try_get::<Option<Uuid>, _>(0)?.is_some() {
            match locked(row)? {
                Some(job) => result.locked.push(job),
                None => result.ready.push(decode::ready(row)?),
            }
            let due: chrono::DateTime<chrono::Utc> = row.try_get(MOVED + 1)?;
            #[allow(clippy::cast_precision_loss, reason = "a latency needs no 53 bits")]
            metrics::histogram!(crate::telemetry::metrics::TIMER_LATENESS)
                .record((result.now - due).num_microseconds().unwrap_or(0) as f64 / 1e6);
        }
    }
    Ok(result)
}

impl Timers for PgStore {
    async fn due(&self, at_most: i64) -> Result<Vec<JobId>, StoreError> {
        due(&self.pool.inner, at_most).await
    }

    async fn move_due(
        &self,
        at_most: i64,
        take: Option<(&LockTerms, &[Lane])>,
        these: Option<&[JobId]>,
    ) -> Result<MovedTimers, StoreError> {
        match (these, take) {
            (Some(these), _) => move_these(&self.pool, these).await,
            (None, Some((terms, lanes))) => {
                self.fences.begin(&self.pool).await?;
                take_due(&self.cache, terms, lanes, at_most).await
            }
            (None, None) => move_due(&self.pool.inner, at_most).await,
        }
    }
}

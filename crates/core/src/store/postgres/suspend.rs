//! Suspending and activating (protocol rule 27).

use sqlx::PgPool;
use uuid::Uuid;

use super::begin::begin;
use super::connection_pool::ConnectionPool;
use super::sql::{covers, moved_columns, ready_columns, unlocked};
use super::{PgStore, aside, decode, exclusive};
use crate::hint::Ready;
use crate::job::JobId;
use crate::store::error::StoreError;
use crate::store::statements::Suspending;
use crate::store::{Suspended, SuspensionScope};

/// True if this job belongs to the scope `$1` with the value `$2`.
macro_rules! in_scope {
    () => {
        "CASE $1 WHEN 'process_instance' THEN j.process_instance WHEN 'process_definition' THEN j.process_definition \
         WHEN 'type' THEN j.type WHEN 'tenant' THEN j.tenant END = $2"
    };
}

/// Locks an existing suspension, so that it does not end before this transaction: its end brings
/// back the jobs that this transaction moves. The condition that never holds makes no new version
/// of the row.
const NOTE: &str = "
INSERT INTO jobwire.suspension AS s (scope, value) VALUES ($1, $2)
ON CONFLICT (scope, value) DO UPDATE SET value = s.value WHERE false";

/// Locks the rows. A later statement checks the leases, so that it sees a lock that was taken while
/// this one ran. No node can lock these jobs until the transaction ends.
const ENTER: &str = concat!(
    "
SELECT j.id FROM jobwire.job j
WHERE ",
    in_scope!(),
    " AND ($3::uuid[] IS NULL OR j.id = ANY($3))
ORDER BY j.id FOR UPDATE OF j SKIP LOCKED"
);

/// Moves jobs to the suspended table. A locked job continues, and is moved when it fails. A lease
/// without an owner is deleted with its job.
const PUT_ASIDE: &str = concat!(
    "
WITH executable AS (
    DELETE FROM jobwire.job j WHERE j.id = ANY($3) AND ",
    unlocked!("j"),
    "
    RETURNING j.*
), ownerless AS (
    DELETE FROM jobwire.job_lease l USING executable e WHERE l.job_id = e.id
), timer AS (
    DELETE FROM jobwire.timer_job j
    WHERE ",
    in_scope!(),
    " AND ($4::uuid[] IS NULL OR j.id = ANY($4))
    RETURNING j.*
), moved AS (
    INSERT INTO jobwire.suspended_job (",
    moved_columns!(),
    ")
    SELECT ",
    moved_columns!(),
    " FROM executable UNION ALL SELECT ",
    moved_columns!(),
    " FROM timer
    RETURNING 1
)
SELECT (SELECT count(*) FROM moved),
    (SELECT array_agg(DISTINCT process_instance) FROM executable WHERE exclusive AND process_instance IS NOT NULL)"
);

/// Selects the jobs that a suspension moves.
const SUSPENDABLE: &str = concat!(
    "SELECT j.id FROM jobwire.job j WHERE ",
    in_scope!(),
    " AND ",
    unlocked!("j"),
    " UNION ALL SELECT j.id FROM jobwire.timer_job j WHERE ",
    in_scope!(),
    " ORDER BY 1"
);

/// Records the suspension, and returns the jobs that it moves. From then on none of them is locked,
/// even if its row can't be moved.
async fn suspendable(pool: &PgPool, scope: &SuspensionScope) -> Result<Vec<JobId>, StoreError> {
    let (kind, value) = scope.parts();
    let note = sqlx::query(NOTE).bind(kind).bind(value);
    note.execute(pool).await?;
    let query = sqlx::query_scalar(SUSPENDABLE).bind(kind).bind(value);
    let ids: Vec<Uuid> = query.fetch_all(pool).await?;
    Ok(ids.into_iter().map(JobId).collect())
}

/// Moves the jobs of the scope to the suspended table, or only `these` of them.
async fn suspend(
    pool: &ConnectionPool,
    scope: &SuspensionScope,
    these: Option<&[JobId]>,
) -> Result<Suspended, StoreError> {
    let (kind, value) = scope.parts();
    let these: Option<Vec<Uuid>> = these.map(|these| these.iter().map(|id| id.0).collect());
    let mut tx = begin(pool).await?;
    sqlx::query(NOTE)
        .bind(kind)
        .bind(value)
        .execute(&mut *tx)
        .await?;
    let ids: Vec<Uuid> = sqlx::query_scalar(ENTER)
        .bind(kind)
        .bind(value)
        .bind(&these)
        .fetch_all(&mut *tx)
        .await?;
    let (moved, left): (i64, Option<Vec<String>>) = sqlx::query_as(PUT_ASIDE)
        .bind(kind)
        .bind(value)
        .bind(ids)
        .bind(these)
        .fetch_one(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(Suspended {
        moved: u64::try_from(moved).unwrap_or(0),
        ready: exclusive::next_since(pool, &left.unwrap_or_default()).await,
        refused: Vec::new(),
    })
}

/// Makes suspensions end one after another. Two that end at once would each leave the jobs that the
/// other one still suspends.
const ONE_BY_ONE: &str = "SELECT FROM jobwire.suspension ORDER BY scope, value FOR UPDATE";

const FORGET: &str = "DELETE FROM jobwire.suspension WHERE scope = $1 AND value = $2";

/// Moves jobs back to the tables that they came from, unless another suspension covers them.
macro_rules! bring_back {
    ($where:literal) => {
        concat!(
            "
WITH back AS (
    DELETE FROM jobwire.suspended_job j
    WHERE ",
    in_scope!(),
    "
      AND NOT EXISTS (SELECT FROM jobwire.suspension s WHERE (s.scope, s.value) <> ($1, $2) AND ",
            covers!("j"),
            ")",
            $where,
            "
    RETURNING j.*
), timer AS (
    INSERT INTO jobwire.timer_job (",
    moved_columns!(),
    ") SELECT ",
    moved_columns!(),
    " FROM back WHERE due_at > statement_timestamp()
), executable AS (
    INSERT INTO jobwire.job (",
    moved_columns!(),
    ")
    SELECT id, seq, least(revision, 999999999) + 1, kind, type, payload, process_instance, execution, process_definition, element, tenant,
        category, deployment, priority, exclusive, retries, failures, retry_policy, due_at, repeat, repeat_until,
        correlation_id, created_at, lane, origin, exception_message, custom_values, trace_parent, clock_timestamp(),
        least(hints, 999999999) + 1
    FROM back WHERE due_at IS NULL OR due_at <= statement_timestamp()
    RETURNING id, lane, exclusive, process_instance, trace_parent, type
)
SELECT ",
    ready_columns!("e"),
    " FROM executable e"
        )
    };
}

const BRING_BACK: &str = bring_back!("");

/// Like [`BRING_BACK`], for given jobs, in the search for a refused row.
const BRING_THESE_BACK: &str = bring_back!(" AND j.id = ANY($3)");

/// Selects the jobs that [`BRING_BACK`] may bring back.
const ASIDE: &str = concat!(
    "SELECT j.id FROM jobwire.suspended_job j WHERE ",
    in_scope!(),
    " ORDER BY j.id"
);

/// Marks the jobs that were created during the suspension, to be hinted: they wait in the
/// executable table, refused. This runs after the suspension's end has committed. A job that
/// commits after an earlier query, and is tried before that commit, would be refused and not hinted
/// again. The jobs in `$3` are hinted already.
const WAITED: &str = concat!(
    "
WITH free AS MATERIALIZED (
    SELECT j.id FROM jobwire.job j
    WHERE ",
    in_scope!(),
    "
      AND NOT EXISTS (SELECT FROM unnest($3::uuid[]) AS b(id) WHERE b.id = j.id) AND ",
    unlocked!("j"),
    "
    FOR UPDATE OF j SKIP LOCKED
)
UPDATE jobwire.job j SET ready_at = clock_timestamp(), hints = least(hints, 999999999) + 1
FROM free WHERE j.id = free.id
RETURNING ",
    ready_columns!("j")
);

/// Ends the suspension and returns the jobs that come back. Returns `None` if there was no
/// suspension.
async fn activate(
    pool: &ConnectionPool,
    scope: &SuspensionScope,
) -> Result<Option<Vec<Ready>>, StoreError> {
    let (kind, value) = scope.parts();
    let mut tx = begin(pool).await?;
    sqlx::query(ONE_BY_ONE).execute(&mut *tx).await?;
    let gone = sqlx::query(FORGET)
        .bind(kind)
        .bind(value)
        .execute(&mut *tx)
        .await?
        .rows_affected();
    let ready = if gone == 0 {
        None
    } else {
        let query = sqlx::query(BRING_BACK).bind(kind).bind(value);
        let rows = aside::rows(&mut tx, query).await?;
        Some(decode::all_ready(&rows)?)
    };
    tx.commit().await?;
    Ok(ready)
}

/// Returns the jobs that a suspension has moved.
async fn put_aside(pool: &PgPool, scope: &SuspensionScope) -> Result<Vec<JobId>, StoreError> {
    let (kind, value) = scope.parts();
    let query = sqlx::query_scalar(ASIDE).bind(kind).bind(value);
    let ids: Vec<Uuid> = query.fetch_all(pool).await?;
    Ok(ids.into_iter().map(JobId).collect())
}

/// Brings these jobs back; the suspension itself continues.
async fn bring_back(
    pool: &PgPool,
    scope: &SuspensionScope,
    these: &[JobId],
) -> Result<Vec<Ready>, StoreError> {
    let (kind, value) = scope.parts();
    let query = sqlx::query(BRING_THESE_BACK)
        .bind(kind)
        .bind(value)
        .bind(these.iter().map(|id| id.0).collect::<Vec<Uuid>>());
    let rows = aside::rows(&mut *pool.acquire().await?, query).await?;
    decode::all_ready(&rows)
}

/// Returns the jobs that waited for the end of a suspension, which has committed, without those
/// that came `back` with it.
async fn waited(
    pool: &PgPool,
    scope: &SuspensionScope,
    back: &[Ready],
) -> Result<Vec<Ready>, StoreError> {
    let (kind, value) = scope.parts();
    let back: Vec<Uuid> = back.iter().map(|ready| ready.hint.id.0).collect();
    let rows = sqlx::query(WAITED)
        .bind(kind)
        .bind(value)
        .bind(back)
        .fetch_all(pool)
        .await?;
    decode::all_ready(&rows)
}

impl Suspending for PgStore {
    async fn suspend_scope(
        &self,
        scope: &SuspensionScope,
        these: Option<&[JobId]>,
    ) -> Result<Suspended, StoreError> {
        suspend(&self.pool, scope, these).await
    }

    async fn suspendable(&self, scope: &SuspensionScope) -> Result<Vec<JobId>, StoreError> {
        suspendable(&self.pool.inner, scope).await
    }

    async fn end_suspension(
        &self,
        scope: &SuspensionScope,
    ) -> Result<Option<Vec<Ready>>, StoreError> {
        activate(&self.pool, scope).await
    }

    async fn put_aside(&self, scope: &SuspensionScope) -> Result<Vec<JobId>, StoreError> {
        put_aside(&self.pool.inner, scope).await
    }

    async fn bring_back(
        &self,
        scope: &SuspensionScope,
        these: &[JobId],
    ) -> Result<Vec<Ready>, StoreError> {
        bring_back(&self.pool.inner, scope, these).await
    }

    async fn waited(
        &self,
        scope: &SuspensionScope,
        back: &[Ready],
    ) -> Result<Vec<Ready>, StoreError> {
        let waited = waited(&self.pool.inner, scope, back).await?;
        Ok(back.iter().cloned().chain(waited).collect())
    }
}

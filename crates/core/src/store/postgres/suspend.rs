//! Suspending and activating (protocol rule 27).

use sqlx::PgPool;
use uuid::Uuid;

use super::begin::begin;
use super::line::Line;
use super::sql::{moved_columns, ready_columns, unlocked};
use super::{aside, decode, exclusive};
use crate::hint::Ready;
use crate::job::JobId;
use crate::store::error::StoreError;
use crate::store::{Suspended, SuspensionScope};

/// The job belongs to what is named by scope `$1` and value `$2`.
macro_rules! in_scope {
    () => {
        "CASE $1 WHEN 'process_instance' THEN j.process_instance WHEN 'process_definition' THEN j.process_definition \
         WHEN 'type' THEN j.type WHEN 'tenant' THEN j.tenant END = $2"
    };
}

/// A suspension that is there already is locked, so that it does not end before this transaction: the jobs that this one
/// puts aside are brought back by that end. The condition that never holds makes no new version of the row.
const NOTE: &str = "
INSERT INTO jobwire.suspension AS s (scope, value) VALUES ($1, $2)
ON CONFLICT (scope, value) DO UPDATE SET value = s.value WHERE false";

/// Row locks first; the look at the leases comes in a later statement, so that a lock which was being taken
/// when this one began is seen. Whoever holds the row now can't be locked until the transaction ends.
const ENTER: &str = concat!(
    "
SELECT j.id FROM jobwire.job j
WHERE ",
    in_scope!(),
    " AND ($3::uuid[] IS NULL OR j.id = ANY($3))
ORDER BY j.id FOR UPDATE OF j SKIP LOCKED"
);

/// A locked job goes on; it is put aside when it fails. A lease without an owner goes with its job.
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

/// What a suspension puts aside.
const SUSPENDABLE: &str = concat!(
    "SELECT j.id FROM jobwire.job j WHERE ",
    in_scope!(),
    " AND ",
    unlocked!("j"),
    " UNION ALL SELECT j.id FROM jobwire.timer_job j WHERE ",
    in_scope!(),
    " ORDER BY 1"
);

/// Note the suspension, and name what it puts aside. From then on nobody locks one of these, whatever becomes of its row.
pub(super) async fn suspendable(
    pool: &PgPool,
    scope: &SuspensionScope,
) -> Result<Vec<JobId>, StoreError> {
    let (kind, value) = scope.parts();
    let note = sqlx::query(NOTE).bind(kind).bind(value);
    note.execute(pool).await?;
    let query = sqlx::query_scalar(SUSPENDABLE).bind(kind).bind(value);
    let ids: Vec<Uuid> = query.fetch_all(pool).await?;
    Ok(ids.into_iter().map(JobId).collect())
}

/// Put aside what belongs to the scope, or only `these` of it.
pub(super) async fn suspend(
    line: &Line,
    scope: &SuspensionScope,
    these: Option<&[JobId]>,
) -> Result<Suspended, StoreError> {
    let (kind, value) = scope.parts();
    let these: Option<Vec<Uuid>> = these.map(|these| these.iter().map(|id| id.0).collect());
    let mut tx = begin(line).await?;
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
        ready: exclusive::next_since(line, &left.unwrap_or_default()).await,
        refused: Vec::new(),
    })
}

/// Suspensions end one after another: two that end at once would each leave what the other one still suspends.
const ONE_BY_ONE: &str = "SELECT FROM jobwire.suspension ORDER BY scope, value FOR UPDATE";

const FORGET: &str = "DELETE FROM jobwire.suspension WHERE scope = $1 AND value = $2";

/// Back to where they came from, unless something else that they belong to is still suspended.
macro_rules! bring_back {
    ($where:literal) => {
        concat!(
            "
WITH back AS (
    DELETE FROM jobwire.suspended_job j
    WHERE ",
    in_scope!(),
    "
      AND NOT EXISTS (SELECT FROM jobwire.suspension s WHERE (s.scope, s.value) <> ($1, $2) AND (
            (s.scope = 'process_instance' AND s.value = j.process_instance)
         OR (s.scope = 'process_definition' AND s.value = j.process_definition)
         OR (s.scope = 'type' AND s.value = j.type)
         OR (s.scope = 'tenant' AND s.value = j.tenant)))",
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

/// The same for given jobs, in the search for a refused row.
const BRING_THESE_BACK: &str = bring_back!(" AND j.id = ANY($3)");

/// The jobs that [`BRING_BACK`] may bring back.
const ASIDE: &str = concat!(
    "SELECT j.id FROM jobwire.suspended_job j WHERE ",
    in_scope!(),
    " ORDER BY j.id"
);

/// What was created during the suspension waits in the executable table, refused; it is hinted too. Not before
/// the suspension's end has committed: a job that commits after an earlier look, and is tried before that
/// commit, would be refused and hinted by nobody. `$3` has been hinted already.
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

/// End the suspension; what comes back. None where nothing was suspended.
pub(super) async fn activate(
    line: &Line,
    scope: &SuspensionScope,
) -> Result<Option<Vec<Ready>>, StoreError> {
    let (kind, value) = scope.parts();
    let mut tx = begin(line).await?;
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

/// What a suspension put aside.
pub(super) async fn put_aside(
    pool: &PgPool,
    scope: &SuspensionScope,
) -> Result<Vec<JobId>, StoreError> {
    let (kind, value) = scope.parts();
    let query = sqlx::query_scalar(ASIDE).bind(kind).bind(value);
    let ids: Vec<Uuid> = query.fetch_all(pool).await?;
    Ok(ids.into_iter().map(JobId).collect())
}

/// Bring these back; the suspension itself goes on.
pub(super) async fn bring_back(
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

/// What waited for the end of a suspension that has committed, but for what came `back` with it.
pub(super) async fn waited(
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

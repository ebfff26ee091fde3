//! Suspending and activating, pausing and resuming (protocol rules 8 and 27).

use chrono::{DateTime, Utc};
use sqlx::postgres::{PgPool, PgRow};
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::begin::begin;
use super::connection_pool::ConnectionPool;
use super::sql::{
    in_gate, moved_columns, no_gate, not_put_aside, not_suspended, ready_columns, suspends,
    unlocked,
};
use super::{PgStore, aside, decode, exclusive};
use crate::job::JobId;
use crate::store::error::StoreError;
use crate::store::poison::Activated;
use crate::store::statements::Suspending;
use crate::store::{
    Gate, GateView, Lifted, PauseScope, Suspended, SuspensionScope, Waiting, gates,
};

/// True if this job belongs to the scope `$1` with the value `$2`.
macro_rules! in_scope {
    () => {
        in_gate!("j", "$1", "$2")
    };
}

/// Records a suspension or a pause. One that exists keeps its date.
pub(super) const NOTE: &str =
    "INSERT INTO jobwire.suspension (scope, value) VALUES ($1, $2) ON CONFLICT DO NOTHING";

/// Locks the suspension, so that it does not end before this transaction: its end brings back the
/// jobs that this transaction moves.
pub(super) const KEEP: &str =
    "SELECT true FROM jobwire.suspension WHERE scope = $1 AND value = $2 FOR KEY SHARE";

/// Locks the rows. A later statement checks the leases, so that it sees a lock that was taken while
/// this one ran. No node can lock these jobs until the transaction ends.
const ENTER: &str = concat!(
    "
SELECT j.id FROM jobwire.job j
WHERE ",
    in_scope!(),
    " AND j.id = ANY($3)
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
    " AND j.id = ANY($4)
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

/// Selects a page of the jobs that a suspension moves.
const SUSPENDABLE: &str = concat!(
    "SELECT j.id FROM jobwire.job j WHERE ",
    in_scope!(),
    " AND j.id > $3 AND ",
    unlocked!("j"),
    " UNION ALL SELECT j.id FROM jobwire.timer_job j WHERE ",
    in_scope!(),
    " AND j.id > $3 ORDER BY 1 LIMIT $4"
);

async fn suspendable(
    pool: &PgPool,
    scope: &SuspensionScope,
    after: Option<JobId>,
    at_most: i64,
) -> Result<Vec<JobId>, StoreError> {
    let (kind, value) = scope.parts();
    let query = sqlx::query_scalar(SUSPENDABLE)
        .bind(kind)
        .bind(&*value)
        .bind(after.map_or(Uuid::nil(), |id| id.0))
        .bind(at_most);
    let ids: Vec<Uuid> = query.fetch_all(pool).await?;
    Ok(ids.into_iter().map(JobId).collect())
}

/// Moves these jobs of the scope to the suspended table, unless the suspension has ended.
async fn suspend(
    pool: &ConnectionPool,
    scope: &SuspensionScope,
    these: &[JobId],
) -> Result<Suspended, StoreError> {
    let (kind, value) = scope.parts();
    let these: Vec<Uuid> = these.iter().map(|id| id.0).collect();
    let mut tx = begin(pool).await?;
    let kept = sqlx::query(KEEP)
        .bind(kind)
        .bind(&*value)
        .fetch_optional(&mut *tx)
        .await?;
    if kept.is_none() {
        return Ok(Suspended::default());
    }
    let ids: Vec<Uuid> = sqlx::query_scalar(ENTER)
        .bind(kind)
        .bind(&*value)
        .bind(&these)
        .fetch_all(&mut *tx)
        .await?;
    let put_aside = sqlx::query(PUT_ASIDE)
        .bind(kind)
        .bind(&*value)
        .bind(ids)
        .bind(these);
    let (mut moved, mut left) = (0, Vec::new());
    for row in aside::rows(&mut tx, put_aside).await? {
        moved = row.try_get::<i64, _>(0)?;
        left = row.try_get::<Option<_>, _>(1)?.unwrap_or_default();
    }
    tx.commit().await?;
    Ok(Suspended {
        moved: u64::try_from(moved).unwrap_or(0),
        ready: exclusive::next_since(pool, &left).await,
        refused: Vec::new(),
    })
}

/// Makes suspensions end one after another. Two that end at once would each leave the jobs that the
/// other one still suspends. A transaction that keeps another suspension does not have to end before.
const ONE_BY_ONE: &str = "
SELECT scope = $1 AND value = $2 FROM jobwire.suspension ORDER BY scope, value FOR NO KEY UPDATE";

/// Waits for the transactions that [keep](KEEP) this suspension, such as a failure that moves its job to the
/// suspended table. A later statement sees that job.
const ENDING: &str = "SELECT FROM jobwire.suspension WHERE scope = $1 AND value = $2 FOR UPDATE";

const FORGET: &str = "DELETE FROM jobwire.suspension WHERE scope = $1 AND value = $2";

/// True unless another suspension covers the job, too.
macro_rules! of_no_other {
    () => {
        no_gate!(concat!(
            "(s.scope, s.value) <> ($1, $2) AND ",
            suspends!("j")
        ))
    };
}

/// Moves jobs back to the tables that they came from, unless another suspension covers them. They
/// wait there until the suspension has ended.
macro_rules! bring_back {
    ($these:expr) => {
        concat!(
            "
WITH back AS (
    DELETE FROM jobwire.suspended_job j
    WHERE j.id = ANY(",
            $these,
            ") AND ",
            in_scope!(),
            " AND ",
            of_no_other!(),
            "
    RETURNING j.*
), timer AS (
    INSERT INTO jobwire.timer_job (",
            moved_columns!(),
            ")
    SELECT id, seq, least(revision, 999999999) + 1, kind, type, payload, process_instance, execution, process_definition, element, tenant,
        category, deployment, priority, exclusive, retries, failures, retry_policy, due_at, repeat, repeat_until,
        correlation_id, created_at, lane, origin, exception_message, custom_values, trace_parent, ready_at, hints, lane_named
    FROM back WHERE due_at > statement_timestamp()
), executable AS (
    INSERT INTO jobwire.job (",
            moved_columns!(),
            ")
    SELECT id, seq, least(revision, 999999999) + 1, kind, type, payload, process_instance, execution, process_definition, element, tenant,
        category, deployment, priority, exclusive, retries, failures, retry_policy, due_at, repeat, repeat_until,
        correlation_id, created_at, lane, origin, exception_message, custom_values, trace_parent, clock_timestamp(),
        greatest(hints, 1), lane_named
    FROM back WHERE due_at IS NULL OR due_at <= statement_timestamp()
)
SELECT count(*) FROM back"
        )
    };
}

/// Brings back the first jobs of the suspension, at most `$3`.
const BRING_BACK: &str = bring_back!(concat!(
    "ARRAY(SELECT j.id FROM jobwire.suspended_job j WHERE ",
    in_scope!(),
    " AND ",
    of_no_other!(),
    " ORDER BY j.id LIMIT $3)"
));

/// Like [`BRING_BACK`], for given jobs, in the search for a refused row.
const BRING_THESE_BACK: &str = bring_back!("$3");

/// Selects the first jobs that [`BRING_BACK`] may bring back.
const ASIDE: &str = concat!(
    "SELECT j.id FROM jobwire.suspended_job j WHERE ",
    in_scope!(),
    " AND ",
    of_no_other!(),
    " ORDER BY j.id LIMIT $3"
);

/// Marks a page of the jobs that wait in the executable table, refused, to be hinted. This runs
/// after the end of the suspension or pause has committed. A job that commits after an earlier
/// query, and is tried before that commit, would be refused and not hinted again.
///
/// Of an instance, marks the first ready sibling, and all siblings while a job holds the instance:
/// the end of that job may have looked for the next one before the suspension or pause had ended.
const WAITED: &str = concat!(
    "
WITH free AS MATERIALIZED (
    SELECT j.id FROM jobwire.job j
    WHERE ",
    in_scope!(),
    "
      AND ($3::uuid IS NULL OR j.id > $3) AND j.ready_at <= coalesce($4, statement_timestamp()) AND ",
    unlocked!("j"),
    " AND ",
    not_suspended!("j"),
    " AND (NOT j.exclusive OR NOT EXISTS (
        SELECT FROM jobwire.job e
        WHERE e.exclusive AND e.process_instance = j.process_instance AND e.seq < j.seq AND ",
    not_put_aside!("e"),
    " AND ",
    unlocked!("e"),
    "))
    ORDER BY j.id LIMIT $5
    FOR UPDATE OF j SKIP LOCKED
), marked AS (
    UPDATE jobwire.job j SET ready_at = clock_timestamp(), hints = least(hints, 999999999) + 1
    FROM free WHERE j.id = free.id
    RETURNING ",
    ready_columns!("j"),
    "
)
SELECT ",
    ready_columns!("marked"),
    ", coalesce($4, statement_timestamp()) FROM marked ORDER BY id"
);

/// Another program may have written dates that no program can read.
const GATES: &str = concat!(
    "
SELECT g.scope, g.value,
    CASE WHEN g.since BETWEEN '0001-01-01' AND '9999-12-31' THEN g.since ELSE '0001-01-01' END, g.moved, g.waiting
FROM (",
    gates::list::list!("jobwire."),
    ") AS g (scope, value, since, moved, waiting)
ORDER BY g.since, g.scope, g.value"
);

/// Brings back the next jobs of the suspension. Ends the suspension in the same transaction if
/// there are no more. So a suspension whose end is interrupted continues.
async fn end_part(
    pool: &ConnectionPool,
    scope: &SuspensionScope,
    at_most: i64,
) -> Result<Activated, StoreError> {
    let mut tx = begin(pool).await?;
    let activated = end_part_in(&mut tx, scope, at_most).await?;
    tx.commit().await?;
    Ok(activated)
}

/// Like [`end_part`], in a transaction that is open.
pub(super) async fn end_part_in(
    connection: &mut PgConnection,
    scope: &SuspensionScope,
    at_most: i64,
) -> Result<Activated, StoreError> {
    let (kind, value) = scope.parts();
    let gates: Vec<bool> = sqlx::query_scalar(ONE_BY_ONE)
        .bind(kind)
        .bind(&*value)
        .fetch_all(&mut *connection)
        .await?;
    if !gates.contains(&true) {
        return Ok(Activated::default());
    }
    let ending = sqlx::query(ENDING).bind(kind).bind(&*value);
    ending.execute(&mut *connection).await?;
    let query = sqlx::query(BRING_BACK)
        .bind(kind)
        .bind(&*value)
        .bind(at_most);
    let moved = count(&aside::rows(connection, query).await?)?;
    // Asked by a later statement: a row of the page may have been deleted meanwhile, so a page that is
    // not full is not the last one.
    let left = sqlx::query_scalar::<_, Uuid>(ASIDE)
        .bind(kind)
        .bind(&*value)
        .bind(1_i64)
        .fetch_optional(&mut *connection)
        .await?;
    let ended = left.is_none();
    if ended {
        let forget = sqlx::query(FORGET).bind(kind).bind(&*value);
        forget.execute(connection).await?;
    }
    Ok(Activated {
        was_there: true,
        in_parts: false,
        ended,
        moved,
    })
}

fn count(rows: &[PgRow]) -> Result<u64, StoreError> {
    let count: i64 = match rows.first() {
        Some(row) => row.try_get(0)?,
        None => 0,
    };
    Ok(u64::try_from(count).unwrap_or(0))
}

/// Returns the first jobs that a suspension has moved.
async fn put_aside(
    pool: &PgPool,
    scope: &SuspensionScope,
    at_most: i64,
) -> Result<Vec<JobId>, StoreError> {
    let (kind, value) = scope.parts();
    let query = sqlx::query_scalar(ASIDE)
        .bind(kind)
        .bind(&*value)
        .bind(at_most);
    let ids: Vec<Uuid> = query.fetch_all(pool).await?;
    Ok(ids.into_iter().map(JobId).collect())
}

/// Brings these jobs back; the suspension itself continues.
async fn bring_back(
    pool: &PgPool,
    scope: &SuspensionScope,
    these: &[JobId],
) -> Result<u64, StoreError> {
    let (kind, value) = scope.parts();
    let query = sqlx::query(BRING_THESE_BACK)
        .bind(kind)
        .bind(&*value)
        .bind(these.iter().map(|id| id.0).collect::<Vec<Uuid>>());
    count(&aside::rows(&mut *pool.acquire().await?, query).await?)
}

async fn waited(pool: &PgPool, waiting: &Waiting) -> Result<Lifted, StoreError> {
    let (kind, value) = waiting.gate.parts();
    let rows = sqlx::query(WAITED)
        .bind(kind)
        .bind(&*value)
        .bind(waiting.after.map(|id| id.0))
        .bind(waiting.before)
        .bind(waiting.at_most)
        .fetch_all(pool)
        .await?;
    let before = match rows.first() {
        Some(row) => row.try_get(6)?,
        None => DateTime::<Utc>::default(),
    };
    Ok(waiting.page(before, decode::all_ready(&rows)?))
}

async fn gates(pool: &PgPool) -> Result<Vec<GateView>, StoreError> {
    let mut gates = Vec::new();
    for row in sqlx::query(GATES).fetch_all(pool).await? {
        // A row whose word this program does not know belongs to a newer one.
        if let Some(gate) = Gate::parse(row.try_get(0)?, row.try_get(1)?) {
            gates.push(GateView::new(
                gate,
                row.try_get(2)?,
                row.try_get(3)?,
                row.try_get(4)?,
            ));
        }
    }
    Ok(gates)
}

impl Suspending for PgStore {
    async fn write_gate(&self, gate: &Gate) -> Result<bool, StoreError> {
        let (kind, value) = gate.parts();
        let note = sqlx::query(NOTE).bind(kind).bind(&*value);
        Ok(note.execute(&self.pool.inner).await?.rows_affected() > 0)
    }

    async fn suspendable(
        &self,
        scope: &SuspensionScope,
        after: Option<JobId>,
        at_most: i64,
    ) -> Result<Vec<JobId>, StoreError> {
        suspendable(&self.pool.inner, scope, after, at_most).await
    }

    async fn suspend_jobs(
        &self,
        scope: &SuspensionScope,
        these: &[JobId],
    ) -> Result<Suspended, StoreError> {
        suspend(&self.pool, scope, these).await
    }

    async fn end_part(
        &self,
        scope: &SuspensionScope,
        at_most: i64,
    ) -> Result<Activated, StoreError> {
        end_part(&self.pool, scope, at_most).await
    }

    async fn put_aside(
        &self,
        scope: &SuspensionScope,
        at_most: i64,
    ) -> Result<Vec<JobId>, StoreError> {
        put_aside(&self.pool.inner, scope, at_most).await
    }

    async fn bring_back(
        &self,
        scope: &SuspensionScope,
        these: &[JobId],
    ) -> Result<u64, StoreError> {
        bring_back(&self.pool.inner, scope, these).await
    }

    async fn delete_pause(&self, scope: &PauseScope) -> Result<bool, StoreError> {
        let (kind, value) = scope.parts();
        let forget = sqlx::query(FORGET).bind(kind).bind(value);
        Ok(forget.execute(&self.pool.inner).await?.rows_affected() > 0)
    }

    async fn mark_waited(&self, waiting: &Waiting) -> Result<Lifted, StoreError> {
        waited(&self.pool.inner, waiting).await
    }

    async fn read_gates(&self) -> Result<Vec<GateView>, StoreError> {
        gates(&self.pool.inner).await
    }
}

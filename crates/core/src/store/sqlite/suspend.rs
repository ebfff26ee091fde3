//! Suspension and activation, pause and resumption (protocol rules 8 and 27).

use std::collections::HashSet;

use sqlx::{Row, SqliteConnection, SqliteExecutor};

use super::event_stream::{self, Cause};
use super::sql::{
    has_id, in_scope, is_put_aside, moved_columns, ready_columns, suspended, suspends, unlocked,
};
use super::{SqliteStore, decode, exclusive};
use crate::job::JobId;
use crate::store::error::StoreError;
use crate::store::poison::Activated;
use crate::store::statements::Suspending;
use crate::store::{
    Gate, GateView, Lifted, PauseScope, Suspended, SuspensionScope, Waiting, gates,
};

const NOTE: &str = "
INSERT INTO suspension (scope, value, since) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";

/// True if the job is one of `?3` and belongs to the scope.
macro_rules! one_of_these {
    () => {
        concat!(
            in_scope!("j"),
            " AND j.id IN (SELECT value FROM json_each(?3))"
        )
    };
}

/// Moves jobs to the suspended table. Locked jobs continue, and are suspended when they fail.
const PUT_ASIDE: [&str; 5] = [
    concat!(
        "INSERT INTO suspended_job (",
        moved_columns!(),
        ") SELECT ",
        moved_columns!(),
        " FROM job j WHERE ",
        one_of_these!(),
        " AND ",
        unlocked!("j")
    ),
    // Removes the leases without an owner.
    concat!(
        "DELETE FROM job_lease WHERE job_id IN (SELECT j.id FROM job j WHERE ",
        one_of_these!(),
        " AND ",
        unlocked!("j"),
        ")"
    ),
    concat!(
        "DELETE FROM job AS j WHERE ",
        one_of_these!(),
        " AND ",
        unlocked!("j")
    ),
    concat!(
        "INSERT INTO suspended_job (",
        moved_columns!(),
        ") SELECT ",
        moved_columns!(),
        " FROM timer_job j WHERE ",
        one_of_these!()
    ),
    concat!("DELETE FROM timer_job AS j WHERE ", one_of_these!()),
];

/// Selects the instances of the exclusive jobs to be suspended.
const LEFT: &str = concat!(
    "SELECT DISTINCT j.process_instance FROM job j WHERE j.exclusive AND j.process_instance IS NOT NULL AND ",
    one_of_these!(),
    " AND ",
    unlocked!("j")
);

/// Selects a page of the jobs that a suspension moves.
const SUSPENDABLE: &str = concat!(
    "SELECT j.id FROM job j WHERE ",
    in_scope!("j"),
    " AND j.id > ?3 AND ",
    has_id!("j.id"),
    " AND ",
    unlocked!("j"),
    " UNION ALL SELECT j.id FROM timer_job j WHERE ",
    in_scope!("j"),
    " AND j.id > ?3 AND ",
    has_id!("j.id"),
    " ORDER BY 1 LIMIT ?4"
);

const FORGET: &str = "DELETE FROM suspension WHERE scope = ?1 AND value = ?2";
const IS_THERE: &str = "SELECT EXISTS (SELECT 1 FROM suspension WHERE scope = ?1 AND value = ?2)";

/// Selects the first jobs that the end of the suspension brings back: no other suspension covers
/// them.
const ASIDE: &str = concat!(
    "SELECT j.id FROM suspended_job j WHERE ",
    in_scope!("j"),
    " AND ",
    has_id!("j.id"),
    " AND NOT EXISTS (SELECT 1 FROM suspension s WHERE (s.scope, s.value) <> (?1, ?2) AND ",
    suspends!("j"),
    ") ORDER BY j.id LIMIT ?3"
);

macro_rules! these {
    () => {
        "j.id IN (SELECT value FROM json_each(?1))"
    };
}

/// Moves jobs back to the tables that they came from. They wait there until the suspension has
/// ended. `?1` are the jobs, `?2` is the time.
const BRING_BACK: [&str; 2] = [
    concat!(
        "INSERT INTO timer_job (",
        moved_columns!(),
        ") SELECT ",
        moved_columns!(),
        " FROM suspended_job j WHERE j.due_at > ?2 AND ",
        these!()
    ),
    concat!(
        "
INSERT INTO job (",
        moved_columns!(),
        ")
SELECT id, seq, min(revision, 999999999) + 1, kind, type, payload, process_instance, execution, process_definition, element, tenant,
    category, deployment, priority, exclusive, retries, failures, retry_policy, due_at, repeat, repeat_until,
    correlation_id, created_at, lane, origin, exception_message, custom_values, trace_parent, ?2, max(hints, 1),
    lane_named
FROM suspended_job j WHERE coalesce(j.due_at, 0) <= ?2 AND ",
        these!()
    ),
];
const NOT_ASIDE: &str = concat!("DELETE FROM suspended_job AS j WHERE ", these!());

/// Selects a page of the jobs that wait in the executable table, refused, and may run now. Of an
/// instance, selects the first ready sibling, and all siblings while a job holds the instance.
const WAITED: &str = concat!(
    "
SELECT j.id FROM job j WHERE ",
    in_scope!("j"),
    " AND j.id > ?3 AND j.ready_at <= ?4 AND ",
    has_id!("j.id"),
    " AND ",
    unlocked!("j"),
    " AND NOT ",
    suspended!("j"),
    " AND (NOT j.exclusive OR NOT EXISTS (
    SELECT 1 FROM job e
    WHERE e.exclusive AND e.process_instance = j.process_instance AND e.seq < j.seq AND ",
    has_id!("e.id"),
    " AND NOT ",
    is_put_aside!("e"),
    " AND ",
    unlocked!("e"),
    "))
ORDER BY j.id LIMIT ?5"
);

/// Makes these jobs ready again. `?1` are the jobs, `?2` is the time.
const MARK: &str = concat!(
    "UPDATE job AS j SET ready_at = ?2, hints = min(hints, 999999999) + 1 WHERE ",
    these!(),
    " RETURNING ",
    ready_columns!()
);

const GATES: &str = gates::list::list!("");

/// Brings these jobs back.
async fn bring_back(connection: &mut SqliteConnection, these: &[JobId]) -> Result<(), StoreError> {
    let (ids, now) = (decode::array(these)?, decode::now_micros());
    for statement in BRING_BACK {
        let query = sqlx::query(statement).bind(&ids).bind(now);
        query.execute(&mut *connection).await?;
    }
    let query = sqlx::query(NOT_ASIDE).bind(&ids);
    query.execute(connection).await?;
    Ok(())
}

async fn is_there(
    connection: &mut SqliteConnection,
    scope: &SuspensionScope,
) -> Result<bool, StoreError> {
    let (kind, value) = scope.parts();
    let query = sqlx::query_scalar(IS_THERE).bind(kind).bind(&*value);
    Ok(query.fetch_one(connection).await?)
}

async fn aside(
    connection: impl SqliteExecutor<'_>,
    scope: &SuspensionScope,
    at_most: i64,
) -> Result<Vec<JobId>, StoreError> {
    let (kind, value) = scope.parts();
    let query = sqlx::query(ASIDE).bind(kind).bind(&*value).bind(at_most);
    decode::job_ids(&query.fetch_all(connection).await?)
}

/// Records a suspension or a pause. Returns false if it was recorded before.
pub(super) async fn note(
    connection: &mut SqliteConnection,
    gate: &Gate,
) -> Result<bool, StoreError> {
    let (kind, value) = gate.parts();
    let note = sqlx::query(NOTE)
        .bind(kind)
        .bind(&*value)
        .bind(decode::now_micros());
    Ok(note.execute(connection).await?.rows_affected() > 0)
}

/// Brings back the next jobs of the suspension. Ends it if there are no more.
pub(super) async fn end_part_in(
    connection: &mut SqliteConnection,
    scope: &SuspensionScope,
    at_most: i64,
) -> Result<Activated, StoreError> {
    let (kind, value) = scope.parts();
    if !is_there(connection, scope).await? {
        return Ok(Activated::default());
    }
    let back = aside(&mut *connection, scope, at_most).await?;
    bring_back(connection, &back).await?;
    let moved = back.len() as u64;
    let ended = moved < u64::try_from(at_most).unwrap_or(0);
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

impl Suspending for SqliteStore {
    async fn write_gate(&self, gate: &Gate) -> Result<bool, StoreError> {
        let mut tx = self.write().await?;
        let is_new = note(&mut tx, gate).await?;
        tx.commit().await?;
        Ok(is_new)
    }

    async fn suspendable(
        &self,
        scope: &SuspensionScope,
        after: Option<JobId>,
        at_most: i64,
    ) -> Result<Vec<JobId>, StoreError> {
        let (kind, value) = scope.parts();
        let query = sqlx::query(SUSPENDABLE)
            .bind(kind)
            .bind(&*value)
            .bind(after.map(|id| id.to_string()).unwrap_or_default())
            .bind(at_most);
        decode::job_ids(&query.fetch_all(&self.readers).await?)
    }

    /// Moves these jobs of the scope to the suspended table, unless the suspension has ended.
    async fn suspend_jobs(
        &self,
        scope: &SuspensionScope,
        these: &[JobId],
    ) -> Result<Suspended, StoreError> {
        let (kind, value) = scope.parts();
        let these = decode::array(these)?;
        let mut tx = self.write().await?;
        if !is_there(&mut tx, scope).await? {
            return Ok(Suspended::default());
        }
        let left = sqlx::query(LEFT)
            .bind(kind)
            .bind(&*value)
            .bind(&these)
            .fetch_all(&mut *tx)
            .await?;
        let mut moved = 0;
        event_stream::begin_cause(&mut tx, Cause::Suspended).await?;
        for statement in PUT_ASIDE {
            let result = sqlx::query(statement)
                .bind(kind)
                .bind(&*value)
                .bind(&these)
                .execute(&mut *tx)
                .await?;
            if statement.starts_with("INSERT INTO suspended_job") {
                moved += result.rows_affected();
            }
        }
        event_stream::end_cause(&mut tx).await?;
        let ready = exclusive::next(&mut tx, &decode::instances(&left)).await?;
        tx.commit().await?;
        Ok(Suspended {
            moved,
            ready,
            refused: Vec::new(),
        })
    }

    /// Returns the first jobs that a suspension moved.
    async fn put_aside(
        &self,
        scope: &SuspensionScope,
        at_most: i64,
    ) -> Result<Vec<JobId>, StoreError> {
        aside(&self.readers, scope, at_most).await
    }

    /// Brings these jobs back. The suspension itself continues.
    async fn bring_back(
        &self,
        scope: &SuspensionScope,
        these: &[JobId],
    ) -> Result<u64, StoreError> {
        let wanted: HashSet<&JobId> = these.iter().collect();
        let mut tx = self.write().await?;
        let mut back = aside(&mut *tx, scope, i64::MAX).await?;
        back.retain(|id| wanted.contains(id));
        bring_back(&mut tx, &back).await?;
        tx.commit().await?;
        Ok(back.len() as u64)
    }

    /// Brings back the next jobs of the suspension. Ends the suspension in the same transaction if
    /// there are no more.
    async fn end_part(
        &self,
        scope: &SuspensionScope,
        at_most: i64,
    ) -> Result<Activated, StoreError> {
        let mut tx = self.write().await?;
        let activated = end_part_in(&mut tx, scope, at_most).await?;
        tx.commit().await?;
        Ok(activated)
    }

    async fn delete_pause(&self, scope: &PauseScope) -> Result<bool, StoreError> {
        let (kind, value) = scope.parts();
        let mut tx = self.write().await?;
        let forget = sqlx::query(FORGET).bind(kind).bind(value);
        let was_there = forget.execute(&mut *tx).await?.rows_affected() > 0;
        tx.commit().await?;
        Ok(was_there)
    }

    async fn mark_waited(&self, waiting: &Waiting) -> Result<Lifted, StoreError> {
        let (kind, value) = waiting.gate.parts();
        let mut tx = self.write().await?;
        let now = decode::now_micros();
        let before = waiting.before.map_or(now, decode::micros);
        let query = sqlx::query(WAITED)
            .bind(kind)
            .bind(&*value)
            .bind(waiting.after.map(|id| id.to_string()).unwrap_or_default())
            .bind(before)
            .bind(waiting.at_most);
        let ids = decode::job_ids(&query.fetch_all(&mut *tx).await?)?;
        let mark = sqlx::query(MARK).bind(decode::array(&ids)?).bind(now);
        let rows = mark.fetch_all(&mut *tx).await?;
        tx.commit().await?;
        let mut ready = decode::all_ready(&rows)?;
        ready.sort_unstable_by_key(|ready| ready.hint.id);
        Ok(waiting.page(decode::moment(before)?, ready))
    }

    async fn read_gates(&self) -> Result<Vec<GateView>, StoreError> {
        let mut gates = Vec::new();
        for row in sqlx::query(GATES).fetch_all(&self.readers).await? {
            // A row whose word this program does not know belongs to a newer one.
            if let Some(gate) = Gate::parse(&decode::text(&row, 0)?, decode::text(&row, 1)?) {
                let since = decode::shown(row.try_get(2)?);
                gates.push(GateView::new(gate, since, row.try_get(3)?, row.try_get(4)?));
            }
        }
        Ok(gates)
    }
}

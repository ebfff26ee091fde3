//! Completion and release: the fence in the lease row decides.

use std::collections::HashSet;

use sqlx::{Row, SqliteConnection};

use super::event_stream::{self, Cause};
use super::sql::{ready_columns, release_leases, strikes};
use super::{SqliteStore, attempts, decode, exclusive, insert};
use crate::job::new_job::NewJob;
use crate::job::{Fence, JobId, LockToken, NodeId};
use crate::store::batch_outcome::applied_attempts;
use crate::store::error::StoreError;
use crate::store::statements::Completing;
use crate::store::{BatchOutcome, Completion, Handoff, Origin, Release, released};

/// Deletes the jobs of a batch, while their leases show that they are done and not deleted otherwise:
/// the triggers of the event stream read them.
const DELETE_HELD: &str = "
DELETE FROM job WHERE id IN (
    SELECT job_id FROM job_lease
    WHERE (job_id, fence) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?1)) AND owner = ?2)
RETURNING id";

/// Deletes leases of a batch. The guard compares owner and fence and no time (protocol rule 1).
const FINISH: &str = concat!(
    release_leases!(),
    " RETURNING job_id, cancelled_at IS NOT NULL"
);

const DELETE: &str = "DELETE FROM job WHERE id IN (SELECT value FROM json_each(?1)) RETURNING id";
const FORGET: [&str; 2] = [
    "DELETE FROM job_exception WHERE job_id IN (SELECT value FROM json_each(?1))",
    "DELETE FROM job_progress WHERE job_id IN (SELECT value FROM json_each(?1))",
];

/// Selects the strikes of jobs that are released.
const STRIKES: &str = concat!(
    "
SELECT job_id, fence, ",
    strikes!("job_lease"),
    ", struck FROM job_lease
WHERE job_id IN (SELECT value FROM json_each(?1)) AND owner = ?2 AND strikes > 0"
);

/// Writes leases without an owner. The next lock takes them, with their strikes.
const KEEP_STRIKES: &str = "
INSERT INTO job_lease (job_id, fence, locked_at, expires_at, strikes, struck)
SELECT value ->> 0, value ->> 1, ?2, ?2, value ->> 2, value ->> 3 FROM json_each(?1) WHERE true
ON CONFLICT (job_id) DO NOTHING";

const READY_AGAIN: &str = concat!(
    "UPDATE job SET ready_at = ?2, hints = min(hints, 999999999) + 1 WHERE id IN (SELECT value FROM json_each(?1)) RETURNING ",
    ready_columns!(),
    ", seq"
);

/// Returns the array of job ids and fences for a guard.
pub(super) fn guards<'a>(held: impl Iterator<Item = &'a LockToken>) -> Result<String, StoreError> {
    decode::array(held.map(|h| -> (JobId, Fence) { (h.id, h.fence) }))
}

/// Deletes the leases of a batch that still have this owner and these fences, and returns their
/// jobs, and those that an operator had cancelled. The other leases are lost.
pub(super) async fn finish<'a>(
    connection: &mut SqliteConnection,
    owner: NodeId,
    held: impl Iterator<Item = &'a LockToken>,
) -> Result<(Vec<JobId>, Vec<JobId>), StoreError> {
    let rows = sqlx::query(FINISH)
        .bind(guards(held)?)
        .bind(owner.to_string())
        .fetch_all(connection)
        .await?;
    decode::job_ids_and_marked(&rows)
}

/// Deletes the stacks, the progress and the checkpoints of jobs.
pub(super) async fn forget(
    connection: &mut SqliteConnection,
    ids: &[JobId],
) -> Result<(), StoreError> {
    if ids.is_empty() {
        return Ok(());
    }
    let these = decode::array(ids)?;
    for statement in FORGET {
        sqlx::query(statement)
            .bind(&these)
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
}

/// Deletes jobs from the executable table.
pub(super) async fn delete(
    connection: &mut SqliteConnection,
    ids: &[JobId],
) -> Result<Vec<JobId>, StoreError> {
    let rows = sqlx::query(DELETE)
        .bind(decode::array(ids)?)
        .fetch_all(connection)
        .await?;
    decode::job_ids(&rows)
}

/// Hands off the instances that a batch released, and adds the outcome to the result.
pub(super) async fn pass_on<'a>(
    connection: &mut SqliteConnection,
    now: i64,
    held: impl Iterator<Item = &'a LockToken>,
    then: &Handoff,
    settled: &mut BatchOutcome,
) -> Result<(), StoreError> {
    let names = released(held, &settled.applied);
    if !names.is_empty() {
        let (next, ready) = exclusive::handoff(connection, now, &names, then).await?;
        settled.next = next;
        settled.ready.extend(ready);
    }
    Ok(())
}

/// Completes jobs inside a transaction: guarded deletes, next occurrences, handoff.
pub(super) async fn complete_in(
    connection: &mut SqliteConnection,
    owner: NodeId,
    done: &[Completion],
    then: &Handoff,
) -> Result<BatchOutcome, StoreError> {
    let now = decode::now_micros();
    let mut settled = BatchOutcome::default();
    for ended in [false, true] {
        let these = || done.iter().filter(|d| d.cancelled == ended);
        if these().next().is_none() {
            continue;
        }
        if ended {
            event_stream::begin_cause(connection, Cause::Cancelled).await?;
        }
        let rows = sqlx::query(DELETE_HELD)
            .bind(guards(these().map(|d| &d.held))?)
            .bind(owner.to_string())
            .fetch_all(&mut *connection)
            .await?;
        settled.applied.extend(decode::job_ids(&rows)?);
        if ended {
            event_stream::end_cause(connection).await?;
        }
    }
    let (_, cancelled) = finish(connection, owner, done.iter().map(|d| &d.held)).await?;
    let applied: HashSet<&JobId> = settled.applied.iter().collect();
    let done_now = || done.iter().filter(|d| applied.contains(&d.held.id));
    let has_traces: Vec<JobId> = done_now()
        .filter(|d| d.has_traces)
        .map(|d| d.held.id)
        .collect();
    forget(connection, &has_traces).await?;
    let next: Vec<_> = done_now()
        .filter(|d| !cancelled.contains(&d.held.id))
        .filter_map(|d| d.next.as_deref().cloned())
        .collect();
    if !next.is_empty() {
        settled.created = next.iter().map(|next: &NewJob| next.id).collect();
        let created = insert::insert(connection, next, Origin::Hook).await?;
        settled.ready.extend(created.ready);
        settled.timer = created.timer;
    }
    let recorded = done.iter().filter_map(Completion::recorded);
    let recorded = applied_attempts(recorded, &settled);
    attempts::record(connection, owner, now, &recorded).await?;
    let held = done.iter().map(|d| &d.held);
    pass_on(connection, now, held, then, &mut settled).await?;
    Ok(settled)
}

/// Releases jobs inside a transaction.
pub(super) async fn release_in(
    connection: &mut SqliteConnection,
    owner: NodeId,
    now: i64,
    held: &[LockToken],
) -> Result<BatchOutcome, StoreError> {
    let (mut released, cancelled) = finish(connection, owner, held.iter()).await?;
    released.retain(|id| !cancelled.contains(id));
    let rows = sqlx::query(READY_AGAIN)
        .bind(decode::array(released)?)
        .bind(now)
        .fetch_all(&mut *connection)
        .await?;
    let mut applied = decode::job_ids(&rows)?;
    applied.extend(delete(connection, &cancelled).await?);
    forget(connection, &cancelled).await?;
    let mut settled = BatchOutcome {
        applied,
        cancelled,
        // The next job of an instance, possibly another one, comes from the handoff.
        ready: decode::ready_in_order(&rows)?
            .into_iter()
            .filter(|ready| ready.hint.instance.is_none())
            .collect(),
        ..BatchOutcome::default()
    };
    let then = Handoff::Hint;
    pass_on(connection, now, held.iter(), &then, &mut settled).await?;
    Ok(settled)
}

/// Releases jobs like [`release_in`]. Those of `unstarted` had no attempt. If they have strikes, their
/// leases stay without an owner.
pub(super) async fn release_keeping(
    connection: &mut SqliteConnection,
    owner: NodeId,
    now: i64,
    held: &[LockToken],
    unstarted: &[JobId],
) -> Result<BatchOutcome, StoreError> {
    if unstarted.is_empty() {
        return release_in(connection, owner, now, held).await;
    }
    let struck = sqlx::query(STRIKES)
        .bind(decode::array(unstarted)?)
        .bind(owner.to_string())
        .fetch_all(&mut *connection)
        .await?;
    let ids = decode::job_ids(&struck)?;
    let released = release_in(&mut *connection, owner, now, held).await?;
    let mut kept: Vec<(JobId, i64, i32, Option<i64>)> = Vec::new();
    for (row, id) in struck.iter().zip(ids) {
        if released.applied.contains(&id) && !released.cancelled.contains(&id) {
            kept.push((id, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?));
        }
    }
    if !kept.is_empty() {
        let keep = sqlx::query(KEEP_STRIKES).bind(decode::array(kept)?);
        keep.bind(now).execute(connection).await?;
    }
    Ok(released)
}

impl Completing for SqliteStore {
    async fn complete_batch(
        &self,
        owner: NodeId,
        done: &[Completion],
        then: &Handoff,
    ) -> Result<BatchOutcome, StoreError> {
        let mut tx = self.write().await?;
        let settled = complete_in(&mut tx, owner, done, then).await?;
        tx.commit().await?;
        Ok(settled)
    }

    async fn release_batch(
        &self,
        owner: NodeId,
        released: &[Release],
    ) -> Result<BatchOutcome, StoreError> {
        let held: Vec<LockToken> = released.iter().map(|r| r.held.clone()).collect();
        let unstarted = released.iter().filter(|r| !r.started);
        let unstarted: Vec<JobId> = unstarted.map(|r| r.held.id).collect();
        let mut tx = self.write().await?;
        let now = decode::now_micros();
        let settled = release_keeping(&mut tx, owner, now, &held, &unstarted).await?;
        tx.commit().await?;
        Ok(settled)
    }
}

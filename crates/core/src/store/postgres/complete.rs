//! Completing and releasing: the fence in the lease row is the guard.

use std::collections::{HashMap, HashSet};

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::begin::begin_impatiently;
use super::guards::guards;
use super::session::wait_for_disk;
use super::sql::ready_columns;
use super::{PgStore, attempts, decode, exclusive, insert};
use crate::job::new_job::NewJob;
use crate::job::{JobId, LockToken, NodeId};
use crate::store::batch_outcome::applied_attempts;
use crate::store::error::StoreError;
use crate::store::statements::Completing;
use crate::store::{BatchOutcome, Completion, Handoff, Origin, Release, instances};

/// Completes jobs. Deletes the lease first. The leader cycle that clears its owner changes the same
/// row, so the guard is checked against the newest version. The guard names no time: an expired
/// lease completes while it names this owner and fence (protocol rule 1).
///
/// Both tables are read by the given keys, without a join. The plan may have been made while the
/// tables were empty. A join in such a plan scans a million rows later (128 completions took ten
/// seconds). Each row's fence is looked up in a hashed set, and the CASE keeps that lookup from
/// becoming a join. A lookup in the array compared each of 512 rows with half of the others.
///
/// The comment tells the triggers of the event stream that the jobs are done, and not deleted
/// otherwise (`event_cause` in migration 0012).
macro_rules! complete {
    ($cause:literal, $when:expr, $also:literal) => {
        concat!(
            $cause,
            "
WITH held AS (
    DELETE FROM jobwire.job_lease l
    WHERE l.job_id = ANY($1) AND l.owner = $3
        AND CASE WHEN (l.job_id, l.fence) IN (SELECT * FROM unnest($1::uuid[], $2::bigint[])) THEN true END",
            $when,
            "
    RETURNING l.job_id
)",
            $also,
            "
DELETE FROM jobwire.job j WHERE j.id = ANY(ARRAY(SELECT job_id FROM held))
RETURNING j.id"
        )
    };
}

/// Completes jobs and deletes their stacks, progress and checkpoints.
macro_rules! complete_and_forget {
    ($cause:literal, $when:expr) => {
        complete!(
            $cause,
            $when,
            ", forgotten AS (
    DELETE FROM jobwire.job_exception e USING held WHERE e.job_id = held.job_id AND e.job_id = ANY($4)
), left_off AS (
    DELETE FROM jobwire.job_progress p USING held WHERE p.job_id = held.job_id AND p.job_id = ANY($4)
)"
        )
    };
}

/// The statement of a completion, and its variant for batches with jobs that may have more rows.
struct Complete {
    plain: &'static str,
    and_forget: &'static str,
}

const COMPLETE: Complete = Complete {
    plain: complete!("/* jobwire: completed */", "", ""),
    and_forget: complete_and_forget!("/* jobwire: completed */", ""),
};

/// The completion of jobs that an operator's cancel has ended, so that their event is `cancelled`.
const COMPLETE_CANCELLED: Complete = Complete {
    plain: complete!("", "", ""),
    and_forget: complete_and_forget!("", ""),
};

/// The completion for connections whose commits do not wait for the disk. Its commit waits.
const COMPLETE_DURABLY: Complete = Complete {
    plain: complete!(
        "/* jobwire: completed */",
        concat!("\n        AND ", wait_for_disk!()),
        ""
    ),
    and_forget: complete_and_forget!(
        "/* jobwire: completed */",
        concat!("\n        AND ", wait_for_disk!())
    ),
};

/// Releases jobs. Those that an operator has cancelled are deleted.
const RELEASE: &str = concat!(
    "
WITH held AS (
    DELETE FROM jobwire.job_lease l
    USING unnest($1::uuid[], $2::bigint[]) AS d(id, fence)
    WHERE l.job_id = d.id AND l.fence = d.fence AND l.owner = $3
    RETURNING l.job_id, l.cancelled_at IS NOT NULL AS cancelled
), cancelled AS (
    DELETE FROM jobwire.job j USING held WHERE j.id = held.job_id AND held.cancelled
    RETURNING ",
    ready_columns!("j"),
    "
), forgotten AS (
    DELETE FROM jobwire.job_exception e USING held WHERE e.job_id = held.job_id AND held.cancelled
), left_off AS (
    DELETE FROM jobwire.job_progress p USING held WHERE p.job_id = held.job_id AND held.cancelled
), ready AS (
    UPDATE jobwire.job j SET ready_at = clock_timestamp(), hints = least(j.hints, 999999999) + 1
    FROM held WHERE j.id = held.job_id AND NOT held.cancelled
    RETURNING ",
    ready_columns!("j"),
    "
)
SELECT *, false FROM ready UNION ALL SELECT *, true FROM cancelled"
);

/// Selects the strikes of jobs that are released, and locks their leases.
const STRIKES: &str = "
SELECT job_id, fence, strikes, struck FROM jobwire.job_lease
WHERE job_id = ANY($1) AND owner = $2 AND strikes > 0 ORDER BY job_id FOR UPDATE";

/// Writes leases without an owner. The next lock takes them, with their strikes.
const KEEP_STRIKES: &str = "
INSERT INTO jobwire.job_lease (job_id, fence, locked_at, expires_at, strikes, struck)
SELECT u.id, u.fence, clock_timestamp(), clock_timestamp(), u.strikes, u.struck
FROM unnest($1::uuid[], $2::bigint[], $3::integer[], $4::bigint[]) AS u (id, fence, strikes, struck)
ON CONFLICT (job_id) DO NOTHING";

/// Locks the leases of jobs that repeat. Selects those that an operator has cancelled.
const CANCELLED: &str = "
SELECT job_id, cancelled_at IS NOT NULL FROM jobwire.job_lease
WHERE job_id = ANY($1) AND owner = $2 ORDER BY job_id FOR UPDATE";

const ENTER_HELD: &str = "
SELECT process_instance, job_id, fence, current_setting('transaction_isolation') LIKE 'read %'
FROM jobwire.instance_lock WHERE process_instance = ANY($1) ORDER BY process_instance FOR UPDATE";

/// Instances whose rows are locked.
pub(super) struct Holders {
    /// The job and the fence that each instance's row names.
    of: HashMap<String, (Option<Uuid>, Option<i64>)>,
    /// Whether a later statement sees all commits from before the rows were locked. False if a
    /// handler chose a stricter isolation for its transaction.
    sees_latest: bool,
}

/// Locks the rows of a batch's instances, before any other row of the batch.
pub(super) async fn enter_held(
    connection: &mut PgConnection,
    instances: &[String],
) -> Result<Holders, StoreError> {
    if instances.is_empty() {
        return Ok(Holders {
            of: HashMap::new(),
            sees_latest: true,
        });
    }
    let rows = sqlx::query(ENTER_HELD).bind(instances);
    let rows = rows.fetch_all(connection).await?;
    let holder = |row: &PgRow| Ok((row.try_get(0)?, (row.try_get(1)?, row.try_get(2)?)));
    Ok(Holders {
        of: rows
            .iter()
            .map(holder)
            .collect::<Result<_, sqlx::Error>>()?,
        sees_latest: rows
            .first()
            .map_or(Ok(true), |row| row.try_get::<bool, _>(3))?,
    })
}

/// Hands off the instances that a batch released, and adds the result to `settled`.
pub(super) async fn pass_on<'a>(
    connection: &mut PgConnection,
    held: impl Iterator<Item = &'a LockToken>,
    holders: &Holders,
    then: &Handoff,
    settled: &mut BatchOutcome,
) -> Result<(), StoreError> {
    let applied: HashSet<&JobId> = settled.applied.iter().collect();
    let released: Vec<&LockToken> = held.filter(|h| applied.contains(&h.id)).collect();
    let ended: HashSet<(Uuid, i64)> = released.iter().map(|h| (h.id.0, h.fence.0)).collect();
    let is_vacated = |instance: &String| match holders.of.get(instance) {
        Some((Some(job), Some(fence))) => ended.contains(&(*job, *fence)),
        _ => false,
    };
    let names = instances(released.into_iter());
    if !holders.sees_latest {
        // The next jobs are looked up after the commit.
        exclusive::vacate(connection, &names).await?;
        settled.unseen = names;
        return Ok(());
    }
    let others = match then {
        Handoff::Hint => names,
        Handoff::Take(terms) => {
            let (vacated, others): (Vec<_>, Vec<_>) = names.into_iter().partition(is_vacated);
            let (next, ready) = exclusive::take_next(connection, terms, &vacated).await?;
            settled.next = next;
            settled.ready.extend(ready);
            others
        }
    };
    let ready = exclusive::leave(connection, &others).await?;
    settled.ready.extend(ready);
    Ok(())
}

async fn delete<'e, 'd>(
    executor: impl sqlx::PgExecutor<'e>,
    complete: Complete,
    owner: NodeId,
    done: impl Iterator<Item = &'d Completion> + Clone,
) -> Result<Vec<JobId>, StoreError> {
    // A job that was lost and locked again may occur twice; only its newest lock can still exist.
    let mut newest: HashMap<Uuid, i64> = HashMap::with_capacity(done.size_hint().1.unwrap_or(0));
    for LockToken { id, fence, .. } in done.clone().map(|d| &d.held) {
        let known = newest.entry(id.0).or_insert(fence.0);
        *known = fence.0.max(*known);
    }
    let (ids, fences): (Vec<Uuid>, Vec<i64>) = newest.into_iter().unzip();
    let has_traces: Vec<Uuid> = done.filter(|d| d.has_traces).map(|d| d.held.id.0).collect();
    let statement = if has_traces.is_empty() {
        complete.plain
    } else {
        complete.and_forget
    };
    let mut query = sqlx::query_scalar(statement)
        .bind(ids)
        .bind(fences)
        .bind(owner.0);
    if !has_traces.is_empty() {
        query = query.bind(has_traces);
    }
    let ids: Vec<Uuid> = query.fetch_all(executor).await?;
    Ok(ids.into_iter().map(JobId).collect())
}

/// Returns those of the jobs with a next occurrence that an operator has cancelled. Locks their
/// leases, so that no cancel comes between this and the completion.
async fn cancelled_series(
    connection: &mut PgConnection,
    owner: NodeId,
    done: &[Completion],
) -> Result<HashSet<JobId>, StoreError> {
    let repeating = done.iter().filter(|d| d.next.is_some());
    let ids: Vec<Uuid> = repeating.map(|d| d.held.id.0).collect();
    let mut cancelled = HashSet::new();
    if ids.is_empty() {
        return Ok(cancelled);
    }
    let rows = sqlx::query(CANCELLED).bind(ids).bind(owner.0);
    for row in &rows.fetch_all(connection).await? {
        if row.try_get(1)? {
            cancelled.insert(JobId(row.try_get(0)?));
        }
    }
    Ok(cancelled)
}

/// Completes jobs inside a transaction: instances, guarded deletes, next occurrences, handoff.
pub(super) async fn complete_in(
    connection: &mut PgConnection,
    owner: NodeId,
    done: &[Completion],
    then: &Handoff,
) -> Result<BatchOutcome, StoreError> {
    let names = instances(done.iter().map(|d| &d.held));
    let holders = enter_held(connection, &names).await?;
    let cancelled = cancelled_series(connection, owner, done).await?;
    let mut settled = BatchOutcome {
        applied: delete(
            &mut *connection,
            COMPLETE,
            owner,
            done.iter().filter(|d| !d.cancelled),
        )
        .await?,
        ..BatchOutcome::default()
    };
    if done.iter().any(|d| d.cancelled) {
        let ended = done.iter().filter(|d| d.cancelled);
        let gone = delete(&mut *connection, COMPLETE_CANCELLED, owner, ended).await?;
        settled.applied.extend(gone);
    }
    let applied: HashSet<&JobId> = settled.applied.iter().collect();
    let next: Vec<_> = done
        .iter()
        .filter(|d| applied.contains(&d.held.id) && !cancelled.contains(&d.held.id))
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
    attempts::record(connection, owner, &recorded).await?;
    let held = done.iter().map(|d| &d.held);
    pass_on(connection, held, &holders, then, &mut settled).await?;
    Ok(settled)
}

/// Releases jobs inside a transaction that has locked their instances.
pub(super) async fn release_in(
    connection: &mut PgConnection,
    owner: NodeId,
    held: &[LockToken],
    holders: &Holders,
) -> Result<BatchOutcome, StoreError> {
    let (ids, fences) = guards(held.iter());
    let rows = sqlx::query(RELEASE)
        .bind(ids)
        .bind(fences)
        .bind(owner.0)
        .fetch_all(&mut *connection)
        .await?;
    let mut settled = BatchOutcome::default();
    for row in &rows {
        let id = JobId(row.try_get(0)?);
        settled.applied.push(id);
        if row.try_get(6)? {
            settled.cancelled.push(id);
            continue;
        }
        // The next job of an instance comes from the handoff; it may be another job.
        let ready = decode::ready(row)?;
        if ready.hint.instance.is_none() {
            settled.ready.push(ready);
        }
    }
    let then = Handoff::Hint;
    pass_on(connection, held.iter(), holders, &then, &mut settled).await?;
    Ok(settled)
}

/// Releases jobs like [`release_in`]. Those of `unstarted` had no attempt. If they have strikes, their
/// leases stay without an owner.
pub(super) async fn release_keeping(
    connection: &mut PgConnection,
    owner: NodeId,
    held: &[LockToken],
    unstarted: &[Uuid],
    holders: &Holders,
) -> Result<BatchOutcome, StoreError> {
    if unstarted.is_empty() {
        return release_in(connection, owner, held, holders).await;
    }
    let struck: Vec<(Uuid, i64, i32, Option<i64>)> = sqlx::query_as(STRIKES)
        .bind(unstarted)
        .bind(owner.0)
        .fetch_all(&mut *connection)
        .await?;
    let released = release_in(&mut *connection, owner, held, holders).await?;
    let waits = |id: &JobId| released.applied.contains(id) && !released.cancelled.contains(id);
    let kept = || struck.iter().filter(|row| waits(&JobId(row.0)));
    if kept().next().is_some() {
        sqlx::query(KEEP_STRIKES)
            .bind(kept().map(|row| row.0).collect::<Vec<_>>())
            .bind(kept().map(|row| row.1).collect::<Vec<_>>())
            .bind(kept().map(|row| row.2).collect::<Vec<_>>())
            .bind(kept().map(|row| row.3).collect::<Vec<_>>())
            .execute(connection)
            .await?;
    }
    Ok(released)
}

impl Completing for PgStore {
    async fn complete_batch(
        &self,
        owner: NodeId,
        done: &[Completion],
        then: &Handoff,
    ) -> Result<BatchOutcome, StoreError> {
        let ends = done.iter().all(|d| d.next.is_none());
        let is_plain =
            |d: &Completion| d.held.instance.is_none() && d.attempt.is_none() && !d.cancelled;
        if ends && done.iter().all(is_plain) {
            let mut connection = self.cache.acquire().await?;
            let complete = if self.cache.commits_soon() {
                COMPLETE_DURABLY
            } else {
                COMPLETE
            };
            let applied = delete(&mut *connection, complete, owner, done.iter()).await?;
            connection.keep();
            return Ok(BatchOutcome {
                applied,
                ..BatchOutcome::default()
            });
        }
        // Without a next occurrence, all rows are found by key, as the kept plans of the cache
        // require.
        let mut tx = if ends {
            self.cache.begin().await?
        } else {
            begin_impatiently(&self.pool).await?
        };
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
        let unstarted: Vec<Uuid> = unstarted.map(|r| r.held.id.0).collect();
        let names = instances(held.iter());
        let mut tx = begin_impatiently(&self.pool).await?;
        let holders = enter_held(&mut tx, &names).await?;
        let settled = release_keeping(&mut tx, owner, &held, &unstarted, &holders).await?;
        crash_point!("release-uncommitted");
        tx.commit().await?;
        crash_point!("released");
        Ok(settled)
    }
}

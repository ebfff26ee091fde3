//! Permits: granting and giving back under the row lock of the key, parking and waking jobs.
//!
//! Lock order: instance rows, then the rows of keys, then leases, then job rows. Waking waits for no
//! job row.

use std::collections::HashSet;

use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::begin::{begin, begin_to_exchange};
use super::sql::{in_turn, not_suspended, ready_columns, unlocked};
use super::{PgStore, complete, decode};
use crate::hint::Ready;
use crate::job::{JobId, LockToken, NodeId};
use crate::store::error::StoreError;
use crate::store::instances;
use crate::store::permits::share::{Share, Standing, share};
use crate::store::permits::{
    Asking, COUNTED, KeyAnswer, KeyRequest, PermitAnswer, PermitKey, PermitRequest, RESERVED,
    STALLED, StalledKey, WaitingType,
};
use crate::store::statements::Permitting;

/// Writes the rows of keys, and so locks them, in order.
const ENTER: &str = "
INSERT INTO jobwire.permit_key AS k (limit_name, key, size, used_at)
SELECT u.limit_name, u.key, u.size, clock_timestamp()
FROM unnest($1::text[], $2::text[], $3::int[]) AS u (limit_name, key, size)
ORDER BY u.limit_name, u.key
ON CONFLICT (limit_name, key) DO UPDATE SET size = excluded.size, used_at = excluded.used_at";

/// Locks the rows of this node, so that no other node deletes them as expired.
const LOCK_MINE: &str = "
SELECT p.limit_name FROM jobwire.permit p
JOIN unnest($1::text[], $2::text[]) AS u (limit_name, key) ON p.limit_name = u.limit_name AND p.key = u.key
WHERE p.node = $3 ORDER BY p.limit_name, p.key FOR UPDATE OF p";

/// Reads the state of keys. The rows of asking jobs do not count.
const STANDING: &str = "
SELECT
    (SELECT coalesce(sum(p.number), 0)::bigint FROM jobwire.permit p
     WHERE p.limit_name = u.limit_name AND p.key = u.key AND p.node <> $3),
    (SELECT coalesce(sum(p.number), 0)::bigint FROM jobwire.permit p
     WHERE p.limit_name = u.limit_name AND p.key = u.key AND p.node = $3),
    (SELECT count(*) FROM jobwire.waiting_job w
     WHERE w.limit_name = u.limit_name AND w.key = u.key AND w.woken_at > clock_timestamp() - $5::interval
       AND w.woken_at <= clock_timestamp() AND w.job_id <> ALL($4)),
    (SELECT count(*) FROM (
        SELECT FROM jobwire.waiting_job w
        WHERE w.limit_name = u.limit_name AND w.key = u.key AND w.woken_at IS NULL AND w.job_id <> ALL($4)
        LIMIT $6) counted)
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS u (limit_name, key, place) ORDER BY u.place";

const WOKEN: &str =
    "SELECT job_id FROM jobwire.waiting_job WHERE job_id = ANY($1) AND woken_at IS NOT NULL";

/// Writes the permits of this node.
const BORROW: &str = "
WITH gone AS (
    DELETE FROM jobwire.permit p USING unnest($1::text[], $2::text[], $3::int[]) AS u (limit_name, key, number)
    WHERE p.limit_name = u.limit_name AND p.key = u.key AND p.node = $4 AND u.number = 0
)
INSERT INTO jobwire.permit AS p (limit_name, key, node, number, expires_at)
SELECT u.limit_name, u.key, $4, u.number, clock_timestamp() + $5
FROM unnest($1::text[], $2::text[], $3::int[]) AS u (limit_name, key, number)
WHERE u.number > 0
ON CONFLICT (limit_name, key, node) DO UPDATE SET number = excluded.number, expires_at = excluded.expires_at";

/// True if a node may lock this job now: it is free, in its turn, not suspended and not paused, and
/// a node serves its type. While no node has a row, every type counts as served.
macro_rules! lockable {
    () => {
        concat!(
            unlocked!("j"),
            " AND ",
            not_suspended!("j"),
            " AND ",
            in_turn!("j"),
            " AND (NOT EXISTS (SELECT FROM jobwire.node) \
               OR EXISTS (SELECT FROM jobwire.node n WHERE j.type = ANY(n.types)))"
        )
    };
}

/// Deletes the rows of jobs that no node may lock, among the first ones of each key. Such a job has
/// left the executable table, or is found again like any job that does not wait for a permit.
const DROP: &str = concat!(
    "
WITH first AS MATERIALIZED (
    SELECT w.job_id FROM unnest($1::text[], $2::text[]) AS u (limit_name, key)
    CROSS JOIN LATERAL (
        SELECT w.job_id FROM jobwire.waiting_job w
        WHERE w.limit_name = u.limit_name AND w.key = u.key AND w.woken_at IS NULL AND w.job_id <> ALL($3)
        ORDER BY w.seq LIMIT $4) w
), dropped AS MATERIALIZED (
    SELECT w.job_id FROM first JOIN jobwire.waiting_job w ON w.job_id = first.job_id
    WHERE NOT EXISTS (SELECT FROM jobwire.job j WHERE j.id = w.job_id AND ",
    lockable!(),
    ")
    FOR UPDATE OF w SKIP LOCKED
)
DELETE FROM jobwire.waiting_job w USING dropped WHERE w.job_id = dropped.job_id"
);

/// Wakes the next jobs. One whose row is locked at this moment is passed over, and gets no hint and
/// no reservation.
const WAKE: &str = concat!(
    "
WITH next AS MATERIALIZED (
    SELECT n.id FROM unnest($1::text[], $2::text[], $3::int[]) AS u (limit_name, key, number)
    CROSS JOIN LATERAL (
        SELECT j.id FROM (
            SELECT w.job_id, w.seq FROM jobwire.waiting_job w
            WHERE w.limit_name = u.limit_name AND w.key = u.key AND w.woken_at IS NULL AND w.job_id <> ALL($4)
            ORDER BY w.seq LIMIT u.number + 100) w
        JOIN jobwire.job j ON j.id = w.job_id
        WHERE ",
    lockable!(),
    "
        ORDER BY w.seq LIMIT u.number
        FOR UPDATE OF j SKIP LOCKED) n
), noted AS (
    UPDATE jobwire.waiting_job w SET woken_at = clock_timestamp() FROM next WHERE w.job_id = next.id
)
UPDATE jobwire.job j SET ready_at = clock_timestamp(), hints = least(j.hints, 999999999) + 1
FROM next WHERE j.id = next.id
RETURNING ",
    ready_columns!("j")
);

const PARK: &str = "
INSERT INTO jobwire.waiting_job AS w (job_id, limit_name, key, type, seq)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bigint[])
ON CONFLICT (job_id) DO UPDATE SET limit_name = excluded.limit_name, key = excluded.key, type = excluded.type,
    seq = excluded.seq, woken_at = NULL";

const ADMIT: &str = "DELETE FROM jobwire.waiting_job WHERE job_id = ANY($1)";

/// Selects the strikes of jobs that are parked, and locks their leases.
const STRIKES: &str = "
SELECT job_id, fence, strikes, struck FROM jobwire.job_lease
WHERE job_id = ANY($1) AND owner = $2 AND strikes > 0 ORDER BY job_id FOR UPDATE";

/// Writes leases without an owner. The next lock takes them, with their strikes.
const KEEP_STRIKES: &str = "
INSERT INTO jobwire.job_lease (job_id, fence, locked_at, expires_at, strikes, struck)
SELECT u.id, u.fence, clock_timestamp(), clock_timestamp(), u.strikes, u.struck
FROM unnest($1::uuid[], $2::bigint[], $3::integer[], $4::bigint[]) AS u (id, fence, strikes, struck)
ON CONFLICT (job_id) DO NOTHING";

/// Deletes rows of keys of which no node has a permit and no job waits. A transaction that waits for
/// such a row inserts it again.
const LEAVE: &str = "
DELETE FROM jobwire.permit_key k USING unnest($1::text[], $2::text[]) AS u (limit_name, key)
WHERE k.limit_name = u.limit_name AND k.key = u.key
  AND NOT EXISTS (SELECT FROM jobwire.permit p WHERE p.limit_name = k.limit_name AND p.key = k.key)
  AND NOT EXISTS (SELECT FROM jobwire.waiting_job w
                  WHERE w.limit_name = k.limit_name AND w.key = k.key AND w.woken_at IS NULL)";

/// Deletes rows of keys that no node has used for long, and of jobs that were woken long ago or, by the
/// clock, later than now.
const PRUNE: [&str; 2] = [
    "
DELETE FROM jobwire.permit_key WHERE (limit_name, key) IN (
    SELECT k.limit_name, k.key FROM jobwire.permit_key k
    WHERE k.used_at NOT BETWEEN clock_timestamp() - interval '10 minutes' AND clock_timestamp()
      AND NOT EXISTS (SELECT FROM jobwire.permit p WHERE p.limit_name = k.limit_name AND p.key = k.key)
      AND NOT EXISTS (SELECT FROM jobwire.waiting_job w
                      WHERE w.limit_name = k.limit_name AND w.key = k.key AND w.woken_at IS NULL)
    LIMIT 1000 FOR UPDATE OF k SKIP LOCKED)",
    "
DELETE FROM jobwire.waiting_job WHERE job_id IN (
    SELECT w.job_id FROM jobwire.waiting_job w WHERE w.woken_at NOT BETWEEN clock_timestamp() - interval '10 minutes' AND clock_timestamp()
    LIMIT 1000 FOR UPDATE OF w SKIP LOCKED)",
];

const STALLED_KEYS: &str = "
SELECT k.limit_name, k.key, k.size FROM jobwire.permit_key k
WHERE EXISTS (SELECT FROM jobwire.waiting_job w
              WHERE w.limit_name = k.limit_name AND w.key = k.key AND w.woken_at IS NULL)
  AND k.size > (SELECT coalesce(sum(p.number), 0) FROM jobwire.permit p
                WHERE p.limit_name = k.limit_name AND p.key = k.key)
             + (SELECT count(*) FROM jobwire.waiting_job w
                WHERE w.limit_name = k.limit_name AND w.key = k.key
                  AND w.woken_at > clock_timestamp() - $1::interval AND w.woken_at <= clock_timestamp())
ORDER BY k.limit_name, k.key LIMIT $2";

const WAITING_TYPES: &str = "
SELECT w.type, count(*) FROM jobwire.waiting_job w
WHERE w.woken_at IS NULL AND EXISTS (SELECT FROM jobwire.job j WHERE j.id = w.job_id)
GROUP BY w.type ORDER BY 2 DESC, 1 LIMIT $1";

/// How often rows are deleted before jobs are woken. The next exchange goes on.
const ROUNDS: usize = 50;
/// The number of rows that one of these rounds looks at, after the first one.
const LOOK_AT: usize = 1_000;

/// The names of keys, as arrays.
fn names<'a>(keys: impl Iterator<Item = &'a PermitKey>) -> (Vec<&'a str>, Vec<&'a str>) {
    keys.map(|of| (of.limit.as_str(), of.key.as_str())).unzip()
}

/// Reads the state of the keys, which are locked, in the order of the request.
async fn standings(
    connection: &mut PgConnection,
    request: &PermitRequest,
    asking: &[Uuid],
) -> Result<Vec<Standing>, StoreError> {
    let (limits, keys) = names(request.keys.iter().map(|of| &of.key));
    sqlx::query(LOCK_MINE)
        .bind(&limits)
        .bind(&keys)
        .bind(request.node.0)
        .fetch_all(&mut *connection)
        .await?;
    // A later statement sees what was committed before the rows were locked.
    let rows = sqlx::query(STANDING)
        .bind(&limits)
        .bind(&keys)
        .bind(request.node.0)
        .bind(asking)
        .bind(RESERVED)
        .bind(COUNTED)
        .fetch_all(connection)
        .await?;
    let standing = |row: &sqlx::postgres::PgRow| {
        Ok(Standing {
            others: row.try_get(0)?,
            mine: row.try_get(1)?,
            reserved: row.try_get(2)?,
            waiting: row.try_get(3)?,
        })
    };
    rows.iter().map(standing).collect()
}

/// Deletes the rows of jobs that no node may lock, if some are among the jobs to wake. Returns whether
/// there were any.
async fn drop_unlockable(
    connection: &mut PgConnection,
    shares: &[(&KeyRequest, Share)],
    asking: &[Uuid],
) -> Result<bool, StoreError> {
    let wakes = || shares.iter().filter(|(_, share)| share.wake > 0);
    let (limits, keys) = names(wakes().map(|(of, _)| &of.key));
    let most = wakes().map(|(_, share)| i64::from(share.wake)).max();
    let Some(most) = most else {
        return Ok(false);
    };
    let page = i64::try_from(LOOK_AT / limits.len()).unwrap_or(1);
    let mut look_at = most;
    let mut any = false;
    for _ in 0..ROUNDS {
        let dropped = sqlx::query(DROP)
            .bind(&limits)
            .bind(&keys)
            .bind(asking)
            .bind(look_at)
            .execute(&mut *connection)
            .await?;
        if dropped.rows_affected() == 0 {
            break;
        }
        any = true;
        look_at = most.max(page);
    }
    Ok(any)
}

/// Wakes waiting jobs of keys, as many as the shares say.
async fn wake(
    connection: &mut PgConnection,
    shares: &[(&KeyRequest, Share)],
    asking: &[Uuid],
) -> Result<Vec<Ready>, StoreError> {
    let wakes = || shares.iter().filter(|(_, share)| share.wake > 0);
    let (limits, keys) = names(wakes().map(|(of, _)| &of.key));
    if limits.is_empty() {
        return Ok(Vec::new());
    }
    let numbers: Vec<i32> = wakes().map(|(_, share)| share.wake).collect();
    let rows = sqlx::query(WAKE)
        .bind(&limits)
        .bind(&keys)
        .bind(&numbers)
        .bind(asking)
        .fetch_all(connection)
        .await?;
    decode::all_ready(&rows)
}

/// Parks the asking jobs that got no permit.
async fn park(
    connection: &mut PgConnection,
    node: NodeId,
    refused: &[(&PermitKey, &Asking)],
    holders: &complete::Holders,
    answer: &mut PermitAnswer,
) -> Result<(), StoreError> {
    if refused.is_empty() {
        return Ok(());
    }
    let held: Vec<LockToken> = refused.iter().map(|(_, job)| job.held.clone()).collect();
    let struck: Vec<(Uuid, i64, i32, Option<i64>)> = sqlx::query_as(STRIKES)
        .bind(held.iter().map(|of| of.id.0).collect::<Vec<_>>())
        .bind(node.0)
        .fetch_all(&mut *connection)
        .await?;
    let released = complete::release_in(connection, node, &held, holders).await?;
    let parked: HashSet<JobId> = released.applied.iter().copied().collect();
    let waits =
        |job: &Asking| parked.contains(&job.held.id) && !released.cancelled.contains(&job.held.id);
    let rows = || refused.iter().filter(|(_, job)| waits(job));
    let (limits, keys) = names(rows().map(|(key, _)| *key));
    sqlx::query(PARK)
        .bind(rows().map(|(_, job)| job.held.id.0).collect::<Vec<_>>())
        .bind(limits)
        .bind(keys)
        .bind(
            rows()
                .map(|(_, job)| job.job_type.as_str())
                .collect::<Vec<_>>(),
        )
        .bind(rows().map(|(_, job)| job.seq).collect::<Vec<_>>())
        .execute(&mut *connection)
        .await?;
    if !struck.is_empty() {
        let waiting: HashSet<Uuid> = rows().map(|(_, job)| job.held.id.0).collect();
        let kept = || struck.iter().filter(|row| waiting.contains(&row.0));
        sqlx::query(KEEP_STRIKES)
            .bind(kept().map(|row| row.0).collect::<Vec<_>>())
            .bind(kept().map(|row| row.1).collect::<Vec<_>>())
            .bind(kept().map(|row| row.2).collect::<Vec<_>>())
            .bind(kept().map(|row| row.3).collect::<Vec<_>>())
            .execute(connection)
            .await?;
    }
    let ready = released.ready.into_iter();
    answer
        .ready
        .extend(ready.filter(|ready| !parked.contains(&ready.hint.id)));
    answer.parked = released.applied;
    answer.cancelled = released.cancelled;
    Ok(())
}

async fn exchange(
    connection: &mut PgConnection,
    request: &PermitRequest,
) -> Result<PermitAnswer, StoreError> {
    let asking: Vec<Uuid> = request.asking().map(|job| job.held.id.0).collect();
    let held = instances(request.asking().map(|job| &job.held));
    let holders = complete::enter_held(connection, &held).await?;
    let (limits, keys) = names(request.keys.iter().map(|of| &of.key));
    sqlx::query(ENTER)
        .bind(&limits)
        .bind(&keys)
        .bind(request.keys.iter().map(|of| of.size).collect::<Vec<_>>())
        .execute(&mut *connection)
        .await?;
    let mut states = standings(connection, request, &asking).await?;
    let woken: Vec<Uuid> = if asking.is_empty() {
        Vec::new()
    } else {
        let woken = sqlx::query_scalar(WOKEN).bind(&asking);
        woken.fetch_all(&mut *connection).await?
    };
    let woken: HashSet<JobId> = woken.into_iter().map(JobId).collect();
    let share_all = |states: &[Standing]| -> Vec<(&KeyRequest, Share)> {
        let of_each = request.keys.iter().zip(states);
        of_each
            .map(|(of, standing)| (of, share(of, standing, &woken)))
            .collect()
    };
    let mut shares = share_all(&states);
    if drop_unlockable(connection, &shares, &asking).await? {
        states = standings(connection, request, &asking).await?;
        shares = share_all(&states);
    }
    let numbers: Vec<i32> = shares.iter().map(|(_, share)| share.number).collect();
    sqlx::query(BORROW)
        .bind(&limits)
        .bind(&keys)
        .bind(&numbers)
        .bind(request.node.0)
        .bind(request.lease)
        .execute(&mut *connection)
        .await?;
    let mut answer = PermitAnswer {
        ready: wake(connection, &shares, &asking).await?,
        ..PermitAnswer::default()
    };
    let admitted: Vec<Uuid> = shares
        .iter()
        .flat_map(|(_, share)| share.granted.iter().map(|id| id.0))
        .collect();
    if !admitted.is_empty() {
        let admit = sqlx::query(ADMIT).bind(&admitted);
        admit.execute(&mut *connection).await?;
    }
    let admitted: HashSet<Uuid> = admitted.into_iter().collect();
    let refused: Vec<(&PermitKey, &Asking)> = request
        .keys
        .iter()
        .flat_map(|of| of.asking.iter().map(move |job| (&of.key, job)))
        .filter(|(_, job)| !admitted.contains(&job.held.id.0))
        .collect();
    park(connection, request.node, &refused, &holders, &mut answer).await?;
    let is_unused = |share: &Share| share.number == 0 && !share.contended;
    let unused = shares.iter().filter(|(_, share)| is_unused(share));
    let (limits, keys) = names(unused.map(|(of, _)| &of.key));
    if !limits.is_empty() {
        let leave = sqlx::query(LEAVE).bind(limits).bind(keys);
        leave.execute(&mut *connection).await?;
    }
    answer.keys = shares
        .into_iter()
        .map(|(of, share)| KeyAnswer {
            key: of.key.clone(),
            number: share.number,
            granted: share.granted,
            contended: share.contended,
        })
        .collect();
    Ok(answer)
}

impl Permitting for PgStore {
    async fn exchange_batch(&self, request: &PermitRequest) -> Result<PermitAnswer, StoreError> {
        let mut tx = begin_to_exchange(&self.pool).await?;
        let answer = exchange(&mut tx, request).await?;
        tx.commit().await?;
        Ok(answer)
    }

    async fn find_stalled(&self) -> Result<Vec<StalledKey>, StoreError> {
        for prune in PRUNE {
            for _ in 0..ROUNDS {
                let mut tx = begin(&self.pool).await?;
                let pruned = sqlx::query(prune).execute(&mut *tx).await?;
                tx.commit().await?;
                if pruned.rows_affected() < LOOK_AT as u64 {
                    break;
                }
            }
        }
        let rows = sqlx::query(STALLED_KEYS)
            .bind(RESERVED)
            .bind(STALLED)
            .fetch_all(&self.pool.inner)
            .await?;
        let stalled = |row: &sqlx::postgres::PgRow| {
            Ok(StalledKey {
                key: PermitKey {
                    limit: row.try_get(0)?,
                    key: row.try_get(1)?,
                },
                size: row.try_get(2)?,
            })
        };
        rows.iter().map(stalled).collect()
    }

    async fn count_waiting(&self, limit: i64) -> Result<Vec<WaitingType>, StoreError> {
        let count = sqlx::query_as(WAITING_TYPES).bind(limit);
        let rows: Vec<(String, i64)> = count.fetch_all(&self.pool.inner).await?;
        let types = rows.into_iter();
        Ok(types
            .map(|(job_type, jobs)| WaitingType { job_type, jobs })
            .collect())
    }
}

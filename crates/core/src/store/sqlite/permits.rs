//! Permits: granting and giving back, parking and waking jobs. There is one writer, so a transaction
//! needs no further lock.

use std::collections::HashSet;

use serde::Serialize;
use sqlx::{Row, SqliteConnection};

use super::sql::{in_turn, ready_columns, strikes, suspended, unlocked};
use super::{SqliteStore, complete, decode};
use crate::hint::Ready;
use crate::job::{JobId, LockToken};
use crate::store::error::StoreError;
use crate::store::permits::share::{Share, Standing, share};
use crate::store::permits::{
    Asking, COUNTED, KeyAnswer, KeyRequest, PermitAnswer, PermitKey, PermitRequest, RESERVED,
    STALLED, StalledKey, WaitingType,
};
use crate::store::statements::Permitting;

const ENTER: &str = "
INSERT INTO permit_key (limit_name, key, size, used_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (limit_name, key) DO UPDATE SET size = excluded.size, used_at = excluded.used_at";

/// Reads the state of a key. The rows of asking jobs do not count.
const STANDING: &str = "
SELECT
    (SELECT coalesce(sum(number), 0) FROM permit WHERE limit_name = ?1 AND key = ?2 AND node <> ?3),
    (SELECT coalesce(sum(number), 0) FROM permit WHERE limit_name = ?1 AND key = ?2 AND node = ?3),
    (SELECT count(*) FROM waiting_job
     WHERE limit_name = ?1 AND key = ?2 AND woken_at > ?5 AND woken_at <= ?7 AND job_id NOT IN (SELECT value FROM json_each(?4))),
    (SELECT count(*) FROM (
        SELECT 1 FROM waiting_job
        WHERE limit_name = ?1 AND key = ?2 AND woken_at IS NULL AND job_id NOT IN (SELECT value FROM json_each(?4))
        LIMIT ?6))";

const WOKEN: &str = "
SELECT job_id FROM waiting_job WHERE job_id IN (SELECT value FROM json_each(?1)) AND woken_at IS NOT NULL";

const BORROW: &str = "
INSERT INTO permit (limit_name, key, node, number, expires_at) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (limit_name, key, node) DO UPDATE SET number = excluded.number, expires_at = excluded.expires_at";

const GIVE_BACK: &str = "DELETE FROM permit WHERE limit_name = ?1 AND key = ?2 AND node = ?3";

/// True if a node may lock this job now: it is free, in its turn, not suspended and not paused, and
/// a node serves its type. While no node has a row, every type counts as served.
macro_rules! lockable {
    () => {
        concat!(
            unlocked!("j"),
            " AND NOT ",
            suspended!("j"),
            " AND ",
            in_turn!("j"),
            " AND (NOT EXISTS (SELECT 1 FROM node) \
               OR EXISTS (SELECT 1 FROM node n, json_each(n.types) AS t WHERE t.value = j.type))"
        )
    };
}

/// Selects the first waiting jobs of a key.
macro_rules! first_waiting {
    ($at_most:literal) => {
        concat!(
            "SELECT w.job_id, w.seq FROM waiting_job w
    WHERE w.limit_name = ?1 AND w.key = ?2 AND w.woken_at IS NULL AND w.job_id NOT IN (SELECT value FROM json_each(?4))
    ORDER BY w.seq LIMIT ",
            $at_most
        )
    };
}

/// Deletes the rows of jobs that no node may lock, among the first ones of a key. Such a job has left
/// the executable table, or is found again like any job that does not wait for a permit.
const DROP: &str = concat!(
    "
DELETE FROM waiting_job WHERE job_id IN (
    SELECT f.job_id FROM (",
    first_waiting!("?3"),
    ") f
    WHERE NOT EXISTS (SELECT 1 FROM job j WHERE j.id = f.job_id AND ",
    lockable!(),
    "))"
);

/// Selects the next jobs to wake.
const NEXT: &str = concat!(
    "
SELECT f.job_id FROM (",
    first_waiting!("?3 + 100"),
    ") f CROSS JOIN job j ON j.id = f.job_id
WHERE ",
    lockable!(),
    "
ORDER BY f.seq LIMIT ?3"
);

const NOTE: &str =
    "UPDATE waiting_job SET woken_at = ?2 WHERE job_id IN (SELECT value FROM json_each(?1))";

const WAKE: &str = concat!(
    "
UPDATE job SET ready_at = ?2, hints = min(hints, 999999999) + 1
WHERE id IN (SELECT value FROM json_each(?1)) AND ",
    unlocked!("job"),
    "
RETURNING ",
    ready_columns!(),
    ", seq"
);

const PARK: &str = "
INSERT INTO waiting_job (job_id, limit_name, key, type, seq)
SELECT value ->> 'job', value ->> 'limit', value ->> 'key', value ->> 'job_type', value ->> 'seq' FROM json_each(?1)
WHERE true
ON CONFLICT (job_id) DO UPDATE SET limit_name = excluded.limit_name, key = excluded.key, type = excluded.type,
    seq = excluded.seq, woken_at = NULL";

const ADMIT: &str = "DELETE FROM waiting_job WHERE job_id IN (SELECT value FROM json_each(?1))";

/// Selects the strikes of jobs that are parked.
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

/// Deletes the row of a key of which no node has a permit and no job waits.
const LEAVE: &str = "
DELETE FROM permit_key WHERE limit_name = ?1 AND key = ?2
  AND NOT EXISTS (SELECT 1 FROM permit p WHERE p.limit_name = ?1 AND p.key = ?2)
  AND NOT EXISTS (SELECT 1 FROM waiting_job w WHERE w.limit_name = ?1 AND w.key = ?2 AND w.woken_at IS NULL)";

/// Deletes rows of keys that no node has used for long, and of jobs that were woken long ago or, by the
/// clock, later than now.
const PRUNE: [&str; 2] = [
    "
DELETE FROM permit_key AS k WHERE k.used_at NOT BETWEEN ?1 - 600000000 AND ?1
  AND NOT EXISTS (SELECT 1 FROM permit p WHERE p.limit_name = k.limit_name AND p.key = k.key)
  AND NOT EXISTS (SELECT 1 FROM waiting_job w WHERE w.limit_name = k.limit_name AND w.key = k.key AND w.woken_at IS NULL)",
    "DELETE FROM waiting_job WHERE woken_at NOT BETWEEN ?1 - 600000000 AND ?1",
];

const STALLED_KEYS: &str = "
SELECT k.limit_name, k.key, min(k.size, 2147483647) FROM permit_key k
WHERE EXISTS (SELECT 1 FROM waiting_job w WHERE w.limit_name = k.limit_name AND w.key = k.key AND w.woken_at IS NULL)
  AND k.size > (SELECT coalesce(sum(p.number), 0) FROM permit p WHERE p.limit_name = k.limit_name AND p.key = k.key)
             + (SELECT count(*) FROM waiting_job w
                WHERE w.limit_name = k.limit_name AND w.key = k.key AND w.woken_at > ?1 AND w.woken_at <= ?3)
ORDER BY k.limit_name, k.key LIMIT ?2";

const WAITING_TYPES: &str = "
SELECT w.type, count(*) FROM waiting_job w
WHERE w.woken_at IS NULL AND EXISTS (SELECT 1 FROM job j WHERE j.id = w.job_id)
GROUP BY w.type ORDER BY 2 DESC, 1 LIMIT ?1";

/// How often rows are deleted before jobs are woken. The next exchange goes on.
const ROUNDS: usize = 50;
/// The number of rows that one of these rounds looks at, after the first one.
const LOOK_AT: i32 = 1_000;

/// A waiting job in the form that the statement reads.
#[derive(Serialize)]
struct WaitingRow<'a> {
    job: JobId,
    limit: &'a str,
    key: &'a str,
    job_type: &'a str,
    seq: i64,
}

/// Returns the time before which a woken job has no reservation any more.
fn reserved_since(now: i64) -> i64 {
    now.saturating_sub(i64::try_from(RESERVED.as_micros()).unwrap_or(i64::MAX))
}

async fn standing(
    connection: &mut SqliteConnection,
    request: &PermitRequest,
    of: &KeyRequest,
    asking: &str,
    now: i64,
) -> Result<Standing, StoreError> {
    sqlx::query(ENTER)
        .bind(&of.key.limit)
        .bind(&of.key.key)
        .bind(of.size)
        .bind(now)
        .execute(&mut *connection)
        .await?;
    let row = sqlx::query(STANDING)
        .bind(&of.key.limit)
        .bind(&of.key.key)
        .bind(request.node.to_string())
        .bind(asking)
        .bind(reserved_since(now))
        .bind(COUNTED)
        .bind(now)
        .fetch_one(connection)
        .await?;
    Ok(Standing {
        others: row.try_get(0)?,
        mine: row.try_get(1)?,
        reserved: row.try_get(2)?,
        waiting: row.try_get(3)?,
    })
}

async fn borrow(
    connection: &mut SqliteConnection,
    request: &PermitRequest,
    of: &KeyRequest,
    number: i32,
    now: i64,
) -> Result<(), StoreError> {
    let row = if number > 0 {
        sqlx::query(BORROW)
    } else {
        sqlx::query(GIVE_BACK)
    };
    let mut row = row
        .bind(&of.key.limit)
        .bind(&of.key.key)
        .bind(request.node.to_string());
    if number > 0 {
        row = row.bind(number).bind(decode::later(now, request.lease));
    }
    row.execute(connection).await?;
    Ok(())
}

/// Deletes the rows of jobs that no node may lock, if some are among this number of jobs to wake.
/// Returns whether there were any.
async fn drop_unlockable(
    connection: &mut SqliteConnection,
    key: &PermitKey,
    number: i32,
    asking: &str,
) -> Result<bool, StoreError> {
    let mut look_at = number;
    let mut any = false;
    if number == 0 {
        return Ok(any);
    }
    for _ in 0..ROUNDS {
        let dropped = sqlx::query(DROP)
            .bind(&key.limit)
            .bind(&key.key)
            .bind(look_at)
            .bind(asking)
            .execute(&mut *connection)
            .await?;
        if dropped.rows_affected() == 0 {
            break;
        }
        any = true;
        look_at = number.max(LOOK_AT);
    }
    Ok(any)
}

/// Wakes this number of waiting jobs of a key.
async fn wake(
    connection: &mut SqliteConnection,
    key: &PermitKey,
    number: i32,
    asking: &str,
    now: i64,
) -> Result<Vec<Ready>, StoreError> {
    let rows = sqlx::query(NEXT)
        .bind(&key.limit)
        .bind(&key.key)
        .bind(number)
        .bind(asking)
        .fetch_all(&mut *connection)
        .await?;
    let these = decode::array(decode::job_ids(&rows)?)?;
    let note = sqlx::query(NOTE).bind(&these).bind(now);
    note.execute(&mut *connection).await?;
    let wake = sqlx::query(WAKE).bind(&these).bind(now);
    decode::ready_in_order(&wake.fetch_all(connection).await?)
}

/// Parks the asking jobs that got no permit.
async fn park(
    connection: &mut SqliteConnection,
    request: &PermitRequest,
    refused: &[(&PermitKey, &Asking)],
    now: i64,
    answer: &mut PermitAnswer,
) -> Result<(), StoreError> {
    if refused.is_empty() {
        return Ok(());
    }
    let held: Vec<LockToken> = refused.iter().map(|(_, job)| job.held.clone()).collect();
    let ids = held.iter().map(|of| of.id);
    let struck = sqlx::query(STRIKES)
        .bind(decode::array(ids)?)
        .bind(request.node.to_string())
        .fetch_all(&mut *connection)
        .await?;
    let struck_ids = decode::job_ids(&struck)?;
    let released = complete::release_in(connection, request.node, now, &held).await?;
    let parked: HashSet<JobId> = released.applied.iter().copied().collect();
    let rows = refused.iter().filter(|(_, job)| {
        parked.contains(&job.held.id) && !released.cancelled.contains(&job.held.id)
    });
    let rows = rows.map(|(key, job)| WaitingRow {
        job: job.held.id,
        limit: &key.limit,
        key: &key.key,
        job_type: &job.job_type,
        seq: job.seq,
    });
    let park = sqlx::query(PARK).bind(decode::array(rows)?);
    park.execute(&mut *connection).await?;
    let mut kept: Vec<(JobId, i64, i32, Option<i64>)> = Vec::new();
    for (row, id) in struck.iter().zip(struck_ids) {
        if parked.contains(&id) && !released.cancelled.contains(&id) {
            kept.push((id, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?));
        }
    }
    if !kept.is_empty() {
        let keep = sqlx::query(KEEP_STRIKES).bind(decode::array(kept)?);
        keep.bind(now).execute(connection).await?;
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
    connection: &mut SqliteConnection,
    request: &PermitRequest,
) -> Result<PermitAnswer, StoreError> {
    let now = decode::now_micros();
    let asking = decode::array(request.asking().map(|job| job.held.id))?;
    let woken = sqlx::query(WOKEN).bind(&asking);
    let woken = decode::job_ids(&woken.fetch_all(&mut *connection).await?)?;
    let woken: HashSet<JobId> = woken.into_iter().collect();
    let mut answer = PermitAnswer::default();
    let mut refused = Vec::new();
    let mut admitted = Vec::new();
    for of in &request.keys {
        let mut state = standing(connection, request, of, &asking, now).await?;
        let mut shared = share(of, &state, &woken);
        if drop_unlockable(connection, &of.key, shared.wake, &asking).await? {
            state = standing(connection, request, of, &asking, now).await?;
            shared = share(of, &state, &woken);
        }
        let Share {
            number,
            granted,
            wake: wakes,
            contended,
        } = shared;
        borrow(connection, request, of, number, now).await?;
        if wakes > 0 {
            let ready = wake(connection, &of.key, wakes, &asking, now).await?;
            answer.ready.extend(ready);
        }
        let got: HashSet<&JobId> = granted.iter().collect();
        let others = of.asking.iter().filter(|job| !got.contains(&job.held.id));
        refused.extend(others.map(|job| (&of.key, job)));
        admitted.extend(granted.iter().copied());
        answer.keys.push(KeyAnswer {
            key: of.key.clone(),
            number,
            granted,
            contended,
        });
    }
    if !admitted.is_empty() {
        let admit = sqlx::query(ADMIT).bind(decode::array(admitted)?);
        admit.execute(&mut *connection).await?;
    }
    park(connection, request, &refused, now, &mut answer).await?;
    let is_unused = |of: &&KeyAnswer| of.number == 0 && !of.contended;
    for of in answer.keys.iter().filter(is_unused) {
        let leave = sqlx::query(LEAVE).bind(&of.key.limit).bind(&of.key.key);
        leave.execute(&mut *connection).await?;
    }
    Ok(answer)
}

impl Permitting for SqliteStore {
    async fn exchange_batch(&self, request: &PermitRequest) -> Result<PermitAnswer, StoreError> {
        let mut tx = self.write().await?;
        let answer = exchange(&mut tx, request).await?;
        tx.commit().await?;
        Ok(answer)
    }

    async fn find_stalled(&self) -> Result<Vec<StalledKey>, StoreError> {
        let mut tx = self.write().await?;
        let now = decode::now_micros();
        for statement in PRUNE {
            sqlx::query(statement).bind(now).execute(&mut *tx).await?;
        }
        let rows = sqlx::query(STALLED_KEYS)
            .bind(reserved_since(now))
            .bind(STALLED)
            .bind(now)
            .fetch_all(&mut *tx)
            .await?;
        tx.commit().await?;
        let stalled = |row: &sqlx::sqlite::SqliteRow| {
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
        let rows: Vec<(String, i64)> = count.fetch_all(&self.readers).await?;
        let types = rows.into_iter();
        Ok(types
            .map(|(job_type, jobs)| WaitingType { job_type, jobs })
            .collect())
    }
}

//! The leader cycle: one transaction (protocol rule 24).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use sqlx::{Row, SqliteConnection};

use super::event_stream::{self, Cause};
use super::membership::LEAVE;
use super::sql::{
    has_id, of_free_instance, ready_before, ready_columns, served_by_fleet, strikes, strikes_count,
    suspended, unexpired, unlocked, waits,
};
use super::{SqliteStore, attempts, complete, decode, exclusive, permits};
use crate::hint::Ready;
use crate::job::{JobId, NodeId};
use crate::store::decode::counts;
use crate::store::error::StoreError;
use crate::store::statements::{Leading, Noted};
use crate::store::{COUNT_LIMIT, CycleOutcome, CycleReport, LeaderCycle, Rescued};

/// Takes or renews the leader's lease, unless another node leads.
const LEAD: &str = "
INSERT INTO leader AS l (role, node, term, transport, expires_at) VALUES ('leader', ?1, 1, ?2, ?3)
ON CONFLICT (role) DO UPDATE
    SET node = excluded.node, transport = excluded.transport, expires_at = excluded.expires_at,
        term = min(l.term, 9223372036854775806) + (l.node <> excluded.node)
    WHERE l.node = excluded.node OR l.expires_at NOT BETWEEN ?4 + 1 AND ?4 + max(10 * (?3 - ?4), 60000000)
RETURNING term";

const LEADER: &str = "SELECT node, transport, expires_at FROM leader WHERE role = 'leader'";

/// Selects expired leases. [`RESET`] then clears their owners and counts the strikes; only this
/// pair of statements ends a lease of another node.
macro_rules! late {
    ($where:literal) => {
        concat!(
            "SELECT l.job_id, l.owner, l.cancelled_at IS NOT NULL FROM job_lease AS l JOIN job j ON j.id = l.job_id
WHERE l.owner IS NOT NULL AND NOT ",
            unexpired!("l", "?1"),
            " AND ",
            has_id!("j.id"),
            $where,
            " ORDER BY l.job_id LIMIT ?2"
        )
    };
}

const LATE: &str = late!("");
/// Like [`LATE`], for given jobs, in the search for a refused row.
const LATE_THESE: &str = late!(" AND l.job_id IN (SELECT value FROM json_each(?3))");

const RESET: &str = concat!(
    "UPDATE job_lease AS l SET owner = NULL, alone_since = NULL, strikes = min(l.strikes, 1000000) + ",
    strikes_count!("l"),
    ", struck = CASE WHEN ",
    strikes_count!("l"),
    " THEN l.fence END
WHERE job_id IN (SELECT value FROM json_each(?1))"
);

/// Deletes executable jobs, and selects the instances that they held.
const DELETE_CANCELLED: &str = "
DELETE FROM job WHERE id IN (SELECT value FROM json_each(?1)) RETURNING CASE WHEN exclusive THEN process_instance END";
const THEIR_LEASES: &str = "
DELETE FROM job_lease WHERE job_id IN (SELECT value FROM json_each(?1))";

/// Deletes expired leases whose jobs another program deleted.
const STRAY: &str = concat!(
    "
DELETE FROM job_lease AS l WHERE NOT ",
    unexpired!("l", "?1"),
    " AND NOT EXISTS (SELECT 1 FROM job j WHERE j.id = l.job_id)"
);

/// Frees the permits of nodes that have died, and those that are cold: they have expired, and no lease
/// names the node. A permit expires at most a lease and a cool-down from now, which are a day each.
const REAP: &str = "
DELETE FROM permit WHERE expires_at NOT BETWEEN ?1 + 1 AND ?1 + 176400000000
  AND NOT EXISTS (SELECT 1 FROM job_lease l WHERE l.owner = permit.node)";

/// Selects jobs whose lease lost its owner in an earlier cycle and that have not been locked since.
macro_rules! left_over {
    ($where:literal) => {
        concat!(
            "
SELECT j.id FROM job_lease l CROSS JOIN job j ON j.id = l.job_id
WHERE l.owner IS NULL AND ",
            has_id!("j.id"),
            " AND ",
            served_by_fleet!("j", "?1", "?5"),
            "
  AND ",
            ready_before!("j", "?2 - ?3 * (1 << min(max(j.hints, 2) - 2, 6))"),
            " AND NOT ",
            suspended!("j"),
            " AND NOT ",
            waits!("j"),
            " AND ",
            of_free_instance!("j"),
            $where,
            "
ORDER BY j.id LIMIT ?4"
        )
    };
}

const LEFT_OVER: &str = left_over!("");
const LEFT_OVER_THESE: &str = left_over!(" AND j.id IN (SELECT value FROM json_each(?6))");

/// Selects the strikes and requirements of rescued jobs.
const RESCUED: &str = concat!(
    "
SELECT j.id, ",
    strikes!("l"),
    ", j.type, j.deployment, j.category, j.tenant, j.priority FROM job j JOIN job_lease l ON l.job_id = j.id
WHERE j.id IN (SELECT value FROM json_each(?1))"
);

macro_rules! unhinted {
    ($where:expr) => {
        concat!(
            "SELECT id FROM job WHERE hints = 0 AND ",
            has_id!("id"),
            $where,
            " ORDER BY seq LIMIT ?1"
        )
    };
}

const UNHINTED: &str = unhinted!("");
/// Like [`UNHINTED`], for given jobs without an owner, in the search for a refused row: a row that is
/// refused alone becomes a dead letter.
const UNHINTED_THESE: &str = unhinted!(concat!(
    " AND id IN (SELECT value FROM json_each(?2)) AND ",
    unlocked!("job")
));

/// Selects the jobs that a cycle may mark, and some more: the jobs of ended leases, and the oldest
/// and the newest jobs that were never hinted.
const MARKED: &str = concat!(
    "
SELECT id FROM (
    SELECT job_id AS id, NULL AS seq FROM job_lease AS l
    WHERE EXISTS (SELECT 1 FROM job j WHERE j.id = l.job_id) AND (owner IS NULL OR NOT ",
    unexpired!("l", "?1"),
    ") AND ",
    has_id!("l.job_id"),
    "
    UNION ALL
    SELECT * FROM (SELECT id, seq FROM job WHERE hints = 0 AND ",
    has_id!("id"),
    " ORDER BY seq LIMIT ?2)
    UNION ALL
    SELECT * FROM (SELECT id, seq FROM job WHERE hints = 0 AND ",
    has_id!("id"),
    " ORDER BY seq DESC LIMIT ?2)
) GROUP BY id ORDER BY min(seq) NULLS FIRST"
);

/// Selects the oldest and the newest jobs that were never hinted.
const FIND_UNHINTED: &str = concat!(
    "
SELECT id FROM (
    SELECT * FROM (SELECT id, seq FROM job WHERE hints = 0 AND ",
    has_id!("id"),
    " ORDER BY seq LIMIT ?1)
    UNION
    SELECT * FROM (SELECT id, seq FROM job WHERE hints = 0 AND ",
    has_id!("id"),
    " ORDER BY seq DESC LIMIT ?1)
) ORDER BY seq"
);

const HINT: &str = concat!(
    "UPDATE job SET ready_at = ?2, hints = min(hints, 999999999) + 1 WHERE id IN (SELECT value FROM json_each(?1)) RETURNING ",
    ready_columns!(),
    ", seq"
);

const FORGET_HINTS: &str = "UPDATE job SET hints = 1 WHERE id IN (SELECT value FROM json_each(?1))";

/// Notes jobs that became ready. One that has left the executable table meanwhile is forgotten later.
const NOTE: &str = "
INSERT INTO unannounced_job (job_id, noted_at) SELECT value, ?2 FROM json_each(?1)
WHERE true ON CONFLICT (job_id) DO UPDATE SET noted_at = excluded.noted_at";

const FORGET_NOTED: &str = "
DELETE FROM unannounced_job WHERE job_id IN (SELECT job_id FROM unannounced_job ORDER BY job_id LIMIT ?1)
RETURNING job_id, noted_at";

/// Selects the noted jobs that are free and were not hinted since.
const STILL_NOTED: &str = concat!(
    "SELECT j.id FROM json_each(?1) n CROSS JOIN job j ON j.id = n.value ->> 0
WHERE j.ready_at <= n.value ->> 1 AND ",
    has_id!("j.id"),
    " AND ",
    unlocked!("j")
);

/// Another program may have written any date into a periodic job.
const FACTS: &str = concat!(
    "
SELECT
    (SELECT due_at FROM timer_job WHERE ",
    has_id!("id"),
    " ORDER BY due_at LIMIT 1),
    (SELECT count(*) FROM job_lease l WHERE owner IS NOT NULL AND ",
    unexpired!("l", "?1"),
    "
        AND EXISTS (SELECT 1 FROM job j WHERE j.id = l.job_id)),
    (SELECT count(*) FROM (SELECT 1 FROM job LIMIT ?2)),
    (SELECT count(*) FROM (SELECT 1 FROM timer_job LIMIT ?2)),
    (SELECT count(*) FROM (SELECT 1 FROM dead_letter_job LIMIT ?2)),
    (SELECT ready_at FROM job ORDER BY id LIMIT 1),
    (SELECT max(min(min(next_due), 253402300799999999), -62135596800000000) FROM periodic_job WHERE NOT paused),
    (SELECT json_group_object(scope, n) FROM (SELECT scope, count(*) AS n FROM suspension GROUP BY scope)),
    EXISTS (SELECT 1 FROM batch WHERE ended_at IS NULL),
    EXISTS (SELECT 1 FROM unannounced_job)"
);

/// Expires the leases of a node that is proven dead.
const END_LEASES: &str =
    "UPDATE job_lease SET expires_at = ?2 WHERE owner = ?1 AND expires_at > ?2";

/// Expires the leader's lease. The row stays, so that the term continues to grow.
const RESIGN: &str = "
UPDATE leader SET expires_at = ?2 - 1000000 WHERE role = 'leader' AND node = ?1 AND expires_at > ?2";

/// Counts a hint for each of these jobs, makes them ready now, and returns them.
async fn hint(
    connection: &mut SqliteConnection,
    now: i64,
    ids: &[JobId],
) -> Result<Vec<Ready>, StoreError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let rows = sqlx::query(HINT)
        .bind(decode::array(ids)?)
        .bind(now)
        .fetch_all(connection)
        .await?;
    decode::ready_in_order(&rows)
}

/// Counts a hint for jobs that have none (created by plain SQL), oldest first, and returns them.
async fn hint_unhinted(
    connection: &mut SqliteConnection,
    now: i64,
    at_most: i64,
    these: Option<&str>,
) -> Result<Vec<Ready>, StoreError> {
    let query = match these {
        Some(these) => sqlx::query(UNHINTED_THESE).bind(at_most).bind(these),
        None => sqlx::query(UNHINTED).bind(at_most),
    };
    let rows = query.fetch_all(&mut *connection).await?;
    hint(connection, now, &decode::job_ids(&rows)?).await
}

/// Counts a hint for jobs whose lease has lost its owner, and returns them.
async fn rescue(
    connection: &mut SqliteConnection,
    now: i64,
    found: Vec<(JobId, Option<NodeId>)>,
) -> Result<Vec<Rescued>, StoreError> {
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let ids: Vec<JobId> = found.iter().map(|(id, _)| *id).collect();
    let owners: HashMap<JobId, Option<NodeId>> = found.into_iter().collect();
    let rows = sqlx::query(RESCUED)
        .bind(decode::array(&ids)?)
        .fetch_all(&mut *connection)
        .await?;
    let mut known = HashMap::with_capacity(rows.len());
    for (row, id) in rows.iter().zip(decode::job_ids(&rows)?) {
        let strikes: i32 = row.try_get(1)?;
        known.insert(id, (decode::needs(row)?, strikes));
    }
    // The intervals at which a job is hinted again begin with its rescue.
    let anew = ids
        .iter()
        .filter(|id| owners.get(id).is_some_and(Option::is_some));
    let anew: Vec<&JobId> = anew.collect();
    sqlx::query(FORGET_HINTS)
        .bind(decode::array(anew)?)
        .execute(&mut *connection)
        .await?;
    let ready = hint(connection, now, &ids).await?;
    let rescued = ready.into_iter().filter_map(|ready| {
        let (needs, strikes) = known.remove(&ready.hint.id)?;
        Some(Rescued {
            owner: owners.get(&ready.hint.id).copied().flatten(),
            ready,
            needs,
            strikes,
        })
    });
    Ok(rescued.collect())
}

impl Leading for SqliteStore {
    /// Returns the jobs that a cycle may mark.
    async fn marked(&self, at_most: i64) -> Result<Vec<JobId>, StoreError> {
        let query = sqlx::query(MARKED).bind(decode::now_micros()).bind(at_most);
        decode::job_ids(&query.fetch_all(&self.readers).await?)
    }

    /// Runs a leader cycle, over all jobs or only over `these`, if given.
    async fn cycle(
        &self,
        cycle: &LeaderCycle,
        these: Option<&[JobId]>,
    ) -> Result<CycleOutcome, StoreError> {
        let these = these.map(decode::array).transpose()?;
        let began = Instant::now();
        let mut tx = self.write().await?;
        let cycle = &cycle.behind(began.elapsed());
        let now = decode::now_micros();
        let term: Option<i64> = sqlx::query_scalar(LEAD)
            .bind(cycle.node.to_string())
            .bind(cycle.transport)
            .bind(decode::later(now, cycle.lease))
            .bind(now)
            .fetch_optional(&mut *tx)
            .await?;
        let outcome = match term {
            Some(term) => CycleOutcome::Leads(Box::new(
                lead(&mut tx, cycle, now, term, these.as_deref()).await?,
            )),
            None => follow(&mut tx, now).await?,
        };
        tx.commit().await?;
        Ok(outcome)
    }

    async fn note_jobs(&self, jobs: &[JobId]) -> Result<(), StoreError> {
        let mut tx = self.write().await?;
        sqlx::query(NOTE)
            .bind(decode::array(jobs)?)
            .bind(decode::now_micros())
            .execute(&mut *tx)
            .await?;
        Ok(tx.commit().await?)
    }

    async fn forget_noted(&self, at_most: i64) -> Result<Vec<Noted>, StoreError> {
        let mut tx = self.write().await?;
        let noted = sqlx::query(FORGET_NOTED).bind(at_most);
        let noted = noted.fetch_all(&mut *tx).await?;
        tx.commit().await?;
        // Another program may have written a text that is no id.
        let noted = noted.iter().map(|row| {
            let job = decode::uuid(row, 0).ok().map(JobId);
            Ok((job, row.try_get(1)?))
        });
        noted.collect()
    }

    async fn announce_jobs(&self, noted: &[Noted]) -> Result<Vec<Ready>, StoreError> {
        let noted = noted.iter().filter_map(|(job, at)| Some(((*job)?, *at)));
        let mut tx = self.write().await?;
        let free = sqlx::query(STILL_NOTED).bind(decode::array(noted)?);
        let free = decode::job_ids(&free.fetch_all(&mut *tx).await?)?;
        let ready = hint(&mut tx, decode::now_micros(), &free).await?;
        tx.commit().await?;
        Ok(ready)
    }

    async fn lead_locker(&self) -> Result<Option<String>, StoreError> {
        // No row has a lock of its own.
        Ok(None)
    }

    async fn resign_leading(&self, node: NodeId) -> Result<(), StoreError> {
        let mut tx = self.write().await?;
        sqlx::query(RESIGN)
            .bind(node.to_string())
            .bind(decode::now_micros())
            .execute(&mut *tx)
            .await?;
        Ok(tx.commit().await?)
    }

    /// Returns the ids of jobs that were never hinted: `at_most` of the oldest, and of the newest.
    async fn find_unhinted(&self, at_most: i64) -> Result<Vec<JobId>, StoreError> {
        let query = sqlx::query(FIND_UNHINTED).bind(at_most);
        decode::job_ids(&query.fetch_all(&self.readers).await?)
    }

    /// Counts a hint for jobs that have none, or only for `these`, if given, and returns the jobs.
    async fn hint_unhinted(
        &self,
        at_most: i64,
        these: Option<&[JobId]>,
    ) -> Result<Vec<Ready>, StoreError> {
        let these = these.map(decode::array).transpose()?;
        let mut tx = self.write().await?;
        let now = decode::now_micros();
        let ready = hint_unhinted(&mut tx, now, at_most, these.as_deref()).await?;
        tx.commit().await?;
        Ok(ready)
    }
}

impl SqliteStore {
    /// Prepares the database for the only node: ends the leases and the leadership of the node before it,
    /// if that one is proven dead, and lets the jobs wait again that it had woken. Returns the number of
    /// ended leases.
    pub(super) async fn take_over(&self, dead: Option<NodeId>) -> Result<u64, StoreError> {
        let now = decode::now_micros();
        let mut tx = self.write().await?;
        permits::wait_again(&mut tx).await?;
        let mut ended = 0;
        if let Some(dead) = dead {
            let dead = dead.to_string();
            let end = sqlx::query(END_LEASES).bind(&dead).bind(now);
            ended = end.execute(&mut *tx).await?.rows_affected();
            let resigned = sqlx::query(RESIGN).bind(&dead).bind(now);
            resigned.execute(&mut *tx).await?;
            // The node is dead, so no beat keeps its row.
            sqlx::query(LEAVE).bind(&dead).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        Ok(ended)
    }
}

async fn lead(
    connection: &mut SqliteConnection,
    cycle: &LeaderCycle,
    now: i64,
    term: i64,
    these: Option<&str>,
) -> Result<CycleReport, StoreError> {
    let shown = decode::moment(now)?;
    let believed = cycle
        .clock
        .is_none_or(|clock| (clock.from..=clock.until).contains(&shown));
    // Runs before the reset, so that the leases that the reset finds do not count as left over.
    let mut left_over = sqlx::query(if these.is_some() {
        LEFT_OVER_THESE
    } else {
        LEFT_OVER
    })
    .bind(decode::array(&cycle.services.types[..])?)
    .bind(now)
    .bind(decode::later(now, cycle.again_after) - now)
    .bind(cycle.reset_at_most)
    .bind(cycle.services.bound());
    if let Some(these) = these {
        left_over = left_over.bind(these);
    }
    let left_over = left_over.fetch_all(&mut *connection).await?;
    let mut rescued: Vec<(JobId, Option<NodeId>)> = decode::job_ids(&left_over)?
        .into_iter()
        .map(|id| (id, None))
        .collect();
    let (mut cancelled, mut freed) = (Vec::new(), Vec::new());
    let mut freed_permits = false;
    if believed && cycle.reset_at_most > 0 {
        // Before the reset, as on PostgreSQL: the cycle that ends a node's leases still counts them.
        let reap = sqlx::query(REAP).bind(now);
        freed_permits = reap.execute(&mut *connection).await?.rows_affected() > 0;
        let mut late = sqlx::query(if these.is_some() { LATE_THESE } else { LATE })
            .bind(now)
            .bind(cycle.reset_at_most);
        if let Some(these) = these {
            late = late.bind(these);
        }
        let late = late.fetch_all(&mut *connection).await?;
        let ids = decode::job_ids(&late)?;
        // Another program may have written any owner.
        let of_nodes = late.iter().zip(&ids);
        let of_nodes = of_nodes.filter(|(row, _)| decode::uuid(row, 1).is_ok());
        let of_nodes: Vec<JobId> = of_nodes.map(|(_, id)| *id).collect();
        attempts::record_deaths(connection, now, &of_nodes, &cycle.attempts_kept).await?;
        let mut expired = Vec::with_capacity(ids.len());
        for (row, id) in late.iter().zip(ids) {
            if row.try_get(2)? {
                cancelled.push(id);
            } else {
                expired.push((row, id));
            }
        }
        freed = delete_cancelled(connection, &cancelled).await?;
        sqlx::query(RESET)
            .bind(decode::array(expired.iter().map(|(_, id)| id))?)
            .execute(&mut *connection)
            .await?;
        for (row, id) in expired {
            // Another program may have written any values.
            rescued.push((id, decode::uuid(row, 1).ok().map(NodeId)));
        }
        sqlx::query(STRAY)
            .bind(now)
            .execute(&mut *connection)
            .await?;
    }
    // First the rescued jobs: the cycle counts a hint for them, so they are no longer unhinted.
    let rescued = rescue(connection, now, rescued).await?;
    let unhinted = hint_unhinted(connection, now, cycle.hint_at_most, these).await?;
    let facts = sqlx::query(FACTS)
        .bind(now)
        .bind(COUNT_LIMIT + 1)
        .fetch_one(connection)
        .await?;
    Ok(CycleReport {
        horizon: None,
        term,
        now: decode::moment(now)?,
        rescued,
        unhinted,
        cancelled,
        freed,
        next_due: decode::maybe_moment(facts.try_get(0)?)?,
        next_periodic: decode::maybe_moment(facts.try_get(6)?)?,
        leased: facts.try_get(1)?,
        executable: facts.try_get(2)?,
        timers: facts.try_get(3)?,
        dead_letters: facts.try_get(4)?,
        oldest_ready_at: decode::maybe_moment(facts.try_get(5)?)?,
        suspensions: counts(decode::maybe_text(&facts, 7)?.as_deref())?,
        freed_permits,
        has_batches: facts.try_get(8)?,
        has_noted: facts.try_get(9)?,
        clock_outside: !believed,
        has_more: false,
    })
}

/// Deletes jobs whose holders have died and that an operator had cancelled. Returns the jobs that
/// waited for their instances.
async fn delete_cancelled(
    connection: &mut SqliteConnection,
    cancelled: &[JobId],
) -> Result<Vec<Ready>, StoreError> {
    if cancelled.is_empty() {
        return Ok(Vec::new());
    }
    let these = decode::array(cancelled)?;
    event_stream::begin_cause(connection, Cause::Cancelled).await?;
    let instances = sqlx::query(DELETE_CANCELLED)
        .bind(&these)
        .fetch_all(&mut *connection)
        .await?;
    event_stream::end_cause(connection).await?;
    sqlx::query(THEIR_LEASES)
        .bind(&these)
        .execute(&mut *connection)
        .await?;
    complete::forget(connection, cancelled).await?;
    let mut instances = decode::instances(&instances);
    instances.sort_unstable();
    instances.dedup();
    exclusive::next(connection, &instances).await
}

async fn follow(connection: &mut SqliteConnection, now: i64) -> Result<CycleOutcome, StoreError> {
    let leader = sqlx::query(LEADER).fetch_one(connection).await?;
    let expires_at: i64 = leader.try_get(2)?;
    Ok(CycleOutcome::Follows {
        leader: NodeId(decode::uuid(&leader, 0).unwrap_or_default()),
        transport: decode::text(&leader, 1)?,
        remaining: Duration::from_micros(
            u64::try_from(expires_at.saturating_sub(now)).unwrap_or(0),
        ),
        now: decode::moment(now)?,
    })
}

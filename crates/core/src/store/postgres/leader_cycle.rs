//! The leader cycle: one statement (protocol rule 24).

use std::time::{Duration, Instant};

use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgPool, Postgres, Row};
use uuid::Uuid;

use super::attempts::record_deaths;
use super::begin::begin_part;
use super::connection_pool::ConnectionPool;
use super::sql::{
    has_job, not_suspended, not_waiting, of_free_instance, ready_before, ready_columns,
    served_by_fleet, strikes_count, unexpired, unlocked,
};
use super::{PgStore, aside, decode, exclusive};
use crate::hint::Ready;
use crate::job::{JobId, NodeId};
use crate::store::decode::counts;
use crate::store::error::StoreError;
use crate::store::statements::{Leading, Noted};
use crate::store::{COUNT_LIMIT, CycleOutcome, CycleReport, Horizon, LeaderCycle, Rescued};

/// Takes the lead if no other node leads. As leader, clears the owners of expired leases and counts
/// the strikes, marks jobs that were never hinted, and reads the backlog. This is the only
/// statement that ends a lease of another node, and the only one that compares a lease with the
/// clock (protocol rule 24). It changes only rows that it has locked, so two leaders at once do no
/// harm. It waits for no row; a locked row is left for the next cycle (rule 9).
///
/// The clock is read once, and leases are compared with the reading that was judged. A clock that jumps while
/// the statement runs ends no lease.
///
/// Expired leases without a job are deleted a page at a time. They and `reaped` have pages of their
/// own: a leader whose database is slow makes the page of leases small, and these are cheap. The search for a refused row does not
/// delete them, since no job waits for that.
///
/// The statement does not wait for the leader's row either. While another transaction has that row
/// locked, the answer names the leader in it.
///
/// A leader's lease that ends more than ten lease lengths from now counts as expired: no leader of
/// this fleet wrote it, or the clock was set back.
///
/// `reaped` are the permits of dead nodes: they have expired, and no lease names the node. A node
/// commits the lease of a job before it trusts a permit for it, and its trust ends before the permit
/// expires. So the expiry is compared with a time before the snapshot in which leases are read. A
/// row that a node renews at this moment is passed over. A permit expires at most a lease and a
/// cool-down from now, which are a day each.
///
/// A job whose holder has died and that an operator had cancelled is deleted and not rescued.
///
/// `$deaths` records the attempts whose lease ends here. The statement without it serves fleets that
/// record none.
///
/// No two tables are joined by their keys ([why](super::sql::unleased)). The job of a lease is looked up
/// in a subquery that can't become a join, and a row that was just locked is found again by its place.
/// A row that was changed after the snapshot has another place, and is left for a later cycle.
///
/// `left_over` are jobs whose lease lost its owner in an earlier cycle and that no node has locked
/// since: their hint was lost, or no node had a free slot. They are hinted again at growing
/// intervals, which begin with the rescue: it forgets the hints of the job's life before.
macro_rules! take {
    ($late:literal, $other:expr, $deaths:expr) => {
        concat!(
    "
WITH unlocked AS MATERIALIZED (
    SELECT role FROM jobwire.leader WHERE role = 'leader' FOR UPDATE SKIP LOCKED
), lead AS (
    INSERT INTO jobwire.leader AS l (role, node, term, transport, expires_at)
    SELECT 'leader', $1, 1, $3, clock_timestamp() + $2
    WHERE EXISTS (SELECT FROM unlocked) OR NOT EXISTS (SELECT FROM jobwire.leader WHERE role = 'leader')
    ON CONFLICT (role) DO UPDATE
        SET node = $1, transport = $3, expires_at = clock_timestamp() + $2,
            term = least(l.term, 9223372036854775806) + CASE WHEN l.node = $1 THEN 0 ELSE 1 END
        WHERE l.node = $1 OR l.expires_at NOT BETWEEN clock_timestamp() AND clock_timestamp() + greatest(10 * $2, interval '1 minute')
    RETURNING l.term
), clock AS MATERIALIZED (
    SELECT t, $7::timestamptz IS NULL OR t BETWEEN $7 AND $8 AS fits
    FROM (SELECT clock_timestamp() AS t FROM lead) read
), may_reset AS MATERIALIZED (
    SELECT t FROM clock
    WHERE fits AND t - pg_postmaster_start_time() NOT BETWEEN interval '0' AND $9
), late AS (
    SELECT l.job_id, l.ctid AS place, j.place AS place_of_job, l.owner, l.fence, l.locked_at, j.type, j.process_instance, j.tenant, ",
    strikes_count!("l"),
    " AS counts, l.cancelled_at IS NOT NULL AS cancelled
    FROM jobwire.job_lease l
    CROSS JOIN LATERAL (
        SELECT j.ctid AS place, j.type, j.process_instance, j.tenant FROM jobwire.job j WHERE j.id = l.job_id FOR UPDATE SKIP LOCKED
    ) j
    WHERE l.owner IS NOT NULL AND NOT ",
    unexpired!("l", "(SELECT t FROM may_reset)"),
    " AND EXISTS (SELECT FROM may_reset)",
    $late,
    "
    ORDER BY l.job_id LIMIT $4
    FOR UPDATE OF l SKIP LOCKED
), reset AS (
    UPDATE jobwire.job_lease l SET owner = NULL, alone_since = NULL,
        strikes = least(l.strikes, 1000000) + late.counts::integer, struck = CASE WHEN late.counts THEN l.fence END
    FROM late WHERE l.ctid = late.place AND NOT late.cancelled
    RETURNING l.job_id, l.strikes, late.owner, late.place_of_job, late.fence, late.locked_at, late.type, late.process_instance,
        late.tenant
), cancelled AS (
    DELETE FROM jobwire.job WHERE ctid = ANY(ARRAY(SELECT place_of_job FROM late WHERE cancelled))
    RETURNING id, exclusive, process_instance
), lease_of_cancelled AS (
    DELETE FROM jobwire.job_lease WHERE job_id = ANY(ARRAY(SELECT id FROM cancelled))
), stack_of_cancelled AS (
    DELETE FROM jobwire.job_exception WHERE job_id = ANY(ARRAY(SELECT id FROM cancelled))
), progress_of_cancelled AS (
    DELETE FROM jobwire.job_progress WHERE job_id = ANY(ARRAY(SELECT id FROM cancelled))
)",
    $deaths,
    ", stray AS (
    DELETE FROM jobwire.job_lease WHERE ctid = ANY(ARRAY(
        SELECT l.ctid FROM jobwire.job_lease l
        WHERE NOT ",
    unexpired!("l", "(SELECT t FROM may_reset)"),
    " AND EXISTS (SELECT FROM may_reset) AND ",
    has_job!("l"),
    " IS NULL",
    $late,
    "
        ORDER BY l.job_id LIMIT CASE WHEN $4 > 0 THEN 5000 ELSE 0 END
        FOR UPDATE SKIP LOCKED))
), reaped AS (
    DELETE FROM jobwire.permit WHERE ctid = ANY(ARRAY(
        SELECT p.ctid FROM jobwire.permit p
        WHERE EXISTS (SELECT FROM may_reset)
          AND p.expires_at NOT BETWEEN statement_timestamp() AND statement_timestamp() + interval '49 hours'
          AND p.node <> ALL(ARRAY(SELECT DISTINCT l.owner FROM jobwire.job_lease l WHERE l.owner IS NOT NULL))
        LIMIT CASE WHEN $4 > 0 THEN 5000 ELSE 0 END FOR UPDATE SKIP LOCKED))
    RETURNING node
), left_over AS (
    SELECT l.job_id AS id, l.strikes, j.place AS place_of_job FROM jobwire.job_lease l
    CROSS JOIN LATERAL (SELECT j.ctid AS place FROM jobwire.job j WHERE j.id = l.job_id AND ",
    served_by_fleet!("j", "$10", "$12"),
    "
      AND ",
    ready_before!("j", "clock_timestamp() - $11 * power(2, least(greatest(j.hints, 2) - 2, 6))"),
    "
      AND ",
    not_suspended!("j"),
    " AND ",
    not_waiting!("j"),
    " AND ",
    of_free_instance!("j"),
    $other,
    " FOR UPDATE SKIP LOCKED) j
    WHERE l.owner IS NULL AND EXISTS (SELECT FROM lead)
    ORDER BY l.job_id LIMIT $4
), unhinted AS (
    SELECT j.id, j.ctid AS place_of_job FROM jobwire.job j
    WHERE j.hints = 0 AND EXISTS (SELECT FROM lead)",
    $other,
    "
    ORDER BY j.seq LIMIT $5
    FOR UPDATE SKIP LOCKED
), hinted AS (
    UPDATE jobwire.job j SET ready_at = clock_timestamp(),
        hints = CASE WHEN c.owner IS NULL THEN least(j.hints, 999999999) ELSE 1 END + 1
    FROM (SELECT strikes, owner, place_of_job FROM reset
          UNION ALL SELECT strikes, NULL, place_of_job FROM left_over
          UNION ALL SELECT NULL, NULL, u.place_of_job FROM unhinted u
                    WHERE u.id NOT IN (SELECT job_id FROM late UNION ALL SELECT id FROM left_over)) c
    WHERE j.ctid = c.place_of_job
    RETURNING j.id, j.lane, j.exclusive, j.process_instance, j.trace_parent, c.strikes, j.type, c.owner, j.seq, j.deployment, j.category, j.tenant,
        j.priority
), facts AS (
    SELECT
        (SELECT term FROM lead) AS term,
        statement_timestamp() AS now,
        pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS horizon,
        (SELECT min(due_at) FROM jobwire.timer_job) AS next_due,
        (SELECT min(next_due) FROM jobwire.periodic_job WHERE NOT paused) AS next_periodic,
        EXISTS (SELECT FROM jobwire.batch WHERE ended_at IS NULL) AS has_batches,
        EXISTS (SELECT FROM jobwire.unannounced_job) AS has_noted,
        (SELECT count(*) FROM jobwire.job_lease l
         WHERE owner IS NOT NULL AND ",
    unexpired!("l"),
    " AND ",
    has_job!("l"),
    ") AS leased,
        (SELECT count(*) FROM (SELECT FROM jobwire.job LIMIT $6) c) AS executable,
        (SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = 'jobwire.job'::regclass) AS about_executable,
        (SELECT count(*) FROM (SELECT FROM jobwire.timer_job LIMIT $6) c) AS timers,
        (SELECT count(*) FROM (SELECT FROM jobwire.dead_letter_job LIMIT $6) c) AS dead_letters,
        (SELECT ready_at FROM jobwire.job ORDER BY id LIMIT 1) AS oldest,
        (SELECT jsonb_object_agg(scope, n)::text FROM (SELECT scope, count(*) AS n FROM jobwire.suspension GROUP BY scope) s) AS suspensions,
        (SELECT array_agg(id) FROM cancelled) AS cancelled,
        (SELECT array_agg(DISTINCT process_instance) FILTER (WHERE exclusive) FROM cancelled) AS freed,
        EXISTS (SELECT FROM reaped) AS reaped,
        EXISTS (SELECT FROM clock WHERE NOT fits) AS clock_outside,
        l.node AS leader, l.transport AS transport, CASE WHEN isfinite(l.expires_at) THEN l.expires_at - clock_timestamp() END AS remaining
    FROM (SELECT) AS one LEFT JOIN jobwire.leader l ON l.role = 'leader'
)
SELECT ",
    ready_columns!("hinted"),
    ", hinted.strikes, hinted.owner, facts.term, facts.now, facts.next_due, facts.leased, facts.executable, facts.about_executable,
    facts.timers, facts.dead_letters, facts.oldest, facts.leader, facts.transport,
    (extract(epoch FROM facts.remaining) * 1000)::bigint, facts.horizon, hinted.deployment, hinted.category, hinted.tenant, hinted.priority, facts.next_periodic,
    facts.suspensions, facts.cancelled, facts.freed, facts.reaped, facts.has_batches, facts.has_noted, facts.clock_outside
FROM facts LEFT JOIN hinted ON true
ORDER BY hinted.seq"
        )
    };
}

const TAKE: &str = take!("", "", "");

/// Like [`TAKE`], in a fleet that records attempts: records the attempts whose lease it ends.
const TAKE_RECORDING: &str = take!("", "", record_deaths!("$13", "$14"));

/// Like [`TAKE_RECORDING`], for given jobs, in the search for a refused row. A job with an owner takes
/// part only if its lease has ended: a row that is refused alone becomes a dead letter.
const TAKE_THESE: &str = take!(
    " AND l.job_id = ANY($15)",
    concat!(" AND j.id = ANY($15) AND ", unlocked!("j")),
    record_deaths!("$13", "$14")
);

/// Selects the jobs that a cycle may mark, and some more: those of ended leases, and the oldest and
/// the newest that were never hinted.
const MARKED: &str = concat!(
    "
SELECT id FROM (
    SELECT job_id AS id, NULL::bigint AS seq FROM jobwire.job_lease l
    WHERE ",
    has_job!("l"),
    " AND (owner IS NULL OR NOT ",
    unexpired!("l"),
    ")
    UNION ALL
    (SELECT id, seq FROM jobwire.job WHERE hints = 0 ORDER BY seq LIMIT $1)
    UNION ALL
    (SELECT id, seq FROM jobwire.job WHERE hints = 0 ORDER BY seq DESC LIMIT $1)
) marked GROUP BY id ORDER BY min(seq) NULLS FIRST"
);

async fn marked(pool: &PgPool, at_most: i64) -> Result<Vec<JobId>, StoreError> {
    let query = sqlx::query_scalar(MARKED).bind(at_most);
    let ids: Vec<Uuid> = query.fetch_all(pool).await?;
    Ok(ids.into_iter().map(JobId).collect())
}

fn bind<'q>(sql: &'static str, cycle: &'q LeaderCycle) -> Query<'q, Postgres, PgArguments> {
    sqlx::query(sql)
        .bind(cycle.node.0)
        .bind(cycle.lease)
        .bind(cycle.transport)
        .bind(cycle.reset_at_most)
        .bind(cycle.hint_at_most)
        .bind(COUNT_LIMIT + 1)
        .bind(cycle.clock.map(|clock| clock.from))
        .bind(cycle.clock.map(|clock| clock.until))
        .bind(cycle.grace)
        .bind(&cycle.services.types[..])
        .bind(cycle.again_after)
        .bind(cycle.services.bound())
}

/// Like [`bind`], with the types whose attempts are recorded.
fn bind_recording<'q>(
    sql: &'static str,
    cycle: &'q LeaderCycle,
) -> Query<'q, Postgres, PgArguments> {
    let millis = |kept: &Duration| i64::try_from(kept.as_millis()).unwrap_or(i64::MAX);
    let kept = cycle.attempts_kept.values();
    let kept: Vec<i64> = kept.map(|kept| millis(kept).min(decode::LONGEST)).collect();
    let types: Vec<&str> = cycle.attempts_kept.keys().map(String::as_str).collect();
    bind(sql, cycle).bind(types).bind(kept)
}

/// Runs a leader cycle, for all jobs or only for `these`.
async fn take(
    pool: &ConnectionPool,
    cycle: &LeaderCycle,
    these: Option<&[JobId]>,
) -> Result<CycleOutcome, StoreError> {
    let began = Instant::now();
    let rows = if let Some(these) = these {
        let mut tx = begin_part(pool, these).await?;
        let cycle = &cycle.behind(began.elapsed());
        let query = bind_recording(TAKE_THESE, cycle)
            .bind(these.iter().map(|id| id.0).collect::<Vec<Uuid>>());
        let rows = aside::rows(&mut tx, query).await?;
        tx.commit().await?;
        rows
    } else {
        let mut connection = pool.inner.acquire().await?;
        let cycle = &cycle.behind(began.elapsed());
        let query = if cycle.attempts_kept.is_empty() {
            bind(TAKE, cycle)
        } else {
            bind_recording(TAKE_RECORDING, cycle)
        };
        aside::rows(&mut connection, query).await?
    };
    let mut report = CycleReport::default();
    let mut leads = false;
    let mut freed: Option<Vec<String>> = None;
    for row in &rows {
        let Some(term) = row.try_get::<Option<i64>, _>(8)? else {
            let leader: Option<Uuid> = row.try_get(17)?;
            let millis: Option<i64> = row.try_get(19)?;
            return Ok(CycleOutcome::Follows {
                leader: NodeId(leader.unwrap_or_default()),
                transport: row.try_get::<Option<String>, _>(18)?.unwrap_or_default(),
                remaining: Duration::from_millis(
                    millis.and_then(|m| u64::try_from(m).ok()).unwrap_or(0),
                ),
                now: row.try_get(9)?,
            });
        };
        leads = true;
        let executable: i64 = row.try_get(12)?;
        report.term = term;
        report.now = row.try_get(9)?;
        report.horizon = row.try_get::<Option<i64>, _>(20)?.map(Horizon);
        report.next_due = row.try_get(10)?;
        report.next_periodic = row.try_get("next_periodic")?;
        report.has_batches = row.try_get("has_batches")?;
        report.has_noted = row.try_get("has_noted")?;
        report.leased = row.try_get(11)?;
        report.executable = if executable > COUNT_LIMIT {
            executable.max(row.try_get(13)?)
        } else {
            executable
        };
        report.timers = row.try_get(14)?;
        report.dead_letters = row.try_get(15)?;
        report.oldest_ready_at = row.try_get(16)?;
        report.suspensions = counts(row.try_get("suspensions")?)?;
        report.freed_permits = row.try_get("reaped")?;
        report.clock_outside = row.try_get("clock_outside")?;
        if freed.is_none() {
            let cancelled: Option<Vec<Uuid>> = row.try_get("cancelled")?;
            report.cancelled = cancelled.into_iter().flatten().map(JobId).collect();
            let instances: Option<Vec<String>> = row.try_get("freed")?;
            freed = Some(instances.unwrap_or_default());
        }
        if row.try_get::<Option<Uuid>, _>(0)?.is_none() {
            continue;
        }
        let ready = decode::ready(row)?;
        match row.try_get(6)? {
            Some(strikes) => report.rescued.push(Rescued {
                ready,
                needs: decode::needs(row)?,
                strikes,
                owner: row.try_get::<Option<Uuid>, _>(7)?.map(NodeId),
            }),
            None => report.unhinted.push(ready),
        }
    }
    report.freed = exclusive::next_since(pool, &freed.unwrap_or_default()).await;
    if leads {
        Ok(CycleOutcome::Leads(Box::new(report)))
    } else {
        Err(StoreError::BadRow(
            "the leader cycle returned no row".to_owned(),
        ))
    }
}

/// Names the session whose transaction has locked or changed the leader's row. Several that share a lock
/// can't be told by the row.
const LOCKER: &str = "
SELECT format('the transaction of session %s (pid %s, user %s)', coalesce(nullif(a.application_name, ''), 'without a name'), a.pid, a.usename)
FROM jobwire.leader l
JOIN pg_locks k ON k.locktype = 'transactionid' AND k.transactionid = l.xmax AND k.granted
JOIN pg_stat_activity a ON a.pid = k.pid
WHERE l.role = 'leader' LIMIT 1";

/// Ends the leader's lease. Keeps the row, so that terms keep growing.
const RESIGN: &str = "
UPDATE jobwire.leader SET expires_at = clock_timestamp() - interval '1 second'
WHERE role = 'leader' AND node = $1 AND expires_at > clock_timestamp()";

async fn resign(pool: &PgPool, node: NodeId) -> Result<(), StoreError> {
    sqlx::query(RESIGN).bind(node.0).execute(pool).await?;
    Ok(())
}

macro_rules! unhinted {
    ($where:expr) => {
        concat!(
            "
WITH unhinted AS (
    SELECT id FROM jobwire.job WHERE hints = 0",
            $where,
            " ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED
)
UPDATE jobwire.job j SET ready_at = clock_timestamp(), hints = 1
FROM unhinted u WHERE j.id = u.id
RETURNING ",
            ready_columns!("j")
        )
    };
}

const UNHINTED: &str = unhinted!("");

/// Like [`UNHINTED`], for given jobs without an owner, in the search for a refused row.
const UNHINTED_THESE: &str = unhinted!(concat!(" AND id = ANY($2) AND ", unlocked!("job")));

/// Selects the oldest and the newest jobs that were never hinted.
const FIND_UNHINTED: &str = "
SELECT id, seq FROM (
    (SELECT id, seq FROM jobwire.job WHERE hints = 0 ORDER BY seq LIMIT $1)
    UNION
    (SELECT id, seq FROM jobwire.job WHERE hints = 0 ORDER BY seq DESC LIMIT $1)
) unhinted ORDER BY seq";

async fn find_unhinted(pool: &PgPool, at_most: i64) -> Result<Vec<JobId>, StoreError> {
    let query = sqlx::query_scalar(FIND_UNHINTED).bind(at_most);
    let ids: Vec<Uuid> = query.fetch_all(pool).await?;
    Ok(ids.into_iter().map(JobId).collect())
}

/// Notes jobs that became ready. One that has left the executable table meanwhile is forgotten later.
const NOTE: &str = "
INSERT INTO jobwire.unannounced_job (job_id) SELECT unnest($1::uuid[]) ORDER BY 1
ON CONFLICT (job_id) DO UPDATE SET noted_at = clock_timestamp()";

/// The dates are microseconds since 1970, rounded up: the job was ready before.
const FORGET_NOTED: &str = "
DELETE FROM jobwire.unannounced_job WHERE job_id = ANY(ARRAY(
    SELECT job_id FROM jobwire.unannounced_job ORDER BY job_id LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING job_id, ceil(extract(epoch FROM noted_at) * 1000000)::bigint";

/// Marks the noted jobs that are free and were not hinted since.
const ANNOUNCE: &str = concat!(
    "
WITH free AS (
    SELECT j.id FROM unnest($1::uuid[], $2::bigint[]) AS n (id, noted_at) JOIN jobwire.job j ON j.id = n.id
    WHERE extract(epoch FROM j.ready_at) * 1000000 <= n.noted_at AND ",
    unlocked!("j"),
    " FOR UPDATE OF j SKIP LOCKED
)
UPDATE jobwire.job j SET ready_at = clock_timestamp(), hints = least(j.hints, 999999999) + 1
FROM free WHERE j.id = free.id
RETURNING ",
    ready_columns!("j")
);

/// Marks up to `at_most` jobs that were never hinted.
async fn unhinted(pool: &PgPool, at_most: i64) -> Result<Vec<Ready>, StoreError> {
    let query = sqlx::query(UNHINTED).bind(at_most);
    decode::all_ready(&aside::rows(&mut *pool.acquire().await?, query).await?)
}

/// Marks these jobs, if they were never hinted.
async fn hint_these(pool: &ConnectionPool, these: &[JobId]) -> Result<Vec<Ready>, StoreError> {
    let ids: Vec<Uuid> = these.iter().map(|id| id.0).collect();
    let at_most = i64::try_from(ids.len()).unwrap_or(i64::MAX);
    let query = sqlx::query(UNHINTED_THESE).bind(at_most).bind(ids);
    let mut tx = begin_part(pool, these).await?;
    let rows = aside::rows(&mut tx, query).await?;
    tx.commit().await?;
    decode::all_ready(&rows)
}

impl Leading for PgStore {
    async fn cycle(
        &self,
        cycle: &LeaderCycle,
        these: Option<&[JobId]>,
    ) -> Result<CycleOutcome, StoreError> {
        take(&self.pool, cycle, these).await
    }

    async fn marked(&self, at_most: i64) -> Result<Vec<JobId>, StoreError> {
        marked(&self.pool.inner, at_most).await
    }

    async fn hint_unhinted(
        &self,
        at_most: i64,
        these: Option<&[JobId]>,
    ) -> Result<Vec<Ready>, StoreError> {
        match these {
            Some(these) => hint_these(&self.pool, these).await,
            None => unhinted(&self.pool.inner, at_most).await,
        }
    }

    async fn note_jobs(&self, jobs: &[JobId]) -> Result<(), StoreError> {
        let ids: Vec<Uuid> = jobs.iter().map(|id| id.0).collect();
        let note = sqlx::query(NOTE).bind(ids);
        note.execute(&self.pool.inner).await?;
        Ok(())
    }

    async fn forget_noted(&self, at_most: i64) -> Result<Vec<Noted>, StoreError> {
        let noted = sqlx::query_as(FORGET_NOTED).bind(at_most);
        let noted: Vec<(Uuid, i64)> = noted.fetch_all(&self.pool.inner).await?;
        let noted = noted.into_iter().map(|(id, at)| (Some(JobId(id)), at));
        Ok(noted.collect())
    }

    async fn announce_jobs(&self, noted: &[Noted]) -> Result<Vec<Ready>, StoreError> {
        let noted = noted
            .iter()
            .filter_map(|(job, at)| Some((job.as_ref()?.0, *at)));
        let (ids, dates): (Vec<Uuid>, Vec<i64>) = noted.unzip();
        let query = sqlx::query(ANNOUNCE).bind(ids).bind(dates);
        decode::all_ready(&aside::rows(&mut *self.pool.inner.acquire().await?, query).await?)
    }

    async fn find_unhinted(&self, at_most: i64) -> Result<Vec<JobId>, StoreError> {
        find_unhinted(&self.pool.inner, at_most).await
    }

    async fn lead_locker(&self) -> Result<Option<String>, StoreError> {
        let said = sqlx::query_scalar(LOCKER).fetch_optional(&self.pool.inner);
        Ok(said.await?)
    }

    async fn resign_leading(&self, node: NodeId) -> Result<(), StoreError> {
        resign(&self.pool.inner, node).await
    }
}

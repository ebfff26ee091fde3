//! Finds orphans: ready jobs for which no hint can still be on its way.

use sqlx::{PgPool, Row};
use uuid::Uuid;

use super::begin::{begin, begin_by_key, begin_part};
use super::connection_pool::ConnectionPool;
use super::sql::{
    in_turn, not_suspended, not_waiting, ready_before, ready_columns, served_by_fleet, unexpired,
    unlocked,
};
use super::{PgStore, aside, decode, exclusive};
use crate::hint::Ready;
use crate::job::query::{Sweepable, UnservedType};
use crate::job::scope::{Needs, Services};
use crate::job::{JobId, Lane};
use crate::store::error::StoreError;
use crate::store::statements::Orphans;
use crate::store::sweeping::LONG_READY;
use crate::store::unserved::{NAMES_OF_TYPE, UnservedTypes};
use crate::store::{OrphanPage, OrphanQuery};

/// Reads in key order up to the query's ceiling. Ids are time-ordered, so a healthy backlog after
/// it costs nothing. Now and then the whole table is read, since an id may come from a clock that
/// runs ahead. Each further hint makes the job wait longer before the next suspicion. Of an
/// instance, selects only the first ready sibling, and only while no job holds the instance. Skips
/// locked rows, so it waits for none.
///
/// A leader cycle may mark the same job at the same time. The row's latest version shows it: its
/// `ready_at` is then too young.
///
/// A row records when it was inserted, not when its transaction committed. So its transaction must
/// have ended when the marker left: xmin (32 bits of it) lies before the oldest transaction that
/// was open then. (`pg_visible_in_snapshot` treats the rows of an open savepoint as visible.)
macro_rules! find {
    ($where:literal) => {
        concat!(
    "
WITH lost AS (
    SELECT ",
    ready_columns!("j"),
    "
    FROM jobwire.job j
    WHERE ($1::uuid IS NULL OR j.id > $1) AND j.id < $2 AND j.lane = $3 AND ",
    served_by_fleet!("j", "$4", "$11"),
    "
      AND ",
    ready_before!("j", "$5 - (power(2, least(greatest(j.hints, 1) - 1, 6)) - 1) * $12::interval"),
    "
      AND ($8::bigint IS NULL OR ($8 - j.xmin::text::bigint) & 4294967295 BETWEEN 1 AND 2147483648 OR j.ready_at <= $5 - $9)
      AND j.id NOT IN (SELECT unnest($10::uuid[]))
      AND ",
    unlocked!("j"),
    " AND ",
    not_suspended!("j"),
    " AND ",
    not_waiting!("j"),
    "
      AND ",
    in_turn!("j"),
    $where,
    "
    ORDER BY j.id LIMIT $6
), free AS MATERIALIZED (
    SELECT j.id FROM lost CROSS JOIN LATERAL (
        SELECT j.id FROM jobwire.job j WHERE j.id = lost.id AND ",
    ready_before!("j", "$5"),
    " FOR UPDATE SKIP LOCKED) j
    WHERE $7
), marked AS (
    UPDATE jobwire.job j SET ready_at = clock_timestamp(), hints = least(j.hints, 999999999) + 1
    WHERE j.id = ANY(ARRAY(SELECT id FROM free))
)
SELECT ",
    ready_columns!("lost"),
    ", NOT $7 OR lost.id IN (SELECT id FROM free) AS is_free FROM lost ORDER BY id"
        )
    };
}

const FIND: &str = find!("");

/// Like [`FIND`], for given jobs, in the search for a refused row.
const FIND_THESE: &str = find!(" AND j.id = ANY($13)");

/// Finds orphans, in all jobs or only in `these`.
async fn find(
    pool: &ConnectionPool,
    query: &OrphanQuery,
    these: Option<&[JobId]>,
) -> Result<OrphanPage, StoreError> {
    let mut tx = match these {
        Some(these) => begin_part(pool, these).await?,
        None => begin_by_key(pool).await?,
    };
    let mut find = sqlx::query(if these.is_some() { FIND_THESE } else { FIND })
        .bind(query.after.map(|id| id.0))
        .bind(query.ceiling())
        .bind(&query.lane.0)
        .bind(&query.services.types[..])
        .bind(query.ready_before)
        .bind(query.limit)
        .bind(query.mark)
        .bind(query.horizon.map(|horizon| horizon.0))
        .bind(LONG_READY)
        .bind(query.held.iter().map(|id| id.0).collect::<Vec<Uuid>>())
        .bind(query.services.bound())
        .bind(query.back_off);
    if let Some(these) = these {
        find = find.bind(these.iter().map(|id| id.0).collect::<Vec<Uuid>>());
    }
    let rows = aside::rows(&mut tx, find).await?;
    tx.commit().await?;
    let mut page = OrphanPage::of(decode::all_ready(&rows)?, query.limit);
    let free: Vec<bool> = rows
        .iter()
        .map(|row| row.try_get("is_free"))
        .collect::<Result<_, _>>()?;
    let mut free = free.into_iter();
    page.ready.retain(|_| free.next().unwrap_or(true));
    Ok(page)
}

/// Counts each executable job once, by the first reason that applies.
const SWEEPABLE: &str = concat!(
    "
WITH looked AS (
    SELECT CASE
        WHEN l.owner IS NOT NULL AND ",
    unexpired!("l"),
    " THEN 'running'
        WHEN l.owner IS NOT NULL THEN 'expired'
        WHEN j.hints = 0 THEN 'unhinted'
        WHEN NOT ",
    not_suspended!("j"),
    " THEN 'suspended'
        WHEN NOT ",
    served_by_fleet!("j", "$1", "$2"),
    " THEN 'unserved'
        WHEN j.lane <> ALL($3) THEN 'unreceived'
        WHEN NOT ",
    in_turn!("j"),
    " THEN 'instance-held'
        WHEN NOT ",
    not_waiting!("j"),
    " THEN 'waiting'
        ELSE 'ready' END AS class
    FROM jobwire.job j LEFT JOIN jobwire.job_lease l ON l.job_id = j.id
)
SELECT clock_timestamp(),
    count(*) FILTER (WHERE class = 'expired'), count(*) FILTER (WHERE class = 'unhinted'),
    (SELECT count(*) FROM jobwire.instance_lock i WHERE NOT EXISTS (
        SELECT FROM jobwire.job_lease l WHERE l.job_id = i.job_id AND l.fence = i.fence)),
    count(*) FILTER (WHERE class = 'ready'), count(*) FILTER (WHERE class = 'instance-held'),
    count(*) FILTER (WHERE class = 'suspended'), count(*) FILTER (WHERE class = 'unserved'),
    count(*) FILTER (WHERE class = 'running'), count(*) FILTER (WHERE class = 'waiting'),
    count(*) FILTER (WHERE class = 'unreceived')
FROM looked"
);

async fn sweepable(
    pool: &PgPool,
    services: &Services,
    received: &[Lane],
) -> Result<Sweepable, StoreError> {
    let received: Vec<&str> = received.iter().map(Lane::as_str).collect();
    let count = sqlx::query(SWEEPABLE)
        .bind(&services.types[..])
        .bind(services.bound())
        .bind(received);
    let row = count.fetch_one(pool).await?;
    Ok(Sweepable {
        now: row.try_get(0)?,
        expired: row.try_get(1)?,
        unhinted: row.try_get(2)?,
        left_over_instances: row.try_get(3)?,
        ready: row.try_get(4)?,
        instance_held: row.try_get(5)?,
        suspended: row.try_get(6)?,
        unserved: row.try_get(7)?,
        running: row.try_get(8)?,
        waiting: row.try_get(9)?,
        unreceived: row.try_get(10)?,
    })
}

/// Counts the jobs that no living node takes, by type. Counts jobs without a hint, too, because the
/// leader does not hint a job that no node takes. Of a type that some node serves, the names in a
/// job's scope may be the reason: those with most jobs are read.
const UNSERVED_TYPES: &str = concat!(
    "
WITH waiting AS (
    SELECT j.type,
        CASE WHEN j.type = ANY($1) THEN j.tenant END AS tenant,
        CASE WHEN j.type = ANY($1) THEN j.category END AS category,
        CASE WHEN j.type = ANY($1) THEN j.deployment END AS deployment,
        count(*) AS jobs
    FROM jobwire.job j
    WHERE ",
    unlocked!("j"),
    " AND NOT ",
    served_by_fleet!("j", "$1", "$2"),
    " AND ",
    not_suspended!("j"),
    "
    GROUP BY 1, 2, 3, 4
), types AS (
    SELECT type, sum(jobs)::bigint AS jobs FROM waiting GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT $3
), placed AS (
    SELECT w.*, row_number() OVER (PARTITION BY type ORDER BY jobs DESC, tenant, category, deployment) AS place
    FROM waiting w
)
SELECT t.type, t.jobs, p.tenant, p.category, p.deployment, p.jobs, p.place = 1
FROM types t JOIN placed p ON p.type = t.type AND p.place <= $4
ORDER BY t.jobs DESC, t.type, p.place"
);

async fn unserved_types(
    pool: &PgPool,
    services: &Services,
    limit: i64,
) -> Result<Vec<UnservedType>, StoreError> {
    let count = sqlx::query(UNSERVED_TYPES)
        .bind(&services.types[..])
        .bind(services.bound())
        .bind(limit)
        .bind(NAMES_OF_TYPE);
    let mut found = UnservedTypes::new(services);
    for row in &count.fetch_all(pool).await? {
        if row.try_get(6)? {
            found.begin(row.try_get(0)?, row.try_get(1)?);
        }
        let names = Needs {
            tenant: row.try_get(2)?,
            category: row.try_get(3)?,
            deployment: row.try_get(4)?,
            ..Needs::default()
        };
        found.add(names, row.try_get(5)?);
    }
    Ok(found.end())
}

/// Selects instances whose holder no longer has a lease with its fence. A completion frees its
/// instance in its own transaction, so there are none unless the tables were changed by hand.
const LEFT_OVER: &str = "
SELECT i.process_instance FROM jobwire.instance_lock i
WHERE (SELECT l.job_id FROM jobwire.job_lease l WHERE l.job_id = i.job_id AND l.fence = i.fence) IS NULL
ORDER BY i.process_instance LIMIT 1000
FOR UPDATE OF i SKIP LOCKED";

async fn free_instances(pool: &ConnectionPool) -> Result<Vec<Ready>, StoreError> {
    let mut tx = begin(pool).await?;
    let names: Vec<String> = sqlx::query(LEFT_OVER)
        .fetch_all(&mut *tx)
        .await?
        .iter()
        .map(|r| r.try_get(0))
        .collect::<Result<_, _>>()?;
    let ready = exclusive::leave(&mut tx, &names).await?;
    tx.commit().await?;
    Ok(ready)
}

impl Orphans for PgStore {
    async fn find_orphans(
        &self,
        query: &OrphanQuery,
        these: Option<&[JobId]>,
    ) -> Result<OrphanPage, StoreError> {
        find(&self.pool, query, these).await
    }

    async fn count_sweepable(
        &self,
        services: &Services,
        received: &[Lane],
    ) -> Result<Sweepable, StoreError> {
        sweepable(&self.pool.inner, services, received).await
    }

    async fn count_unserved(
        &self,
        services: &Services,
        limit: i64,
    ) -> Result<Vec<UnservedType>, StoreError> {
        unserved_types(&self.pool.inner, services, limit).await
    }

    async fn free_left_over(&self) -> Result<Vec<Ready>, StoreError> {
        free_instances(&self.pool).await
    }
}

//! Finds orphans: ready jobs for which no hint can still be on its way.

use sqlx::Row;

use super::sql::{
    has_id, in_turn, ready_before, ready_columns, served_by_fleet, suspended, unexpired, unlocked,
    waits,
};
use super::{SqliteStore, decode, exclusive};
use crate::hint::Ready;
use crate::job::query::{Sweepable, UnservedType};
use crate::job::scope::{Needs, Services};
use crate::job::{JobId, Lane};
use crate::store::error::StoreError;
use crate::store::statements::Orphans;
use crate::store::unserved::{NAMES_OF_TYPE, UnservedTypes};
use crate::store::{Handoff, OrphanPage, OrphanQuery};

/// Reads in key order and only up to the time of the query: ids are time-ordered, so a healthy
/// backlog behind it costs nothing. Each hint that was sent in vain makes the row wait longer
/// before the next suspicion (5 s, doubled each time). Of an instance only the first ready sibling
/// counts, and only while the instance is free.
macro_rules! find {
    ($where:literal) => {
        concat!(
            "
SELECT ",
            ready_columns!("j"),
            "
FROM job j
WHERE j.id > ?1 AND j.id < ?2 AND j.lane = ?3 AND ",
            has_id!("j.id"),
            " AND ",
            served_by_fleet!("j", "?4", "?8"),
            "
  AND ",
            ready_before!("j", "?5 - ((1 << min(max(j.hints, 1) - 1, 6)) - 1) * ?9"),
            "
  AND j.id NOT IN (SELECT value FROM json_each(?7))
  AND ",
            unlocked!("j"),
            " AND NOT ",
            suspended!("j"),
            " AND NOT ",
            waits!("j"),
            "
  AND ",
            in_turn!("j"),
            $where,
            "
ORDER BY j.id LIMIT ?6"
        )
    };
}

const FIND: &str = find!("");

/// Like [`FIND`], for given jobs, in the search for a refused row.
const FIND_THESE: &str = find!(" AND j.id IN (SELECT value FROM json_each(?10))");

const MARK: &str = "
UPDATE job SET ready_at = ?2, hints = min(hints, 999999999) + 1 WHERE id IN (SELECT value FROM json_each(?1))";

/// Counts each executable job once, by the first reason that holds. `?2` is the current time.
const SWEEPABLE: &str = concat!(
    "
WITH looked AS (
    SELECT CASE
        WHEN l.owner IS NOT NULL AND ",
    unexpired!("l", "?2"),
    " THEN 'running'
        WHEN l.owner IS NOT NULL THEN 'expired'
        WHEN j.hints = 0 THEN 'unhinted'
        WHEN ",
    suspended!("j"),
    " THEN 'suspended'
        WHEN NOT ",
    served_by_fleet!("j", "?1", "?3"),
    " THEN 'unserved'
        WHEN j.lane NOT IN (SELECT value FROM json_each(?4)) THEN 'unreceived'
        WHEN NOT ",
    in_turn!("j"),
    " THEN 'instance-held'
        WHEN ",
    waits!("j"),
    " THEN 'waiting'
        ELSE 'ready' END AS class
    FROM job j LEFT JOIN job_lease l ON l.job_id = j.id
)
SELECT
    count(*) FILTER (WHERE class = 'expired'), count(*) FILTER (WHERE class = 'unhinted'),
    (SELECT count(*) FROM instance_lock i WHERE NOT EXISTS (
        SELECT 1 FROM job_lease l WHERE l.job_id = i.job_id AND l.fence = i.fence)),
    count(*) FILTER (WHERE class = 'ready'), count(*) FILTER (WHERE class = 'instance-held'),
    count(*) FILTER (WHERE class = 'suspended'), count(*) FILTER (WHERE class = 'unserved'),
    count(*) FILTER (WHERE class = 'running'), count(*) FILTER (WHERE class = 'waiting'),
    count(*) FILTER (WHERE class = 'unreceived')
FROM looked"
);

/// Counts the jobs that no living node takes, by type. Counts jobs without a hint, too, because the
/// leader does not hint a job that no node takes. Of a type that some node serves, the names in a
/// job's scope may be the reason: those with most jobs are read.
const UNSERVED_TYPES: &str = concat!(
    "
WITH waiting AS (
    SELECT j.type,
        CASE WHEN j.type IN (SELECT value FROM json_each(?1)) THEN j.tenant END AS tenant,
        CASE WHEN j.type IN (SELECT value FROM json_each(?1)) THEN j.category END AS category,
        CASE WHEN j.type IN (SELECT value FROM json_each(?1)) THEN j.deployment END AS deployment,
        count(*) AS jobs
    FROM job j LEFT JOIN job_lease l ON l.job_id = j.id
    WHERE l.owner IS NULL AND NOT ",
    served_by_fleet!("j", "?1", "?2"),
    " AND NOT ",
    suspended!("j"),
    "
    GROUP BY 1, 2, 3, 4
), types AS (
    SELECT type, sum(jobs) AS jobs FROM waiting GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT ?3
), placed AS (
    SELECT w.*, row_number() OVER (PARTITION BY type ORDER BY jobs DESC, tenant, category, deployment) AS place
    FROM waiting w
)
SELECT t.type, t.jobs, p.tenant, p.category, p.deployment, p.jobs, p.place = 1
FROM types t JOIN placed p ON p.type = t.type AND p.place <= ?4
ORDER BY t.jobs DESC, t.type, p.place"
);

/// Selects instances whose holder has no lease with its fence any more. Completions free their
/// instance in their own transaction, so there are none unless the tables were changed by hand.
const LEFT_OVER: &str = "
SELECT i.process_instance FROM instance_lock i
WHERE NOT EXISTS (SELECT 1 FROM job_lease l WHERE l.job_id = i.job_id AND l.fence = i.fence)
ORDER BY i.process_instance LIMIT 1000";

/// Deletes the row of an instance whose name is not UTF-8: no statement could name it.
const FORGET_UNNAMED: &str = "DELETE FROM instance_lock WHERE process_instance = CAST(?1 AS TEXT)";

impl Orphans for SqliteStore {
    async fn count_sweepable(
        &self,
        services: &Services,
        received: &[Lane],
    ) -> Result<Sweepable, StoreError> {
        let now = decode::now_micros();
        let row = sqlx::query(SWEEPABLE)
            .bind(decode::array(&services.types[..])?)
            .bind(now)
            .bind(services.bound())
            .bind(decode::array(received.iter().map(Lane::as_str))?)
            .fetch_one(&self.readers)
            .await?;
        Ok(Sweepable {
            now: decode::moment(now)?,
            expired: row.try_get(0)?,
            unhinted: row.try_get(1)?,
            left_over_instances: row.try_get(2)?,
            ready: row.try_get(3)?,
            instance_held: row.try_get(4)?,
            suspended: row.try_get(5)?,
            unserved: row.try_get(6)?,
            running: row.try_get(7)?,
            waiting: row.try_get(8)?,
            unreceived: row.try_get(9)?,
        })
    }

    async fn count_unserved(
        &self,
        services: &Services,
        limit: i64,
    ) -> Result<Vec<UnservedType>, StoreError> {
        let rows = sqlx::query(UNSERVED_TYPES)
            .bind(decode::array(&services.types[..])?)
            .bind(services.bound())
            .bind(limit)
            .bind(NAMES_OF_TYPE)
            .fetch_all(&self.readers)
            .await?;
        let mut found = UnservedTypes::new(services);
        for row in &rows {
            if row.try_get(6)? {
                found.begin(decode::text(row, 0)?, row.try_get(1)?);
            }
            let names = Needs {
                tenant: decode::maybe_text(row, 2)?,
                category: decode::maybe_text(row, 3)?,
                deployment: decode::maybe_text(row, 4)?,
                ..Needs::default()
            };
            found.add(names, row.try_get(5)?);
        }
        Ok(found.end())
    }

    /// Finds orphans, or only those among `these`, if given.
    async fn find_orphans(
        &self,
        query: &OrphanQuery,
        these: Option<&[JobId]>,
    ) -> Result<OrphanPage, StoreError> {
        let mut tx = self.write().await?;
        let now = decode::now_micros();
        let statement = if these.is_some() { FIND_THESE } else { FIND };
        let mut find = sqlx::query(statement)
            .bind(query.after.map(|id| id.to_string()).unwrap_or_default())
            .bind(query.ceiling().hyphenated())
            .bind(&query.lane.0)
            .bind(decode::array(&query.services.types[..])?)
            .bind(decode::micros(query.ready_before))
            .bind(query.limit)
            .bind(decode::array(&query.held[..])?)
            .bind(query.services.bound())
            .bind(i64::try_from(query.back_off.as_micros()).unwrap_or(i64::MAX));
        if let Some(these) = these {
            find = find.bind(decode::array(these)?);
        }
        let ready = decode::all_ready(&find.fetch_all(&mut *tx).await?)?;
        if query.mark && !ready.is_empty() {
            sqlx::query(MARK)
                .bind(decode::array(ready.iter().map(|ready| ready.hint.id))?)
                .bind(now)
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        Ok(OrphanPage::of(ready, query.limit))
    }

    async fn free_left_over(&self) -> Result<Vec<Ready>, StoreError> {
        let mut tx = self.write().await?;
        let found: Vec<Vec<u8>> = sqlx::query_scalar(LEFT_OVER).fetch_all(&mut *tx).await?;
        let mut names = Vec::with_capacity(found.len());
        for name in found {
            match String::from_utf8(name) {
                Ok(name) => names.push(name),
                Err(error) => {
                    let forget = sqlx::query(FORGET_UNNAMED).bind(error.into_bytes());
                    forget.execute(&mut *tx).await?;
                }
            }
        }
        let ready = if names.is_empty() {
            Vec::new()
        } else {
            exclusive::handoff(&mut tx, decode::now_micros(), &names, &Handoff::Hint)
                .await?
                .1
        };
        tx.commit().await?;
        Ok(ready)
    }
}

//! What the leader reads: jobs whose hint was lost, and the numbers of jobs.

use chrono::{DateTime, Utc};
use jobwire_core::StoreError;
use jobwire_core::store::{COUNT_LIMIT, OrphanPage, OrphanQuery};
use sqlx::{PgPool, Row};

use super::Flowable;
use super::sql::{local_now, of_processes, unlocked};
use crate::dialect::Backlog;
use crate::id::engine_id;
use crate::locking::texts;

/// `$1`: the zone, `$2`: after this id, `$3`: the horizon, `$4`: a moment, `$5`: ids whose hints are
/// known, `$6`: maximum number, `$7`: whether to mark.
///
/// A row does not show since when it is ready, but its xmin does: the transaction that inserted or
/// released it must have ended before the horizon. A mark is a new version of the row without a
/// change, so that the row is not suspected again before the next horizon.
const ORPHANS: &str = concat!(
    "
WITH lost AS MATERIALIZED (
    SELECT j.id_, j.process_instance_id_, j.handler_type_ FROM act_ru_job j
    WHERE ($2::text IS NULL OR j.id_ > $2) AND ",
    unlocked!("j"),
    " AND (",
    of_processes!("j"),
    ")
      AND ($3::bigint IS NULL OR ($3 - j.xmin::text::bigint) & 4294967295 BETWEEN 1 AND 2147483648
          OR j.create_time_ AT TIME ZONE $1 <= $4 - interval '10 minutes')
      AND j.id_ <> ALL($5)
      AND NOT EXISTS (SELECT FROM act_ru_execution e WHERE e.id_ = j.process_instance_id_ AND e.lock_time_ IS NOT NULL)
      AND NOT EXISTS (SELECT FROM act_ru_job s WHERE s.process_instance_id_ = j.process_instance_id_
          AND (s.lock_exp_time_ IS NOT NULL OR (s.create_time_, s.id_) < (j.create_time_, j.id_)))
    ORDER BY j.id_ LIMIT $6
), free AS MATERIALIZED (
    SELECT j.id_ FROM act_ru_job j WHERE $7 AND j.id_ IN (SELECT id_ FROM lost) AND ",
    unlocked!("j"),
    "
    ORDER BY j.id_ FOR NO KEY UPDATE SKIP LOCKED
), marked AS (
    UPDATE act_ru_job j SET lock_owner_ = NULL FROM free WHERE j.id_ = free.id_
)
SELECT lost.*, NOT $7 OR EXISTS (SELECT FROM free WHERE free.id_ = lost.id_) AS is_free FROM lost ORDER BY id_"
);

/// `$1`: the zone, `$2`: the limit of counting.
const BACKLOG: &str = concat!(
    "
SELECT (SELECT count(*) FROM act_ru_job j WHERE j.lock_exp_time_ >= ",
    local_now!(),
    "),
    (SELECT count(*) FROM (SELECT FROM act_ru_job j WHERE ",
    of_processes!("j"),
    " LIMIT $2) c),
    (SELECT count(*) FROM (SELECT FROM act_ru_timer_job LIMIT $2) c),
    (SELECT count(*) FROM (SELECT FROM act_ru_deadletter_job LIMIT $2) c),
    (SELECT min(create_time_) AT TIME ZONE $1 FROM (SELECT create_time_ FROM act_ru_job LIMIT $2) c),
    (SELECT min(duedate_) AT TIME ZONE $1 FROM act_ru_timer_job t WHERE ",
    unlocked!("t"),
    " AND (",
    of_processes!("t"),
    ")),
    (SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = to_regclass('act_ru_job'))"
);

/// Counts the jobs.
pub(super) async fn backlog(pool: &PgPool, zone: &str) -> Result<Backlog, StoreError> {
    let row = sqlx::query(BACKLOG)
        .bind(zone)
        .bind(COUNT_LIMIT + 1)
        .fetch_one(pool)
        .await?;
    let executable: i64 = row.try_get(1)?;
    Ok(Backlog {
        leased: row.try_get(0)?,
        executable: if executable > COUNT_LIMIT {
            executable.max(row.try_get::<Option<i64>, _>(6)?.unwrap_or_default())
        } else {
            executable
        },
        timers: row.try_get(2)?,
        dead_letters: row.try_get(3)?,
        oldest: row.try_get::<Option<DateTime<Utc>>, _>(4)?,
        next_due: row.try_get::<Option<DateTime<Utc>>, _>(5)?,
    })
}

impl Flowable {
    /// Returns jobs whose hint was lost.
    pub(super) async fn find_orphans(
        &self,
        pool: &PgPool,
        query: &OrphanQuery,
    ) -> Result<OrphanPage, StoreError> {
        if query.lane != self.decoder.lane {
            return Ok(OrphanPage::default());
        }
        let rows = sqlx::query(ORPHANS)
            .bind(&self.zone)
            .bind(query.after.and_then(engine_id))
            .bind(query.horizon.map(|horizon| horizon.0))
            .bind(query.ready_before)
            .bind(texts(query.held.iter().copied()))
            .bind(query.limit)
            .bind(query.mark)
            .fetch_all(pool)
            .await?;
        let mut page = OrphanPage::default();
        let mut last = None;
        for row in &rows {
            let id: String = row.try_get("id_")?;
            last = self.decoder.job_id(&id).or(last);
            if row.try_get("is_free")? {
                let handler: Option<String> = row.try_get("handler_type_")?;
                let instance = row.try_get("process_instance_id_")?;
                page.ready
                    .extend(self.decoder.ready(&id, instance, handler.as_deref()));
            }
        }
        let is_full = i64::try_from(rows.len()).is_ok_and(|found| found >= query.limit);
        page.next = last.filter(|_| is_full);
        Ok(page)
    }
}

//! The look for new jobs: those that became visible since the leader's last look.
//!
//! The leader's row keeps the snapshot of the last look, so a new leader continues it. No index
//! names a transaction, so the look walks through the table ([`walk`](crate::walk)): page by
//! page. At the end of a walk, the snapshot of its begin is kept. So no job is missed, and in a
//! table of several pages some jobs are reported twice. While a tap reports new jobs, the look only
//! remembers its snapshot.
//!
//! The engine updates rows in place. So the look also finds jobs that were activated or retried, or
//! that got another due date. It also reports the timers that became due since the last look
//! ([`timers`](super::timers)), which the timer task may not have hinted yet.
//!
//! A snapshot does not contain the transactions of savepoints, so the look may miss a job that was
//! inserted after a savepoint. The sweeper finds it.

use jobwire_core::hint::Ready;
use jobwire_core::store::Marked;
use jobwire_core::{JobId, NodeId, StoreError};
use sqlx::{PgPool, Row};

use super::Camunda;
use super::sql::{by_age, due, runnable, unlocked};
use crate::columns::texts;
use crate::dialect::Dialect;
use crate::walk::{self, in_page};

/// Maximum number of timers of one look. The timer task hints the others.
const TIMERS: i64 = 1_000;

/// Selects new jobs and remembers the look. `$1`: the zone of due dates, `$2`: the engine, `$3`: the
/// leader, `$4`: whether to report, `$5`: maximum number, `$6` and `$7`: the page of the table, `$8`: the
/// block behind it, `$9`: the snapshot of the first page.
///
/// Before the first look all jobs are new. A comparison of numbers excludes rows of transactions
/// before the oldest one of the last snapshot: nearly all rows.
const LOOK: &str = concat!(
    "
WITH last AS MATERIALIZED (
    SELECT engine, seen, pg_snapshot_xmin(seen::pg_snapshot)::text::bigint AS oldest,
        pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS newest
    FROM jobwire_engine.leader WHERE engine = $2 AND node = $3 FOR UPDATE
), walk AS MATERIALIZED (
    SELECT pg_relation_size('act_ru_job') / current_setting('block_size')::bigint AS blocks, pg_current_snapshot()::text AS snapshot
), remembered AS (
    UPDATE jobwire_engine.leader l SET seen = CASE
        WHEN NOT $4 THEN walk.snapshot WHEN $8 >= walk.blocks THEN coalesce($9, walk.snapshot) ELSE l.seen END
    FROM last, walk WHERE l.engine = last.engine
)
SELECT walk.blocks, walk.snapshot, EXISTS (SELECT FROM last) AS leads, n.* FROM walk LEFT JOIN (
SELECT j.id_, j.process_instance_id_, j.handler_type_ FROM last CROSS JOIN LATERAL (
    SELECT j.id_, j.process_instance_id_, j.handler_type_, j.create_time_, j.sequence_counter_, j.duedate_,
        last.newest - ((last.newest - j.xmin::text::bigint) & 4294967295) AS written_by
    FROM act_ru_job j WHERE $4 AND ",
    in_page!("j", "$6", "$7"),
    " AND ",
    unlocked!("j"),
    " AND ",
    runnable!("j"),
    " AND (",
    due!("j"),
    ") OFFSET 0
) j
WHERE last.seen IS NULL OR (j.written_by >= last.oldest AND NOT pg_visible_in_snapshot(j.written_by::text::xid8, last.seen::pg_snapshot))
ORDER BY ",
    by_age!("j"),
    " LIMIT $5
) n ON true"
);

/// Selects these jobs, as far as they are visible. `$1`: the zone of due dates.
const HINTS_OF: &str = concat!(
    "
SELECT j.id_, j.process_instance_id_, j.handler_type_, ",
    unlocked!("j"),
    " AND ",
    runnable!("j"),
    " AND ",
    due!("j"),
    " AS is_ready FROM act_ru_job j WHERE j.id_ = ANY($2) ORDER BY ",
    by_age!("j")
);

/// Selects the time, and the local time in the zone of due dates (`$1`).
const NOW: &str = "SELECT statement_timestamp(), statement_timestamp() AT TIME ZONE $1";

impl Camunda {
    /// Returns the new jobs, if `report` is set, and remembers this look.
    pub(super) async fn look_for_new(
        &self,
        pool: &PgPool,
        engine: &str,
        node: NodeId,
        report: bool,
    ) -> Result<Vec<Ready>, StoreError> {
        self.zone.learn(self.stamps(), pool).await?;
        let page = self.looks.page();
        let rows = sqlx::query(LOOK)
            .bind(self.zone.judged())
            .bind(engine)
            .bind(node.uuid())
            .bind(report)
            .bind(walk::MOST)
            .bind(&page.from)
            .bind(&page.to)
            .bind(page.end())
            .bind(&page.began)
            .fetch_all(pool)
            .await?;
        let mut ready = walk::looked(&self.decoder, &self.looks, &page, report, &rows)?;
        if report {
            match self.hint_due_timers(pool, TIMERS).await {
                Ok(timers) => ready.extend(timers.ready),
                // The look has committed: no later one finds these jobs, which need their hints.
                Err(error) if !ready.is_empty() => {
                    tracing::warn!(%error, "could not look for due timers; trying again");
                }
                Err(error) => return Err(error),
            }
        } else {
            // The commit tap reads due dates meanwhile.
            let (at, local) = sqlx::query_as(NOW)
                .bind(self.zone.judged())
                .fetch_one(pool)
                .await?;
            self.offset.read(local, at);
        }
        Ok(ready)
    }

    /// Returns the hints of these jobs, and the ones among them that are not ready.
    pub(super) async fn hints_of_jobs(
        &self,
        pool: &PgPool,
        jobs: &[JobId],
    ) -> Result<Marked, StoreError> {
        self.zone.learn(self.stamps(), pool).await?;
        let rows = sqlx::query(HINTS_OF)
            .bind(self.zone.judged())
            .bind(texts(jobs.iter().copied()))
            .fetch_all(pool)
            .await?;
        let mut marked = Marked::default();
        for row in &rows {
            if row.try_get::<Option<bool>, _>("is_ready")? == Some(true) {
                marked.ready.extend(self.decoder.ready_row(row)?);
            } else {
                let id: String = row.try_get("id_")?;
                marked.hinted.extend(self.decoder.job_id(&id));
            }
        }
        Ok(marked)
    }
}

//! The look for new jobs: those that became visible since the leader's last look.
//!
//! The leader's row keeps the snapshot of the last look, so a new leader continues it. The look
//! reads every job, since no index names a transaction. While a tap reports new jobs, the look only
//! remembers its snapshot.
//!
//! The engine updates rows in place. So the look also finds jobs that were activated, retried or
//! given another due date. Of timers it reports the earliest due date.
//!
//! A snapshot does not know the transactions of savepoints, so a job that was inserted behind one
//! may be missed. The sweeper finds it.

use jobwire_core::{NodeId, StoreError};
use sqlx::{PgPool, Row};

use super::Camunda;
use super::sql::{by_age, due, runnable, unlocked};
use crate::dialect::News;

/// Maximum number of jobs of one look. The sweeper finds the others.
const MOST: i64 = 50_000;

/// `$1`: the zone, `$2`: the engine, `$3`: the leader, `$4`: whether to report, `$5`: maximum number.
/// Before the first look all jobs are new. Rows of transactions before the oldest one of the last
/// snapshot are excluded by arithmetic, since nearly all rows are.
const LOOK: &str = concat!(
    "
WITH last AS MATERIALIZED (
    SELECT engine, seen, pg_snapshot_xmin(seen::pg_snapshot)::text::bigint AS oldest,
        pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS newest
    FROM jobwire_engine.leader WHERE engine = $2 AND node = $3 FOR UPDATE
), remembered AS (
    UPDATE jobwire_engine.leader l SET seen = pg_current_snapshot()::text FROM last WHERE l.engine = last.engine
), fresh AS MATERIALIZED (
    SELECT j.* FROM last CROSS JOIN LATERAL (
        SELECT j.id_, j.process_instance_id_, j.handler_type_, j.create_time_, j.sequence_counter_, j.duedate_, ",
    due!("j"),
    " AS is_due, last.newest - ((last.newest - j.xmin::text::bigint) & 4294967295) AS written_by
        FROM act_ru_job j WHERE $4 AND ",
    unlocked!("j"),
    " AND ",
    runnable!("j"),
    " OFFSET 0
    ) j
    WHERE last.seen IS NULL OR (j.written_by >= last.oldest AND NOT pg_visible_in_snapshot(j.written_by::text::xid8, last.seen::pg_snapshot))
)
SELECT timer.due_at, f.* FROM (SELECT min(duedate_) AT TIME ZONE $1 AS due_at FROM fresh WHERE NOT is_due) timer
LEFT JOIN LATERAL (SELECT id_, process_instance_id_, handler_type_ FROM fresh j WHERE is_due
    ORDER BY ",
    by_age!("j"),
    " LIMIT $5) f ON true"
);

impl Camunda {
    /// Returns the new jobs, if `report` is set, and remembers this look.
    pub(super) async fn look_for_new(
        &self,
        pool: &PgPool,
        engine: &str,
        node: NodeId,
        report: bool,
    ) -> Result<News, StoreError> {
        let rows = sqlx::query(LOOK)
            .bind(&self.zone)
            .bind(engine)
            .bind(node.uuid())
            .bind(report)
            .bind(MOST)
            .fetch_all(pool)
            .await?;
        let mut news = News::default();
        for row in &rows {
            news.due = row.try_get("due_at")?;
            if row.try_get::<Option<String>, _>("id_")?.is_some() {
                news.ready.extend(self.decoder.ready_row(row)?);
            }
        }
        if rows.len() as i64 >= MOST {
            tracing::info!(
                jobs = MOST,
                "more jobs are new than one look reports; the sweeper finds the others"
            );
        }
        Ok(news)
    }
}

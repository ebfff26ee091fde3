//! Lanes: the rules that choose one, the backlog of each, and moving jobs from one to another.

use sqlx::{PgConnection, PgPool, Row};
use uuid::Uuid;

use super::begin::begin;
use super::connection_pool::ConnectionPool;
use super::sql::{not_put_aside, not_suspended, ready_columns, rule_columns, unlocked};
use super::{PgStore, aside, decode};
use crate::hint::Ready;
use crate::job::query::{LaneBacklog, LaneView};
use crate::job::{JobId, JobState, Lane};
use crate::lane::rule::LaneRule;
use crate::store::decode::{lane_backlog, lane_rule, lane_view};
use crate::store::error::StoreError;
use crate::store::statements::Lanes;
use crate::store::{LANE_SLICE, LanePage, MovedPage, Origin};

const RULES: &str = concat!(
    "SELECT ",
    rule_columns!(),
    " FROM jobwire.lane_rule ORDER BY position"
);

async fn rules(pool: &PgPool) -> Result<Vec<LaneRule>, StoreError> {
    sqlx::query(RULES)
        .fetch_all(pool)
        .await?
        .iter()
        .map(lane_rule)
        .collect()
}

/// Serializes concurrent replacements of the rules; inserts still read them.
const ALONE: &str = "LOCK TABLE jobwire.lane_rule IN SHARE ROW EXCLUSIVE MODE";
const FORGET: &str = "DELETE FROM jobwire.lane_rule";
const WRITE: &str = concat!(
    "
INSERT INTO jobwire.lane_rule (position, ",
    rule_columns!(),
    ")
SELECT * FROM unnest($1::integer[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[])"
);

async fn set_rules(pool: &ConnectionPool, rules: &[LaneRule]) -> Result<(), StoreError> {
    let mut tx = begin(pool).await?;
    for statement in [ALONE, FORGET] {
        sqlx::query(statement).execute(&mut *tx).await?;
    }
    let positions: Vec<i32> = (1..).take(rules.len()).collect();
    let texts = |of: fn(&LaneRule) -> Option<&str>| rules.iter().map(of).collect::<Vec<_>>();
    sqlx::query(WRITE)
        .bind(positions)
        .bind(texts(|r| Some(&r.lane.0)))
        .bind(texts(|r| r.job_type.as_deref()))
        .bind(texts(|r| r.category.as_deref()))
        .bind(texts(|r| r.tenant.as_deref()))
        .bind(rules.iter().map(|r| r.min_priority).collect::<Vec<_>>())
        .bind(rules.iter().map(|r| r.max_priority).collect::<Vec<_>>())
        .execute(&mut *tx)
        .await?;
    Ok(tx.commit().await?)
}

const LANES: &str = "
WITH executable AS (
    SELECT j.lane, count(*) FILTER (WHERE l.job_id IS NULL) AS ready, count(l.job_id) AS running,
        min(j.ready_at) FILTER (WHERE l.job_id IS NULL) AS oldest
    FROM jobwire.job j
    LEFT JOIN jobwire.job_lease l ON l.job_id = j.id AND l.owner IS NOT NULL
    GROUP BY j.lane
), holders AS (
    SELECT j.lane, count(DISTINCT l.owner) AS nodes
    FROM jobwire.job_lease l JOIN jobwire.job j ON j.id = l.job_id
    WHERE l.owner IS NOT NULL
    GROUP BY j.lane
), elsewhere AS (
    SELECT lane, count(*) FILTER (WHERE state = 't') AS timers, count(*) FILTER (WHERE state = 's') AS suspended,
        count(*) FILTER (WHERE state = 'd') AS dead_letters
    FROM (SELECT lane, 't' AS state FROM jobwire.timer_job
          UNION ALL SELECT lane, 's' FROM jobwire.suspended_job
          UNION ALL SELECT lane, 'd' FROM jobwire.dead_letter_job) s
    GROUP BY lane
)
SELECT coalesce(e.lane, s.lane), coalesce(e.ready, 0), coalesce(e.running, 0), coalesce(s.timers, 0),
    coalesce(s.suspended, 0), coalesce(s.dead_letters, 0), e.oldest, coalesce(h.nodes, 0)
FROM executable e FULL JOIN elsewhere s ON s.lane = e.lane LEFT JOIN holders h ON h.lane = e.lane
ORDER BY 1";

async fn lanes(pool: &PgPool) -> Result<Vec<LaneView>, StoreError> {
    sqlx::query(LANES)
        .fetch_all(pool)
        .await?
        .iter()
        .map(lane_view)
        .collect()
}

const OUTSIDE: &str = concat!(
    "
SELECT j.lane, count(*) FROM jobwire.job j
WHERE NOT (j.lane = ANY($1)) AND ",
    unlocked!("j"),
    " GROUP BY j.lane ORDER BY 2 DESC, 1 LIMIT $2"
);

async fn outside(
    pool: &PgPool,
    lanes: &[Lane],
    at_most: i64,
) -> Result<Vec<LaneBacklog>, StoreError> {
    let names: Vec<&str> = lanes.iter().map(|lane| &*lane.0).collect();
    sqlx::query(OUTSIDE)
        .bind(names)
        .bind(at_most)
        .fetch_all(pool)
        .await?
        .iter()
        .map(lane_backlog)
        .collect()
}

/// Selects the next jobs of the lane after an id, from a limited number of rows, so that a page
/// stays short even for a rare lane.
macro_rules! look {
    ($table:literal) => {
        concat!(
            "
WITH slice AS MATERIALIZED (
    SELECT id, lane FROM jobwire.",
            $table,
            " WHERE ($2::uuid IS NULL OR id > $2) ORDER BY id LIMIT $3
)
SELECT (SELECT array_agg(id) FROM (SELECT id FROM slice WHERE lane = $1 ORDER BY id LIMIT $4) page),
    (SELECT id FROM slice ORDER BY id DESC LIMIT 1), (SELECT count(*) FROM slice)"
        )
    };
}

/// Locks the rows, without waiting. A later statement checks the leases, so that it sees a lock
/// that was taken at the same time. The next run moves rows that are locked now.
macro_rules! enter {
    ($table:literal) => {
        concat!(
            "SELECT id FROM jobwire.",
            $table,
            " WHERE id = ANY($1) AND lane = $2 ORDER BY id FOR UPDATE SKIP LOCKED"
        )
    };
}

macro_rules! relabel {
    ($table:literal) => {
        concat!(
            "UPDATE jobwire.",
            $table,
            " SET lane = $2, revision = least(revision, 999999999) + 1 WHERE id = ANY($1) RETURNING id"
        )
    };
}

/// Moves ready jobs to another lane and makes them ready again there. Of an instance, only the
/// first ready sibling is hinted.
const RELABEL_READY: &str = concat!(
    "
UPDATE jobwire.job j SET lane = $2, revision = least(j.revision, 999999999) + 1, ready_at = clock_timestamp(), hints = $3
WHERE j.id = ANY($1) AND ",
    unlocked!("j"),
    "
RETURNING ",
    ready_columns!("j"),
    ", j.seq, ",
    not_suspended!("j"),
    " AND (NOT j.exclusive OR NOT EXISTS (
        SELECT FROM jobwire.job e
        WHERE e.exclusive AND e.process_instance = j.process_instance AND e.seq < j.seq AND ",
    not_put_aside!("e"),
    "))"
);

struct Statements {
    look: &'static str,
    enter: &'static str,
    relabel: &'static str,
}

fn statements(state: JobState) -> Statements {
    macro_rules! of {
        ($table:literal, $relabel:expr) => {
            Statements {
                look: look!($table),
                enter: enter!($table),
                relabel: $relabel,
            }
        };
    }
    match state {
        JobState::Executable => of!("job", RELABEL_READY),
        JobState::Timer => of!("timer_job", relabel!("timer_job")),
        JobState::Suspended => of!("suspended_job", relabel!("suspended_job")),
        JobState::DeadLetter => of!("dead_letter_job", relabel!("dead_letter_job")),
    }
}

/// Returns the jobs of a page, and the id after which the next page begins.
async fn look(
    connection: &mut PgConnection,
    page: &LanePage,
) -> Result<(Vec<Uuid>, Option<Uuid>), StoreError> {
    let seen = sqlx::query(statements(page.state).look)
        .bind(&page.from.0)
        .bind(page.after.map(|id| id.0))
        .bind(LANE_SLICE)
        .bind(page.at_most)
        .fetch_one(connection)
        .await?;
    let found: Vec<Uuid> = seen.try_get::<Option<_>, _>(0)?.unwrap_or_default();
    let last: Option<Uuid> = seen.try_get(1)?;
    let after = page.next(&found, last, seen.try_get(2)?);
    Ok((found, after))
}

/// Returns the ids of a page.
async fn page_ids(pool: &ConnectionPool, page: &LanePage) -> Result<Vec<JobId>, StoreError> {
    let (found, _) = look(&mut *pool.inner.acquire().await?, page).await?;
    Ok(found.into_iter().map(JobId).collect())
}

/// Moves a page, or only `these` of its jobs.
async fn move_page(
    pool: &ConnectionPool,
    page: &LanePage,
    these: Option<&[JobId]>,
) -> Result<MovedPage, StoreError> {
    let statements = statements(page.state);
    let mut tx = begin(pool).await?;
    let (mut found, after) = look(&mut tx, page).await?;
    if let Some(these) = these {
        found = these.iter().map(|id| id.0).collect();
    }
    let mut moved = MovedPage {
        after: after.map(JobId),
        ..MovedPage::default()
    };
    if found.is_empty() {
        return Ok(moved);
    }
    let ids: Vec<Uuid> = sqlx::query_scalar(statements.enter)
        .bind(found)
        .bind(&page.from.0)
        .fetch_all(&mut *tx)
        .await?;
    let relabel = sqlx::query(statements.relabel).bind(ids).bind(&page.to.0);
    if page.state == JobState::Executable {
        let relabel = relabel.bind(i32::from(page.origin == Origin::Hook));
        let rows = aside::rows(&mut tx, relabel).await?;
        moved.moved = rows.len() as u64;
        let mut ready: Vec<(i64, Ready)> = Vec::with_capacity(rows.len());
        for row in &rows {
            if row.try_get(7)? {
                ready.push((row.try_get(6)?, decode::ready(row)?));
            }
        }
        ready.sort_unstable_by_key(|(seq, _)| *seq);
        moved.ready = ready.into_iter().map(|(_, ready)| ready).collect();
    } else {
        moved.moved = aside::rows(&mut tx, relabel).await?.len() as u64;
    }
    tx.commit().await?;
    Ok(moved)
}

impl Lanes for PgStore {
    async fn read_rules(&self) -> Result<Vec<LaneRule>, StoreError> {
        rules(&self.pool.inner).await
    }

    async fn write_rules(&self, rules: &[LaneRule]) -> Result<(), StoreError> {
        set_rules(&self.pool, rules).await
    }

    async fn read_lanes(&self) -> Result<Vec<LaneView>, StoreError> {
        lanes(&self.pool.inner).await
    }

    async fn read_lanes_outside(
        &self,
        lanes: &[Lane],
        at_most: i64,
    ) -> Result<Vec<LaneBacklog>, StoreError> {
        outside(&self.pool.inner, lanes, at_most).await
    }

    async fn page_ids(&self, page: &LanePage) -> Result<Vec<JobId>, StoreError> {
        page_ids(&self.pool, page).await
    }

    async fn move_page(
        &self,
        page: &LanePage,
        these: Option<&[JobId]>,
    ) -> Result<MovedPage, StoreError> {
        move_page(&self.pool, page, these).await
    }
}

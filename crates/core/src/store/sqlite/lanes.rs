//! Lanes: the rules that choose one, the backlog of each, and moving jobs from one to another.

use sqlx::SqliteConnection;
use sqlx::sqlite::SqlitePool;
use uuid::Uuid;

use super::sql::{has_id, is_put_aside, ready_columns, rule_columns, suspended, unlocked};
use super::{SqliteStore, decode};
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
    " FROM lane_rule ORDER BY position"
);

async fn rules(pool: &SqlitePool) -> Result<Vec<LaneRule>, StoreError> {
    sqlx::query(RULES)
        .fetch_all(pool)
        .await?
        .iter()
        .map(lane_rule)
        .collect()
}

const FORGET: &str = "DELETE FROM lane_rule";
const WRITE: &str = concat!(
    "
INSERT INTO lane_rule (position, ",
    rule_columns!(),
    ")
SELECT key + 1, value ->> 'lane', value ->> 'type', value ->> 'category', value ->> 'tenant', value ->> 'min_priority',
    value ->> 'max_priority'
FROM json_each(?1)"
);

const LANES: &str = "
WITH executable AS (
    SELECT j.lane, sum(l.job_id IS NULL) AS ready, count(l.job_id) AS running,
        min(CASE WHEN l.job_id IS NULL THEN j.ready_at END) AS oldest, count(DISTINCT l.owner) AS nodes
    FROM job j LEFT JOIN job_lease l ON l.job_id = j.id AND l.owner IS NOT NULL
    GROUP BY j.lane
), elsewhere AS (
    SELECT lane, sum(state = 't') AS timers, sum(state = 's') AS suspended, sum(state = 'd') AS dead_letters
    FROM (SELECT lane, 't' AS state FROM timer_job
          UNION ALL SELECT lane, 's' FROM suspended_job
          UNION ALL SELECT lane, 'd' FROM dead_letter_job) s
    GROUP BY lane
)
SELECT n.lane, coalesce(e.ready, 0), coalesce(e.running, 0), coalesce(s.timers, 0), coalesce(s.suspended, 0),
    coalesce(s.dead_letters, 0), e.oldest, coalesce(e.nodes, 0)
FROM (SELECT lane FROM executable UNION SELECT lane FROM elsewhere) n
LEFT JOIN executable e ON e.lane = n.lane LEFT JOIN elsewhere s ON s.lane = n.lane
ORDER BY n.lane";

async fn lanes(pool: &SqlitePool) -> Result<Vec<LaneView>, StoreError> {
    sqlx::query(LANES)
        .bind(decode::now_micros())
        .fetch_all(pool)
        .await?
        .iter()
        .map(lane_view)
        .collect()
}

const OUTSIDE: &str = concat!(
    "
SELECT j.lane, count(*) FROM job j
WHERE j.lane NOT IN (SELECT value FROM json_each(?1)) AND ",
    unlocked!("j"),
    " GROUP BY j.lane ORDER BY 2 DESC, 1 LIMIT ?2"
);

async fn outside(
    pool: &SqlitePool,
    lanes: &[Lane],
    at_most: i64,
) -> Result<Vec<LaneBacklog>, StoreError> {
    sqlx::query(OUTSIDE)
        .bind(decode::array(lanes)?)
        .bind(at_most)
        .fetch_all(pool)
        .await?
        .iter()
        .map(lane_backlog)
        .collect()
}

/// Selects the next rows after an id, of any lane, so a page stays short even if the lane is rare.
macro_rules! look {
    ($table:literal) => {
        concat!(
            "SELECT id, lane FROM ",
            $table,
            " WHERE id > ?1 AND ",
            has_id!("id"),
            " ORDER BY id LIMIT ?2"
        )
    };
}

macro_rules! relabel {
    ($table:literal) => {
        concat!(
            "UPDATE ",
            $table,
            " SET lane = ?2, revision = min(revision, 999999999) + 1 WHERE id IN (SELECT value FROM json_each(?1)) RETURNING id"
        )
    };
}

/// Moves unlocked jobs to another lane, where they become ready again. Locked jobs do not move.
const RELABEL_READY: &str = concat!(
    "
UPDATE job AS j SET lane = ?2, revision = min(revision, 999999999) + 1, ready_at = ?4, hints = ?3
WHERE j.id IN (SELECT value FROM json_each(?1)) AND ",
    unlocked!("j"),
    " RETURNING id"
);

/// Selects the jobs to hint: of an instance only the first ready sibling.
const TO_HINT: &str = concat!(
    "
SELECT ",
    ready_columns!("j"),
    " FROM job j
WHERE j.id IN (SELECT value FROM json_each(?1)) AND NOT ",
    suspended!("j"),
    " AND (NOT j.exclusive OR NOT EXISTS (
        SELECT 1 FROM job e
        WHERE e.exclusive AND e.process_instance = j.process_instance AND e.seq < j.seq AND NOT ",
    is_put_aside!("e"),
    "))
ORDER BY j.seq"
);

fn statements(state: JobState) -> (&'static str, &'static str) {
    match state {
        JobState::Executable => (look!("job"), RELABEL_READY),
        JobState::Timer => (look!("timer_job"), relabel!("timer_job")),
        JobState::Suspended => (look!("suspended_job"), relabel!("suspended_job")),
        JobState::DeadLetter => (look!("dead_letter_job"), relabel!("dead_letter_job")),
    }
}

/// Returns the jobs of a page, and the id after which the next page begins.
async fn look_at(
    connection: &mut SqliteConnection,
    page: &LanePage,
) -> Result<(Vec<Uuid>, Option<Uuid>), StoreError> {
    let (look, _) = statements(page.state);
    let seen = sqlx::query(look)
        .bind(page.after.map(|id| id.to_string()).unwrap_or_default())
        .bind(LANE_SLICE)
        .fetch_all(connection)
        .await?;
    let mut found: Vec<Uuid> = Vec::new();
    let mut last = None;
    for row in &seen {
        let id = decode::uuid(row, 0)?;
        last = Some(id);
        let lane = decode::text(row, 1)?;
        if lane == page.from.0 && i64::try_from(found.len()).is_ok_and(|n| n < page.at_most) {
            found.push(id);
        }
    }
    let count = i64::try_from(seen.len()).unwrap_or(i64::MAX);
    let after = page.next(&found, last, count);
    Ok((found, after))
}

/// Returns the hints of jobs that became ready in another lane: of an instance only that of the first
/// ready sibling.
pub(super) async fn to_hint(
    connection: &mut SqliteConnection,
    moved: &[JobId],
) -> Result<Vec<Ready>, StoreError> {
    let query = sqlx::query(TO_HINT).bind(decode::array(moved)?);
    decode::all_ready(&query.fetch_all(connection).await?)
}

impl Lanes for SqliteStore {
    async fn write_rules(&self, rules: &[LaneRule]) -> Result<(), StoreError> {
        let mut tx = self.write().await?;
        sqlx::query(FORGET).execute(&mut *tx).await?;
        sqlx::query(WRITE)
            .bind(decode::array(rules)?)
            .execute(&mut *tx)
            .await?;
        Ok(tx.commit().await?)
    }

    /// Returns the job ids of a page.
    async fn page_ids(&self, page: &LanePage) -> Result<Vec<JobId>, StoreError> {
        let mut connection = self.readers.acquire().await?;
        let (found, _) = look_at(&mut connection, page).await?;
        Ok(found.into_iter().map(JobId).collect())
    }

    /// Moves a page of jobs, or only `these` of it, if given.
    async fn move_page(
        &self,
        page: &LanePage,
        these: Option<&[JobId]>,
    ) -> Result<MovedPage, StoreError> {
        let (_, relabel) = statements(page.state);
        let mut tx = self.write().await?;
        let now = decode::now_micros();
        let (mut found, after) = look_at(&mut tx, page).await?;
        if let Some(these) = these {
            found.retain(|id| these.contains(&JobId(*id)));
        }
        let mut moved = MovedPage {
            after: after.map(JobId),
            ..MovedPage::default()
        };
        if found.is_empty() {
            return Ok(moved);
        }
        let mut statement = sqlx::query(relabel)
            .bind(decode::array(found)?)
            .bind(&page.to.0);
        if page.state == JobState::Executable {
            statement = statement
                .bind(i64::from(page.origin == Origin::Hook))
                .bind(now);
        }
        let rows = statement.fetch_all(&mut *tx).await?;
        moved.moved = rows.len() as u64;
        if page.state == JobState::Executable {
            moved.ready = to_hint(&mut tx, &decode::job_ids(&rows)?).await?;
        }
        tx.commit().await?;
        Ok(moved)
    }

    async fn read_rules(&self) -> Result<Vec<LaneRule>, StoreError> {
        rules(&self.readers).await
    }

    async fn read_lanes(&self) -> Result<Vec<LaneView>, StoreError> {
        lanes(&self.readers).await
    }

    async fn read_lanes_outside(
        &self,
        lanes: &[Lane],
        at_most: i64,
    ) -> Result<Vec<LaneBacklog>, StoreError> {
        outside(&self.readers, lanes, at_most).await
    }
}

//! Finding and counting jobs, for operators.

use sqlx::sqlite::SqlitePool;
use sqlx::{QueryBuilder, Row, Sqlite};

use super::sql::{gate_of, has_id, in_turn, job_columns, moved_columns};
use super::{SqliteStore, decode};
use crate::job::query::{JobQuery, JobView, LikePattern};
use crate::job::{Job, JobId, JobState};
use crate::store::error::StoreError;
use crate::store::find::{self, CustomValues, Dialect, Part, Table, Value, view_columns};
use crate::store::statements::Finding;

macro_rules! table {
    ($state:literal, $table:literal) => {
        Table {
            select: concat!(
                "SELECT '",
                $state,
                "' AS state, ",
                view_columns!(),
                " FROM ",
                $table,
                " j"
            ),
            select_one: concat!("SELECT 1 FROM ", $table, " j"),
        }
    };
}

pub(super) static DIALECT: Dialect = Dialect {
    tables: [
        (JobState::Executable, table!("executable", "job")),
        (JobState::Timer, table!("timer", "timer_job")),
        (JobState::Suspended, table!("suspended", "suspended_job")),
        (
            JobState::DeadLetter,
            table!("dead-letter", "dead_letter_job"),
        ),
    ],
    has_id: has_id!("j.id"),
    leases: "job_lease",
    suspensions: "suspension",
    unique_jobs: "unique_job",
    unique_dead_letters: "unique_dead_letter",
    batch_members: "batch_member",
    any_of: (" IN (SELECT value FROM json_each(", "))"),
    // `LIKE` of SQLite does not tell upper from lower case.
    like: (" GLOB ", ""),
    pattern: LikePattern::glob,
    by_bytes: "",
    definition_key: "substr(j.process_definition, 1, instr(j.process_definition || ':', ':') - 1)",
    custom_values: CustomValues::Fields,
    plus_longest_lease: " + 90000000000",
};

const HEAD: &str = concat!(
    "SELECT j.*, l.owner, l.expires_at, l.locked_at, l.cancelled_at, l.fence, \
     p.done, p.total, p.message, p.reported_at, p.checkpoint_at, ",
    gate_of!("")
);
const JOINS: &str = " LEFT JOIN job_lease l
ON l.job_id = j.id AND j.state = 'executable' AND l.owner IS NOT NULL
LEFT JOIN job_progress p ON p.job_id = j.id";

/// Writes the parts as one statement.
pub(super) fn written(parts: Vec<Part>) -> Result<QueryBuilder<Sqlite>, StoreError> {
    let now = decode::now_micros();
    let mut sql = QueryBuilder::new("");
    for part in parts {
        match part {
            Part::Sql(text) => sql.push(text),
            Part::Bind(Value::Now) => sql.push_bind(now),
            Part::Bind(Value::Number(number)) => sql.push_bind(number),
            Part::Bind(Value::Real(number)) => sql.push_bind(number),
            Part::Bind(Value::Moment(moment)) => sql.push_bind(decode::micros(moment)),
            Part::Bind(Value::Id(id)) => sql.push_bind(id.hyphenated()),
            Part::Bind(Value::Ids(ids)) => sql.push_bind(decode::array(ids)?),
            Part::Bind(Value::Text(text)) => sql.push_bind(text),
            Part::Bind(Value::Texts(texts)) => sql.push_bind(decode::array(texts)?),
        };
    }
    Ok(sql)
}

async fn find(pool: &SqlitePool, query: &JobQuery) -> Result<Vec<JobView>, StoreError> {
    query.check()?;
    let Some(parts) = find::page(&DIALECT, query, HEAD, JOINS) else {
        return Ok(Vec::new());
    };
    let rows = written(parts)?
        .build()
        .persistent(false)
        .fetch_all(pool)
        .await?;
    rows.iter().map(decode::view).collect()
}

async fn count(
    pool: &SqlitePool,
    query: &JobQuery,
    at_most: Option<i64>,
) -> Result<i64, StoreError> {
    query.check()?;
    let Some(parts) = find::count(&DIALECT, query, at_most) else {
        return Ok(0);
    };
    let row = written(parts)?
        .build()
        .persistent(false)
        .fetch_one(pool)
        .await?;
    Ok(row.try_get(0)?)
}

const GET: &str = concat!(
    "
SELECT (SELECT stack FROM job_exception WHERE job_id = ?1), ",
    job_columns!("j"),
    "
FROM (SELECT ",
    moved_columns!(),
    " FROM job WHERE id = ?1 UNION ALL SELECT ",
    moved_columns!(),
    " FROM timer_job WHERE id = ?1 UNION ALL SELECT ",
    moved_columns!(),
    " FROM suspended_job WHERE id = ?1 UNION ALL SELECT ",
    moved_columns!(),
    " FROM dead_letter_job WHERE id = ?1) j"
);

async fn get(pool: &SqlitePool, id: JobId) -> Result<Option<(Job, Option<String>)>, StoreError> {
    let found = sqlx::query(GET)
        .bind(id.to_string())
        .fetch_optional(pool)
        .await?;
    let job = found.map(|row| Ok((decode::job(&row, 1)?, decode::maybe_text(&row, 0)?)));
    job.transpose()
}

const OUT_OF_TURN: &str = concat!(
    "SELECT j.id FROM job j WHERE j.id IN (SELECT value FROM json_each(?1)) AND NOT ",
    in_turn!("j")
);

impl Finding for SqliteStore {
    async fn find_jobs(&self, query: &JobQuery) -> Result<Vec<JobView>, StoreError> {
        find(&self.readers, query).await
    }

    async fn count_jobs(&self, query: &JobQuery, at_most: Option<i64>) -> Result<i64, StoreError> {
        count(&self.readers, query, at_most).await
    }

    async fn find_out_of_turn(&self, jobs: &[JobId]) -> Result<Vec<JobId>, StoreError> {
        let find = sqlx::query(OUT_OF_TURN).bind(decode::array(jobs)?);
        decode::job_ids(&find.fetch_all(&self.readers).await?)
    }

    async fn get_job(&self, id: JobId) -> Result<Option<(Job, Option<String>)>, StoreError> {
        get(&self.readers, id).await
    }
}

//! Finding and counting jobs, for operators.

use sqlx::postgres::PgPool;
use sqlx::{Postgres, QueryBuilder, Row};
use uuid::Uuid;

use super::sql::{gate_of, in_turn, job_columns, moved_columns};
use super::{PgStore, decode};
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
                " FROM jobwire.",
                $table,
                " j"
            ),
            select_one: concat!("SELECT 1 FROM jobwire.", $table, " j"),
        }
    };
}

/// True if `jsonb` takes the custom values. It takes no NUL, no half of a surrogate pair and no number of
/// thousands of digits, which `json` takes: one such row must not end a query for others. The first line decides
/// most rows.
macro_rules! is_jsonb {
    () => {
        r#"octet_length(j.custom_values::text) < 255 AND strpos(j.custom_values::text, '\u') = 0 AND j.custom_values::text !~ '[0-9][eE]'
    OR (regexp_replace(replace(j.custom_values::text, '\\', '_'), '\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}', '', 'g')
        !~ '\\u(0000|[dD][89a-fA-F])'
    AND regexp_replace(j.custom_values::text, '"([^"\\]|\\.)*"', '', 'g') !~ '[eE][+-]?0*[1-9][0-9]{3}|[0-9]{255}')"#
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
    has_id: "true",
    leases: "jobwire.job_lease",
    suspensions: "jobwire.suspension",
    unique_jobs: "jobwire.unique_job",
    unique_dead_letters: "jobwire.unique_dead_letter",
    batch_members: "jobwire.batch_member",
    any_of: (" = ANY(", ")"),
    like: (" LIKE ", " ESCAPE '\\'"),
    pattern: LikePattern::like,
    by_bytes: " COLLATE \"C\"",
    definition_key: "split_part(j.process_definition, ':', 1)",
    custom_values: CustomValues::Operator(
        concat!(
            "CASE WHEN j.custom_values IS NULL THEN false WHEN ",
            is_jsonb!(),
            " THEN j.custom_values::jsonb @> "
        ),
        "::jsonb ELSE false END",
    ),
    plus_longest_lease: " + interval '25 hours'",
};

const HEAD: &str = concat!(
    "SELECT j.*, l.owner, l.fence,
    CASE WHEN l.expires_at BETWEEN '0001-01-01' AND '9999-12-31' THEN l.expires_at END AS expires_at,
    CASE WHEN l.locked_at BETWEEN '0001-01-01' AND '9999-12-31' THEN l.locked_at END AS locked_at,
    CASE WHEN l.cancelled_at BETWEEN '0001-01-01' AND '9999-12-31' THEN l.cancelled_at END AS cancelled_at,
    p.done, p.total, p.message,
    CASE WHEN p.reported_at BETWEEN '0001-01-01' AND '9999-12-31' THEN p.reported_at END AS reported_at,
    CASE WHEN p.checkpoint_at BETWEEN '0001-01-01' AND '9999-12-31' THEN p.checkpoint_at END AS checkpoint_at, ",
    gate_of!("jobwire."),
);
const JOINS: &str = "
LEFT JOIN jobwire.job_lease l
       ON l.job_id = j.id AND j.state = 'executable' AND l.owner IS NOT NULL
LEFT JOIN jobwire.job_progress p ON p.job_id = j.id";

/// Writes the parts as one statement.
pub(super) fn written(parts: Vec<Part>) -> QueryBuilder<Postgres> {
    let mut sql = QueryBuilder::new("");
    for part in parts {
        match part {
            Part::Sql(text) => sql.push(text),
            // The time stands still inside the statement, so an index can be asked for it.
            Part::Bind(Value::Now) => sql.push("statement_timestamp()"),
            Part::Bind(Value::Number(number)) => sql.push_bind(number),
            Part::Bind(Value::Real(number)) => sql.push_bind(number),
            Part::Bind(Value::Moment(moment)) => sql.push_bind(moment),
            Part::Bind(Value::Id(id)) => sql.push_bind(id),
            Part::Bind(Value::Ids(ids)) => sql.push_bind(ids),
            Part::Bind(Value::Text(text)) => sql.push_bind(text),
            Part::Bind(Value::Texts(texts)) => sql.push_bind(texts),
        };
    }
    sql
}

async fn find(pool: &PgPool, query: &JobQuery) -> Result<Vec<JobView>, StoreError> {
    query.check()?;
    let Some(parts) = find::page(&DIALECT, query, HEAD, JOINS) else {
        return Ok(Vec::new());
    };
    // There are more forms of a query than a connection should keep plans of.
    let rows = written(parts)
        .build()
        .persistent(false)
        .fetch_all(pool)
        .await?;
    rows.iter().map(decode::view).collect()
}

async fn count(pool: &PgPool, query: &JobQuery, at_most: Option<i64>) -> Result<i64, StoreError> {
    query.check()?;
    let Some(parts) = find::count(&DIALECT, query, at_most) else {
        return Ok(0);
    };
    let row = written(parts)
        .build()
        .persistent(false)
        .fetch_one(pool)
        .await?;
    Ok(row.try_get(0)?)
}

const GET: &str = concat!(
    "
SELECT (SELECT stack FROM jobwire.job_exception WHERE job_id = $1), ",
    job_columns!("j"),
    "
FROM (SELECT ",
    moved_columns!(),
    " FROM jobwire.job WHERE id = $1 UNION ALL SELECT ",
    moved_columns!(),
    " FROM jobwire.timer_job WHERE id = $1 UNION ALL SELECT ",
    moved_columns!(),
    " FROM jobwire.suspended_job WHERE id = $1 UNION ALL SELECT ",
    moved_columns!(),
    " FROM jobwire.dead_letter_job WHERE id = $1) j"
);

async fn get(pool: &PgPool, id: JobId) -> Result<Option<(Job, Option<String>)>, StoreError> {
    let found = sqlx::query(GET).bind(id.0).fetch_optional(pool).await?;
    let job = found.map(|row| Ok((decode::job(&row, 1)?, row.try_get(0)?)));
    job.transpose()
}

const OUT_OF_TURN: &str = concat!(
    "SELECT j.id FROM jobwire.job j WHERE j.id = ANY($1) AND NOT ",
    in_turn!("j")
);

impl Finding for PgStore {
    async fn find_jobs(&self, query: &JobQuery) -> Result<Vec<JobView>, StoreError> {
        find(&self.pool.inner, query).await
    }

    async fn count_jobs(&self, query: &JobQuery, at_most: Option<i64>) -> Result<i64, StoreError> {
        count(&self.pool.inner, query, at_most).await
    }

    async fn find_out_of_turn(&self, jobs: &[JobId]) -> Result<Vec<JobId>, StoreError> {
        let jobs: Vec<Uuid> = jobs.iter().map(|id| id.0).collect();
        let find = sqlx::query_scalar(OUT_OF_TURN).bind(jobs);
        let found: Vec<Uuid> = find.fetch_all(&self.pool.inner).await?;
        Ok(found.into_iter().map(JobId).collect())
    }

    async fn get_job(&self, id: JobId) -> Result<Option<(Job, Option<String>)>, StoreError> {
        get(&self.pool.inner, id).await
    }
}

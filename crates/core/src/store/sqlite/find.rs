//! Finding and counting jobs, for operators.

use sqlx::sqlite::SqlitePool;
use sqlx::{QueryBuilder, Row, Sqlite};

use super::sql::{gate_of, job_columns, moved_columns};
use super::{SqliteStore, decode};
use crate::job::query::{JobFilter, JobView};
use crate::job::{Job, JobId, JobState};
use crate::store::error::StoreError;
use crate::store::statements::Finding;

/// The query for the table of each state.
const TABLES: [(JobState, &str); 4] = [
    (
        JobState::Executable,
        concat!(
            "SELECT 'executable' AS state, ",
            moved_columns!(),
            " FROM job"
        ),
    ),
    (
        JobState::Timer,
        concat!(
            "SELECT 'timer' AS state, ",
            moved_columns!(),
            " FROM timer_job"
        ),
    ),
    (
        JobState::Suspended,
        concat!(
            "SELECT 'suspended' AS state, ",
            moved_columns!(),
            " FROM suspended_job"
        ),
    ),
    (
        JobState::DeadLetter,
        concat!(
            "SELECT 'dead-letter' AS state, ",
            moved_columns!(),
            " FROM dead_letter_job"
        ),
    ),
];

/// Builds a query with only the given conditions, on only the given tables. SQLite plans a
/// statement before it has the bound values, and would read every table for one id.
fn matching(select: &str, filter: &JobFilter) -> QueryBuilder<Sqlite> {
    let mut sql = QueryBuilder::new(select);
    sql.push(" FROM (");
    let asked = TABLES
        .iter()
        .filter(|(state, _)| filter.states.is_empty() || filter.states.contains(state));
    for (i, (_, table)) in asked.enumerate() {
        sql.push(if i == 0 { "" } else { " UNION ALL " });
        sql.push(table);
    }
    sql.push(
        ") j LEFT JOIN job_lease l
ON l.job_id = j.id AND j.state = 'executable' AND l.owner IS NOT NULL
LEFT JOIN job_progress p ON p.job_id = j.id WHERE true",
    );
    if let Some(id) = filter.id {
        sql.push(" AND j.id = ").push_bind(id.to_string());
    }
    for (column, wanted) in [
        ("type", &filter.job_type),
        ("process_instance", &filter.process_instance),
        ("process_definition", &filter.process_definition),
        ("element", &filter.element),
        ("tenant", &filter.tenant),
        ("category", &filter.category),
        ("lane", &filter.lane),
    ] {
        if let Some(wanted) = wanted {
            sql.push(" AND j.").push(column).push(" = ");
            sql.push_bind(wanted.clone());
        }
    }
    if let Some(id) = filter.correlation_id {
        sql.push(" AND j.correlation_id = ")
            .push_bind(id.hyphenated());
    }
    match filter.locked {
        Some(true) => sql.push(" AND l.job_id IS NOT NULL"),
        Some(false) => sql.push(" AND l.job_id IS NULL"),
        None => &mut sql,
    };
    match filter.with_exception {
        Some(true) => sql.push(" AND j.exception_message IS NOT NULL"),
        Some(false) => sql.push(" AND j.exception_message IS NULL"),
        None => &mut sql,
    };
    if let Some(before) = filter.due_before {
        sql.push(" AND j.due_at < ")
            .push_bind(decode::micros(before));
    }
    for tag in &filter.tags {
        // A row of plain SQL may have custom values that are no JSON.
        sql.push(
            " AND CASE WHEN json_valid(j.custom_values) \
             AND json_type(j.custom_values, '$.\"$tags\"') = 'array' \
             THEN EXISTS (SELECT 1 FROM json_each(j.custom_values, '$.\"$tags\"') t \
             WHERE t.value = ",
        )
        .push_bind(tag.clone())
        .push(") ELSE false END");
    }
    if let Some(priority) = filter.priority_other_than {
        sql.push(" AND j.priority <> ").push_bind(priority);
    }
    sql
}

async fn find(pool: &SqlitePool, filter: &JobFilter) -> Result<Vec<JobView>, StoreError> {
    let select = concat!(
        "SELECT j.*, l.owner, l.expires_at, l.locked_at, l.cancelled_at, l.fence, \
         p.done, p.total, p.message, p.reported_at, p.checkpoint_at, ",
        gate_of!("")
    );
    let mut sql = matching(select, filter);
    sql.push(" ORDER BY j.seq LIMIT ")
        .push_bind(filter.limit.clamp(0, 100_000))
        .push(" OFFSET ")
        .push_bind(filter.offset.max(0));
    sql.build()
        .persistent(false)
        .fetch_all(pool)
        .await?
        .iter()
        .map(decode::view)
        .collect()
}

async fn count(pool: &SqlitePool, filter: &JobFilter) -> Result<i64, StoreError> {
    Ok(matching("SELECT count(*)", filter)
        .build()
        .persistent(false)
        .fetch_one(pool)
        .await?
        .try_get(0)?)
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
    let job = found.map(|row| Ok((decode::job(&row, 1)?, row.try_get(0)?)));
    job.transpose()
}

impl Finding for SqliteStore {
    async fn find_jobs(&self, filter: &JobFilter) -> Result<Vec<JobView>, StoreError> {
        find(&self.readers, filter).await
    }

    async fn count_jobs(&self, filter: &JobFilter) -> Result<i64, StoreError> {
        count(&self.readers, filter).await
    }

    async fn get_job(&self, id: JobId) -> Result<Option<(Job, Option<String>)>, StoreError> {
        get(&self.readers, id).await
    }
}

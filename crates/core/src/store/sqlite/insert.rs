//! Creating jobs: many in one statement, each in the table that its due date asks for.

use serde::Serialize;
use sqlx::SqliteConnection;

use super::row;
use super::sql::moved_columns;
use crate::error::StoreError;
use crate::hint::{Hint, Ready};
use crate::job::{JobId, JobKind};
use crate::new_job::NewJob;
use crate::store::{Created, Origin};

/// Rows in one statement: past some hundred, larger statements gain nothing and hold more memory.
const ROWS: usize = 500;
/// Payload bytes in one statement, for the same reason.
const BYTES: usize = 4 << 20;

/// Draw so many numbers from a counter and return the last one. SQLite has no sequences; its one writer
/// makes a row as good.
const DRAW: &str = "UPDATE counter SET value = value + ?2 WHERE name = ?1 RETURNING value";

macro_rules! insert_into {
    ($table:literal) => {
        concat!(
            "INSERT INTO ",
            $table,
            " (",
            moved_columns!(),
            ")
SELECT value ->> 'id', value ->> 'seq', 1, value ->> 'kind', value ->> 'type', value ->> 'payload',
    value ->> 'process_instance', value ->> 'execution', value ->> 'process_definition', value ->> 'element',
    value ->> 'tenant', value ->> 'category', value ->> 'deployment', value ->> 'priority', value ->> 'exclusive',
    value ->> 'retries', 0, value ->> 'retry_policy', value ->> 'due_at', value ->> 'repeat', value ->> 'repeat_until',
    value ->> 'correlation_id', ?2, value ->> 'lane', ?3, NULL, value ->> 'custom_values', value ->> 'trace_parent',
    ?2, ?4
FROM json_each(?1)"
        )
    };
}

const INSERT_EXECUTABLE: &str = insert_into!("job");
const INSERT_TIMER: &str = insert_into!("timer_job");

/// A new row as the statements read it.
#[derive(Serialize)]
struct NewRow<'a> {
    id: JobId,
    seq: i64,
    kind: &'static str,
    r#type: &'a str,
    payload: &'a str,
    process_instance: Option<&'a str>,
    execution: Option<&'a str>,
    process_definition: Option<&'a str>,
    element: Option<&'a str>,
    tenant: Option<&'a str>,
    category: Option<&'a str>,
    deployment: Option<&'a str>,
    priority: i64,
    exclusive: bool,
    retries: i32,
    retry_policy: Option<&'a str>,
    due_at: Option<i64>,
    repeat: Option<&'a str>,
    repeat_until: Option<i64>,
    correlation_id: uuid::Uuid,
    lane: &'a str,
    custom_values: Option<&'a str>,
    trace_parent: Option<&'a str>,
}

impl<'a> NewRow<'a> {
    fn of(job: &'a NewJob, seq: i64) -> Self {
        let kind = if job.due_at.is_none() && job.repeat.is_none() {
            JobKind::Message
        } else {
            JobKind::Timer
        };
        Self {
            id: job.id,
            seq,
            kind: kind.as_str(),
            r#type: &job.job_type,
            payload: job.payload.as_ref().map_or("null", |p| p.get()),
            process_instance: job.process_instance.as_deref(),
            execution: job.execution.as_deref(),
            process_definition: job.process_definition.as_deref(),
            element: job.element.as_deref(),
            tenant: job.tenant.as_deref(),
            category: job.category.as_deref(),
            deployment: job.deployment.as_deref(),
            priority: job.priority,
            exclusive: job.is_exclusive(),
            retries: job.attempts(),
            retry_policy: job.retry_policy.as_deref(),
            due_at: job.due_at.map(row::micros),
            repeat: job.repeat.as_deref(),
            repeat_until: job.repeat_until.map(row::micros),
            correlation_id: job.correlation_id.unwrap_or(job.id.0),
            lane: &job.lane.0,
            custom_values: job.custom_values.as_ref().map(|v| v.get()),
            trace_parent: job.trace_parent.as_deref(),
        }
    }
}

/// Draw `count` numbers from a counter; the first of them.
pub(super) async fn draw(
    connection: &mut SqliteConnection,
    counter: &'static str,
    count: usize,
) -> Result<i64, StoreError> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let last: i64 = sqlx::query_scalar(DRAW)
        .bind(counter)
        .bind(count)
        .fetch_one(connection)
        .await?;
    Ok(last - count + 1)
}

/// Insert over a connection that is inside the caller's transaction.
pub(super) async fn insert(
    connection: &mut SqliteConnection,
    jobs: Vec<NewJob>,
    origin: Origin,
) -> Result<Created, StoreError> {
    for job in &jobs {
        job.validate()
            .map_err(|source| StoreError::InvalidJob { id: job.id, source })?;
    }
    let mut created = Created::default();
    let mut rest = &jobs[..];
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(chunk_length(rest));
        created.merge(insert_chunk(connection, chunk, origin).await?);
        rest = after;
    }
    Ok(created)
}

/// How many of these fit into one statement; at least one.
fn chunk_length(jobs: &[NewJob]) -> usize {
    let mut bytes = 0;
    let fitting = jobs.iter().take(ROWS).take_while(|job| {
        bytes += job.payload.as_ref().map_or(0, |p| p.get().len());
        bytes <= BYTES
    });
    fitting.count().max(1)
}

async fn insert_chunk(
    connection: &mut SqliteConnection,
    jobs: &[NewJob],
    origin: Origin,
) -> Result<Created, StoreError> {
    let first = draw(connection, "job_seq", jobs.len()).await?;
    let now = row::now_micros();
    let (mut executable, mut timers) = (Vec::with_capacity(jobs.len()), Vec::new());
    let mut created = Created::default();
    let mut earliest: Option<i64> = None;
    for (seq, job) in (first..).zip(jobs) {
        let new = NewRow::of(job, seq);
        match new.due_at {
            Some(due) if due > now => {
                earliest = Some(earliest.map_or(due, |e| e.min(due)));
                timers.push(new);
            }
            _ => {
                created.ready.push(ready(job));
                executable.push(new);
            }
        }
    }
    created.timer = row::maybe_moment(earliest)?;
    // Whoever hints it counts its own hint: the sweeper looks for jobs that have none.
    let hints = i64::from(origin == Origin::Hook);
    for (statement, rows, hints) in [
        (INSERT_EXECUTABLE, executable, hints),
        (INSERT_TIMER, timers, 0),
    ] {
        if !rows.is_empty() {
            sqlx::query(statement)
                .bind(row::array(rows)?)
                .bind(now)
                .bind(origin.as_str())
                .bind(hints)
                .execute(&mut *connection)
                .await?;
        }
    }
    Ok(created)
}

fn ready(job: &NewJob) -> Ready {
    Ready {
        lane: job.lane.clone(),
        hint: Hint {
            id: job.id,
            instance: job.process_instance.clone().filter(|_| job.is_exclusive()),
            committed_at: None,
            trace_parent: job.trace_parent.clone(),
        },
    }
}

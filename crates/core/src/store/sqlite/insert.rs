//! Creation of jobs: many in one statement, each in the table that its due date requires.

use std::collections::HashMap;

use serde::Serialize;
use sqlx::SqliteConnection;

use super::sql::{lane_by_rule, moved_columns, priority_by_rule};
use super::{batch_members, decode, unique};
use crate::hint::Ready;
use crate::job::new_job::NewJob;
use crate::job::{JobId, Lane};
use crate::store::error::StoreError;
use crate::store::{Created, Origin};

/// Maximum number of rows in one statement. Beyond a few hundred, larger statements gain nothing
/// and hold more memory.
const ROWS: usize = 500;
/// Maximum size of the payloads in one statement, in bytes, for the same reason.
const BYTES: usize = 4 << 20;

/// Draws numbers from a counter and returns the last one. SQLite has no sequences; a row serves as
/// one, because there is one writer.
const DRAW: &str = "UPDATE counter SET value = value + ?2 WHERE name = ?1 RETURNING value";

/// Draws job numbers, and returns whether lane rules and priority rules exist.
const DRAW_JOBS: &str = "
UPDATE counter SET value = value + ?1 WHERE name = 'job_seq'
RETURNING value, EXISTS (SELECT 1 FROM lane_rule), EXISTS (SELECT 1 FROM priority_rule)";

/// Selects the lane of a job without one.
macro_rules! ruled_lane {
    () => {
        lane_by_rule!(
            "lane_rule",
            "value ->> 'type'",
            "value ->> 'category'",
            "value ->> 'tenant'",
            "its_priority"
        )
    };
}

/// The new rows, with the priorities that their creators gave.
macro_rules! own_priorities {
    () => {
        "(SELECT value, coalesce(value ->> 'priority', 0) AS its_priority FROM json_each(?1))"
    };
}

/// The new rows, with priorities by the rules.
macro_rules! ruled_priorities {
    () => {
        concat!(
            "(SELECT value, ",
            priority_by_rule!(
                "priority_rule",
                "(value ->> 'kind')",
                "(value ->> 'type')",
                "(value ->> 'process_definition')",
                "(value ->> 'element')",
                "(value ->> 'priority')"
            ),
            " AS its_priority FROM json_each(?1))"
        )
    };
}

macro_rules! insert_into {
    ($table:literal, $rows:expr, $ruled:expr, $returning:literal) => {
        concat!(
            "INSERT INTO ",
            $table,
            " (",
            moved_columns!(),
            ")
SELECT value ->> 'id', value ->> 'seq', 1, value ->> 'kind', value ->> 'type', value ->> 'payload',
    value ->> 'process_instance', value ->> 'execution', value ->> 'process_definition', value ->> 'element',
    value ->> 'tenant', value ->> 'category', value ->> 'deployment', its_priority, value ->> 'exclusive',
    value ->> 'retries', 0, value ->> 'retry_policy', value ->> 'due_at', value ->> 'repeat', value ->> 'repeat_until',
    value ->> 'correlation_id', ?2, coalesce(value ->> 'lane', ",
            $ruled,
            ", 'default'), ?3, NULL, value ->> 'custom_values', value ->> 'trace_parent',
    ?2, ?4, value ->> 'lane_named'
FROM ",
            $rows,
            $returning
        )
    };
}

const INSERT: [&str; 2] = [
    insert_into!("job", own_priorities!(), "NULL", ""),
    insert_into!("timer_job", own_priorities!(), "NULL", ""),
];
const INSERT_BY_LANE_RULE: [&str; 2] = [
    insert_into!(
        "job",
        own_priorities!(),
        ruled_lane!(),
        " RETURNING id, lane"
    ),
    insert_into!(
        "timer_job",
        own_priorities!(),
        ruled_lane!(),
        " RETURNING id, lane"
    ),
];
const INSERT_BY_RULES: [&str; 2] = [
    insert_into!(
        "job",
        ruled_priorities!(),
        ruled_lane!(),
        " RETURNING id, lane"
    ),
    insert_into!(
        "timer_job",
        ruled_priorities!(),
        ruled_lane!(),
        " RETURNING id, lane"
    ),
];

/// A new row in the form that the statements read.
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
    priority: Option<i64>,
    exclusive: bool,
    retries: i32,
    retry_policy: Option<&'a str>,
    due_at: Option<i64>,
    repeat: Option<&'a str>,
    repeat_until: Option<i64>,
    correlation_id: uuid::Uuid,
    lane: Option<&'a str>,
    lane_named: Option<bool>,
    custom_values: Option<&'a str>,
    trace_parent: Option<&'a str>,
}

impl<'a> NewRow<'a> {
    fn of(job: &'a NewJob, seq: i64) -> Self {
        Self {
            id: job.id,
            seq,
            kind: job.kind().as_str(),
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
            due_at: job.due_at.map(decode::micros),
            repeat: job.repeat.as_deref(),
            repeat_until: job.repeat_until.map(decode::micros),
            correlation_id: job.correlation_id.unwrap_or(job.id.0),
            lane: job.lane.as_ref().map(|l| &*l.0),
            lane_named: job.lane_is_named(),
            custom_values: job.custom_values.as_ref().map(|v| v.get()),
            trace_parent: job.trace_parent.as_deref(),
        }
    }
}

/// Draws `count` numbers from a counter and returns the first.
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

/// Inserts jobs over a connection that is inside the caller's transaction.
pub(super) async fn insert(
    connection: &mut SqliteConnection,
    mut jobs: Vec<NewJob>,
    origin: Origin,
) -> Result<Created, StoreError> {
    for job in &mut jobs {
        job.complete()
            .map_err(|source| StoreError::InvalidJob { id: job.id, source })?;
    }
    let mut created = Created {
        existing: unique::claim(connection, &mut jobs).await?,
        ..Created::default()
    };
    batch_members::join(connection, &jobs).await?;
    let mut rest = &jobs[..];
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at(chunk_length(rest));
        created.merge(insert_chunk(connection, chunk, origin).await?);
        rest = after;
    }
    Ok(created)
}

/// Returns the number of jobs that fit into one statement, at least one.
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
    let count = i64::try_from(jobs.len()).unwrap_or(i64::MAX);
    let (last, has_lane_rules, has_priority_rules): (i64, bool, bool) = sqlx::query_as(DRAW_JOBS)
        .bind(count)
        .fetch_one(&mut *connection)
        .await?;
    // An occurrence keeps the priority of the one before it.
    let by_priority_rules = has_priority_rules && !jobs.iter().any(|job| job.is_copy);
    let by_lane_rules = has_lane_rules && jobs.iter().any(|job| job.lane.is_none());
    let now = decode::now_micros();
    let (mut executable, mut timers) = (Vec::with_capacity(jobs.len()), Vec::new());
    let mut ready = Vec::with_capacity(jobs.len());
    let mut created = Created::default();
    let mut earliest: Option<i64> = None;
    for (seq, job) in (last - count + 1..).zip(jobs) {
        let new = NewRow::of(job, seq);
        match new.due_at {
            Some(due) if due > now => {
                earliest = Some(earliest.map_or(due, |e| e.min(due)));
                timers.push(new);
            }
            _ => {
                ready.push(job);
                executable.push(new);
            }
        }
    }
    created.timer = decode::maybe_moment(earliest)?;
    // A creator that publishes the hint counts it. The sweeper looks for jobs with no hint.
    let hints = i64::from(origin == Origin::Hook);
    let statements = if by_priority_rules {
        INSERT_BY_RULES
    } else if by_lane_rules {
        INSERT_BY_LANE_RULE
    } else {
        INSERT
    };
    let mut lanes: HashMap<JobId, Lane> = HashMap::new();
    for (statement, rows, hints) in [
        (statements[0], executable, hints),
        (statements[1], timers, 0),
    ] {
        if rows.is_empty() {
            continue;
        }
        let inserted = sqlx::query(statement)
            .bind(decode::array(rows)?)
            .bind(now)
            .bind(origin.as_str())
            .bind(hints)
            .fetch_all(&mut *connection)
            .await?;
        for row in &inserted {
            lanes.insert(decode::job_id(row)?, Lane(decode::text(row, 1)?));
        }
    }
    created.ready = ready
        .into_iter()
        .map(|job| Ready::of(job, lanes.remove(&job.id)))
        .collect();
    Ok(created)
}

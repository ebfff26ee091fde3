//! Creating jobs: many in one statement, each in the table for its due date.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use super::{batch_members, unique};
use crate::hint::Ready;
use crate::job::new_job::NewJob;
use crate::job::{JobId, Lane};
use crate::store::error::StoreError;
use crate::store::{Created, Origin, TransactionId};

/// Maximum number of rows in one statement. Beyond some thousand, larger statements gain nothing
/// and use more memory.
const ROWS: usize = 2_500;

/// The priority of a new job by the priority rules, unless the occurrence before it gave it one
/// (`$25` is false). A function holds the queries of the rules: the planner would count the cost of
/// plain queries for every row, and plan the statement anew for each call.
macro_rules! its_priority {
    ($type:literal, $definition:literal, $element:literal, $own:literal, $kind:literal) => {
        concat!(
            "CASE WHEN $25 AND (SELECT EXISTS (SELECT FROM jobwire.priority_rule))
        THEN jobwire.priority_of(",
            $type,
            ", ",
            $definition,
            ", ",
            $element,
            ", ",
            $own,
            ", ",
            $kind,
            ")
        ELSE coalesce(",
            $own,
            ", 0) END AS its_priority"
        )
    };
}

/// The lane of a new job: the one that its creator named, or that of the first lane rule that fits.
/// A function holds the query of the rules, as in [`its_priority`].
macro_rules! its_lane {
    ($named:literal, $type:literal, $category:literal, $tenant:literal) => {
        concat!(
            "CASE
        WHEN ",
            $named,
            " IS NOT NULL THEN ",
            $named,
            "
        WHEN (SELECT EXISTS (SELECT FROM jobwire.lane_rule)) THEN jobwire.lane_of(",
            $type,
            ", ",
            $category,
            ", ",
            $tenant,
            ", g.its_priority)
        ELSE 'default' END AS its_lane"
        )
    };
}

/// The rest of an insertion of jobs with due dates. Both branches compare with the statement's start,
/// so a row that is due at that moment goes to exactly one table.
macro_rules! executable_or_timer {
    ($timer_kind:literal) => {
        concat!(
            " WHERE due_at IS NULL OR due_at <= statement_timestamp()
), timer AS (
    INSERT INTO jobwire.timer_job (id, kind, type, payload, process_instance, execution, process_definition, element,
        tenant, category, deployment, priority, exclusive, retries, retry_policy, due_at, repeat, repeat_until,
        correlation_id, lane, custom_values, trace_parent, origin, lane_named)
    SELECT id, ",
            $timer_kind,
            ", type, payload::json, process_instance, execution, process_definition, element, tenant,
        category, deployment, its_priority, exclusive, retries, retry_policy, due_at, repeat, repeat_until,
        correlation_id, its_lane, custom_values::json, trace_parent, $22, lane_named
    FROM given WHERE due_at > statement_timestamp()
    RETURNING id, due_at
)
SELECT pg_current_xact_id()::text, (SELECT array_agg(id) FROM timer), (SELECT min(due_at) FROM timer),"
        )
    };
}

/// The rest of an insertion of jobs without due dates.
macro_rules! all_executable {
    () => {
        "
)
SELECT pg_current_xact_id()::text, NULL::uuid[], NULL::timestamptz,"
    };
}

/// Inserts jobs. Rows keep the order of the arrays, and so their creation order.
///
/// The statement checks once whether rules of priorities and lanes exist, so without rules (the usual
/// case) the rows cost no more. `OFFSET 0` keeps the planner from copying the priority into the lane
/// rules' conditions. Returns only the lanes that are unknown to the caller.
macro_rules! insert {
    ($array:literal, $name:literal, $rule_kind:literal, $kind:expr, $by_date:expr) => {
        concat!(
    "
WITH given AS MATERIALIZED (
    SELECT g.*, ",
    its_lane!("lane", "g.type", "g.category", "g.tenant"),
    "
    FROM (SELECT u.*, ",
    its_priority!("u.type", "u.process_definition", "u.element", "u.priority", $rule_kind),
    "
    FROM unnest(
        $1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
        $10::text[], $11::bigint[], $12::boolean[], $13::integer[], $14::text[], $15::timestamptz[], $16::text[],
        $17::timestamptz[], $18::uuid[], $19::text[], $20::text[], $21::text[], $24::boolean[]",
    $array,
    ")
    AS u(id, type, payload, process_instance, execution, process_definition, element, tenant, category, deployment,
         priority, exclusive, retries, retry_policy, due_at, repeat, repeat_until, correlation_id, lane,
         custom_values, trace_parent, lane_named",
    $name,
    ") OFFSET 0) g
), executable AS (
    INSERT INTO jobwire.job (id, kind, type, payload, process_instance, execution, process_definition, element,
        tenant, category, deployment, priority, exclusive, retries, retry_policy, due_at, repeat, repeat_until,
        correlation_id, lane, custom_values, trace_parent, origin, hints, lane_named)
    SELECT id, ",
    $kind,
    ", type, payload::json,
        process_instance, execution, process_definition, element, tenant, category, deployment, its_priority, exclusive,
        retries, retry_policy, due_at, repeat, repeat_until, correlation_id, its_lane, custom_values::json, trace_parent,
        $22, $23, lane_named
    FROM given",
    $by_date,
    "
    ruled.ids, ruled.lanes
FROM (SELECT array_agg(id) AS ids, array_agg(its_lane) AS lanes FROM given
      WHERE lane IS NULL AND its_lane <> 'default') ruled"
)
    };
}

/// The kind of an executable job that is no history job.
macro_rules! message_or_timer {
    () => {
        "CASE WHEN due_at IS NULL AND repeat IS NULL THEN 'message' ELSE 'timer' END"
    };
}

const INSERT: &str = insert!(
    "",
    "",
    "'message'",
    message_or_timer!(),
    executable_or_timer!("'timer'")
);

/// Like [`INSERT`], for chunks without due dates. The server does not prepare the insertion of
/// timers.
const INSERT_READY: &str = insert!("", "", "'message'", message_or_timer!(), all_executable!());

/// Like [`INSERT`], for chunks with history jobs.
const INSERT_KINDS: &str = insert!(
    ", $26::text[]",
    ", kind",
    "u.kind",
    "kind",
    executable_or_timer!("kind")
);

/// Inserts jobs without due dates that are [alike](are_alike): they differ in their ids, payloads and
/// instances. Each array costs the server a scan of its own, so these jobs need three quarters of
/// the time of [`INSERT_READY`] (ten jobs), and one job without arrays four fifths of that again.
/// Without `RETURNING`, so that a role needs no right to read jobs.
macro_rules! insert_alike {
    ($id:literal, $payload:literal, $instance:literal, $from:literal) => {
        concat!(
    "
WITH given AS MATERIALIZED (
    SELECT g.its_priority, ",
    its_lane!("$19::text", "$5", "$10", "$9"),
    "
    FROM (SELECT ",
    its_priority!("$5", "$7", "$8", "$12::bigint", "$4"),
    " OFFSET 0) g
), executable AS (
    INSERT INTO jobwire.job (id, kind, type, payload, process_instance, execution, process_definition, element,
        tenant, category, deployment, priority, exclusive, retries, retry_policy, repeat, repeat_until,
        correlation_id, lane, custom_values, trace_parent, origin, hints, lane_named)
    SELECT ",
    $id,
    ", $4::text, $5::text, ",
    $payload,
    "::json, ",
    $instance,
    ", $6::text, $7::text, $8::text, $9::text, $10::text,
        $11::text, its_priority, $13::boolean, $14::integer, $15::text, $16::text, $17::timestamptz,
        coalesce($18::uuid, ",
    $id,
    "), its_lane, $20::text::json, $21::text, $22::text, $23::integer, $24::boolean
    FROM given",
    $from,
    "
)
SELECT pg_current_xact_id()::text, its_lane FROM given"
        )
    };
}

/// The usual transaction creates one job.
const INSERT_ONE: &str = insert_alike!("$1::uuid", "$2::text", "$3::text", "");

const INSERT_ALIKE: &str = insert_alike!(
    "u.id",
    "u.payload",
    "u.process_instance",
    ", unnest($1::uuid[], $2::text[], $3::text[]) AS u(id, payload, process_instance)"
);

/// Inserts jobs over a connection that is inside the caller's transaction.
pub(super) async fn insert(
    connection: &mut PgConnection,
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
    for chunk in jobs.chunks(ROWS) {
        let inserted = match chunk {
            [first, others @ ..] if are_alike(first, others) => {
                insert_alike(connection, first, chunk, origin).await?
            }
            _ => insert_chunk(connection, chunk, origin).await?,
        };
        created.merge(inserted);
    }
    Ok(created)
}

/// Returns the values that a statement for jobs that are [alike](are_alike) binds once.
fn shared(job: &NewJob) -> impl PartialEq {
    let names = (
        &job.job_type,
        &job.execution,
        &job.process_definition,
        &job.element,
        &job.tenant,
        &job.category,
        &job.deployment,
        &job.retry_policy,
        &job.repeat,
        &job.lane,
        &job.trace_parent,
    );
    let values = (
        job.kind(),
        job.priority,
        job.is_exclusive(),
        job.attempts(),
        job.repeat_until,
        job.correlation_id,
        job.custom_values.as_ref().map(|values| values.get()),
        job.lane_is_named(),
        job.is_copy,
    );
    (names, values)
}

/// Returns whether jobs have no due date and differ only in their ids, payloads and instances.
fn are_alike(first: &NewJob, others: &[NewJob]) -> bool {
    let is_like_first = |job: &NewJob| job.due_at.is_none() && shared(job) == shared(first);
    first.due_at.is_none() && others.iter().all(is_like_first)
}

/// Returns a text of each job.
fn texts<'a>(
    jobs: &'a [NewJob],
    field: impl Fn(&'a NewJob) -> Option<&'a str>,
) -> Vec<Option<&'a str>> {
    jobs.iter().map(field).collect()
}

fn payload(job: &NewJob) -> Option<&str> {
    job.payload.as_ref().ok().map(|payload| payload.get())
}

/// Inserts jobs that are [alike](are_alike).
async fn insert_alike(
    connection: &mut PgConnection,
    first: &NewJob,
    jobs: &[NewJob],
    origin: Origin,
) -> Result<Created, StoreError> {
    let query = if jobs.len() == 1 {
        sqlx::query(INSERT_ONE)
            .bind(first.id.0)
            .bind(payload(first))
            .bind(&first.process_instance)
    } else {
        sqlx::query(INSERT_ALIKE)
            .bind(jobs.iter().map(|job| job.id.0).collect::<Vec<_>>())
            .bind(texts(jobs, payload))
            .bind(texts(jobs, |job| job.process_instance.as_deref()))
    };
    let row = query
        .bind(first.kind().as_str())
        .bind(&first.job_type)
        .bind(&first.execution)
        .bind(&first.process_definition)
        .bind(&first.element)
        .bind(&first.tenant)
        .bind(&first.category)
        .bind(&first.deployment)
        .bind(first.priority)
        .bind(first.is_exclusive())
        .bind(first.attempts())
        .bind(&first.retry_policy)
        .bind(&first.repeat)
        .bind(first.repeat_until)
        .bind(first.correlation_id)
        .bind(first.lane.as_ref().map(|lane| &*lane.0))
        .bind(first.custom_values.as_ref().map(|values| values.get()))
        .bind(&first.trace_parent)
        .bind(origin.as_str())
        .bind(hints_of(origin))
        .bind(first.lane_is_named())
        // An occurrence keeps the priority of the one before it.
        .bind(!first.is_copy)
        .fetch_one(connection)
        .await?;
    let ruled = match first.lane {
        Some(_) => None,
        None => Some(Lane(row.try_get(1)?)),
    };
    Ok(Created {
        witness: Some(first.id),
        ready: jobs
            .iter()
            .map(|job| Ready::of(job, ruled.clone()))
            .collect(),
        transaction: Some(TransactionId(row.try_get(0)?)),
        ..Created::default()
    })
}

/// The hints that a new row counts: the commit hook's own one, since the sweeper looks for jobs
/// without a hint.
fn hints_of(origin: Origin) -> i32 {
    i32::from(origin == Origin::Hook)
}

async fn insert_chunk(
    connection: &mut PgConnection,
    jobs: &[NewJob],
    origin: Origin,
) -> Result<Created, StoreError> {
    let ids: Vec<Uuid> = jobs.iter().map(|j| j.id.0).collect();
    let has_history = jobs.iter().any(|job| job.is_history);
    let statement = if has_history {
        INSERT_KINDS
    } else if jobs.iter().all(|job| job.due_at.is_none()) {
        INSERT_READY
    } else {
        INSERT
    };
    let query = sqlx::query(statement)
        .bind(&ids)
        .bind(texts(jobs, |j| Some(&j.job_type)))
        .bind(texts(jobs, payload))
        .bind(texts(jobs, |j| j.process_instance.as_deref()))
        .bind(texts(jobs, |j| j.execution.as_deref()))
        .bind(texts(jobs, |j| j.process_definition.as_deref()))
        .bind(texts(jobs, |j| j.element.as_deref()))
        .bind(texts(jobs, |j| j.tenant.as_deref()))
        .bind(texts(jobs, |j| j.category.as_deref()))
        .bind(texts(jobs, |j| j.deployment.as_deref()))
        .bind(jobs.iter().map(|j| j.priority).collect::<Vec<_>>())
        .bind(jobs.iter().map(NewJob::is_exclusive).collect::<Vec<_>>())
        .bind(jobs.iter().map(NewJob::attempts).collect::<Vec<_>>())
        .bind(texts(jobs, |j| j.retry_policy.as_deref()))
        .bind(jobs.iter().map(|j| j.due_at).collect::<Vec<_>>())
        .bind(texts(jobs, |j| j.repeat.as_deref()))
        .bind(jobs.iter().map(|j| j.repeat_until).collect::<Vec<_>>())
        .bind(
            jobs.iter()
                .map(|j| j.correlation_id.unwrap_or(j.id.0))
                .collect::<Vec<_>>(),
        )
        .bind(texts(jobs, |j| j.lane.as_ref().map(|l| &*l.0)))
        .bind(texts(jobs, |j| j.custom_values.as_ref().map(|v| v.get())))
        .bind(texts(jobs, |j| j.trace_parent.as_deref()))
        .bind(origin.as_str())
        .bind(hints_of(origin))
        .bind(jobs.iter().map(NewJob::lane_is_named).collect::<Vec<_>>())
        // An occurrence keeps the priority of the one before it.
        .bind(!jobs.iter().any(|job| job.is_copy));
    let query = if has_history {
        query.bind(jobs.iter().map(|j| j.kind().as_str()).collect::<Vec<_>>())
    } else {
        query
    };
    let row = query.fetch_one(connection).await?;
    let timers: Option<Vec<Uuid>> = row.try_get(1)?;
    let timers: HashSet<Uuid> = timers.into_iter().flatten().collect();
    let ids: Option<Vec<Uuid>> = row.try_get(3)?;
    let lanes: Option<Vec<String>> = row.try_get(4)?;
    let lanes = ids.into_iter().flatten().zip(lanes.into_iter().flatten());
    let mut ruled: HashMap<Uuid, Lane> = lanes.map(|(id, lane)| (id, Lane(lane))).collect();
    // A timer is the better witness, because a ready job may be done by then.
    let witness = timers.iter().next().copied().map(JobId);
    Ok(Created {
        witness: witness.or_else(|| jobs.first().map(|job| job.id)),
        ready: jobs
            .iter()
            .filter(|j| !timers.contains(&j.id.0))
            .map(|j| Ready::of(j, ruled.remove(&j.id.0)))
            .collect(),
        timer: row.try_get::<Option<DateTime<Utc>>, _>(2)?,
        transaction: Some(TransactionId(row.try_get(0)?)),
        ..Created::default()
    })
}

//! `jobs show`.

use jobwire_core::store::attempts::{AttemptView, Incident};
use jobwire_core::{JobId, Store, telemetry::plain};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::history;
use super::list::{Listed, Waiting};
use super::operate::no_such_job;
use crate::error::Error;
use crate::output;

const ALL: usize = usize::MAX;

/// The fields of a line of `jobs list`, and further fields.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    view: Listed,
    revision: i32,
    category: Option<String>,
    deployment: Option<String>,
    retry_policy: Option<String>,
    repeat: Option<String>,
    repeat_until: Option<chrono::DateTime<chrono::Utc>>,
    trace_parent: Option<String>,
    payload: Value,
    custom_values: Option<Value>,
    checkpoint: Option<Value>,
    stack: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<History>,
}

/// The records of the job.
#[derive(Serialize)]
struct History {
    attempts: Vec<AttemptView>,
    incidents: Vec<Incident>,
}

pub(super) async fn show(
    store: &dyn Store,
    id: JobId,
    with_history: bool,
    json: bool,
) -> Result<(), Error> {
    let Some((view, job, stack)) = store.get(id).await? else {
        return Err(no_such_job(id));
    };
    let checkpoint = match view.checkpoint_at {
        Some(_) => store.checkpoint(id).await?,
        None => None,
    };
    let waiting = Waiting::of(store, std::slice::from_ref(&view)).await?;
    let history = match with_history {
        true => Some(History {
            attempts: history::read(store, id).await?,
            incidents: store.incidents(&history::of(id)).await?,
        }),
        false => None,
    };
    let mut shown = Shown {
        view: Listed::new(view, &waiting),
        revision: job.revision,
        category: job.category,
        deployment: job.deployment,
        retry_policy: job.retry_policy,
        repeat: job.repeat,
        repeat_until: job.repeat_until,
        trace_parent: job.trace_parent,
        payload: parsed(&job.payload),
        custom_values: job.custom_values.as_deref().map(parsed),
        checkpoint: checkpoint
            .map(|text| serde_json::from_str(&text).unwrap_or(Value::String(text))),
        stack,
        history,
    };
    if json {
        return output::json(&shown);
    }
    let history = shown.history.take();
    let fields = serde_json::to_value(&shown)
        .map_err(|e| Error::Failed(format!("the job can't be shown: {e}")))?;
    let Value::Object(fields) = fields else {
        return Ok(());
    };
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        match value {
            // Each line of the stack is indented past the column of names, so that none looks like
            // a field.
            Value::String(text) if name == "stack" => {
                for (at, line) in text.lines().enumerate() {
                    let name = if at == 0 { name } else { "" };
                    output::line(format_args!("{name:<20}{}", plain::one_line(line, ALL)))?;
                }
            }
            Value::String(text) => {
                output::line(format_args!("{name:<20}{}", plain::one_line(text, ALL)))?;
            }
            other => output::line(format_args!(
                "{name:<20}{}",
                plain::one_line(&other.to_string(), ALL)
            ))?,
        }
    }
    let Some(history) = history else {
        return Ok(());
    };
    output::line("")?;
    history::attempts_table(id, history.attempts)?;
    if !history.incidents.is_empty() {
        output::line("")?;
        history::incidents_table(history.incidents)?;
    }
    Ok(())
}

/// Parses JSON; text that is not JSON becomes a string.
fn parsed(raw: &RawValue) -> Value {
    serde_json::from_str(raw.get()).unwrap_or_else(|_| Value::String(raw.get().to_owned()))
}

//! The job of a schedule or of a batch's end as text: the fields that the created job gets.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::job::Lane;
use crate::job::new_job::{InvalidJob, NewJob};

/// The fields of a job, named as in the job table. It has no id and no date: each occurrence has
/// its own.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Template {
    r#type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process_instance: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exclusive: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retries: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lane: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    execution: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process_definition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    element: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    category: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deployment: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    custom_values: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_parent: Option<String>,
}

/// Writes the fields of a job as a JSON object.
///
/// # Errors
/// [`InvalidJob`] for an invalid field, or for a date: each occurrence gets its own.
pub(crate) fn write(job: &NewJob) -> Result<String, InvalidJob> {
    job.validate()?;
    if let Some(field) = dates(job).next() {
        return Err(InvalidJob::new(
            field,
            "is set in the job of a schedule",
            "leave it out: the schedule has the dates",
        ));
    }
    if job.batch.is_some() {
        return Err(InvalidJob::new(
            "batch",
            "is set in the job of a schedule",
            "leave it out: let the job create a batch when it runs",
        ));
    }
    if job.is_history {
        return Err(InvalidJob::new(
            "kind",
            "is `history` in the job of a schedule",
            "leave it out: a history job is created with the work that it describes",
        ));
    }
    if job.unique.is_some() {
        return Err(InvalidJob::new(
            "unique_key",
            "is set in the job of a schedule",
            "leave it out: the name of the schedule makes its jobs unique",
        ));
    }
    fields(job.clone())
}

/// Writes the fields of the job at the end of a batch as a JSON object.
///
/// # Errors
/// [`InvalidJob`] for an invalid field, or one that such a job can't have.
pub(crate) fn of_batch(job: &NewJob) -> Result<String, InvalidJob> {
    job.validate()?;
    let others = [
        // The end is made with the rights of a node.
        ("type", is_own(&job.job_type)),
        ("unique_key", job.unique.is_some()),
        ("kind", job.is_history),
    ];
    let others = others.into_iter().filter(|(_, is_set)| *is_set);
    let mut wrong = dates(job).chain(others.map(|(field, _)| field));
    if let Some(field) = wrong.next() {
        return Err(InvalidJob::new(
            field,
            "can't be so in the job at the end of a batch",
            "leave it out, or let that job create another one",
        ));
    }
    let values = job
        .custom_values
        .as_deref()
        .map(|values| values.get().trim());
    if values.is_some_and(|values| values != "null" && !values.starts_with('{')) {
        return Err(InvalidJob::new(
            "custom_values",
            "of the job at the end of a batch are no object",
            "make them an object: they get the account of the batch",
        ));
    }
    let mut job = job.clone();
    job.complete()?;
    fields(job)
}

/// Returns whether a type is one of the built-in ones, for which a creator needs more rights.
pub(crate) fn is_own(job_type: &str) -> bool {
    job_type.starts_with("jobwire.")
}

/// Returns the date fields that are set.
fn dates(job: &NewJob) -> impl Iterator<Item = &'static str> {
    let dates = [
        ("due_at", job.due_at.is_some()),
        ("due_in", job.due_in.is_some()),
        ("repeat", job.repeat.is_some()),
        ("repeat_until", job.repeat_until.is_some()),
    ];
    let set = dates.into_iter().filter(|(_, is_set)| *is_set);
    set.map(|(field, _)| field)
}

fn fields(job: NewJob) -> Result<String, InvalidJob> {
    let tagged = job.tagged_values()?;
    let template = Template {
        r#type: job.job_type,
        payload: job.payload.ok(),
        process_instance: job.process_instance,
        exclusive: job.exclusive,
        retries: job.retries,
        retry_policy: job.retry_policy,
        priority: job.priority,
        lane: job.lane.map(|lane| lane.0),
        execution: job.execution,
        process_definition: job.process_definition,
        element: job.element,
        tenant: job.tenant,
        category: job.category,
        deployment: job.deployment,
        correlation_id: job.correlation_id,
        custom_values: tagged.or(job.custom_values),
        trace_parent: job.trace_parent,
    };
    serde_json::to_string(&template).map_err(|error| {
        InvalidJob::new(
            "payload",
            format!("does not serialise to JSON: {error}"),
            "give a value that does",
        )
    })
}

/// Reads the fields of a job, as a new job with its own id. Fields that this program does not know
/// are left out.
///
/// # Errors
/// The message of the JSON parser.
pub(crate) fn read(text: &str) -> Result<NewJob, String> {
    let template: Template = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let payload = template
        .payload
        .unwrap_or_else(|| RawValue::NULL.to_owned());
    let mut job = NewJob::with_json(template.r#type, payload);
    job.process_instance = template.process_instance;
    job.exclusive = template.exclusive;
    job.retries = template.retries;
    job.retry_policy = template.retry_policy;
    job.priority = template.priority;
    job.lane = template.lane.map(Lane::unchecked);
    job.execution = template.execution;
    job.process_definition = template.process_definition;
    job.element = template.element;
    job.tenant = template.tenant;
    job.category = template.category;
    job.deployment = template.deployment;
    job.correlation_id = template.correlation_id;
    job.custom_values = template.custom_values;
    job.trace_parent = template.trace_parent;
    Ok(job)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_a_job_comes_back_and_dates_are_refused() {
        let correlation = Uuid::from_u128(17);
        let job = NewJob::of("work", &serde_json::json!({"n": [1, 2.50]}))
            .instance("order-17")
            .execution("e")
            .process_definition("d")
            .element("l")
            .tenant("t")
            .category("c")
            .deployment("y")
            .concurrent()
            .priority(-7)
            .max_attempts(4)
            .retry_policy_text("R5/PT5M")
            .correlation_id(correlation)
            .lane("bulk")
            .tag("red")
            .custom_values(RawValue::from_string(r#"{"a":1.50}"#.to_owned()).unwrap())
            .trace_parent("00-1");
        let text = write(&job).unwrap();
        let read = read(&text).unwrap();
        assert_ne!(read.id(), job.id());
        assert_eq!(write(&read).unwrap(), text);
        for part in [
            "2.5", "1.50", "order-17", "R5/PT5M", "bulk", "-7", "00-1", "red",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let later = r#"{"type":"work","of_a_later_program":[1]}"#;
        assert_eq!(self::read(later).unwrap().job_type, "work");
        assert!(self::read("[").is_err());
        for dated in [
            NewJob::of("work", &()).repeat_text("R/PT1H"),
            NewJob::of("work", &()).due(chrono::Utc::now()),
        ] {
            assert!(write(&dated).is_err());
        }
        assert!(write(&NewJob::of("", &())).is_err());
    }
}

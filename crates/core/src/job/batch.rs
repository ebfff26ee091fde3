//! Batches: jobs whose common end creates another job.
//!
//! A job knows its batch by the field `$batch` of its custom values, and the job at the end of a
//! batch has the account of the batch in the field `$batch_end`. So a job without a batch costs
//! nothing more.

use std::fmt::Write as _;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::job::invalid_job::InvalidJob;
use crate::job::new_job::{MAX_PAYLOAD_BYTES, NewJob};
use crate::job::{BatchId, Job, JobId, template, text_enum};

/// The field of a member, and that of the job at the end.
const BATCH: &str = "$batch";
const BATCH_END: &str = "$batch_end";
/// The maximum size of the name of a batch, in bytes.
pub const MAX_BATCH_NAME_BYTES: usize = 256;
/// The room for the account in the custom values of the job at the end.
const ROOM: usize = 4096;

/// A batch to be created with [`JobTransaction::create_batch`](crate::JobTransaction::create_batch):
/// its first jobs, and the job that is created when all its jobs have ended.
///
/// | option | meaning | default |
/// | --- | --- | --- |
/// | [`job`](Self::job), [`jobs`](Self::jobs) | the first members | none |
/// | [`then`](Self::then) | the job that is created at the end | none |
/// | [`or_dead_letters`](Self::or_dead_letters) | dead letters count as ended | they keep the batch open |
///
/// ```
/// use jobwire_core::{Batch, NewJob};
///
/// let import = Batch::named("import")
///     .jobs((0..100).map(|row| NewJob::of("import-row", &row)))
///     .then(NewJob::of("import-report", &()));
/// # assert!(import.check().is_ok());
/// ```
///
/// A member ends when it is done, cancelled or deleted, in whatever way its row leaves the tables of
/// jobs. The job at the end is created exactly once, and reads the account of the batch with
/// [`Job::batch_end`].
///
/// A batch grows while it is open: [`NewJob::batch`] adds a job. Members add jobs safely, since
/// their batch can't end before they do. A batch without members ends, so create it together with
/// its first jobs.
#[derive(Clone, Debug)]
#[must_use = "a batch does nothing until it is created in a transaction"]
pub struct Batch {
    pub(crate) id: BatchId,
    pub(crate) name: String,
    pub(crate) then: Option<NewJob>,
    pub(crate) or_dead_letters: bool,
    pub(crate) jobs: Vec<NewJob>,
}

impl Batch {
    /// Creates a batch with this name, of 1 to 256 bytes. Several batches may have one name.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            id: BatchId::generate(),
            name: name.into(),
            then: None,
            or_dead_letters: false,
            jobs: Vec::new(),
        }
    }

    /// Returns the id.
    #[must_use]
    pub fn id(&self) -> BatchId {
        self.id
    }

    /// Sets the job that is created when all members have ended, in the transaction that ends the
    /// batch. It may be a member of [another batch](NewJob::batch), which then stays open until it
    /// has ended. It has no due date, does not repeat, has no unique key, and is no history job.
    pub fn then(mut self, job: NewJob) -> Self {
        self.then = Some(job);
        self
    }

    /// Lets dead letters count as ended. By default a dead letter keeps its batch open until an
    /// operator retries or deletes it.
    pub fn or_dead_letters(mut self) -> Self {
        self.or_dead_letters = true;
        self
    }

    /// Adds a member.
    pub fn job(mut self, job: NewJob) -> Self {
        self.jobs.push(job);
        self
    }

    /// Adds members.
    pub fn jobs(mut self, jobs: impl IntoIterator<Item = NewJob>) -> Self {
        self.jobs.extend(jobs);
        self
    }

    /// Checks the name and the job at the end.
    ///
    /// # Errors
    /// [`InvalidJob`] with the field and the remedy.
    pub fn check(&self) -> Result<(), InvalidJob> {
        self.template().map(drop)
    }

    /// Returns the fields of the job at the end, as text.
    pub(crate) fn template(&self) -> Result<Option<String>, InvalidJob> {
        if self.name.is_empty()
            || self.name.len() > MAX_BATCH_NAME_BYTES
            || self.name.contains('\0')
        {
            return Err(InvalidJob::new(
                "name",
                format!("of the batch has {} bytes", self.name.len()),
                "give it 1 to 256 bytes, without NUL",
            ));
        }
        let Some(job) = &self.then else {
            return Ok(None);
        };
        let text = template::of_batch(job)?;
        if text.len() + ROOM > MAX_PAYLOAD_BYTES {
            return Err(InvalidJob::new(
                "then",
                format!("has {} bytes of JSON", text.len()),
                "store the data apart and put its key here",
            ));
        }
        Ok(Some(text))
    }
}

/// The account of a batch that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BatchEnd {
    /// The batch.
    pub batch: BatchId,
    /// Its name.
    pub name: String,
    /// The number of its members.
    pub members: u64,
    /// The number of members that were dead letters at the end. Zero without
    /// [`Batch::or_dead_letters`].
    pub dead_letters: u64,
}

text_enum! {
    /// The state of a batch.
    BatchState {
        /// Members are present.
        Open = "open",
        /// All members have ended, and the job at the end was created.
        Ended = "ended",
        /// An operator has cancelled it.
        Cancelled = "cancelled",
    }
}

impl BatchState {
    /// Returns the state of a batch by its row.
    pub(crate) fn of(has_ended: bool, is_cancelled: bool) -> Self {
        match (has_ended, is_cancelled) {
            (false, _) => Self::Open,
            (true, false) => Self::Ended,
            (true, true) => Self::Cancelled,
        }
    }
}

/// A batch, for lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BatchView {
    /// The batch.
    pub id: BatchId,
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: BatchState,
    /// The number of members so far.
    pub members: u64,
    /// The number of members that are done, cancelled or deleted.
    pub ended: u64,
    /// The number of members that are dead letters now, or were at the end.
    pub dead_letters: u64,
    /// Whether dead letters count as ended.
    pub or_dead_letters: bool,
    /// The id of the job that the end creates. The job exists only after the end, and only if the
    /// batch has one.
    pub callback: JobId,
    /// The time of creation.
    pub created_at: DateTime<Utc>,
    /// Why the job at the end was not created: a job with its id existed already. The batch has
    /// ended without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Why this program can't create the job at the end of this open batch: its fields are not valid.
    /// Lists look only at fields of up to 20,000 bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// The time of the end, or of the cancel.
    pub ended_at: Option<DateTime<Utc>>,
}

impl Job {
    /// Returns the [batch](crate::NewJob::batch) of the job.
    #[must_use]
    pub fn batch(&self) -> Option<BatchId> {
        of(self.custom_values.as_deref().map(RawValue::get))
    }

    /// Returns the account of the batch whose end has created this job.
    #[must_use]
    pub fn batch_end(&self) -> Option<BatchEnd> {
        #[derive(Deserialize)]
        struct Ended {
            #[serde(rename = "$batch_end")]
            end: BatchEnd,
        }
        let values = self.custom_values.as_deref().map(RawValue::get);
        let values = values.filter(|values| values.contains(BATCH_END))?;
        Some(serde_json::from_str::<Ended>(values).ok()?.end)
    }
}

/// Returns the batch that custom values name. Values of another form name none.
pub(crate) fn of(values: Option<&str>) -> Option<BatchId> {
    #[derive(Deserialize)]
    struct Member {
        #[serde(rename = "$batch")]
        batch: BatchId,
    }
    let values = values.filter(|values| values.contains(BATCH))?;
    Some(serde_json::from_str::<Member>(values).ok()?.batch)
}

/// Adds the batch of a member to its custom values.
///
/// # Errors
/// [`InvalidJob`]: the custom values are no object, or name another batch.
pub(crate) fn add(
    values: Option<&RawValue>,
    batch: BatchId,
) -> Result<Option<Box<RawValue>>, InvalidJob> {
    match of(values.map(RawValue::get)) {
        Some(named) if named == batch => Ok(None),
        Some(_) => Err(InvalidJob::new(
            "batch",
            "is set, and the custom values name another one as `$batch`",
            "leave one of them out",
        )),
        None => with_field(values, BATCH, &format!("\"{batch}\"")).map(Some),
    }
}

/// Adds the account of a batch to the custom values of the job at its end.
pub(crate) fn add_end(
    values: Option<&RawValue>,
    end: &BatchEnd,
) -> Result<Box<RawValue>, InvalidJob> {
    let text = serde_json::to_string(end).unwrap_or_else(|_| "null".to_owned());
    with_field(values, BATCH_END, &text)
}

/// Copies the batch, and the account of an ended one, from custom values to others.
pub(crate) fn carry(from: &str, to: String) -> String {
    if !from.contains(BATCH) {
        return to;
    }
    #[derive(Deserialize)]
    struct Fields<'a> {
        #[serde(rename = "$batch", borrow)]
        batch: Option<&'a RawValue>,
        #[serde(rename = "$batch_end", borrow)]
        end: Option<&'a RawValue>,
    }
    let Ok(fields) = serde_json::from_str::<Fields<'_>>(from) else {
        return to;
    };
    let mut text = to;
    for (name, value) in [(BATCH, fields.batch), (BATCH_END, fields.end)] {
        let Some(value) = value else { continue };
        if let Ok(values) = RawValue::from_string(text.clone())
            && let Ok(more) = with_field(Some(&values), name, value.get())
        {
            text = String::from(Box::<str>::from(more));
        }
    }
    text
}

/// Adds a field at the end of custom values, because the first key tells whether they are
/// encrypted.
fn with_field(
    values: Option<&RawValue>,
    name: &str,
    json: &str,
) -> Result<Box<RawValue>, InvalidJob> {
    let wrong = |problem: String, remedy| InvalidJob::new("batch", problem, remedy);
    let mut text = "{".to_owned();
    if let Some(values) = values.map(|values| values.get().trim())
        && values != "null"
    {
        let inner = values
            .strip_prefix('{')
            .and_then(|values| values.strip_suffix('}'));
        let Some(inner) = inner else {
            return Err(wrong(
                "is set beside custom values that are no object".to_owned(),
                "make the custom values an object",
            ));
        };
        let comma = if inner.trim().is_empty() { "" } else { "," };
        text = format!("{{{inner}{comma}");
    }
    let _ = write!(text, "\"{name}\":{json}}}");
    RawValue::from_string(text).map_err(|error| {
        wrong(
            format!("can't be added to the custom values: {error}"),
            "give custom values that are JSON",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).expect("JSON")
    }

    #[test]
    fn a_member_names_its_batch_in_its_custom_values() {
        let id = BatchId::generate();
        for values in [None, Some("null"), Some("{ }"), Some(r#"{"n":1.50}"#)] {
            let values = values.map(raw);
            let with = add(values.as_deref(), id).unwrap().expect("a change");
            assert_eq!(of(Some(with.get())), Some(id), "{}", with.get());
            assert!(add(Some(&with), id).unwrap().is_none(), "once");
            assert!(add(Some(&with), BatchId::generate()).is_err());
        }
        assert!(add(Some(&raw("[1]")), id).is_err());
        for other in [r#"{"$batch":1}"#, r#"["$batch"]"#, "{}"] {
            assert_eq!(of(Some(other)), None, "{other}");
        }
    }

    #[test]
    fn the_fields_of_a_batch_are_carried_to_opened_values() {
        let id = BatchId::generate();
        let end = BatchEnd {
            batch: id,
            name: "a \"b\"".to_owned(),
            members: 3,
            dead_letters: 1,
        };
        let sealed = add(Some(&raw(r#"{"$sealed":{}}"#)), id).unwrap().unwrap();
        let sealed = add_end(Some(&sealed), &end).unwrap();
        let opened = carry(sealed.get(), r#"{"own":1}"#.to_owned());
        assert_eq!(of(Some(&opened)), Some(id));
        assert!(opened.starts_with(r#"{"own":1,"#), "{opened}");
        assert!(opened.contains(r#""members":3"#), "{opened}");
        assert_eq!(carry("{}", "[1]".to_owned()), "[1]");
    }

    #[test]
    fn a_batch_that_can_not_end_is_refused_at_its_creation() {
        let batch = |then: NewJob| Batch::named("b").then(then).check();
        assert!(batch(NewJob::of("end", &())).is_ok());
        for then in [
            NewJob::of("", &()),
            NewJob::of("jobwire.bulk", &()),
            NewJob::of("end", &()).repeat_text("R/PT1H"),
            NewJob::of("end", &()).due(Utc::now()),
            NewJob::of("end", &()).unique("k"),
            NewJob::of("end", &()).history(),
            NewJob::of("end", &()).custom_values(raw("[1]")),
            NewJob::of("end", &"x".repeat(MAX_PAYLOAD_BYTES - 100)),
        ] {
            let said = batch(then).unwrap_err().to_string();
            assert!(said.contains(';'), "{said}");
        }
        assert!(Batch::named("").check().is_err());
        assert!(Batch::named("x".repeat(257)).check().is_err());
        let repeats = NewJob::of("a", &()).repeat_text("R/PT1H");
        assert!(repeats.batch(BatchId::generate()).validate().is_err());
    }
}

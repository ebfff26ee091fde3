//! The checks that a new job must pass.
//!
//! The tables check lengths, sizes and ranges too (migration 0002), for writers that do not use the
//! library. This code and `jobwire.create_job` check with the same messages: a test compares them.
//! Of `repeat`, `jobwire.create_job` checks the form only. This code also reads what stands in it:
//! suffixes in brackets, dates, the numbers of calendar periods and the fields of cron expressions.

use chrono::{DateTime, Datelike, Utc};
use serde_json::value::RawValue;

use crate::job::Lane;
use crate::job::calendar::Calendars;
use crate::job::invalid_job::InvalidJob;
use crate::job::new_job::NewJob;
use crate::job::repeat::Repeat;
use crate::job::retry::RetryPolicy;
use crate::job::{batch, series, tags};

/// The maximum size of a payload and of custom values, in bytes of JSON. Store larger data in
/// another table and its key in the payload, because every lock reads the payload.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 20;
/// The maximum size of the other text fields, in bytes.
pub const MAX_FIELD_BYTES: usize = 1024;
/// The maximum of the failures, hints and changes that a row counts. Counting stops there.
pub(crate) const MAX_COUNT: i32 = 1_000_000_000;

impl NewJob {
    /// Checks every field.
    ///
    /// # Errors
    /// [`InvalidJob`] for the first invalid field, with the remedy.
    pub fn validate(&self) -> Result<(), InvalidJob> {
        if self.is_copy {
            return Ok(());
        }
        let payload = self.payload.as_ref().map_err(|e| {
            InvalidJob::new(
                "payload",
                format!("does not serialise to JSON: {e}"),
                "give a value that does",
            )
        })?;
        json("payload", payload.get())?;
        let tagged = self.tagged_values()?;
        if let Some(values) = tagged.as_deref().or(self.custom_values.as_deref()) {
            json("custom_values", values.get())?;
        }
        if self.job_type.is_empty() {
            return Err(InvalidJob::new(
                "type",
                "is empty",
                "name the handler type that runs this job",
            ));
        }
        text("type", &self.job_type)?;
        for (field, value) in [
            ("process_instance", &self.process_instance),
            ("execution", &self.execution),
            ("process_definition", &self.process_definition),
            ("element", &self.element),
            ("tenant", &self.tenant),
            ("category", &self.category),
            ("deployment", &self.deployment),
            ("retry_policy", &self.retry_policy),
            ("due_in", &self.due_in),
            ("repeat", &self.repeat),
            ("trace_parent", &self.trace_parent),
        ] {
            if let Some(value) = value {
                text(field, value)?;
            }
        }
        if self.exclusive == Some(true) && self.process_instance.is_none() {
            return Err(InvalidJob::new(
                "exclusive",
                "is set without a process instance",
                "give `process_instance`: without one there is nothing to exclude",
            ));
        }
        for (field, date) in [("due_at", self.due_at), ("repeat_until", self.repeat_until)] {
            if date.is_some_and(|date| !(1..=262_142).contains(&date.year())) {
                return Err(InvalidJob::new(
                    field,
                    "is not within the years 1 to 262142",
                    "give a date of these years, or none",
                ));
            }
        }
        if self.repeat_until.is_some() && self.repeat.is_none() {
            return Err(InvalidJob::new(
                "repeat_until",
                "is set without `repeat`",
                "give `repeat`, or leave it out: it ends a series and is no expiry of one job",
            ));
        }
        if let Some(retries) = self.retries.filter(|retries| *retries < 1) {
            return Err(InvalidJob::new(
                "retries",
                format!("is {retries}"),
                "give 1 or more: the first attempt counts",
            ));
        }
        if self.lane.as_ref().is_some_and(|l| !Lane::is_valid(&l.0)) {
            return Err(InvalidJob::new(
                "lane",
                "is not a lane's name",
                "use 1 to 64 letters, digits, `-`, `_` or `.`",
            ));
        }
        if let Some(Err(e)) = self.retry_policy.as_deref().map(RetryPolicy::parse) {
            return Err(InvalidJob::new(
                "retry_policy",
                e.to_string(),
                "use for example `30s`, `exponential(1s, 2, 1h)`, `R5/PT5M` or `PT10M,PT17M`",
            ));
        }
        if self.is_history && self.repeat.is_some() {
            return Err(InvalidJob::new(
                "repeat",
                "is set for a history job",
                "leave it out: history is written once",
            ));
        }
        if let Some(unique) = &self.unique {
            unique.validate()?;
            if self.repeat.is_some() {
                return Err(InvalidJob::new(
                    "unique_key",
                    "is set for a job that repeats",
                    "leave one of them out: each occurrence is a job of its own",
                ));
            }
        }
        self.check_due_in()?;
        if let Some(id) = self.batch {
            if self.repeat.is_some() {
                return Err(InvalidJob::new(
                    "batch",
                    "is set for a job that repeats",
                    "leave one of them out: a batch waits for the end of each job",
                ));
            }
            batch::add(self.custom_values.as_deref(), id)?;
        }
        self.first_due().map(drop)
    }

    /// Returns the custom values with the tags, if there are some to add.
    pub(crate) fn tagged_values(&self) -> Result<Option<Box<RawValue>>, InvalidJob> {
        if self.tags.is_empty() {
            return Ok(None);
        }
        tags::add(self.custom_values.as_deref(), &self.tags)
    }

    /// Adds the tags and the batch to the custom values. Sets the due date of the first occurrence, if the job repeats by a schedule and has none.
    ///
    /// # Errors
    /// The same as those of [`validate`](Self::validate).
    pub(crate) fn complete(&mut self) -> Result<(), InvalidJob> {
        self.validate()?;
        if let Some(values) = self.tagged_values()? {
            self.custom_values = Some(values);
            self.tags.clear();
        }
        if let Some(id) = self.batch
            && let Some(values) = batch::add(self.custom_values.as_deref(), id)?
        {
            self.custom_values = Some(values);
        }
        if !self.is_copy {
            self.date(&Calendars::default())?;
            if let Some(first) = self.first_due()? {
                self.due_at = Some(first);
            }
        }
        Ok(())
    }

    /// Returns the due date that the schedule gives to a job without one.
    fn first_due(&self) -> Result<Option<DateTime<Utc>>, InvalidJob> {
        let Some(text) = &self.repeat else {
            return Ok(None);
        };
        let repeat = Repeat::parse(text).map_err(|error| InvalidJob::repeat(&error))?;
        if repeat.pending.is_some() {
            return Err(InvalidJob::new(
                "repeat",
                "has the suffix `[pending=…]`",
                "leave it out: Jobwire writes it",
            ));
        }
        series::fits(&repeat, text)?;
        // The first node that knows the calendar gives the date, unless the creator did.
        if self.due_at.is_some() || self.due_in.is_some() || repeat.calendar.is_some() {
            return Ok(None);
        }
        let first = repeat.first(Utc::now(), &Calendars::default());
        first.map_err(|error| InvalidJob::repeat(&error))
    }
}

fn json(field: &'static str, value: &str) -> Result<(), InvalidJob> {
    if value.len() > MAX_PAYLOAD_BYTES {
        return Err(InvalidJob::new(
            field,
            format!("has {} bytes, more than {MAX_PAYLOAD_BYTES}", value.len()),
            "store the data apart and put its key here",
        ));
    }
    if escapes_nul(value) {
        return Err(InvalidJob::new(
            field,
            "contains the NUL character \\u0000",
            "leave it out: databases can't store it as text",
        ));
    }
    Ok(())
}

/// Returns whether the JSON escapes NUL. After an escaped backslash, `u0000` is plain text.
fn escapes_nul(json: &str) -> bool {
    let backslashes_before = |at: usize| {
        let before = json.bytes().take(at).rev();
        before.take_while(|byte| *byte == b'\\').count()
    };
    json.match_indices("\\u0000")
        .any(|(at, _)| backslashes_before(at).is_multiple_of(2))
}

fn text(field: &'static str, value: &str) -> Result<(), InvalidJob> {
    if value.len() > MAX_FIELD_BYTES {
        return Err(InvalidJob::new(
            field,
            format!("has {} bytes, more than {MAX_FIELD_BYTES}", value.len()),
            "shorten it",
        ));
    }
    if value.contains('\0') {
        return Err(InvalidJob::new(
            field,
            "contains a NUL character",
            "leave it out",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_escaped_backslash_before_u0000_is_text() {
        for legal in [
            r#""\\u0000""#,
            r#""\\\\u0000 u0000 \u0001""#,
            r#"{"\\u0000":1}"#,
        ] {
            assert!(!escapes_nul(legal), "{legal}");
        }
        for nul in [r#""\u0000""#, r#""\\\u0000""#, r#"{"\\u0000":"\u0000"}"#] {
            assert!(escapes_nul(nul), "{nul}");
        }
        let text = serde_json::to_string("\\u0000").unwrap();
        assert!(!escapes_nul(&text), "{text}");
    }
}

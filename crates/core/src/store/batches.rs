//! Batches in the database: a row for each, with the job at the end as a template, and a row for each
//! member.
//!
//! A member is present as long as its job stands in a table of jobs. So no statement that ends a job
//! knows batches. Who notices that a member may have left asks for the end of its batch:
//!
//! * the node that has committed the outcome of a member, at once;
//! * the leader, with its cycles, for all open batches: members that were deleted, outcomes whose
//!   node died, and members that a program without batches completed.
//!
//! The end is one transaction. It locks the row of the batch alone, and looks for present members in
//! a later statement, so it sees all earlier commits. If one is left, it changes nothing.
//! Otherwise it creates the job and marks the batch as ended. Creators of members share the lock of
//! the row until their commit, so a batch does not end beside them.
//!
//! That transaction reads a bounded number of members. More than that are left only if members were
//! deleted unnoticed, or if dead letters count as ended. Then the leader forgets them first, page by
//! page, after it has seen that no member keeps the batch open.
//!
//! A batch ends without its job for one reason only: a job with the id of the job at the end exists
//! in a table of jobs. Then the row keeps that reason, and all fields of the job, in place of the
//! template. Any other error leaves the batch open: a trigger or a row may be corrected, and another
//! program may read what this one can't.
//!
//! The row of a batch is locked before all other rows.

use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::hint::Ready;
use crate::job::batch::{Batch, BatchEnd, add_end};
use crate::job::new_job::NewJob;
use crate::job::{BatchId, JobId, template};
use crate::store::error::StoreError;
use crate::telemetry::plain;

/// Maximum number of members that the transaction reads which ends a batch.
pub(crate) const AT_END: i64 = 5_000;
/// Maximum number of members that the row of a batch counts.
pub(super) const MOST_MEMBERS: i64 = 4_611_686_018_427_387_903;
/// Maximum length of the reason that the row of a batch keeps, in bytes.
const MOST_REASON: usize = 1_000;

/// A batch to be written.
#[derive(Clone, Debug)]
pub struct NewBatch {
    pub(crate) id: BatchId,
    pub(crate) name: String,
    pub(crate) callback_id: JobId,
    pub(crate) callback: Option<String>,
    pub(crate) or_dead_letters: bool,
    /// The batch that the job at the end is a member of.
    pub(crate) outer: Option<BatchId>,
}

impl NewBatch {
    /// Returns the row of a batch.
    ///
    /// # Errors
    /// [`StoreError::InvalidJob`]: the name or the job at the end.
    pub(crate) fn of(batch: &Batch) -> Result<Self, StoreError> {
        let then = batch.then.as_ref();
        let callback_id = then.map_or_else(JobId::generate, NewJob::id);
        let callback = batch.template().map_err(|source| StoreError::InvalidJob {
            id: callback_id,
            source,
        })?;
        Ok(Self {
            id: batch.id,
            name: batch.name.clone(),
            callback_id,
            callback,
            or_dead_letters: batch.or_dead_letters,
            outer: then.and_then(|job| job.batch),
        })
    }
}

/// A batch that has ended just now.
#[derive(Debug)]
pub struct EndedBatch {
    /// Its account.
    pub end: BatchEnd,
    /// The job at the end. The caller hints it.
    pub ready: Vec<Ready>,
    /// Its id, unless the batch has none.
    pub job: Option<JobId>,
    /// Why the job at the end was refused.
    pub refused: Option<String>,
}

/// A page of open batches.
#[derive(Debug, Default)]
pub struct OpenBatches {
    /// The number of batches in the page.
    pub number: usize,
    /// Those without a present member among their latest ones: they are perhaps over.
    pub over: Vec<BatchId>,
    /// The place at which the next page begins, unless this is the last one.
    pub next: Option<BatchId>,
}

impl OpenBatches {
    /// Returns the page of these batches, each with whether it is perhaps over.
    pub(super) fn of(page: &[(BatchId, bool)], at_most: i64) -> Self {
        let is_full = i64::try_from(page.len()).is_ok_and(|found| found >= at_most);
        let over = page.iter().filter(|(_, is_over)| *is_over);
        Self {
            number: page.len(),
            over: over.map(|(batch, _)| *batch).collect(),
            next: page.last().filter(|_| is_full).map(|(batch, _)| *batch),
        }
    }
}

/// A page of the members of a batch.
#[derive(Debug, Default)]
pub struct BatchMembers {
    /// The members, in the order of their ids.
    pub jobs: Vec<JobId>,
    /// The open and the cancelled batches whose jobs at the end are among them.
    pub inner: Vec<BatchId>,
}

/// Returns the members among new jobs, and their batches, sorted, each once.
pub(super) fn members(jobs: &[NewJob]) -> (Vec<BatchId>, Vec<(BatchId, JobId)>) {
    let members: Vec<(BatchId, JobId)> = jobs
        .iter()
        .filter_map(|job| Some((job.batch?, job.id)))
        .collect();
    let mut batches: Vec<BatchId> = members.iter().map(|(batch, _)| *batch).collect();
    batches.sort_unstable();
    batches.dedup();
    (batches, members)
}

/// Returns the first of these batches that is not open.
pub(super) fn all_open(batches: &[BatchId], open: &[BatchId]) -> Result<(), StoreError> {
    let missing = batches.iter().find(|batch| !open.contains(batch));
    missing.map_or(Ok(()), |batch| Err(StoreError::BatchEnded(*batch)))
}

/// What the row of a batch keeps of a job at the end that was refused. The reason comes first, so that
/// lists read only the beginning.
#[derive(Serialize)]
struct Refusal {
    refused: String,
    callback: Box<RawValue>,
}

/// Returns the reason for which a batch ends without its job.
pub(super) fn taken(job: JobId) -> String {
    format!("a job with the id {job} exists already")
}

/// Returns what the row keeps: the reason, and the whole template. A template that is no JSON is kept
/// as text.
///
/// # Errors
/// [`StoreError::BadRow`]: the template can't be written as JSON.
pub(super) fn refusal(why: &str, template: &str) -> Result<String, StoreError> {
    let wrong = |error: serde_json::Error| StoreError::BadRow(error.to_string());
    let callback = match RawValue::from_string(template.to_owned()) {
        Ok(callback) => callback,
        Err(_) => to_raw_value(template).map_err(wrong)?,
    };
    let refusal = Refusal {
        refused: plain::one_line(why, MOST_REASON),
        callback,
    };
    serde_json::to_string(&refusal).map_err(wrong)
}

/// Returns the reason that the row of a batch keeps, from the beginning of its text.
pub(super) fn refused_by(beginning: Option<&str>) -> Option<String> {
    let why = beginning?.strip_prefix(r#"{"refused":"#)?;
    let mut texts = serde_json::Deserializer::from_str(why).into_iter::<String>();
    Some(plain::one_line(&texts.next()?.ok()?, MOST_REASON))
}

/// Returns why this program can't create the job at the end of an open batch.
pub(super) fn fault(id: JobId, template: Option<&str>, end: &BatchEnd) -> Option<String> {
    let invalid = |source| StoreError::InvalidJob { id, source };
    let job = callback(id, template?, end);
    let fault = job.and_then(|job| job.validate().map_err(invalid)).err()?;
    Some(plain::one_line(&fault.to_string(), MOST_REASON))
}

/// The job at the end of a batch, from its template.
pub(super) fn callback(id: JobId, template: &str, end: &BatchEnd) -> Result<NewJob, StoreError> {
    let wrong = |problem: String| {
        StoreError::BadRow(format!(
            "the job at the end of batch {} (`{}`): {problem}",
            end.batch,
            end.name.escape_debug()
        ))
    };
    let mut job = template::read(template).map_err(wrong)?;
    if template::is_own(&job.job_type) {
        return Err(wrong(format!(
            "its type `{}` is a built-in one",
            job.job_type.escape_debug()
        )));
    }
    job.id = id;
    let values = add_end(job.custom_values.as_deref(), end);
    job.custom_values = Some(values.map_err(|error| wrong(error.to_string()))?);
    Ok(job)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_template_is_kept_whole_behind_the_reason() {
        let text = "x".repeat(20_000);
        for template in [
            format!(r#"{{"type":"a", "payload":{{"n": 1.50, "text":"{text}"}}}}"#),
            format!("no JSON: \" {text}"),
        ] {
            let kept = refusal("it is \"taken\"", &template).unwrap();
            assert_eq!(
                refused_by(Some(&kept[..200])).as_deref(),
                Some("it is \"taken\"")
            );
            let callback =
                &kept[kept.find("callback").unwrap() + "callback\":".len()..kept.len() - 1];
            let read = serde_json::from_str::<String>(callback);
            assert_eq!(read.unwrap_or_else(|_| callback.to_owned()), template);
        }
        for other in [None, Some(""), Some("null"), Some(r#"{"type":"a"}"#)] {
            assert_eq!(refused_by(other), None);
        }
    }
}

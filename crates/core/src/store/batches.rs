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
//! A batch whose job at the end can't be, since its fields are not valid or its id is taken, ends
//! without it. The row keeps the reason, and the fields of the job, in place of the template.
//!
//! The row of a batch is locked before all other rows.

use serde::{Deserialize, Serialize};

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
/// Maximum size of a refused template that the row keeps, and of the reason, in bytes.
const MOST_KEPT: usize = 8_000;
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

/// What the row of a batch keeps of a job at the end that was refused.
#[derive(Serialize, Deserialize)]
struct Refusal {
    refused: String,
    /// The template as text, unless it is too long.
    #[serde(default)]
    callback: Option<String>,
}

/// Returns what the row keeps: the reason, and the template.
pub(super) fn refusal(why: &str, template: &str) -> Option<String> {
    let is_short = template.len() <= MOST_KEPT;
    let refusal = Refusal {
        refused: plain::one_line(why, MOST_REASON),
        callback: is_short.then(|| template.to_owned()),
    };
    serde_json::to_string(&refusal).ok()
}

/// Returns the reason that the row of a batch keeps.
pub(super) fn refused_by(kept: Option<String>) -> Option<String> {
    let kept: Refusal = serde_json::from_str(&kept?).ok()?;
    Some(plain::one_line(&kept.refused, MOST_REASON))
}

/// Returns whether the job at the end can never be created: its fields are not valid, or another job
/// has its id. A constraint or a trigger may be corrected.
pub(super) fn is_unusable(error: &StoreError) -> bool {
    match error {
        StoreError::BadRow(_) | StoreError::InvalidJob { .. } => true,
        // SQLite: primary key, unique.
        error => error
            .sqlstate()
            .is_some_and(|code| ["23505", "1555", "2067"].contains(&&*code)),
    }
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

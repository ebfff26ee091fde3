//! Bulk operations as jobs: retries, deletions, cancels and changes of all jobs that match a query,
//! page by page, with progress.
//!
//! A bulk operation is a job of the type [`BULK_TYPE`]. Every node of a Jobwire database runs it
//! without registration. Its payload is a JSON object with the action and the query, for example
//! `{"action": {"retry": {"attempts": 3}}, "query": {"states": ["dead-letter"]}}`.
//!
//! It goes through the jobs in the order of their ids, and only through those that were created
//! before it. Each page is operated on, and then its end is saved as a checkpoint. After a crash the
//! operation goes on with that page. A job that was operated on is either gone, or does not match
//! any more, or the operation changes nothing: each one may be repeated.

use serde::{Deserialize, Serialize};

use crate::job::new_job::NewJob;
use crate::job::progress::Progress;
use crate::job::query::{JobCursor, JobQuery, JobSort, SortBy};
use crate::job::{Job, JobId, JobState};
use crate::producer::commit_hook::CommitHook;
use crate::producer::hint_room::room;
use crate::store::{Change, Operated, OperatedJobs, Store, StoreError};
use crate::transport::Control;

/// The type of the jobs that are bulk operations.
pub const BULK_TYPE: &str = "jobwire.bulk";
/// Maximum number of jobs in one page.
const PAGE: i64 = 500;
/// Number of jobs up to which the total is counted.
const COUNTED: i64 = 10_000_000;

/// What a bulk operation does with each job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum BulkAction {
    /// Makes it executable now, with this number of attempts.
    Retry {
        /// The attempts, 1 or more.
        attempts: i32,
    },
    /// Deletes it, unless it is running.
    Delete,
    /// Deletes it, also if it runs.
    Cancel,
    /// Changes it.
    Change(Change),
}

/// A bulk operation: an action for all jobs that match a query.
///
/// ```
/// use jobwire_core::{BulkOperation, JobQuery};
///
/// let failed = JobQuery::default().job_type("send-mail").tenant_like("eu-%");
/// let job = BulkOperation::retry(failed, 3).job();
/// # assert!(job.unwrap().validate().is_ok());
/// ```
///
/// Create the [job](Self::job) like any other, with a lane or a due date of its own if you like.
/// `Client::get` shows its progress. [Cancel](crate::Client::cancel) it to end the operation after its
/// page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BulkOperation {
    action: BulkAction,
    query: JobQuery,
}

/// How far a bulk operation has come. Its job saves it as a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct BulkAccount {
    /// The cursor behind the last page.
    after: Option<String>,
    /// The number of jobs that matched at the beginning.
    pub total: Option<u64>,
    /// The number of jobs that were operated on.
    pub done: u64,
    /// The number of jobs that ran, were gone, or were in a state that the action does not apply to.
    pub skipped: u64,
    /// The number of jobs that the database refused to change.
    pub refused: u64,
}

impl BulkAccount {
    /// Returns the account as the progress of the job.
    pub(crate) fn progress(&self) -> Progress {
        let seen = self.done + self.skipped + self.refused;
        let progress = match self.total {
            Some(total) => Progress::of(seen, total.max(seen)),
            None => Progress::done(seen),
        };
        progress.text(format!(
            "{} done, {} skipped, {} refused",
            self.done, self.skipped, self.refused
        ))
    }
}

impl BulkOperation {
    /// Retries all jobs that match. Without states in the query: dead letters.
    #[must_use]
    pub fn retry(mut query: JobQuery, attempts: i32) -> Self {
        if query.states.is_empty() {
            query.states = vec![JobState::DeadLetter];
        }
        Self::of(BulkAction::Retry { attempts }, query)
    }

    /// Deletes all jobs that match and do not run.
    #[must_use]
    pub fn delete(query: JobQuery) -> Self {
        Self::of(BulkAction::Delete, query)
    }

    /// Deletes all jobs that match, also those that run.
    #[must_use]
    pub fn cancel(query: JobQuery) -> Self {
        Self::of(BulkAction::Cancel, query)
    }

    /// Changes all jobs that match.
    #[must_use]
    pub fn change(query: JobQuery, change: Change) -> Self {
        Self::of(BulkAction::Change(change), query)
    }

    fn of(action: BulkAction, query: JobQuery) -> Self {
        Self { action, query }
    }

    /// Returns the action.
    #[must_use]
    pub fn action(&self) -> &BulkAction {
        &self.action
    }

    /// Returns the query. Its order and page do not count.
    #[must_use]
    pub fn query(&self) -> &JobQuery {
        &self.query
    }

    /// Returns the job of the operation.
    ///
    /// # Errors
    /// [`StoreError::InvalidQuery`] or [`StoreError::InvalidChange`].
    pub fn job(&self) -> Result<NewJob, StoreError> {
        self.check()?;
        Ok(NewJob::of(BULK_TYPE, self))
    }

    fn check(&self) -> Result<(), StoreError> {
        JobQuery {
            after: None,
            ..self.query.clone()
        }
        .check()?;
        match &self.action {
            BulkAction::Change(change) => change.validate(),
            BulkAction::Retry { attempts } => Change::SetRetries(*attempts).validate(),
            BulkAction::Delete | BulkAction::Cancel => Ok(()),
        }
    }

    /// Reads the payload of a job.
    ///
    /// # Errors
    /// The problem, with the remedy.
    pub(crate) fn parse(payload: &str) -> Result<Self, String> {
        let read: Self = serde_json::from_str(payload).map_err(|error| {
            format!(
                "field `payload` is no bulk operation that this program knows: {error}; upgrade the \
                 nodes, or create the job anew, with `jobwire jobs … --as-job`"
            )
        })?;
        read.check().map_err(|error| error.to_string())?;
        Ok(read)
    }

    /// Returns the query for the jobs that were created before the operation.
    fn before(&self, own: &Job) -> JobQuery {
        let mut query = self.query.clone();
        let before = query.created_before;
        query.created_before = Some(before.map_or(own.created_at, |at| at.min(own.created_at)));
        query.sort = JobSort::ascending(SortBy::Id);
        query.after = None;
        query.offset = 0;
        query.limit = PAGE;
        query
    }

    /// Counts the jobs that match.
    pub(crate) async fn total(&self, store: &dyn Store, own: &Job) -> Result<u64, StoreError> {
        let total = store.count_at_most(&self.before(own), COUNTED).await?;
        Ok(total.max(0).unsigned_abs())
    }

    /// Operates on the page behind the account, and adds it. Returns false if there is none.
    pub(crate) async fn page(
        &self,
        store: &dyn Store,
        hook: &CommitHook,
        own: &Job,
        account: &mut BulkAccount,
    ) -> Result<bool, StoreError> {
        let mut query = self.before(own);
        // A cursor that a later program wrote may have another form: begin anew.
        query.after = account.after.as_deref().and_then(|at| at.parse().ok());
        let page = store.find(&query).await?;
        let Some(last) = page.last() else {
            return Ok(false);
        };
        let after = JobCursor::after(last, query.sort).to_string();
        let ids: Vec<JobId> = page.iter().map(|view| view.id).collect();
        let ids: Vec<JobId> = ids.into_iter().filter(|id| *id != own.id).collect();
        let operated = self.operate(store, hook, &ids).await?;
        for (_, how) in &operated.operated {
            match how {
                Operated::Done => account.done += 1,
                _ => account.skipped += 1,
            }
        }
        account.refused += operated.refused.len() as u64;
        hook.operated(store, operated.ready).await;
        hook.timer_set(operated.timer);
        // Hints that find no room are left to the sweeper.
        room(hook).await;
        account.after = Some(after);
        Ok(true)
    }

    async fn operate(
        &self,
        store: &dyn Store,
        hook: &CommitHook,
        ids: &[JobId],
    ) -> Result<OperatedJobs, StoreError> {
        match &self.action {
            BulkAction::Retry { attempts } => store.retry_many(ids, *attempts).await,
            BulkAction::Delete => store.delete_many(ids).await,
            BulkAction::Change(change) => store.change_many(ids, change).await,
            BulkAction::Cancel => {
                let mut cancelled = store.delete_many(ids).await?;
                for (job, how) in &mut cancelled.operated {
                    if *how != Operated::Running {
                        continue;
                    }
                    let (now, ready) = store.cancel(*job).await?;
                    cancelled.ready.extend(ready);
                    if now == Operated::Running {
                        hook.tell(Control::Cancel { job: *job });
                    }
                    *how = Operated::Done;
                }
                Ok(cancelled)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::Utc;
    use serde_json::json;

    use super::*;
    use crate::job::BatchId;
    use crate::job::query::{TextField, TextMatch};

    #[test]
    fn an_operation_is_read_back_from_the_payload_of_its_job() {
        let query = JobQuery::default()
            .states([JobState::Timer, JobState::DeadLetter])
            .job_types(["a", "b"])
            .tenant_like("eu-%")
            .text(TextField::Instance, TextMatch::Missing)
            .custom_values(json!({ "a": [1] }))
            .batch(BatchId::generate())
            .created_after(Utc::now())
            .exclusive(false);
        for operation in [
            BulkOperation::retry(query.clone(), 3),
            BulkOperation::delete(query.clone()),
            BulkOperation::cancel(JobQuery::default()),
            BulkOperation::change(query.clone(), Change::Suspend),
            BulkOperation::change(query.clone(), Change::MakeDeadLetter("why".to_owned())),
            BulkOperation::change(query.clone(), Change::Reschedule(Utc::now())),
        ] {
            let job = operation.job().unwrap();
            let payload = job.payload.unwrap();
            assert_eq!(BulkOperation::parse(payload.get()), Ok(operation));
        }
    }

    #[test]
    fn an_operation_that_this_program_does_not_know_is_refused() {
        for payload in [
            r#"{"action": "delete", "query": {"of_a_later_program": 1}}"#,
            r#"{"action": "of_a_later_program", "query": {}}"#,
            r#"{"action": "delete", "query": {}, "more": 1}"#,
            r#"{"action": {"retry": {"attempts": 0}}, "query": {}}"#,
            r#"{"action": "delete", "query": {"custom_values": 1}}"#,
            r#"{"action": "delete"}"#,
        ] {
            assert!(BulkOperation::parse(payload).is_err(), "{payload}");
        }
        let minimal = r#"{"action": "delete", "query": {}}"#;
        assert_eq!(
            BulkOperation::parse(minimal),
            Ok(BulkOperation::delete(JobQuery::default()))
        );
        assert!(BulkOperation::retry(JobQuery::default(), 0).job().is_err());
    }
}

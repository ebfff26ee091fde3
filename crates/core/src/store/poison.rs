//! Rows that the database refuses (protocol rule 37).
//!
//! A page of rows that the database refuses is tried again in halves, each half in a separate
//! transaction, until the refused rows are alone. Their neighbours are committed on the way. A
//! refused row becomes a dead letter, with the reason, under three conditions:
//!
//! * The contents of the row are the reason ([`StoreError::is_row_fault`]). A row that is refused
//!   for another reason (a right, a trigger of the application) stays, and its neighbours commit.
//!   A transient error ends the search, and so does an error that every part meets.
//! * The database accepts other rows of the page. A page of which it accepts no row shows a fault
//!   of the database: a constraint was added, a trigger is wrong. A row of such a page is set aside
//!   once other rows of the operation were accepted after it was first refused for its contents.
//! * At most 1 % of a page, but at least one row, and at most 100 rows a minute are set aside.
//!
//! A refused row that stays is **stuck**: it is logged as an error, and `jobwire_stuck_batches` and
//! the health of the node name the operation. It is retried after four minutes, or after five
//! seconds if there is nothing else to do, behind all others. If the reason is probably temporary,
//! it is retried sooner: after as long as it has been refused so far, at least five seconds.
//!
//! Until then an operation that finds its own rows passes over the stuck row. Such an operation
//! does not try its plain statement. It begins with the search, which reads the oldest and the
//! newest rows and commits the newest first. So rows are committed beside any number of stuck ones.
//! Only rows between more stuck rows than one search separates have to wait (a search separates a
//! few hundred rows a second). `jobwire_jobs_set_aside_total` counts the rows that were set aside.
//!
//! For a page that commits, this module takes one uncontended lock, and the statement is the same
//! as without refusals. Statements that choose their own rows have a second text for a page of
//! given rows, which only the search uses.

mod outcome;
mod search;
mod stuck;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use super::{BatchOutcome, Completion, Failure, Release, Result};
use crate::hint::{Hint, Ready};
use crate::job::{JobId, JobState, LockToken, NodeId};
use crate::store::allowance::Allowance;
use crate::store::error::StoreError;

pub(super) use outcome::{Activated, Outcome, Told};
pub use stuck::StuckBatch;
use stuck::{Lasts, Refused, StuckBatches};

/// The refused pages of a store. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Refusals(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    allowance: Allowance,
    stuck: StuckBatches,
    /// The parts that the last search of each operation left untried.
    unfinished: HashMap<&'static str, Vec<Vec<JobId>>>,
    /// The first of the last answers that all said that no node leads, and their number.
    unled: Option<(Instant, u32)>,
}

/// The operation that is stuck while no node can lead.
const LEAD: &str = "lead";
/// The time, and the number of answers, after which a fleet without a leader is reported. While one node
/// becomes the leader, others may see for a moment that none leads.
const UNLED: (Duration, u32) = (Duration::from_secs(5), 4);

impl Refusals {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records whether no node leads although the last leader's lease has ended, by the answer to a leader
    /// cycle. Returns whether it has been so for some time.
    pub(super) fn stays_unled(&self, unled: bool) -> bool {
        let mut state = self.state();
        if !unled {
            state.unled = None;
            state.stuck.passed(LEAD, None::<std::iter::Empty<JobId>>);
            return false;
        }
        let (since, times) = state.unled.get_or_insert((Instant::now(), 0));
        *times = times.saturating_add(1);
        since.elapsed() >= UNLED.0 && *times >= UNLED.1
    }

    /// Records that no node can lead, and the session that is the reason.
    pub(super) fn nobody_leads(&self, locker: Option<String>) {
        let locker = locker.unwrap_or_else(|| "another transaction".to_owned());
        let reason = format!(
            "{locker} has locked the row of the table `leader`, so no node leads: no job is taken over, no \
             lost hint is found, and no periodic job is created; end that transaction"
        );
        self.note(LEAD, None, reason, Lasts::AWhile);
    }

    /// Records the answer to a lock of hinted jobs. A job that is refused alone is stuck until it is
    /// decided.
    pub(super) fn note_lock(&self, hints: &[Hint], refused: Option<&StoreError>) {
        match (refused, hints) {
            (None, _) => self.passed("lock", Some(hints.iter().map(|hint| hint.id)), false),
            (Some(error), [hint]) if error.is_answer() && !error.is_conflict() => {
                let reason = format!(
                    "{error}; of an exclusive job, the first ready job of its instance may be the reason"
                );
                // Another node may lock it.
                self.note("lock", Some(hint.id), reason, Lasts::AWhile);
            }
            _ => {}
        }
    }

    /// Returns the stuck operations.
    pub(super) fn stuck(&self) -> Vec<StuckBatch> {
        self.state().stuck.list(Instant::now())
    }

    /// Returns whether the next page that the operation finds would fail, too.
    fn searches_first(&self, operation: &'static str) -> bool {
        self.state().stuck.comes_again(operation, None)
    }

    /// Returns the rows that were refused lately.
    fn lately(&self, operation: &str) -> HashMap<JobId, Refused> {
        self.state().stuck.lately(operation, Instant::now())
    }

    /// Stores the parts with which the next search continues. A page of held jobs has a name and
    /// does not come again, so its parts are not stored.
    fn goes_on_with(&self, operation: &'static str, name: Option<JobId>, parts: Vec<Vec<JobId>>) {
        if name.is_none() {
            self.state().unfinished.insert(operation, parts);
        }
    }

    /// Returns the parts of a search, the first one last: new rows, then the parts that the last
    /// search left, and at the end `again`, which were refused before.
    fn parts(&self, operation: &str, rows: Vec<JobId>, again: Vec<JobId>) -> Vec<Vec<JobId>> {
        let mut parts = self
            .state()
            .unfinished
            .remove(operation)
            .unwrap_or_default();
        let mut rest: HashSet<JobId> = rows.iter().copied().collect();
        for part in &mut parts {
            part.retain(|row| rest.remove(row));
        }
        parts.push(rows.into_iter().filter(|row| rest.contains(row)).collect());
        parts.insert(0, again);
        parts
    }

    /// Records that a page was committed: these rows or, without a list, all that the operation
    /// found.
    fn passed(
        &self,
        operation: &'static str,
        rows: Option<impl Iterator<Item = JobId>>,
        changed_rows: bool,
    ) {
        let mut state = self.state();
        if changed_rows {
            state.allowance.committed(operation, Instant::now());
        }
        state.stuck.passed(operation, rows);
    }

    /// Returns whether the database has accepted other rows of this operation since it first
    /// refused this one.
    fn takes_others_since(&self, operation: &'static str, row: JobId) -> bool {
        let state = self.state();
        let refused = state.stuck.first_refused(operation, row);
        refused.is_some_and(|first| state.allowance.has_committed_since(operation, first))
    }

    /// Forgets rows that are gone or that a search committed. A row that is gone does not show that
    /// the database accepts rows.
    fn settled(&self, operation: &'static str, rows: impl IntoIterator<Item = JobId>) {
        self.state().stuck.settled(operation, rows);
    }

    /// Returns whether a page that was refused with this error is tried in parts. A page with a
    /// transient error is not, unless the server repeats that error: then a row may be the reason
    /// (a lock that its trigger waits for).
    fn is_searched(
        &self,
        operation: &'static str,
        page: Option<JobId>,
        error: &StoreError,
    ) -> bool {
        if !error.is_transient() || error.is_lock_timeout() {
            return true;
        }
        error.is_answer() && self.state().stuck.keeps_failing(operation, page)
    }

    /// Records that a whole page failed and no row is the reason. A transient error counts only if
    /// it repeats.
    fn failed(
        &self,
        operation: &'static str,
        page: Option<JobId>,
        error: StoreError,
    ) -> StoreError {
        let comes_again = error.is_answer() && self.state().stuck.failed(operation, page);
        if !error.is_transient() || comes_again {
            self.note(operation, None, error.to_string(), Lasts::of(&error));
        }
        error
    }

    /// Records that this row was refused with this error and left unchanged.
    fn left(&self, operation: &'static str, row: JobId, error: &StoreError, reason: String) {
        self.note(operation, Some(row), reason, Lasts::of(error));
    }

    fn note(&self, operation: &'static str, row: Option<JobId>, reason: String, lasts: Lasts) {
        let text = reason.clone();
        let now = Instant::now();
        if self.state().stuck.note(operation, row, reason, lasts, now) {
            let job = row.map(tracing::field::display);
            tracing::error!(
                operation,
                job,
                reason = text,
                "the database refuses a batch, which is retried; correct what `reason` names (a \
                 right, a constraint, a trigger, or the row of the job), or delete the job"
            );
        }
    }
}

/// A row that became a dead letter.
pub(super) struct Aside {
    /// The id of the dead letter; a new one if another table has the row's own id.
    pub(super) letter: JobId,
    /// The next ready job of its instance.
    pub(super) ready: Vec<Ready>,
}

/// A store that can set rows aside.
#[async_trait]
pub(super) trait SetsAside: Sync {
    fn refusals(&self) -> &Refusals;

    /// Returns the jobs among these whose rows another transaction has locked.
    async fn locked_rows(&self, jobs: &[JobId]) -> Result<Vec<JobId>>;

    /// Makes a dead letter of a job that this node holds. Returns `None` if the lock is gone.
    async fn set_held_aside(
        &self,
        owner: NodeId,
        held: &LockToken,
        reason: &str,
    ) -> Result<Option<Aside>>;

    /// Makes a dead letter of a job of this state that no valid lock protects. Returns `None` if
    /// there is no such job.
    async fn set_row_aside(
        &self,
        state: JobState,
        id: JobId,
        reason: &str,
    ) -> Result<Option<Aside>>;
}

/// An outcome that acts on a job by its lock.
pub(super) trait Holds: Clone + Send + Sync {
    fn held(&self) -> &LockToken;
    /// Returns the holder's message about the job, for the dead letter.
    fn message(&self) -> Option<&str> {
        None
    }
}

impl Holds for Release {
    fn held(&self) -> &LockToken {
        &self.held
    }
}

impl Holds for Completion {
    fn held(&self) -> &LockToken {
        &self.held
    }
}

impl Holds for Failure {
    fn held(&self) -> &LockToken {
        &self.held
    }

    fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }
}

/// A function that runs a part of a page.
type Part<'a, R, T> = dyn Fn(Vec<R>) -> BoxFuture<'a, Result<T>> + Send + Sync + 'a;

/// Runs an operation on a page of jobs that this node holds. `whole` is its one transaction; `part`
/// is the same for fewer rows.
pub(super) async fn held_page<'a, S: SetsAside, R: Holds>(
    store: &'a S,
    operation: &'static str,
    owner: NodeId,
    rows: &[R],
    whole: impl Future<Output = Result<BatchOutcome>>,
    part: impl Fn(Vec<R>) -> BoxFuture<'a, Result<BatchOutcome>> + Send + Sync + 'a,
) -> Result<BatchOutcome> {
    let refusals = store.refusals();
    let page = rows.first().map(|row| row.held().id);
    match whole.await {
        Ok(settled) => {
            refusals.state().stuck.page_passed(operation, page);
            let passed = rows.iter().map(|row| row.held().id);
            refusals.passed(operation, Some(passed), settled.changed_rows());
            Ok(settled)
        }
        Err(error) if refusals.is_searched(operation, page, &error) => {
            let aside = move |row: R, reason: String| -> BoxFuture<'_, Result<Option<Aside>>> {
                Box::pin(async move {
                    let reason = match row.message() {
                        Some(message) => format!("{reason}; the attempt ended with: {message}"),
                        None => reason,
                    };
                    store.set_held_aside(owner, row.held(), &reason).await
                })
            };
            let mut settled = BatchOutcome::default();
            let mut first = rows.to_vec();
            if error.is_lock_timeout() && rows.len() > 1 {
                // This finds all locked rows at once. The search would wait for each of them.
                let ids: Vec<JobId> = rows.iter().map(|row| row.held().id).collect();
                let locked: HashSet<JobId> = store.locked_rows(&ids).await?.into_iter().collect();
                first.retain(|row| !locked.contains(&row.held().id));
                for job in locked {
                    refusals.left(operation, job, &error, error.to_string());
                    settled.left(job);
                }
            }
            let mut parts = vec![first];
            if let [whole] = &mut parts[..]
                && whole.len() == rows.len()
            {
                // The whole page has just been tried.
                let second = whole.split_off(whole.len() / 2);
                parts.push(second);
            }
            parts.retain(|part| !part.is_empty());
            if parts.is_empty() {
                return Ok(settled);
            }
            let searches_transient = refusals.state().stuck.keeps_failing(operation, page);
            Box::pin(search::search(
                refusals,
                search::RefusedPage {
                    operation,
                    parts,
                    name: page,
                    searches_transient,
                },
                &|row: &R| row.held().id,
                settled,
                &part,
                &aside,
            ))
            .await
        }
        Err(error) => Err(refusals.failed(operation, page, error)),
    }
}

/// Time after which refused rows are retried if there are no others.
const AGAIN: Duration = Duration::from_secs(5);

/// Number of the oldest rows that a search looks at, and of the newest ones.
const LOOKED_AT: i64 = 2_000;

/// Returns the number of rows to look for, including those that are known to be refused.
fn page_and(rows: i64, refused: usize) -> i64 {
    rows.saturating_add(i64::try_from(refused).unwrap_or(i64::MAX))
}

/// The rows that an operation would act on, the oldest first.
pub(super) struct Found {
    rows: Vec<JobId>,
    /// Whether there may be more.
    is_cut: bool,
}

impl Found {
    /// Returns the rows that a statement with the limit `at_most` found.
    pub(super) fn of(rows: Vec<JobId>, at_most: i64) -> Self {
        let is_cut = i64::try_from(rows.len()).is_ok_and(|found| found >= at_most);
        Self { rows, is_cut }
    }
}

/// Runs an operation on a page of jobs in this state that the statement `whole` finds. `found`
/// finds the same rows and more, up to a given number. `part` is the statement for given rows; it
/// runs first without rows, for the results that need none.
pub(super) async fn found_page<'a, S: SetsAside, T: Outcome>(
    store: &'a S,
    operation: &'static str,
    state: JobState,
    whole: impl Future<Output = Result<T>>,
    found: impl FnOnce(i64) -> BoxFuture<'a, Result<Found>>,
    part: impl Fn(Vec<JobId>) -> BoxFuture<'a, Result<T>> + Send + Sync + 'a,
) -> Result<T> {
    let refusals = store.refusals();
    if !T::PASSES_OVER || !refusals.searches_first(operation) {
        match whole.await {
            Ok(outcome) => {
                let rows = None::<std::iter::Empty<JobId>>;
                refusals.passed(operation, rows, outcome.changed_rows());
                return Ok(outcome);
            }
            Err(error) if refusals.is_searched(operation, None, &error) => {}
            Err(error) => return Err(refusals.failed(operation, None, error)),
        }
    }
    let search = async {
        let began = Instant::now();
        let refused = if T::PASSES_OVER {
            refusals.lately(operation)
        } else {
            HashMap::new()
        };
        let found = found(page_and(LOOKED_AT, refused.len())).await?;
        let last = found.rows.last().copied().filter(|_| found.is_cut);
        let is_new = |row: &JobId| !refused.contains_key(row);
        let (rows, refused_before): (Vec<_>, Vec<_>) = found.rows.into_iter().partition(is_new);
        let is_tried = |row: &JobId| {
            refused.get(row).is_none_or(|refused| {
                if rows.is_empty() {
                    !refused.has_just_been_tried(began)
                } else {
                    !refused.is_passed_over(began)
                }
            })
        };
        let (again, passed_over): (Vec<_>, Vec<_>) = refused_before.into_iter().partition(is_tried);
        let tried: HashSet<JobId> = rows.iter().chain(&again).copied().collect();
        let nothing = part(Vec::new()).await?;
        let aside = move |id: JobId, reason: String| -> BoxFuture<'_, Result<Option<Aside>>> {
            Box::pin(async move { store.set_row_aside(state, id, &reason).await })
        };
        let page = search::RefusedPage {
            operation,
            parts: refusals.parts(operation, rows, again),
            name: None,
            searches_transient: refusals.searches_first(operation),
        };
        let mut outcome = search::search(refusals, page, &|id| *id, nothing, &part, &aside).await?;
        let is_passed_over: HashSet<&JobId> = passed_over.iter().collect();
        let is_settled = |row: &JobId| {
            let is_absent = !found.is_cut && !T::IS_PAGED && !is_passed_over.contains(row);
            tried.contains(row) || is_absent
        };
        refusals
            .state()
            .stuck
            .searched(operation, began, is_settled);
        for row in passed_over {
            outcome.left(row);
        }
        outcome.looked_at(last);
        Ok(outcome)
    };
    Box::pin(search).await
}

/// Runs an operation on a page of jobs whose caller waits for the answer. `whole` is its one
/// transaction, `rows` are its jobs, and `part` is the same transaction for given jobs. A job that
/// is refused alone stays unchanged and is returned with the reason. No row is set aside or counts
/// as stuck, because no node retries it.
pub(super) async fn told_page<'a, T: Told>(
    operation: &'static str,
    whole: impl Future<Output = Result<T>>,
    rows: impl Future<Output = Result<Vec<JobId>>>,
    part: impl Fn(Vec<JobId>) -> BoxFuture<'a, Result<T>> + Send + Sync + 'a,
) -> Result<T> {
    match whole.await {
        Err(error) if !error.is_transient() || error.is_lock_timeout() => {}
        done => return done,
    }
    Box::pin(async { search::told(operation, rows.await?, &part).await }).await
}

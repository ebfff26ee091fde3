//! Poison: a row's fault is the row's (protocol rule 37).
//!
//! A page of rows that the database refuses is tried again in halves, each half in a transaction of its own, until the
//! refused rows stand alone. Their neighbours are committed on the way. A refused row becomes a dead letter, with the
//! reason, under three conditions:
//!
//! * The error is of the row's making ([`StoreError::is_row_fault`]). A row that is refused for another reason (a right, a
//!   trigger of the application) stays, and its neighbours commit all the same. An error that goes away by itself ends the
//!   search, and so does one that nothing gets past.
//! * Other rows of the page are taken. A page of which no row is taken shows a fault of the
//!   database: a constraint was added, a trigger is wrong. One of them goes once other rows of the
//!   operation were taken after it had first been refused for what it holds.
//! * At most 1 % of a page, but at least one row, and at most 100 rows a minute go.
//!
//! A refused row that stays is **stuck**: it is logged as an error, and `jobwire_stuck_batches` and the health of the node
//! name the operation. It is tried again after four minutes, or after five seconds where nothing else is
//! to be done, behind all others. Where the reason should go away by itself it is tried sooner: after
//! as long as it has been refused so far, five seconds at least. Until then an operation that finds
//! its own rows leaves it out: such an operation does not try its plain statement, but begins with the
//! search, which looks at the oldest and at the newest rows and commits the newest ones first. So rows
//! get through beside any number of stuck ones, unless they lie between more stuck rows than a search
//! tells apart; those wait until it has (a few hundred rows a second). `jobwire_jobs_set_aside_total`
//! counts what was set aside.
//!
//! A page that commits costs one uncontended lock here, and its statement is the same as without refusals. Statements
//! that choose their own rows have a second text for a page of given rows, which only the search uses.

mod outcome;
mod search;
mod stuck;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use super::{Completion, Failure, Result, Settled};
use crate::hint::Ready;
use crate::job::{JobId, JobState, LockToken, NodeId};
use crate::store::allowance::Allowance;
use crate::store::error::StoreError;

pub(super) use outcome::{Activated, Outcome, Told};
pub use stuck::StuckBatch;
use stuck::{Lasts, Refused, StuckBatches};

/// What a store knows of pages that were refused. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Refusals(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    allowance: Allowance,
    stuck: StuckBatches,
    /// Where the last search of an operation has ended: the parts that were still to be tried.
    unfinished: HashMap<&'static str, Vec<Vec<JobId>>>,
}

impl Refusals {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The operations of which a page does not get through.
    pub(super) fn stuck(&self) -> Vec<StuckBatch> {
        self.state().stuck.list(Instant::now())
    }

    /// The next page of rows that the operation finds itself would fail, too.
    fn searches_first(&self, operation: &'static str) -> bool {
        self.state().stuck.comes_again(operation, None)
    }

    /// The rows that were refused lately.
    fn lately(&self, operation: &str) -> HashMap<JobId, Refused> {
        self.state().stuck.lately(operation, Instant::now())
    }

    /// A search has ended; the next one goes on with these parts. A page of held jobs has a name, and does not come again.
    fn goes_on_with(&self, operation: &'static str, name: Option<JobId>, parts: Vec<Vec<JobId>>) {
        if name.is_none() {
            self.state().unfinished.insert(operation, parts);
        }
    }

    /// The parts of a search, the first one last: rows of which nothing is known yet, what the last
    /// search has left, and at the end `again`, which were refused before.
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

    /// A page got through: these rows, or, where there is no list, whatever the operation found to do.
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

    /// The database has taken other rows of this operation since it refused this one first.
    fn takes_others_since(&self, operation: &'static str, row: JobId) -> bool {
        let state = self.state();
        let refused = state.stuck.first_refused(operation, row);
        refused.is_some_and(|first| state.allowance.has_committed_since(operation, first))
    }

    /// A row is there no more; that says nothing of what the database takes.
    fn is_gone(&self, operation: &'static str, row: JobId) {
        self.state().stuck.is_gone(operation, row);
    }

    /// Whether a page that was refused by this error is tried in parts. An error that goes away by itself is waited for,
    /// unless the server has answered so again and again: then a row may be the reason (a lock that its trigger waits for).
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

    /// A page failed as a whole, by no row's fault. What goes away by itself is no alarm, unless it comes again and again.
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

    /// Nothing was done about this row, which was refused by this error.
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
                "a batch does not get through; it is tried again and again. Correct what the reason names (a right, a \
                 constraint, a trigger, or the row of the job), or delete the job"
            );
        }
    }
}

/// A row that became a dead letter.
pub(super) struct Aside {
    /// The dead letter's id; a new one where the row's own stands in another table.
    pub(super) letter: JobId,
    /// What is next in its instance.
    pub(super) ready: Vec<Ready>,
}

/// A store that can set rows aside.
#[async_trait]
pub(super) trait SetsAside: Sync {
    fn refusals(&self) -> &Refusals;

    /// Those of these jobs whose rows another transaction has locked.
    async fn locked_rows(&self, jobs: &[JobId]) -> Result<Vec<JobId>>;

    /// Make a dead letter of a job that this node holds. `None` where the lock is gone.
    async fn set_held_aside(
        &self,
        owner: NodeId,
        held: &LockToken,
        reason: &str,
    ) -> Result<Option<Aside>>;

    /// Make a dead letter of a job of this state that no living lock protects. `None` where there is none.
    async fn set_row_aside(
        &self,
        state: JobState,
        id: JobId,
        reason: &str,
    ) -> Result<Option<Aside>>;
}

/// Something that acts on a job by a lock.
pub(super) trait Holds: Clone + Send + Sync {
    fn held(&self) -> &LockToken;
    /// What the holder had to say of it, for the dead letter.
    fn message(&self) -> Option<&str> {
        None
    }
}

impl Holds for LockToken {
    fn held(&self) -> &LockToken {
        self
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

/// How a page of rows is tried in parts.
type Part<'a, R, T> = dyn Fn(Vec<R>) -> BoxFuture<'a, Result<T>> + Send + Sync + 'a;

/// A page of jobs that this node holds: `whole` is its one transaction, `part` the same for fewer rows.
pub(super) async fn held_page<'a, S: SetsAside, R: Holds>(
    store: &'a S,
    operation: &'static str,
    owner: NodeId,
    rows: &[R],
    whole: impl Future<Output = Result<Settled>>,
    part: impl Fn(Vec<R>) -> BoxFuture<'a, Result<Settled>> + Send + Sync + 'a,
) -> Result<Settled> {
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
                        Some(message) => format!("{reason}; the attempt had ended with: {message}"),
                        None => reason,
                    };
                    store.set_held_aside(owner, row.held(), &reason).await
                })
            };
            let mut settled = Settled::default();
            let mut first = rows.to_vec();
            if error.is_lock_timeout() && rows.len() > 1 {
                // All rows that wait are found at once; in parts each of them would be waited for.
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
                // It has just been tried.
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

/// Where only refused rows are left they are tried again so soon.
const AGAIN: Duration = Duration::from_secs(5);

/// A search looks at so many of the oldest rows, and at as many of the newest ones.
const LOOKED_AT: i64 = 2_000;

/// So many rows, and those that are known to be refused.
fn page_and(rows: i64, refused: usize) -> i64 {
    rows.saturating_add(i64::try_from(refused).unwrap_or(i64::MAX))
}

/// Rows that an operation would act on, the oldest first.
pub(super) struct Found {
    rows: Vec<JobId>,
    /// There may be more.
    is_cut: bool,
}

impl Found {
    /// What a statement found that was asked for so many.
    pub(super) fn of(rows: Vec<JobId>, at_most: i64) -> Self {
        let is_cut = i64::try_from(rows.len()).is_ok_and(|found| found >= at_most);
        Self { rows, is_cut }
    }
}

/// A page of jobs in this state that the statement `whole` finds itself. `found` finds the same and more, asked for so many
/// rows, and `part` is the statement for given ones. What a page leads to without any row is asked first.
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

/// A page of jobs whose caller waits for the answer: `whole` is its one transaction, `rows` are the jobs that it acts
/// on, and `part` is the same for given ones. What is refused alone stays as it is and is told with the reason: nothing is
/// set aside, and no row counts as stuck, since nobody tries again.
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

//! The search for the refused rows of a page, by halves.

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use metrics::counter;

use super::{Aside, Lasts, Outcome, Part, Refusals, Told};
use crate::job::JobId;
use crate::store::Result;
use crate::store::allowance;
use crate::store::error::StoreError;
use crate::telemetry::metrics as m;

/// Maximum number of parts that one search tries: enough to find 50 rows of 5,000. Rows that it
/// does not separate wait for the next page.
const PARTS: usize = 1_000;

/// Maximum duration of a search after a row has committed or was refused alone. The rest waits for
/// the next page: the leader cycle must not outlast its lease.
const LONGEST: Duration = Duration::from_secs(1);

/// Maximum duration of a search before that.
const HOPELESS_AFTER: Duration = Duration::from_secs(5);

/// Maximum number of parts of an operation that does not repeat by itself.
const MOST_PARTS: usize = 20 * PARTS;

/// Number of parts to try while nothing commits and no row is at fault. After that everything
/// counts as refused.
pub(super) const HOPELESS: usize = 200;

/// A function that makes a dead letter of a refused row.
type SetAside<'a, R> = dyn Fn(R, String) -> BoxFuture<'a, Result<Option<Aside>>> + Send + Sync + 'a;

/// The findings of a search.
struct Search<R> {
    committed: bool,
    /// Whether a part that committed has changed rows.
    changed_rows: bool,
    /// The rows that were refused alone, and why.
    refused: Vec<(R, StoreError)>,
    /// The untried parts, the first one last. At most it is known that they were refused together
    /// with other rows.
    untold: Vec<Vec<R>>,
    /// The first error that is not a row's fault. It ended the search.
    fault: Option<StoreError>,
}

/// A page that was refused.
pub(super) struct RefusedPage<R> {
    pub(super) operation: &'static str,
    /// The parts to begin with, the first one last.
    pub(super) parts: Vec<Vec<R>>,
    /// The name of a page of held jobs: its first job.
    pub(super) name: Option<JobId>,
    /// Whether a transient error has come again and again, so that a row may be the reason.
    pub(super) searches_transient: bool,
}

/// Tries a refused page in parts, and sets aside rows that stay refused. `outcome` is that of a
/// page without rows.
pub(super) async fn search<R: Clone + Send + Sync, T: Outcome>(
    refusals: &Refusals,
    asked: RefusedPage<R>,
    id: &(dyn Fn(&R) -> JobId + Send + Sync),
    mut outcome: T,
    part: &Part<'_, R, T>,
    set_aside: &SetAside<'_, R>,
) -> Result<T> {
    let RefusedPage {
        operation,
        parts,
        name,
        searches_transient,
    } = asked;
    let page = parts.iter().map(Vec::len).sum();
    let mut found = halve(parts, searches_transient, &mut outcome, part).await;
    let untold: Vec<Vec<JobId>> = found
        .untold
        .iter()
        .map(|rows| rows.iter().map(id).collect())
        .collect();
    let waiting = || untold.iter().flatten().copied();
    if !found.committed
        && !found.untold.is_empty()
        && found.refused.iter().all(|(_, error)| !error.is_row_fault())
    {
        // Nothing shows that the database accepts any row.
        for (row, error) in std::mem::take(&mut found.refused) {
            refusals.left(operation, id(&row), &error, error.to_string());
            outcome.left(id(&row));
            found.fault.get_or_insert(error);
        }
    }
    if let Some(fault) = found.fault {
        // The page without rows has committed, so the database works.
        let is_answer = fault.is_answer();
        let stands = T::STANDS_WITHOUT_ROWS && (!fault.is_transient() || is_answer);
        let names_left = T::TELLS_WHAT_IS_LEFT && is_answer;
        let is_complete = T::PASSES_OVER && (found.committed || stands || names_left);
        let fault = refusals.failed(operation, name, fault);
        // Rows that were refused alone are passed over next time, and the rest of the page is
        // tried.
        for (row, error) in &found.refused {
            refusals.left(operation, id(row), error, error.to_string());
            outcome.left(id(row));
        }
        if !is_complete {
            refusals.goes_on_with(operation, name, untold);
            return Err(fault);
        }
        waiting().for_each(|row| outcome.left(row));
        refusals.goes_on_with(operation, name, untold);
        return Ok(outcome);
    }
    let now = Instant::now();
    // If other rows of the page are accepted, a refused one is to blame. If none is, the row waits
    // until the database has accepted others after it first refused this one.
    let is_to_blame =
        |row: JobId| found.changed_rows || refusals.takes_others_since(operation, row);
    let mut tried = 0;
    let mut gone = 0;
    let mut first = None;
    for (row, error) in found.refused {
        let job = id(&row);
        let reason = if !error.is_row_fault() {
            format!("{error}; the row's contents are not the reason, so it is not set aside")
        } else if !is_to_blame(job) {
            format!("{error}; the database accepts no other row, so none is set aside")
        } else if tried >= allowance::of_page(page) {
            format!("{error}; more than 1 % of {page} rows are refused, so no more are set aside")
        } else if !refusals.state().allowance.has_room(now) {
            format!("{error}; 100 rows were set aside within a minute, so this one is not")
        } else {
            tried += 1;
            match set_aside(row, reason(operation, &error)).await {
                Ok(Some(aside)) => {
                    gone += 1;
                    refusals.state().allowance.went(now);
                    tell(operation, job, &aside, &error);
                    outcome.set_aside(job, aside.ready);
                    refusals.is_gone(operation, job);
                    continue;
                }
                // It was changed meanwhile.
                Ok(None) => {
                    refusals.is_gone(operation, job);
                    continue;
                }
                Err(failed) => format!("{error}; it could not be set aside: {failed}"),
            }
        };
        refusals.left(operation, job, &error, reason);
        outcome.left(job);
        first.get_or_insert(error);
    }
    if found.changed_rows {
        // This commit counts for the rows that were refused in the same page, too: they are tried
        // alone next.
        let now = Instant::now();
        refusals.state().allowance.committed(operation, now);
    }
    if !untold.is_empty() {
        let rows = waiting().count();
        refusals.note(
            operation,
            None,
            format!("{rows} rows of a page wait, because too many others are refused"),
            Lasts::UntilCorrected,
        );
    }
    waiting().for_each(|row| outcome.left(row));
    if found.changed_rows && !untold.is_empty() {
        outcome.has_more();
    }
    if !T::PASSES_OVER && !untold.is_empty() {
        return Err(StoreError::Config(format!(
            "the database refused too many rows of `{operation}`: {} of {page} were not tried; correct the refused \
             ones (`jobwire_stuck_batches` and the log name the first), then run it again",
            waiting().count()
        )));
    }
    refusals.goes_on_with(operation, name, untold);
    match first {
        Some(error)
            if !T::TELLS_WHAT_IS_LEFT
                && !T::STANDS_WITHOUT_ROWS
                && !found.committed
                && gone == 0 =>
        {
            Err(error)
        }
        _ => Ok(outcome),
    }
}

/// Tries a refused page in parts, and adds the rows that stay refused to the outcome. Returns an
/// error if nothing committed and a transient error ended the search.
pub(super) async fn told<T: Told>(
    operation: &'static str,
    rows: Vec<JobId>,
    part: &Part<'_, JobId, T>,
) -> Result<T> {
    let mut outcome = T::default();
    let mut first = rows;
    // The whole page has just been tried.
    let second = first.split_off(first.len() / 2);
    let found = halve(vec![first, second], false, &mut outcome, part).await;
    let untried = match found.fault {
        Some(fault) if !found.committed && fault.is_transient() => return Err(fault),
        Some(fault) => format!("not tried alone, because others failed: {fault}"),
        None => "not tried alone, because too many were refused".to_owned(),
    };
    let refused = found.refused.into_iter();
    let refused = refused.map(|(row, error)| (row, error.to_string()));
    let untold = found.untold.into_iter().flatten();
    let refused: Vec<_> = refused
        .chain(untold.map(|row| (row, untried.clone())))
        .collect();
    if let Some((job, reason)) = refused.first() {
        tracing::warn!(
            operation, jobs = refused.len(), %job, reason,
            "the database refused jobs of a request; they are unchanged, and the others are done; correct what `reason` \
             names, then repeat the request"
        );
    }
    outcome.refused(refused);
    Ok(outcome)
}

/// Tries parts, then their halves, and so on, and commits what the database accepts. A transient
/// error ends the search, unless it has come again and again.
///
/// The second half comes first. The rows of a page are sorted by age, and refused rows stay, so
/// they gather at its beginning. The rows behind thousands of them commit after a few parts. If
/// nothing commits, the search continues from the other end.
async fn halve<R: Clone, T: Outcome>(
    mut open: Vec<Vec<R>>,
    searches_transient: bool,
    outcome: &mut T,
    part: &Part<'_, R, T>,
) -> Search<R> {
    let mut search = Search {
        committed: false,
        changed_rows: false,
        refused: Vec::new(),
        untold: Vec::new(),
        fault: None,
    };
    let mut parts = 0;
    let mut turned = false;
    let mut last = None;
    let began = Instant::now();
    let most = if T::PASSES_OVER { PARTS } else { MOST_PARTS };
    while let Some(mut rows) = open.pop() {
        if rows.is_empty() {
            continue;
        }
        if parts == HOPELESS / 2 && !search.committed && !turned {
            // Everything at this end is refused; the other end may not be.
            turned = true;
            open.push(rows);
            open.reverse();
            continue;
        }
        let settled = search.committed || !search.refused.is_empty();
        let longest = if settled { LONGEST } else { HOPELESS_AFTER };
        let late = T::PASSES_OVER && began.elapsed() >= longest;
        if late && !settled {
            search.fault = search.fault.or_else(|| last.take());
        }
        if search.fault.is_some() || parts >= most || late {
            search.untold.push(rows);
            continue;
        }
        parts += 1;
        match part(rows.clone()).await {
            Ok(done) => {
                search.committed = true;
                search.changed_rows |= done.changed_rows();
                outcome.add(done);
            }
            Err(error)
                if error.is_row_fault()
                    || ((!error.is_transient()
                        || error.is_lock_timeout()
                        || searches_transient && error.is_answer())
                        && (search.committed || parts < T::HOPELESS)) =>
            {
                let mut rest = rows.split_off(rows.len() / 2);
                if !rows.is_empty() {
                    let halves = if turned { [rest, rows] } else { [rows, rest] };
                    open.extend(halves);
                    last = Some(error);
                } else if let Some(row) = rest.pop() {
                    search.refused.push((row, error));
                }
            }
            Err(error) => {
                search.untold.push(rows);
                search.fault = Some(error);
            }
        }
    }
    search.untold.reverse();
    search
}

/// Returns the message of the dead letter.
fn reason(operation: &str, error: &StoreError) -> String {
    format!(
        "set aside, because the database refused `{operation}`: {error}; the stack has the row as it was"
    )
}

fn tell(operation: &'static str, job: JobId, aside: &Aside, error: &StoreError) {
    counter!(m::SET_ASIDE, "operation" => operation).increment(1);
    tracing::error!(
        %job, dead_letter = %aside.letter, operation, %error,
        "a job was set aside as a dead letter: the database refuses its row and accepts others of its page; see \
         it with `Client::get` (`jobwire jobs show`), correct what `error` names, then retry or delete it"
    );
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::store::BatchOutcome;

    async fn searched(
        rows: &[JobId],
        bad: &[JobId],
        parts: usize,
    ) -> (Result<BatchOutcome>, Vec<JobId>, Refusals) {
        searched_for(rows, bad, parts, || {
            StoreError::BadRow("poisoned".to_owned())
        })
        .await
    }

    /// Searches a page of which the `bad` rows are refused, on a database that answers `parts`
    /// times. Returns the outcome and the rows that were set aside.
    async fn searched_for(
        rows: &[JobId],
        bad: &[JobId],
        parts: usize,
        refusal: impl Fn() -> StoreError + Send + Sync,
    ) -> (Result<BatchOutcome>, Vec<JobId>, Refusals) {
        let refusals = Refusals::default();
        let (settled, gone) = searched_with(&refusals, rows, bad, parts, refusal).await;
        (settled, gone, refusals)
    }

    async fn searched_with(
        refusals: &Refusals,
        rows: &[JobId],
        bad: &[JobId],
        parts: usize,
        refusal: impl Fn() -> StoreError + Send + Sync,
    ) -> (Result<BatchOutcome>, Vec<JobId>) {
        let gone = Mutex::new(Vec::new());
        let asked = AtomicUsize::new(0);
        let part = |part: Vec<JobId>| -> BoxFuture<'_, Result<BatchOutcome>> {
            let answer = if asked.fetch_add(1, Ordering::Relaxed) >= parts {
                Err(StoreError::Timeout(Duration::from_secs(1)))
            } else if part.iter().any(|id| bad.contains(id)) {
                Err(refusal())
            } else {
                Ok(BatchOutcome {
                    applied: part,
                    ..BatchOutcome::default()
                })
            };
            Box::pin(std::future::ready(answer))
        };
        let set_aside = |id: JobId, _: String| -> BoxFuture<'_, Result<Option<Aside>>> {
            gone.lock().unwrap().push(id);
            let aside = Aside {
                letter: id,
                ready: Vec::new(),
            };
            Box::pin(std::future::ready(Ok(Some(aside))))
        };
        let settled = search(
            refusals,
            RefusedPage {
                operation: "complete",
                parts: vec![rows.to_vec()],
                name: None,
                searches_transient: false,
            },
            &|id| *id,
            BatchOutcome::default(),
            &part,
            &set_aside,
        )
        .await;
        (settled, gone.into_inner().unwrap())
    }

    fn set(rows: &[JobId]) -> BTreeSet<JobId> {
        rows.iter().copied().collect()
    }

    fn page(rows: usize) -> Vec<JobId> {
        (0..rows).map(|_| JobId::generate()).collect()
    }

    #[tokio::test]
    async fn one_percent_of_a_page_goes_and_the_others_commit() {
        let rows = page(300);
        let bad = [rows[0], rows[150], rows[299]];
        let (settled, gone, refusals) = searched(&rows, &bad, usize::MAX).await;
        let settled = settled.unwrap();
        assert_eq!(set(&gone), set(&bad));
        assert!(settled.left.is_empty() && refusals.stuck().is_empty());
        assert_eq!(set(&settled.applied), set(&rows));

        let bad = [rows[0], rows[100], rows[200], rows[299]];
        let (settled, gone, refusals) = searched(&rows, &bad, usize::MAX).await;
        assert_eq!(set(&gone), set(&bad[1..]));
        assert_eq!(settled.unwrap().left, bad[..1]);
        assert_eq!(refusals.stuck()[0].job, Some(bad[0]));
    }

    #[tokio::test]
    async fn a_row_that_is_refused_for_no_fault_of_its_own_stays_and_its_neighbours_commit() {
        let refusal = || StoreError::Config("a trigger raises".to_owned());
        let rows = page(300);
        let bad = [rows[7], rows[200]];
        let (settled, gone, refusals) = searched_for(&rows, &bad, usize::MAX, refusal).await;
        let settled = settled.unwrap();
        assert!(gone.is_empty(), "{gone:?}");
        assert_eq!(settled.applied.len(), 298);
        assert_eq!(set(&settled.left), set(&bad));
        assert_eq!(refusals.stuck()[0].jobs, 2);
        // Everything is refused: the search ends early.
        let (settled, gone, _) = searched_for(&rows, &rows, HOPELESS, refusal).await;
        assert!(matches!(settled, Err(StoreError::Config(_))) && gone.is_empty());
    }

    /// A few parts lead to the rows behind any number of refused ones.
    #[tokio::test]
    async fn rows_behind_many_refused_ones_commit_first() {
        let refusal = || StoreError::Config("a trigger raises".to_owned());
        let rows = page(4_000);
        let parts = 16;
        let (settled, ..) = searched_for(&rows, &rows[..3_990], parts, refusal).await;
        assert_eq!(set(&settled.unwrap().applied), set(&rows[3_990..]));
    }

    #[tokio::test]
    async fn an_error_that_goes_away_by_itself_ends_the_search_and_sets_nothing_aside() {
        let rows = page(8);
        // The page is refused, its second half commits, its first half is refused, and the second
        // quarter commits.
        let (settled, gone, _) = searched(&rows, &rows[..1], 4).await;
        let settled = settled.unwrap();
        assert!(gone.is_empty(), "{gone:?}");
        assert_eq!(set(&settled.applied), set(&rows[2..]));
        assert_eq!(set(&settled.left), set(&rows[..2]));
        let (settled, gone, _) = searched(&rows, &rows[..1], 1).await;
        assert!(matches!(settled, Err(StoreError::Timeout(_))) && gone.is_empty());
    }

    /// The server's error for a row that stays locked.
    #[derive(Debug, thiserror::Error)]
    #[error("canceling statement due to lock timeout")]
    struct StaysLocked;

    impl sqlx::error::DatabaseError for StaysLocked {
        fn message(&self) -> &'static str {
            "canceling statement due to lock timeout"
        }

        fn code(&self) -> Option<std::borrow::Cow<'_, str>> {
            Some("55P03".into())
        }

        fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
            self
        }

        fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
            self
        }

        fn kind(&self) -> sqlx::error::ErrorKind {
            sqlx::error::ErrorKind::Other
        }
    }

    /// Each row is committed or named as left, even if the search ends early.
    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "a statement that takes its time")]
    async fn no_row_of_a_page_that_stays_locked_is_forgotten() {
        let refusal = || {
            // So slow that the search ends before it has tried all of them.
            std::thread::sleep(LONGEST / 3);
            StoreError::Database(sqlx::Error::Database(Box::new(StaysLocked)))
        };
        let rows = page(8);
        let (settled, gone, refusals) = searched_for(&rows, &rows, usize::MAX, refusal).await;
        assert_eq!(
            (set(&settled.unwrap().left), gone),
            (set(&rows), Vec::new())
        );
        assert!(!refusals.stuck().is_empty());
    }

    #[tokio::test]
    async fn a_row_alone_in_its_page_is_set_aside_once_others_were_taken_after_it() {
        let refusals = Refusals::default();
        let takes_another = || {
            let now = Instant::now();
            refusals.state().allowance.committed("complete", now);
        };
        let row = page(1);
        // Earlier commits prove nothing: a constraint may have been added since.
        takes_another();
        for _ in 0..2 {
            let (settled, gone) = all_refused(&refusals, &row).await;
            assert_eq!((settled.unwrap().left, gone), (row.clone(), Vec::new()));
        }
        assert_eq!(refusals.stuck()[0].jobs, 1);
        takes_another();
        let (settled, gone) = all_refused(&refusals, &row).await;
        assert_eq!((settled.unwrap().applied, gone), (row.clone(), row));
        assert!(refusals.stuck().is_empty());
    }

    #[tokio::test]
    async fn a_row_that_others_of_its_page_were_taken_beside_is_set_aside_alone() {
        let rows = page(4);
        let (_, gone, refusals) = searched(&rows, &rows[..2], usize::MAX).await;
        assert_eq!(gone.len(), 1, "1 % of a page, but one row");
        let left: Vec<_> = rows[..2].iter().filter(|row| !gone.contains(row)).collect();
        let (_, gone) = all_refused(&refusals, &[*left[0]]).await;
        assert_eq!(gone, [*left[0]]);
    }

    #[tokio::test]
    async fn of_a_page_of_which_no_row_is_taken_none_is_set_aside() {
        for rows in [page(2), page(200)] {
            let refusals = Refusals::default();
            let now = Instant::now();
            refusals.state().allowance.committed("complete", now);
            let (settled, gone) = all_refused(&refusals, &rows).await;
            assert_eq!(
                (set(&settled.unwrap().left), gone),
                (set(&rows), Vec::new())
            );
            assert_eq!(refusals.stuck()[0].jobs, rows.len());
        }
    }

    #[tokio::test]
    async fn rows_that_share_a_page_with_none_that_is_taken_go_once_others_were_taken() {
        let refusals = Refusals::default();
        let rows = page(2);
        for _ in 0..2 {
            let (_, gone) = all_refused(&refusals, &rows).await;
            assert!(gone.is_empty());
        }
        let now = Instant::now();
        refusals.state().allowance.committed("complete", now);
        let (_, gone) = all_refused(&refusals, &rows).await;
        assert_eq!(gone.len(), 1, "1 % of a page, but one row");
        let left: Vec<_> = rows.iter().filter(|row| !gone.contains(row)).collect();
        let (_, gone) = all_refused(&refusals, &[*left[0]]).await;
        assert_eq!(gone, [*left[0]]);
    }

    /// The row was refused because of a lock, and others were accepted. Then a constraint was
    /// added.
    #[tokio::test]
    async fn a_row_that_is_refused_for_another_reason_is_not_blamed_for_the_first_one() {
        let refusals = Refusals::default();
        let row = page(1);
        let then = Instant::now();
        let reason = "a lock".to_owned();
        {
            let mut state = refusals.state();
            (state.stuck).note("complete", Some(row[0]), reason, Lasts::AWhile, then);
            state.allowance.committed("complete", Instant::now());
        }
        for _ in 0..2 {
            let (_, gone) = all_refused(&refusals, &row).await;
            assert!(gone.is_empty());
        }
    }

    async fn all_refused(
        refusals: &Refusals,
        rows: &[JobId],
    ) -> (Result<BatchOutcome>, Vec<JobId>) {
        let refusal = || StoreError::BadRow("poisoned".to_owned());
        searched_with(refusals, rows, rows, usize::MAX, refusal).await
    }
}

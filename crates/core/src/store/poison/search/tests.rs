//! Tests of the search, on a database that refuses chosen rows.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::halves::LONGEST;
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

/// The reason may go away between the try of the page and that of its rows.
#[tokio::test]
async fn a_row_that_is_taken_alone_is_stuck_no_longer() {
    let refusals = Refusals::default();
    let rows = page(2);
    let (settled, _) = all_refused(&refusals, &rows).await;
    assert_eq!(set(&settled.unwrap().left), set(&rows));
    assert_eq!(refusals.stuck()[0].jobs, 2);
    let taken = async |rows: &[JobId], bad: &[JobId]| {
        let refusal = || StoreError::BadRow("poisoned".to_owned());
        let (settled, _) = searched_with(&refusals, rows, bad, usize::MAX, refusal).await;
        settled.unwrap();
    };
    taken(&rows[..1], &[]).await;
    assert_eq!(
        refusals.stuck()[0].jobs,
        1,
        "the other one is still refused"
    );
    taken(&rows, &[]).await;
    assert!(refusals.stuck().is_empty());
}

async fn all_refused(refusals: &Refusals, rows: &[JobId]) -> (Result<BatchOutcome>, Vec<JobId>) {
    let refusal = || StoreError::BadRow("poisoned".to_owned());
    searched_with(refusals, rows, rows, usize::MAX, refusal).await
}

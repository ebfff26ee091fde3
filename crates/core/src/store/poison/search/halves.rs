//! Tries a refused page in parts, their halves, and so on.

use std::time::{Duration, Instant};

use crate::store::error::StoreError;
use crate::store::poison::{Outcome, Part};

/// Maximum number of parts that one search tries: enough to find 50 rows of 5,000. Rows that it
/// does not separate wait for the next page.
const PARTS: usize = 1_000;

/// Maximum duration of a search after a row has committed or was refused alone. The rest waits for
/// the next page: the leader cycle must not outlast its lease.
pub(super) const LONGEST: Duration = Duration::from_secs(1);

/// Maximum duration of a search before that.
const HOPELESS_AFTER: Duration = Duration::from_secs(5);

/// Maximum number of parts of an operation that does not repeat by itself.
const MOST_PARTS: usize = 20 * PARTS;

/// Maximum number of parts to try while nothing commits and no row is at fault. After that all rows
/// count as refused.
pub(in crate::store::poison) const HOPELESS: usize = 200;

/// The findings of a search.
pub(super) struct Search<R> {
    pub(super) committed: bool,
    /// Whether a part that committed has changed rows.
    pub(super) changed_rows: bool,
    /// The rows that were refused alone, and why.
    pub(super) refused: Vec<(R, StoreError)>,
    /// The parts that were not tried alone, the first one last. Their rows may have been refused
    /// together with others.
    pub(super) untold: Vec<Vec<R>>,
    /// The first error for which no row is the reason. It ended the search.
    pub(super) fault: Option<StoreError>,
}

/// Tries parts, then their halves, and so on, and commits the rows that the database accepts. A
/// transient error ends the search, unless it has repeated often.
///
/// The second half comes first. The rows of a page are sorted by age, and refused rows stay, so
/// refused rows gather at its beginning. The rows behind thousands of them commit after a few
/// parts. If nothing commits, the search continues from the other end.
pub(super) async fn halve<R: Clone, T: Outcome>(
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
    // When a row first committed or was refused alone.
    let mut settled = None;
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
        if settled.is_none() && (search.committed || !search.refused.is_empty()) {
            settled = Some(Instant::now());
        }
        let (since, longest) = match settled {
            Some(since) => (since, LONGEST),
            None => (began, HOPELESS_AFTER),
        };
        let late = T::PASSES_OVER && since.elapsed() >= longest;
        if late && settled.is_none() {
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

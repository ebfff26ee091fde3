//! The search for the refused rows of a page, by halves.

mod halves;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::time::Instant;

use futures_util::future::BoxFuture;
use metrics::counter;

use super::{Aside, Lasts, Outcome, Part, Refusals, Told};
use crate::job::JobId;
use crate::store::Result;
use crate::store::allowance;
use crate::store::error::StoreError;
use crate::telemetry::metrics as m;
pub(super) use halves::HOPELESS;
use halves::halve;

/// A function that makes a dead letter of a refused row.
type SetAside<'a, R> = dyn Fn(R, String) -> BoxFuture<'a, Result<Option<Aside>>> + Send + Sync + 'a;

/// A page that the database refused.
pub(super) struct RefusedPage<R> {
    pub(super) operation: &'static str,
    /// The parts to begin with, the first one last.
    pub(super) parts: Vec<Vec<R>>,
    /// The name of a page of held jobs: its first job.
    pub(super) name: Option<JobId>,
    /// Whether a transient error has repeated so often that a row may be the reason.
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
    let mut taken: HashSet<JobId> = parts.iter().flatten().map(id).collect();
    let page = taken.len();
    let mut found = halve(parts, searches_transient, &mut outcome, part).await;
    let refused = found.refused.iter().map(|(row, _)| row);
    for row in refused.chain(found.untold.iter().flatten()) {
        taken.remove(&id(row));
    }
    refusals.settled(operation, taken);
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
        // There is no proof that the database accepts any row.
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
    // If other rows of the page are accepted, the fault is in the refused row. If none is, the row
    // waits until the database accepts others of the operation.
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
                    refusals.settled(operation, [job]);
                    continue;
                }
                // It was changed meanwhile.
                Ok(None) => {
                    refusals.settled(operation, [job]);
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
        // This commit also counts for the rows that were refused in the same page. They are tried
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
            "the database refused too many rows of `{operation}`: {} of {page} were not tried; \
             correct the refused ones (`jobwire_stuck_batches` and the log name the first), then \
             run it again",
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
            "the database refused jobs of a request; they are unchanged, and the others are done; \
             correct what `reason` names, then repeat the request"
        );
    }
    outcome.refused(refused);
    Ok(outcome)
}

/// Returns the message of the dead letter.
fn reason(operation: &str, error: &StoreError) -> String {
    format!(
        "set aside, because the database refused `{operation}`: {error}; the stack has the row as \
         it was"
    )
}

fn tell(operation: &'static str, job: JobId, aside: &Aside, error: &StoreError) {
    counter!(m::SET_ASIDE, "operation" => operation).increment(1);
    tracing::error!(
        %job, dead_letter = %aside.letter, operation, %error,
        "a job was set aside as a dead letter: the database refuses its row and accepts others of \
         its page; see it with `Client::get` (`jobwire jobs show`), correct what `error` names, \
         then retry or delete it"
    );
}

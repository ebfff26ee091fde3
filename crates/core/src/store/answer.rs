//! Statements with a deadline, a measurement, and retries after conflicts.

use std::future::Future;
use std::time::{Duration, Instant};

use super::Result;
use crate::store::error::StoreError;
use crate::telemetry::metrics as m;

/// Waits for an answer for at most `within`. Calls `suspect`, so that connections are replaced, if
/// no answer came, and before this connection is dropped. Does so also if the server is read-only,
/// because the address may lead to the primary by now.
pub async fn answer_within<T>(
    within: Duration,
    suspect: impl FnOnce(),
    question: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::pin!(question);
    match tokio::time::timeout(within, &mut question).await {
        Ok(answer) => {
            if answer.as_ref().is_err_and(StoreError::is_read_only) {
                suspect();
            }
            answer
        }
        Err(_) => {
            suspect();
            Err(StoreError::Timeout(within))
        }
    }
}

/// Maximum number of attempts of a transition that meets conflicts (deadlock, serialization
/// failure).
const CONFLICT_ATTEMPTS: u32 = 4;

/// Measures one statement, or the statements of one transition.
pub async fn timed<T>(statement: &'static str, work: impl Future<Output = T>) -> T {
    let started = Instant::now();
    let result = work.await;
    metrics::histogram!(m::STATEMENT, "statement" => statement)
        .record(started.elapsed().as_secs_f64());
    result
}

/// Runs one transition with a deadline, measures it, and retries it after a conflict.
pub async fn measured<T, F, Fut>(
    statement: &'static str,
    deadline: Duration,
    transition: F,
) -> Result<T>
where
    F: Fn() -> Fut + Send,
    Fut: Future<Output = Result<T>> + Send,
{
    let mut attempt = 1;
    loop {
        let answer = timed(statement, tokio::time::timeout(deadline, transition())).await;
        let result = answer.unwrap_or(Err(StoreError::Timeout(deadline)));
        let Err(error) = result else { return result };
        let class = if error.is_conflict() {
            "conflict"
        } else if error.is_transient() {
            "transient"
        } else {
            "permanent"
        };
        metrics::counter!(m::STATEMENT_ERRORS, "statement" => statement, "class" => class)
            .increment(1);
        // A row that stayed locked for the whole lock timeout will hardly be free a moment later.
        if !error.is_conflict() || error.is_lock_timeout() || attempt >= CONFLICT_ATTEMPTS {
            return Err(error);
        }
        tracing::debug!(
            statement,
            attempt,
            %error,
            "the statement conflicted with another transaction; retrying"
        );
        tokio::time::sleep(Duration::from_millis(u64::from(5 * attempt))).await;
        attempt += 1;
    }
}

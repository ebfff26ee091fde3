//! Waiting for the database: not for ever, measured, and again where two transactions met.

use std::future::Future;
use std::time::{Duration, Instant};

use super::Result;
use crate::store::error::StoreError;
use crate::telemetry::metrics as m;

/// Wait for an answer as long as it may take. Connections are suspected, so that they are replaced, where no answer
/// came (before this one is let go), and where the server only reads: the address may lead to the primary by now.
pub(crate) async fn answer_within<T>(
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

/// How often a transition is tried when two transactions met (deadlock, serialization failure).
const CONFLICT_ATTEMPTS: u32 = 4;

/// Run one transition: with a deadline, measured, tried again where two transactions met.
pub(super) async fn measured<T, F, Fut>(
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
        let started = Instant::now();
        let result = tokio::time::timeout(deadline, transition())
            .await
            .unwrap_or(Err(StoreError::Timeout(deadline)));
        metrics::histogram!(m::STATEMENT, "statement" => statement)
            .record(started.elapsed().as_secs_f64());
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
        // A row that stayed locked for as long as the statement waits is not free a moment later.
        if !error.is_conflict() || error.is_lock_timeout() || attempt >= CONFLICT_ATTEMPTS {
            return Err(error);
        }
        tracing::debug!(statement, attempt, %error, "two transactions met; trying again");
        tokio::time::sleep(Duration::from_millis(u64::from(5 * attempt))).await;
        attempt += 1;
    }
}

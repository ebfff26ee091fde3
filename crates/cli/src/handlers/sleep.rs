//! `sleep`: waits for the milliseconds in its payload, `{"ms": 500}`. After a stop signal it
//! returns an error at once, so that the node releases the job.

use std::time::Duration;

use jobwire_core::{HandlerError, HandlerResult, Outcome, Running};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

/// The handler type.
pub const TYPE: &str = "sleep";

/// The payload of a `sleep` job.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Sleep {
    /// The time to wait, in milliseconds.
    pub ms: u64,
}

/// Waits for the time in the payload.
///
/// # Errors
/// Fails if the job was asked to stop before the time had passed.
pub async fn run(job: Running<Sleep>) -> HandlerResult<Outcome> {
    sleep(Duration::from_millis(job.payload.ms), &job.stop).await
}

async fn sleep(duration: Duration, stop: &CancellationToken) -> HandlerResult<Outcome> {
    tokio::select! {
        () = tokio::time::sleep(duration) => Ok(Outcome::Done),
        () = stop.cancelled() => Err(HandlerError::retry(format!("stopped before {duration:?} had passed"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn it_waits_and_is_done() {
        let started = std::time::Instant::now();
        let ended = sleep(Duration::from_millis(20), &CancellationToken::new()).await;
        assert!(matches!(ended, Ok(Outcome::Done)));
        assert!(started.elapsed() >= Duration::from_millis(20));
    }

    #[tokio::test]
    async fn a_stop_ends_it_at_once_and_it_is_not_done() {
        let stop = CancellationToken::new();
        stop.cancel();
        let ended = tokio::time::timeout(Duration::from_secs(5), sleep(LONG, &stop)).await;
        assert!(matches!(ended, Ok(Err(_))), "{ended:?}");
    }

    #[test]
    fn a_payload_without_milliseconds_says_so() {
        let error = serde_json::from_str::<Sleep>("{}")
            .map(|s| s.ms)
            .map_err(|e| e.to_string());
        assert!(error.is_err_and(|e| e.contains("ms")));
    }
}

//! Supervises the transport's tasks: a task that dies is counted, logged and started again.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use jobwire_core::telemetry::metrics::TASK_RESTARTS;
use tokio_util::sync::CancellationToken;

/// The pause before a task is started again.
const PAUSE: Duration = Duration::from_millis(500);

/// Runs `task` until `stop`, and starts it again when it panics or ends earlier.
pub(crate) async fn supervised(
    name: &'static str,
    stop: CancellationToken,
    mut task: impl AsyncFnMut(),
) {
    loop {
        let ended = AssertUnwindSafe(task()).catch_unwind().await;
        if stop.is_cancelled() {
            return;
        }
        let why = match &ended {
            Ok(()) => "ended before it was stopped",
            Err(panic) => what(&**panic),
        };
        tracing::error!(
            task = name,
            why,
            "a task of the Kafka transport died and is started again"
        );
        metrics::counter!(TASK_RESTARTS, "task" => name).increment(1);
        let _ = tokio::time::timeout(PAUSE, stop.cancelled()).await;
    }
}

/// Returns the message of a panic.
fn what(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("panicked without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_or_ends_too_early_is_started_again() {
        let stop = CancellationToken::new();
        let mut runs = 0;
        supervised("fragile", stop.clone(), async || {
            runs += 1;
            match runs {
                1 => panic!("bad luck"),
                2 => {}
                _ => stop.cancel(),
            }
        })
        .await;
        assert_eq!(runs, 3);
    }
}

//! The transport's own tasks are watched: one that dies is counted, logged and started again.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use jobwire_core::telemetry::metrics::TASK_RESTARTS;
use tokio_util::sync::CancellationToken;

/// Before a task that died is started again.
const PAUSE: Duration = Duration::from_millis(500);

/// Run `task` until `stop`; whenever it panics or ends before, start it again.
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
            Ok(()) => "ended before it was told to",
            Err(panic) => what(&**panic),
        };
        tracing::error!(
            task = name,
            why,
            "a task of the Kafka transport died; it is started again"
        );
        metrics::counter!(TASK_RESTARTS, "task" => name).increment(1);
        let _ = tokio::time::timeout(PAUSE, stop.cancelled()).await;
    }
}

/// What a panic said.
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

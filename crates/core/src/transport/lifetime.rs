//! The lifetime of a transport with connections: the signals that end it, and the tasks that follow
//! them.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{TransportError, TransportHealth};

/// The lifetime of a transport. Dropping it gives both signals.
///
/// A transport ends in two steps. First it is **closing**: it refuses new work, and the *tasks*
/// (publishes under way, receivers that leave) end. Then it **stops**: the connections and their
/// *keepers* end.
#[derive(Debug, Default)]
pub struct Lifetime {
    closing: CancellationToken,
    stop: CancellationToken,
    tasks: TaskTracker,
    keepers: TaskTracker,
}

impl Lifetime {
    /// Returns the signal after which new work is refused.
    #[must_use]
    pub fn closing(&self) -> CancellationToken {
        self.closing.clone()
    }

    /// Returns the signal that ends the connections.
    #[must_use]
    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Returns the tasks that must end before the connections do.
    #[must_use]
    pub fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Returns the tasks that end with the connections.
    #[must_use]
    pub fn keepers(&self) -> &TaskTracker {
        &self.keepers
    }

    /// Checks that the transport accepts new work.
    ///
    /// # Errors
    /// [`TransportError::Closed`] once it is closing.
    pub fn ensure_open(&self) -> Result<(), TransportError> {
        if self.closing.is_cancelled() {
            return Err(TransportError::Closed);
        }
        Ok(())
    }

    /// Returns the health of a transport that is closing; `None` before.
    #[must_use]
    pub fn health(&self) -> Option<TransportHealth> {
        let problem = self.ensure_open().err()?;
        Some(TransportHealth {
            problem: Some(problem.to_string()),
            ..TransportHealth::default()
        })
    }

    /// Closes the transport: waits for the tasks, then runs `flush` with the remaining time, then
    /// ends the connections. Abandons work that has not ended `within` this time.
    pub async fn close(&self, within: Duration, flush: impl AsyncFnOnce(Duration)) {
        let end = Instant::now() + within;
        self.closing.cancel();
        self.tasks.close();
        let _ = tokio::time::timeout_at(end, self.tasks.wait()).await;
        flush(end.saturating_duration_since(Instant::now())).await;
        self.stop.cancel();
        self.keepers.close();
        let _ = tokio::time::timeout_at(end, self.keepers.wait()).await;
    }
}

impl Drop for Lifetime {
    fn drop(&mut self) {
        self.closing.cancel();
        self.stop.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[tokio::test]
    async fn tasks_end_before_the_flush_and_keepers_after_it() {
        let lifetime = Lifetime::default();
        let order = Arc::new(Mutex::new(Vec::new()));
        let note = |what: &'static str| {
            let order = order.clone();
            move || order.lock().unwrap().push(what)
        };
        let (closing, task_ends) = (lifetime.closing(), note("task"));
        lifetime.tasks().spawn(async move {
            closing.cancelled().await;
            task_ends();
        });
        let (stop, keeper_ends) = (lifetime.stop(), note("keeper"));
        lifetime.keepers().spawn(async move {
            stop.cancelled().await;
            keeper_ends();
        });
        assert!(lifetime.ensure_open().is_ok() && lifetime.health().is_none());
        let flushes = note("flush");
        lifetime
            .close(Duration::from_secs(60), async |_| flushes())
            .await;
        assert_eq!(*order.lock().unwrap(), ["task", "flush", "keeper"]);
        assert!(matches!(
            lifetime.ensure_open(),
            Err(TransportError::Closed)
        ));
        assert!(
            lifetime
                .health()
                .is_some_and(|health| !health.can_publish())
        );
    }
}

//! Pruning: the leader deletes attempts and incidents whose time is over.
//!
//! It looks once an hour, and for the first time some minutes after it began to lead. It deletes in
//! slices, and a full slice is followed by the next one a minute later at most, so that no statement
//! is long.

use std::time::Duration;

use tokio::time::Instant;

use crate::telemetry::log_throttle::LogThrottle;
use crate::worker::context::NodeContext;

/// The interval between two looks.
const EVERY: Duration = Duration::from_secs(3_600);
/// The time before the first look of a node.
const FIRST: Duration = Duration::from_secs(300);
/// Maximum number of rows that one statement deletes, and of statements in a row.
const SLICE: i64 = 2_000;
const SLICES: usize = 25;

pub(super) struct Pruning {
    next: Instant,
    failed: LogThrottle,
}

impl Pruning {
    pub(super) fn begin() -> Self {
        Self {
            next: Instant::now() + FIRST,
            failed: LogThrottle::default(),
        }
    }

    /// Deletes what is due. Called about once a minute while this node leads.
    pub(super) async fn go_on(&mut self, node: &NodeContext) {
        if Instant::now() < self.next {
            return;
        }
        for _ in 0..SLICES {
            let kept = node.options.incidents_kept;
            match node.store.prune_history(kept, SLICE).await {
                // The next call continues where this one ends.
                Ok(deleted) if i64::try_from(deleted).is_ok_and(|deleted| deleted >= SLICE) => {}
                Ok(_) => {
                    self.next = Instant::now() + EVERY;
                    return;
                }
                Err(error) => {
                    if let Some(more) = self.failed.now() {
                        tracing::warn!(
                            %error, more,
                            "old attempts and incidents could not be deleted; trying again"
                        );
                    }
                    return;
                }
            }
            if node.signals.draining.is_cancelled() {
                return;
            }
        }
    }
}

//! Pruning: the leader deletes attempts and incidents whose time is over, and unique keys that no job
//! has.
//!
//! It looks once an hour, and for the first time some minutes after it began to lead. It deletes in
//! slices, so that no statement is long. A full slice is followed by the next one after a short pause,
//! until nothing is due.

use std::sync::Arc;
use std::time::Duration;

use crate::telemetry::log_throttle::LogThrottle;
use crate::worker::context::NodeContext;

/// The interval between two looks.
const EVERY: Duration = Duration::from_secs(3_600);
/// The time before the first look of a leader.
const FIRST: Duration = Duration::from_secs(300);
/// Maximum number of rows that one statement deletes.
const SLICE: i64 = 2_000;
/// The pause between two slices, in which other statements have the database.
const BETWEEN_SLICES: Duration = Duration::from_millis(100);
/// The pause after a failure.
const AGAIN: Duration = Duration::from_secs(60);

/// Deletes old attempts and incidents while this node leads, until it drains.
pub(crate) async fn prune(node: Arc<NodeContext>) {
    let mut leads = node.leadership.leads.subscribe();
    let mut failed = LogThrottle::default();
    let mut pause = FIRST;
    loop {
        let is_leader = *leads.borrow_and_update();
        tokio::select! {
            biased;
            () = node.signals.draining.cancelled() => return,
            changed = leads.changed() => {
                if changed.is_err() {
                    return;
                }
                pause = FIRST;
                continue;
            }
            () = tokio::time::sleep(pause), if is_leader => {}
        }
        pause = match node
            .store
            .prune_history(node.options.incidents_kept, SLICE)
            .await
        {
            Ok(deleted) if i64::try_from(deleted).is_ok_and(|deleted| deleted >= SLICE) => {
                BETWEEN_SLICES
            }
            Ok(_) => EVERY,
            Err(error) => {
                if let Some(more) = failed.now() {
                    tracing::warn!(
                        %error, more,
                        "old attempts and incidents could not be deleted; trying again"
                    );
                }
                AGAIN
            }
        };
    }
}

//! Pruning: the leader deletes attempts and incidents whose time is over, unique keys that no job has,
//! ended batches, and progress that was left.
//!
//! It looks once an hour, and for the first time some minutes after it began to lead. It deletes in
//! slices, so that no statement is long. A full slice is followed by the next one after a short pause,
//! until nothing is due.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::store::StoreError;
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

/// Deletes what is old while this node leads, until it drains.
pub(crate) async fn prune(node: Arc<NodeContext>) {
    let leads = node.leadership.leads.subscribe();
    let delete = || node.store.prune_history(node.options.incidents_kept, SLICE);
    prune_while_leading(leads, &node.signals.draining, delete).await;
}

/// Deletes slices in time while the node leads, until it drains. `delete` returns the number of rows.
async fn prune_while_leading<F>(
    mut leads: watch::Receiver<bool>,
    draining: &CancellationToken,
    mut delete: impl FnMut() -> F,
) where
    F: Future<Output = Result<u64, StoreError>>,
{
    let mut failed = LogThrottle::default();
    let mut pause = FIRST;
    loop {
        let is_leader = *leads.borrow_and_update();
        tokio::select! {
            biased;
            () = draining.cancelled() => return,
            changed = leads.changed() => {
                if changed.is_err() {
                    return;
                }
                pause = FIRST;
                continue;
            }
            () = tokio::time::sleep(pause), if is_leader => {}
        }
        pause = match delete().await {
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

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);
    const FULL: u64 = SLICE.unsigned_abs();

    /// Runs the task for this time. Its deletions return these numbers and then 0. Returns the time of
    /// each deletion, in tenths of a second.
    async fn times(
        leads: &watch::Sender<bool>,
        deleted: Vec<Result<u64, StoreError>>,
        during: Duration,
    ) -> Vec<u128> {
        let begun = Instant::now();
        let draining = CancellationToken::new();
        let mut times = Vec::new();
        let mut deleted = deleted.into_iter();
        let task = prune_while_leading(leads.subscribe(), &draining, || {
            times.push(begun.elapsed().as_millis() / 100);
            std::future::ready(deleted.next().unwrap_or(Ok(0)))
        });
        let ended = tokio::time::timeout(during, task).await;
        assert!(ended.is_err(), "the task has ended");
        times
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_looks_for_old_rows_after_some_minutes_and_then_once_an_hour() {
        let leads = watch::Sender::new(true);
        let times = times(&leads, Vec::new(), HOUR * 2).await;
        assert_eq!(times, [3_000, 39_000]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_slice_is_followed_by_the_next_one_at_once() {
        let leads = watch::Sender::new(true);
        let deleted = vec![Ok(FULL), Ok(FULL + 1), Ok(FULL - 1)];
        let times = times(&leads, deleted, HOUR * 2).await;
        assert_eq!(times, [3_000, 3_001, 3_002, 39_002]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slice_that_fails_is_tried_again_after_a_minute() {
        let leads = watch::Sender::new(true);
        let deleted = vec![Err(StoreError::Timeout(Duration::from_secs(1)))];
        let times = times(&leads, deleted, HOUR).await;
        assert_eq!(times, [3_000, 3_600]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_follower_deletes_no_old_rows_and_a_new_leader_waits_first() {
        let leads = watch::Sender::new(false);
        let terms = async {
            sleep(HOUR).await;
            // It loses the lead before its first look.
            leads.send_replace(true);
            sleep(Duration::from_secs(200)).await;
            leads.send_replace(false);
            sleep(HOUR).await;
            leads.send_replace(true);
            sleep(Duration::from_secs(400)).await;
            leads.send_replace(false);
        };
        let (times, ()) = tokio::join!(times(&leads, vec![Ok(FULL - 1)], HOUR * 5), terms);
        assert_eq!(times, [77_000]);
    }

    #[tokio::test(start_paused = true)]
    async fn pruning_ends_when_its_node_drains() {
        let leads = watch::Sender::new(true);
        let draining = CancellationToken::new();
        draining.cancel();
        prune_while_leading(leads.subscribe(), &draining, || {
            std::future::ready(Ok(FULL))
        })
        .await;
    }
}

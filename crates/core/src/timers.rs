//! Timers: sleep until the next due date, move what is due, hint it. No polling.
//!
//! One mover, the leader. It learns the next due date from its turns and from its own moves; creators of
//! earlier timers tell it over the broker. A timer that nobody told of is at most one turn late
//! (protocol rule 30). Due dates are the database's time: the sleep is computed from what its clock said,
//! never from this machine's.

use std::sync::Arc;
use std::time::Duration;

use crate::commit_hook::Cause;
use crate::shared::Shared;

/// Timers moved in one statement.
const BATCH: i64 = 1_000;
/// Move due timers while this node leads.
pub(crate) async fn move_timers(node: Arc<Shared>) {
    let mut alarm = node.alarm.0.subscribe();
    let mut leads = node.leads.subscribe();
    let mut pause = Duration::from_millis(100);
    loop {
        let next = if *leads.borrow_and_update() {
            *alarm.borrow_and_update()
        } else {
            None
        };
        let due = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // What is due comes before news of what will be: a flood of these delays nothing.
            biased;
            () = node.draining.cancelled() => return,
            () = due => {}
            _ = leads.changed() => continue,
            _ = alarm.changed() => continue,
        }
        match node.store.move_due_timers(BATCH).await {
            Ok(moved) => {
                crash_point!("timers-moved");
                pause = Duration::from_millis(100);
                tracing::debug!(timers = moved.ready.len(), "due timers became executable");
                node.hook.publish(Cause::Timer, moved.ready);
                node.alarm
                    .set(tokio::time::Instant::now(), moved.now, moved.next_due);
            }
            Err(error) => {
                tracing::warn!(%error, "due timers could not be moved; trying again");
                tokio::select! {
                    biased;
                    () = node.draining.cancelled() => return,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(Duration::from_secs(5));
            }
        }
    }
}

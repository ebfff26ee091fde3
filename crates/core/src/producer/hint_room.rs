//! Room for the hints of changes that make many jobs ready.
//!
//! Such a change goes page by page. The next page follows when the broker has confirmed most of the
//! earlier hints, so the hook's buffer does not overflow.

use std::time::Duration;

use tokio::time::Instant;

use crate::producer::commit_hook::CommitHook;

/// The number of waiting hints below which the next page follows.
const FEW: usize = 10_000;
/// The pause between two looks at the waiting hints.
const LOOK: Duration = Duration::from_millis(10);
/// The time after which the rest is left to the sweeper: the broker takes no hints.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until few hints wait. Returns false if they do not leave.
pub(super) async fn room(hook: &CommitHook) -> bool {
    let until = Instant::now() + PATIENCE;
    while hook.buffered() > FEW {
        if Instant::now() >= until {
            return false;
        }
        tokio::time::sleep(LOOK).await;
    }
    true
}

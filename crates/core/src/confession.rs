//! A node that lost a lease and lives says so.
//!
//! Whoever takes a lease off its holder counts a strike against the job, since the holder has probably died of
//! it ([`crate::quarantine`]). A holder that was frozen, or cut off from the database, comes back: it gives up
//! what it still has, so that nobody needs to take it, and takes back the strikes for what was taken. So a
//! bad line puts no job into quarantine.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::commit_hook::Cause;
use crate::job::{Held, JobId};
use crate::shared::Shared;
use crate::store::StoreError;

/// It is tried so often, with growing pauses of at most [`LONGEST_PAUSE`]: about ten minutes.
const ATTEMPTS: u32 = 40;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(20);

/// Tell the database of these, which this node has stopped working on, as soon as it can be reached.
pub(crate) fn confess(node: &Arc<Shared>, lost: Vec<Held>) {
    insist(node, lost, true);
}

/// Give back what this node may hold by leases; what it does not hold was not taken from it, and no strike of others is
/// taken back.
pub(crate) fn give_back(node: &Arc<Shared>, held: Vec<Held>) {
    insist(node, held, false);
}

/// The same, at once: by a node that is about to stop.
pub(crate) async fn give_back_now(node: &Arc<Shared>, held: Vec<Held>) {
    if held.is_empty() {
        return;
    }
    if let Err(error) = tell(node, &held, false).await {
        tracing::warn!(jobs = held.len(), %error, "what was taken could not be given back yet");
        give_back(node, held);
    }
}

fn insist(node: &Arc<Shared>, lost: Vec<Held>, absolve: bool) {
    if lost.is_empty() {
        return;
    }
    let node = node.clone();
    tokio::spawn(async move {
        let mut pause = FIRST_PAUSE;
        for _ in 0..ATTEMPTS {
            match tell(&node, &lost, absolve).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::debug!(jobs = lost.len(), %error, "lost leases could not be given up yet")
                }
            }
            tokio::select! {
                biased;
                () = node.ended.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    });
}

async fn tell(node: &Shared, lost: &[Held], absolve: bool) -> Result<(), StoreError> {
    let given_up = node.store.release(node.id, lost).await?;
    node.hook.publish(Cause::GiveBack, given_up.ready);
    let given_up: HashSet<JobId> = given_up.applied.into_iter().collect();
    let taken: Vec<JobId> = lost
        .iter()
        .map(|held| held.id)
        .filter(|id| !given_up.contains(id))
        .collect();
    if taken.is_empty() || !absolve {
        return Ok(());
    }
    node.store.absolve(&taken).await
}

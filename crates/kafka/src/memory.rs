//! Detects a topic that was deleted and created again.
//!
//! Deleting a topic deletes the group's offsets of it. If the topic is created again at once, the
//! client gets no error: it continues at its position in the old log, does not fetch lower offsets
//! of the new log, and does not commit them. So this task reads the group's offsets periodically.
//! If they are twice in a row behind the offsets that were stored for commit, the client's position
//! belongs to a deleted log, and the client must be replaced by a new one.
//!
//! A false detection (commits that fail for that time) costs a rebalance.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::Offset;

use crate::blocking::blocking;
use crate::lane_client::{LaneClient, LaneState};
use crate::offsets::committed;

/// Minimum interval between two reads of the group's offsets.
const LOOK: Duration = Duration::from_secs(5);
/// Minimum number of commit intervals between two reads.
const COMMITS: u32 = 3;

/// Waits until the group has lost offsets that this client has settled, and returns the partition.
pub(crate) async fn is_lost(
    state: Arc<LaneState>,
    client: LaneClient,
    commit_interval: Duration,
) -> i32 {
    // The stored offsets that the group did not have at the last read.
    let mut missed: BTreeMap<i32, (u64, i64)> = BTreeMap::new();
    loop {
        tokio::time::sleep(LOOK.max(commit_interval * COMMITS)).await;
        let stored = state.assignment().stored();
        let Some(committed) = committed_now(&state, &client, &stored).await else {
            missed.clear();
            continue;
        };
        let behind = |partition: i32, offset: i64| {
            committed
                .get(&partition)
                .is_none_or(|committed| *committed < offset)
        };
        let lost = missed.iter().find(|(partition, (epoch, offset))| {
            // A partition that was revoked meanwhile is committed by its next owner.
            let ours = stored.get(partition).is_some_and(|(now, _)| now == epoch);
            ours && behind(**partition, *offset)
        });
        if let Some((partition, _)) = lost {
            return *partition;
        }
        missed = stored;
        missed.retain(|partition, (_, offset)| behind(*partition, *offset));
    }
}

/// Returns the offsets that the group has committed of these partitions, or `None` if they are
/// unknown.
async fn committed_now(
    state: &LaneState,
    client: &LaneClient,
    stored: &BTreeMap<i32, (u64, i64)>,
) -> Option<BTreeMap<i32, i64>> {
    if stored.is_empty() {
        return None;
    }
    let topic = state.assignment().topic.clone();
    let partitions: Vec<i32> = stored.keys().copied().collect();
    let client = client.clone();
    let asked = blocking(move || committed(&**client, &topic, partitions.into_iter()));
    match asked.await {
        Ok(list) if list.elements().iter().all(|e| e.error().is_ok()) => {
            let known = list.elements().into_iter().filter_map(|element| {
                let Offset::Offset(offset) = element.offset() else {
                    return None;
                };
                Some((element.partition(), offset))
            });
            Some(known.collect())
        }
        Ok(_) => None,
        Err(problem) => {
            tracing::debug!(lane = %state.lane, %problem, "the group's offsets can't be read");
            None
        }
    }
}

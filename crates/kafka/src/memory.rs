//! Does the group still remember what was settled? Where it does not, the topic was made again.
//!
//! A topic that is deleted takes the group's offsets with it. When it is made again at once, nobody is
//! told: the client goes on at the position that it had in the old log, does not fetch what lies below it
//! in the new one, and commits nothing below it either. So the offsets are asked for now and then. If they
//! stay behind what was stored for commit, twice in a row, the client knows another log than the one that
//! is there, and is to be replaced by one that knows none.
//!
//! A wrong suspicion (commits that failed for so long) costs a rebalance.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::Consumer as _;
use rdkafka::{Offset, TopicPartitionList};

use crate::connection::ANSWER;
use crate::error::explain_error;
use crate::lane::{LaneClient, LaneState};
use crate::producers::blocking;

/// How often the group is asked, at least some commits apart.
const LOOK: Duration = Duration::from_secs(5);
const COMMITS: u32 = 3;

/// Returns when the group has forgotten what this client has settled.
pub(crate) async fn is_lost(
    state: Arc<LaneState>,
    client: LaneClient,
    commit_interval: Duration,
) -> i32 {
    // What the group did not remember at the last look.
    let mut missed: BTreeMap<i32, (u64, i64)> = BTreeMap::new();
    loop {
        tokio::time::sleep(LOOK.max(commit_interval * COMMITS)).await;
        let stored = state.assignment().stored();
        let Some(committed) = committed(&state, &client, &stored).await else {
            missed.clear();
            continue;
        };
        let behind = |partition: i32, offset: i64| {
            committed
                .get(&partition)
                .is_none_or(|committed| *committed < offset)
        };
        let lost = missed.iter().find(|(partition, (epoch, offset))| {
            // What was taken from us meanwhile is committed by somebody else.
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

/// What the group has committed of these partitions; none where that is not known.
async fn committed(
    state: &LaneState,
    client: &LaneClient,
    stored: &BTreeMap<i32, (u64, i64)>,
) -> Option<BTreeMap<i32, i64>> {
    if stored.is_empty() {
        return None;
    }
    let topic = state.assignment().topic.clone();
    let mut list = TopicPartitionList::new();
    for partition in stored.keys() {
        list.add_partition(&topic, *partition);
    }
    let client = client.clone();
    let asked = blocking(move || {
        client
            .committed_offsets(list, ANSWER)
            .map_err(|error| explain_error(&error, &topic))
    });
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

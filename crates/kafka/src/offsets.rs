//! Requests for the offsets of a topic's partitions. All of them block.

use jobwire_core::transport::TransportError;
use rdkafka::consumer::{Consumer, ConsumerContext};
use rdkafka::{Offset, TopicPartitionList};

use crate::connection::ANSWER;
use crate::error::explain_error;

/// The messages of a lane that are read, and that count for its end. A foreign producer's transaction
/// that stays open would hide all later messages of its partition, for up to 15 minutes. The hint of
/// an aborted transaction is harmless: its job does not exist, or is found in the database.
pub(crate) const ISOLATION: &str = "read_uncommitted";

/// Returns the number of each partition and its start or end, in the order of `partitions`. One
/// request to each broker: `fetch_watermarks` would take one for each partition, one after another.
/// For the search by time, the protocol gives both edges a number as their time (`ListOffsets`, -2
/// and -1).
pub(crate) fn edges<C: ConsumerContext>(
    client: &impl Consumer<C>,
    topic: &str,
    partitions: impl Iterator<Item = i32>,
    edge: Offset,
) -> Result<Vec<(i32, i64)>, TransportError> {
    let mut list = TopicPartitionList::new();
    for partition in partitions {
        list.add_partition_offset(topic, partition, edge)
            .map_err(|error| explain_error(&error, topic))?;
    }
    if list.count() == 0 {
        return Ok(Vec::new());
    }
    let found = client
        .offsets_for_times(list, ANSWER)
        .map_err(|error| explain_error(&error, topic))?;
    let edges = found.elements().into_iter().map(|of| {
        of.error().map_err(|error| explain_error(&error, topic))?;
        match of.offset() {
            Offset::Offset(offset) => Ok((of.partition(), offset)),
            _ => Err(TransportError::Timeout(ANSWER)),
        }
    });
    edges.collect()
}

/// Returns the offsets that the client's group has committed.
pub(crate) fn committed<C: ConsumerContext>(
    client: &impl Consumer<C>,
    topic: &str,
    partitions: impl Iterator<Item = i32>,
) -> Result<TopicPartitionList, TransportError> {
    let mut list = TopicPartitionList::new();
    for partition in partitions {
        list.add_partition(topic, partition);
    }
    client
        .committed_offsets(list, ANSWER)
        .map_err(|error| explain_error(&error, topic))
}

/// Returns the offset of a partition in a list, if the list has one.
pub(crate) fn offset_of(list: &TopicPartitionList, topic: &str, partition: i32) -> Option<i64> {
    match list.find_partition(topic, partition)?.offset() {
        Offset::Offset(offset) => Some(offset),
        _ => None,
    }
}

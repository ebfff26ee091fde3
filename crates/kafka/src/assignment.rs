//! What one lane's consumer has been assigned, and what it has delivered of it.
//!
//! Shared by the task that polls ([`crate::lane`]), by the receiver that settles, and by the rebalance
//! callbacks. A partition that is taken from us takes its deliveries with it: their tickets name the
//! assignment's epoch, and one that is gone is nobody's.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jobwire_core::transport::{Delivery, Ticket, TransportError};
use rdkafka::consumer::Consumer as _;
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};

use crate::lane::LaneConsumer;
use crate::partition::{Arrival, Tracker};

/// See the [module](self).
pub(crate) struct Assignment {
    pub(crate) topic: String,
    /// The client, while there is one.
    pub(crate) consumer: Option<Arc<LaneConsumer>>,
    /// Tells apart all assignments of a transport.
    epochs: Arc<AtomicU64>,
    partitions: BTreeMap<i32, (u64, Tracker)>,
    by_epoch: HashMap<u64, i32>,
    /// Delivered, and not yet returned to the caller.
    pub(crate) ready: VecDeque<Delivery>,
    /// The caller wants nothing for now.
    pub(crate) paused: bool,
    /// Partitions are paused at the client.
    pub(crate) holding: bool,
    /// Something was given back: fetch again.
    pub(crate) rewind: bool,
    /// An operator is needed; told once to the caller.
    pub(crate) problem: Option<TransportError>,
}

impl Assignment {
    pub(crate) fn new(topic: String, epochs: Arc<AtomicU64>) -> Self {
        Self {
            topic,
            consumer: None,
            epochs,
            partitions: BTreeMap::new(),
            by_epoch: HashMap::new(),
            ready: VecDeque::new(),
            paused: false,
            holding: false,
            rewind: false,
            problem: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.partitions.is_empty()
    }

    /// Messages that are delivered and undecided.
    pub(crate) fn held(&self) -> usize {
        self.partitions
            .values()
            .map(|(_, tracker)| tracker.held())
            .sum()
    }

    pub(crate) fn assigned(&mut self, partitions: impl Iterator<Item = i32>) {
        for partition in partitions {
            self.revoked(std::iter::once(partition));
            let epoch = self.epochs.fetch_add(1, Ordering::Relaxed);
            self.by_epoch.insert(epoch, partition);
            self.partitions
                .insert(partition, (epoch, Tracker::default()));
        }
    }

    pub(crate) fn revoked(&mut self, partitions: impl Iterator<Item = i32>) {
        for partition in partitions {
            if let Some((epoch, _)) = self.partitions.remove(&partition) {
                self.by_epoch.remove(&epoch);
                self.ready.retain(|delivery| delivery.ticket.epoch != epoch);
            }
        }
    }

    /// The client is no more.
    pub(crate) fn ended(&mut self) {
        self.consumer = None;
        self.holding = false;
        self.rewind = false;
        self.revoke_all();
    }

    pub(crate) fn revoke_all(&mut self) {
        self.partitions.clear();
        self.by_epoch.clear();
        self.ready.clear();
    }

    /// A message arrived. The ticket of a delivery, where it is to be one.
    pub(crate) fn arrive(&mut self, partition: i32, offset: i64) -> Option<(Ticket, bool)> {
        let (epoch, tracker) = self.partitions.get_mut(&partition)?;
        let again = match tracker.arrive(offset) {
            Arrival::New => false,
            Arrival::Again => true,
            Arrival::Known => return None,
        };
        let number = u64::try_from(offset).ok()?;
        let ticket = Ticket {
            epoch: *epoch,
            number,
        };
        Some((ticket, again))
    }

    /// These have been decided: what that completes is stored for the next commit.
    pub(crate) fn settle(&mut self, tickets: &[Ticket]) {
        let mut moved: BTreeMap<i32, i64> = BTreeMap::new();
        for ticket in tickets {
            let Some((partition, tracker)) = self.tracker(*ticket) else {
                continue;
            };
            let offset = i64::try_from(ticket.number).unwrap_or(i64::MAX);
            if let Some(low) = tracker.settle(offset) {
                moved.insert(partition, low);
            }
        }
        if let Some(consumer) = &self.consumer
            && !moved.is_empty()
        {
            let stored = self
                .list(moved.iter().map(|(p, o)| (*p, Offset::Offset(*o))))
                .and_then(|list| consumer.store_offsets(&list));
            if let Err(error) = stored {
                // The partition was lost in this moment: its next owner sees these again.
                tracing::debug!(topic = self.topic, %error, "settled hints could not be noted");
            }
        }
    }

    /// These go back, to be fetched again by whoever has the partition then.
    pub(crate) fn give_back(&mut self, tickets: &[Ticket]) {
        for ticket in tickets {
            let offset = i64::try_from(ticket.number).unwrap_or(i64::MAX);
            if let Some((_, tracker)) = self.tracker(*ticket) {
                self.rewind |= tracker.give_back(offset);
            }
        }
    }

    /// What was not returned to the caller goes back.
    pub(crate) fn give_back_ready(&mut self) {
        let tickets: Vec<Ticket> = self.ready.drain(..).map(|d| d.ticket).collect();
        self.give_back(&tickets);
    }

    fn tracker(&mut self, ticket: Ticket) -> Option<(i32, &mut Tracker)> {
        let partition = *self.by_epoch.get(&ticket.epoch)?;
        let (_, tracker) = self.partitions.get_mut(&partition)?;
        Some((partition, tracker))
    }

    /// Where to fetch again from, by partition.
    pub(crate) fn rewinds(&self) -> Vec<(i32, i64)> {
        let rewind = |(partition, (_, tracker)): (&i32, &(u64, Tracker))| {
            Some((*partition, tracker.rewind_to()?))
        };
        self.partitions.iter().filter_map(rewind).collect()
    }

    /// All partitions, as the client wants them.
    pub(crate) fn all(&self) -> Result<TopicPartitionList, KafkaError> {
        self.list(self.partitions.keys().map(|p| (*p, Offset::Invalid)))
    }

    fn list(
        &self,
        partitions: impl Iterator<Item = (i32, Offset)>,
    ) -> Result<TopicPartitionList, KafkaError> {
        let mut list = TopicPartitionList::new();
        for (partition, offset) in partitions {
            list.add_partition_offset(&self.topic, partition, offset)?;
        }
        Ok(list)
    }
}

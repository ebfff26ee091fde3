//! The partitions assigned to a lane's consumer, and their deliveries.
//!
//! Shared by the task that polls ([`crate::lane`]), by the receiver that settles, and by the
//! rebalance callbacks. When a partition is revoked, its deliveries become void: their tickets name
//! the assignment's epoch, and tickets of an ended epoch are ignored.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jobwire_core::transport::{Delivery, Ticket, TransportError};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::{Offset, TopicPartitionList};
use tokio::time::Instant;

use crate::partition::{Arrival, Expected, Tracker};
use crate::patience::Patience;

/// The time after which a client is replaced whose problem was not reported again. librdkafka (2.12) reports most
/// problems once, and not that they have ended: a client may be well again, and have no message and no rebalance.
/// The new one reports the problem again, or is placed.
const STANDS: Duration = Duration::from_secs(600);

/// Partitions, each with its epoch and what should arrive next.
pub(crate) type Flowing = BTreeMap<i32, (u64, Expected)>;

/// A client that commits offsets.
pub(crate) trait Offsets: Send + Sync {
    /// Stores offsets for the next commit.
    fn store(&self, offsets: &TopicPartitionList) -> KafkaResult<()>;
}

/// See the [module](self).
pub(crate) struct Assignment {
    pub(crate) topic: String,
    /// The current client, if any.
    consumer: Option<Arc<dyn Offsets>>,
    /// The number of the current client. Former clients may still run callbacks while they end.
    client: u64,
    /// Numbers all assignments of a transport.
    epochs: Arc<AtomicU64>,
    partitions: BTreeMap<i32, (u64, Tracker)>,
    by_epoch: HashMap<u64, i32>,
    /// The offset of each partition that was stored at the client for commit.
    stored: BTreeMap<i32, i64>,
    /// Deliveries that were not yet returned to the caller.
    pub(crate) ready: VecDeque<Delivery>,
    /// The caller paused the receiver.
    pub(crate) paused: bool,
    /// Partitions are paused at the client.
    pub(crate) holding: bool,
    /// A message arrived although the partitions are paused.
    pub(crate) leaks: bool,
    /// The group's last rebalance is over; it assigned these partitions to this member.
    pub(crate) placed: bool,
    /// The number of rebalances that placed this member.
    pub(crate) placements: u64,
    /// The client had no message left to take.
    dry: bool,
    /// The interval at which the client is looked at.
    pub(crate) patience: Patience,
    /// The last problem that kept the client from receiving, and when it was reported.
    trouble: Option<(Instant, String)>,
    /// A message was requeued and must be fetched again.
    pub(crate) rewind: bool,
    /// A problem that needs an operator; returned once to the caller.
    pub(crate) problem: Option<TransportError>,
}

impl Assignment {
    pub(crate) fn new(topic: String, epochs: Arc<AtomicU64>) -> Self {
        Self {
            topic,
            consumer: None,
            client: 0,
            epochs,
            partitions: BTreeMap::new(),
            by_epoch: HashMap::new(),
            stored: BTreeMap::new(),
            ready: VecDeque::new(),
            paused: false,
            holding: false,
            leaks: false,
            placed: false,
            placements: 0,
            dry: false,
            patience: Patience::new(),
            trouble: None,
            rewind: false,
            problem: None,
        }
    }

    /// Returns the number of the next client.
    pub(crate) fn next_client(&mut self) -> u64 {
        self.client += 1;
        self.client
    }

    /// Returns whether this is the current client.
    pub(crate) fn is_of(&self, client: u64) -> bool {
        self.client == client
    }

    pub(crate) fn begun(&mut self, consumer: Arc<dyn Offsets>) {
        self.consumer = Some(consumer);
        self.dry = false;
        self.trouble = None;
    }

    /// Records a problem that keeps the client from receiving.
    pub(crate) fn is_kept_out(&mut self, why: String) {
        self.trouble = Some((Instant::now(), why));
    }

    /// Returns why the client can't receive.
    pub(crate) fn trouble(&self) -> Option<&str> {
        let (_, why) = self.trouble.as_ref()?;
        (!self.paused).then_some(why)
    }

    /// Returns whether the client has reported a problem that it has not reported again for [`STANDS`].
    pub(crate) fn has_old_trouble(&self) -> bool {
        let at = self.trouble.as_ref().map(|(at, _)| at);
        !self.paused && at.is_some_and(|at| at.elapsed() >= STANDS)
    }

    /// Returns whether this member waits for an assignment, without a problem.
    pub(crate) fn is_joining(&self) -> bool {
        !self.placed && !self.paused && self.trouble().is_none()
    }

    /// Returns whether the group's last rebalance is over and left this member without a partition.
    pub(crate) fn is_left_out(&self) -> bool {
        self.placed && self.partitions.is_empty()
    }

    /// Returns the number of delivered and undecided messages.
    pub(crate) fn held(&self) -> usize {
        self.partitions
            .values()
            .map(|(_, tracker)| tracker.held())
            .sum()
    }

    /// Records that the client had no message left to take.
    pub(crate) fn ran_dry(&mut self) {
        self.dry = true;
    }

    /// Returns the partitions from which messages should arrive, if some wait in the log: their
    /// epochs, and what should arrive next. A client that always had messages left to take gets to
    /// these partitions later, so then there are none.
    pub(crate) fn take_flowing(&mut self) -> Flowing {
        let was_dry = std::mem::take(&mut self.dry);
        if was_dry {
            self.flowing()
        } else {
            Flowing::new()
        }
    }

    /// Like [`Assignment::take_flowing`], whatever the client had left to take.
    pub(crate) fn flowing(&self) -> Flowing {
        if self.paused || self.holding || self.trouble().is_some() {
            return Flowing::new();
        }
        let idle = |(partition, (epoch, tracker)): (&i32, &(u64, Tracker))| {
            let idle = tracker.held() == 0;
            idle.then(|| (*partition, (*epoch, tracker.expects())))
        };
        self.partitions.iter().filter_map(idle).collect()
    }

    /// Passes over the marks of transactions, which are no messages, in partitions that have not changed
    /// since the position was read.
    pub(crate) fn pass_marks(&mut self, flowing: &Flowing, position: impl Fn(i32) -> Option<i64>) {
        let mut moved = Vec::new();
        for (partition, (epoch, expects)) in flowing {
            if let Some((of, tracker)) = self.partitions.get_mut(partition)
                && (*of, tracker.expects()) == (*epoch, *expects)
                && let Some(position) = position(*partition)
                && let Some(low) = tracker.pass_to(position)
            {
                moved.push((*partition, low));
            }
        }
        if !moved.is_empty() {
            self.store(moved.into_iter());
        }
    }

    /// Records that the group's rebalance is over, and how.
    pub(crate) fn place(&mut self, partitions: impl Iterator<Item = i32>) {
        self.assigned(partitions);
        self.placed = true;
        self.placements += 1;
        self.patience.placed();
        self.trouble = None;
        self.problem = None;
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
        self.placed = false;
        for partition in partitions {
            if let Some((epoch, _)) = self.partitions.remove(&partition) {
                self.by_epoch.remove(&epoch);
                self.stored.remove(&partition);
                self.ready.retain(|delivery| delivery.ticket.epoch != epoch);
            }
        }
    }

    /// Records the end of the client.
    pub(crate) fn ended(&mut self) {
        self.consumer = None;
        self.client += 1;
        self.holding = false;
        self.revoke_all();
    }

    pub(crate) fn revoke_all(&mut self) {
        self.placed = false;
        self.partitions.clear();
        self.by_epoch.clear();
        self.stored.clear();
        self.ready.clear();
        self.rewind = false;
    }

    /// Records the arrival of a message. Returns the ticket, and whether it was requeued before, if
    /// the message is to be delivered.
    pub(crate) fn arrive(&mut self, partition: i32, offset: i64) -> Option<(Ticket, bool)> {
        let number = u64::try_from(offset).ok()?;
        self.patience.arrived(partition);
        self.trouble = None;
        let (epoch, tracker) = self.partitions.get_mut(&partition)?;
        let epoch = *epoch;
        let arrival = tracker.arrive(offset);
        if let Some(low) = tracker.notice_gone(offset) {
            tracing::warn!(
                topic = self.topic,
                partition,
                low,
                "requeued hints are gone from the log; the sweeper publishes them again"
            );
            self.store(std::iter::once((partition, low)));
        } else {
            self.rewind |= tracker.wants_rewind().is_some();
        }
        let again = match arrival {
            Arrival::New => false,
            Arrival::Again => true,
            Arrival::Known => return None,
        };
        Some((Ticket { epoch, number }, again))
    }

    /// Settles messages, and stores the new low watermarks for the next commit.
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
        if !moved.is_empty() {
            self.store(moved.into_iter());
        }
    }

    fn store(&mut self, moved: impl Iterator<Item = (i32, i64)>) {
        let Some(consumer) = &self.consumer else {
            return;
        };
        let moved: Vec<(i32, i64)> = moved.collect();
        let offsets = moved.iter().map(|(at, low)| (*at, Offset::Offset(*low)));
        let stored = self.list(offsets).and_then(|list| consumer.store(&list));
        match stored {
            Ok(()) => self.stored.extend(moved),
            // The partition was just revoked: its next owner receives these messages again.
            Err(error) => {
                tracing::debug!(
                    topic = self.topic,
                    %error,
                    "settled offsets could not be stored for commit"
                );
            }
        }
    }

    /// Returns the partitions with settled messages: their epochs and the offsets to commit.
    pub(crate) fn stored(&self) -> BTreeMap<i32, (u64, i64)> {
        let of = |(partition, offset): (&i32, &i64)| {
            let (epoch, _) = self.partitions.get(partition)?;
            Some((*partition, (*epoch, *offset)))
        };
        self.stored.iter().filter_map(of).collect()
    }

    /// Requeues messages, to be fetched again by the owner of the partition.
    pub(crate) fn requeue(&mut self, tickets: &[Ticket]) {
        for ticket in tickets {
            let offset = i64::try_from(ticket.number).unwrap_or(i64::MAX);
            if let Some((_, tracker)) = self.tracker(*ticket) {
                self.rewind |= tracker.requeue(offset);
            }
        }
    }

    /// Requeues the messages that were not yet returned to the caller.
    pub(crate) fn give_back_ready(&mut self) {
        let tickets: Vec<Ticket> = self.ready.drain(..).map(|d| d.ticket).collect();
        self.requeue(&tickets);
    }

    fn tracker(&mut self, ticket: Ticket) -> Option<(i32, &mut Tracker)> {
        let partition = *self.by_epoch.get(&ticket.epoch)?;
        let (_, tracker) = self.partitions.get_mut(&partition)?;
        Some((partition, tracker))
    }

    /// Calls `seek` for each partition with requeued messages. Returns whether all calls succeeded.
    pub(crate) fn rewind(&mut self, seek: impl Fn(i32, i64) -> Result<(), KafkaError>) -> bool {
        let mut done = true;
        if !self.rewind {
            return done;
        }
        for (partition, (_, tracker)) in &mut self.partitions {
            let Some(offset) = tracker.wants_rewind() else {
                continue;
            };
            match seek(*partition, offset) {
                Ok(()) => tracker.rewound(),
                Err(error) => {
                    tracing::debug!(
                        topic = self.topic,
                        partition,
                        %error,
                        "could not seek to requeued hints yet"
                    );
                    done = false;
                }
            }
        }
        self.rewind = !done;
        done
    }

    /// Returns all partitions as a list for the client.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_problem_that_is_not_reported_again_is_old_after_a_while() {
        let mut assignment = Assignment::new("lane".to_owned(), Arc::default());
        assert!(!assignment.has_old_trouble());
        for _ in 0..3 {
            assignment.is_kept_out("no right".to_owned());
            tokio::time::advance(STANDS / 2).await;
        }
        assert!(!assignment.has_old_trouble(), "it is reported again");
        tokio::time::advance(STANDS).await;
        assert!(assignment.has_old_trouble());
        assert_eq!(
            assignment.trouble(),
            Some("no right"),
            "until the next client"
        );
        assignment.place(std::iter::once(0));
        assert_eq!(assignment.trouble(), None);
        assert!(!assignment.has_old_trouble());
    }
}

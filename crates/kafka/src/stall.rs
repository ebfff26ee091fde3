//! Detects a client that waits for ever: one that does not get into its group, or that fetches
//! nothing from a partition in which messages wait.
//!
//! librdkafka (2.12) drops an operation of a partition that is queued behind a newer one, also the
//! start of its fetch ([`crate::flow`]). The client then reports no error, and fetches nothing from
//! the partition until it is assigned again. An answer to a join can be lost, too. So such a client
//! is replaced by a new one.
//!
//! A partition is stalled if two looks in a row find the same position, no held message, and a
//! message that already waited at the first look. The client must have run out of messages before
//! each look: it takes the partitions' messages one after another, so in a deep backlog those of
//! one partition may wait behind those of the others for minutes. A lane of which one partition has
//! no leader is not looked at.
//!
//! Whether the brokers answer is asked through another client. A client that has lost its last broker asks
//! none, and would be taken for one whose brokers are away. librdkafka (2.12) can lose it when a broker comes
//! back: an answer of that moment names topics and no living broker, and the client forgets the broker that
//! it knows.
//!
//! A false detection costs a rebalance. So the time between two looks doubles with each client that
//! is replaced, until a message of the partition arrives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jobwire_core::transport::TransportError;
use rdkafka::Offset;
use rdkafka::consumer::Consumer as _;
use tokio::time::Instant;

use crate::assignment::Flowing;
use crate::blocking::blocking;
use crate::error::explain_error;
use crate::lane_client::{LaneClient, LaneState};
use crate::offsets::{committed, edges, offset_of};
use crate::partition::Expected;
use crate::patience::{LOOK, Stall};

/// Number of joins that may fail before a client is replaced.
const JOINS: u32 = 2;

/// A partition in which messages wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Idle {
    epoch: u64,
    expects: Expected,
    /// The offset of the first message that has not arrived.
    position: i64,
    end: i64,
}

/// Returns a partition of which a message has waited since the look before.
fn stalled(before: &BTreeMap<i32, Idle>, now: &BTreeMap<i32, Idle>) -> Option<i32> {
    let waits = |(partition, now): (&i32, &Idle)| {
        let before = before.get(partition)?;
        let same = (before.epoch, before.expects) == (now.epoch, now.expects);
        // Retention may delete messages that were not fetched.
        (same && before.end > now.position).then_some(*partition)
    };
    now.iter().find_map(waits)
}

/// Since when a client has waited for an answer to its joins, and how often it had been placed then.
#[derive(Default)]
struct Joining(Option<(Instant, u64)>);

impl Joining {
    /// Records whether the client waits, and how often it has been placed. Returns whether it has
    /// waited for longer than [`JOINS`] joins may take.
    fn lasts(&mut self, waits: bool, placements: u64, join: Duration) -> bool {
        self.0
            .take_if(|(_, before)| !waits || *before != placements);
        if !waits {
            return false;
        }
        let (since, _) = *self.0.get_or_insert_with(|| (Instant::now(), placements));
        since.elapsed() >= join * JOINS
    }
}

/// Waits until the client has stalled. `answers` asks another client whether the brokers answer.
pub(crate) async fn is_found<F: Future<Output = bool>>(
    state: Arc<LaneState>,
    client: LaneClient,
    join: Duration,
    answers: impl Fn() -> F,
) -> Stall {
    let mut waits = Joining::default();
    let mut before = BTreeMap::new();
    loop {
        let since = Instant::now();
        // The interval becomes short again while a look waits.
        loop {
            let every = state.assignment().patience.interval;
            if since.elapsed() >= every {
                break;
            }
            tokio::time::sleep(every.min(LOOK)).await;
        }
        let (joining, placements, flowing) = {
            let mut assignment = state.assignment();
            let flowing = assignment.take_flowing();
            (assignment.is_joining(), assignment.placements, flowing)
        };
        // Brokers that do not answer are away, and a new client would not reach them either.
        let joining = joining && answers().await;
        let still = {
            let assignment = state.assignment();
            assignment.is_joining() && assignment.placements == placements
        };
        if waits.lasts(joining && still, placements, join) {
            return Stall::Join;
        }
        let now = match look(&state, &client, flowing).await {
            Ok(now) => now,
            Err(problem) => {
                tracing::debug!(lane = %state.lane, %problem, "the lane's offsets can't be read");
                BTreeMap::new()
            }
        };
        // The assignment may have changed during the look.
        let still = state.assignment().flowing();
        if let Some(partition) = stalled(&before, &now)
            && let (Some(now), Some(still)) = (now.get(&partition), still.get(&partition))
            && (now.epoch, now.expects) == *still
        {
            return Stall::Fetch { partition };
        }
        before = now;
    }
}

/// Returns the partitions in which messages wait.
async fn look(
    state: &Arc<LaneState>,
    client: &LaneClient,
    flowing: Flowing,
) -> Result<BTreeMap<i32, Idle>, TransportError> {
    if flowing.is_empty() {
        return Ok(BTreeMap::new());
    }
    let (topic, client) = (state.assignment().topic.clone(), client.clone());
    let state = state.clone();
    blocking(move || {
        let failed = |error| explain_error(&error, &topic);
        // The client passes over the marks of ended transactions, which are no messages. The group must
        // pass over them, too, or it would never be at the end of the log.
        let positions = client.position().map_err(failed)?;
        let passed = |partition| offset_of(&positions, &topic, partition);
        state.assignment().pass_marks(&flowing, passed);
        let position = |partition: i32| match flowing.get(&partition)?.1 {
            Expected::Again(offset) => Some(offset),
            Expected::After(next) => next.max(passed(partition)),
        };
        let ends = edges(&**client, &topic, flowing.keys().copied(), Offset::End)?;
        let ends = ends.into_iter();
        let waits = |(at, end): &(i32, i64)| position(*at).is_none_or(|position| position < *end);
        let ends: Vec<(i32, i64)> = ends.filter(waits).collect();
        if ends.is_empty() {
            return Ok(BTreeMap::new());
        }
        let partitions = || ends.iter().map(|(at, _)| *at);
        let known = committed(&**client, &topic, partitions())?;
        for element in known.elements() {
            element.error().map_err(failed)?;
        }
        let starts = edges(&**client, &topic, partitions(), Offset::Beginning)?;
        let idle = starts.into_iter().zip(&ends);
        let idle = idle.filter_map(|((at, start), (_, end))| {
            let (epoch, expects) = *flowing.get(&at)?;
            let position = position(at).or_else(|| offset_of(&known, &topic, at));
            let idle = Idle {
                epoch,
                expects,
                position: position.unwrap_or(start).max(start),
                end: *end,
            };
            Some((at, idle))
        });
        Ok(idle.collect())
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::atomic::AtomicU64;

    use jobwire_core::job::Lane;
    use rdkafka::config::FromClientConfigAndContext;
    use rdkafka::mocking::MockCluster;
    use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};
    use rdkafka::{ClientConfig, TopicPartitionList};
    use tokio::sync::Notify;

    use super::*;
    use crate::connection::{Context, Link};
    use crate::ending::Elsewhere;
    use crate::lane_client::{LaneConsumer, LaneContext};

    /// Returns the state of a lane, and its client.
    fn lane(config: &ClientConfig) -> (Arc<LaneState>, LaneClient) {
        let state = Arc::new(LaneState::new(
            Lane::default(),
            4,
            "stall".to_owned(),
            Arc::new(AtomicU64::new(1)),
            Arc::new(Notify::new()),
        ));
        let context = Context {
            link: Link::new(),
            tokens: None,
            statistics: |_| {},
        };
        let client =
            LaneConsumer::from_config_and_context(config, LaneContext::new(context, &state));
        (state, Arc::new(Elsewhere::new(client.unwrap())))
    }

    /// The partition is paused without the state's knowledge, as after a lost start of its fetch.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_client_that_fetches_nothing_is_found_until_the_message_has_arrived() {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("stall", 1, 1).unwrap();
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", cluster.bootstrap_servers());
        let producer: BaseProducer = config.create().unwrap();
        let record = BaseRecord::<(), str>::to("stall").payload("a message");
        producer.send(record).unwrap();
        producer.flush(Duration::from_secs(30)).unwrap();

        config.set("group.id", "stall");
        let (state, client) = lane(&config);
        let mut list = TopicPartitionList::new();
        list.add_partition("stall", 0);
        client.assign(&list).unwrap();
        client.pause(&list).unwrap();
        state.assignment().assigned(std::iter::once(0));
        state.assignment().placed = true;

        state.assignment().patience.interval = Duration::from_millis(50);
        let look = || {
            let found = is_found(state.clone(), client.clone(), LOOK, || ready(true));
            tokio::time::timeout(Duration::from_secs(2), found)
        };
        // The messages of other partitions may be in front of this one's.
        let found = look().await;
        assert!(found.is_err(), "{found:?}");

        let dry = tokio::spawn({
            let state = state.clone();
            async move {
                loop {
                    state.assignment().ran_dry();
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        });
        let stall = Stall::Fetch { partition: 0 };
        assert_eq!(look().await, Ok(stall));

        let (ticket, _) = state.assignment().arrive(0, 0).unwrap();
        let found = look().await;
        assert!(found.is_err(), "it is held: {found:?}");
        // What was requeued must arrive again.
        state.assignment().requeue(&[ticket]);
        assert_eq!(look().await, Ok(stall));

        let (ticket, _) = state.assignment().arrive(0, 0).unwrap();
        state.assignment().settle(&[ticket]);
        let found = look().await;
        assert!(found.is_err(), "nothing waits: {found:?}");
        dry.abort();
    }

    /// The client knows no broker, as after it has lost its last one.
    #[tokio::test]
    async fn a_client_without_a_broker_is_found_if_the_brokers_answer_another_one() {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", "127.0.0.1:1");
        config.set("group.id", "stall");
        let (state, client) = lane(&config);
        client.subscribe(&["stall"]).unwrap();
        state.assignment().patience.interval = Duration::from_millis(50);
        let look = |answers: bool| {
            let join = Duration::from_millis(100);
            let found = is_found(state.clone(), client.clone(), join, move || ready(answers));
            tokio::time::timeout(Duration::from_secs(2), found)
        };
        let found = look(false).await;
        assert!(found.is_err(), "the brokers are away: {found:?}");
        assert_eq!(look(true).await, Ok(Stall::Join));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_whose_joins_have_no_answer_is_replaced() {
        let mut joining = Joining::default();
        let join = LOOK * 2;
        let mut looks = 0;
        while !joining.lasts(true, 1, join) {
            tokio::time::advance(LOOK).await;
            looks += 1;
        }
        assert_eq!(looks, 2 * JOINS);
        // A rebalance that ended meanwhile, and brokers that are away, begin a new wait.
        assert!(!joining.lasts(true, 2, join));
        tokio::time::advance(join * JOINS).await;
        assert!(!joining.lasts(false, 2, join));
        assert!(!joining.lasts(true, 2, join));
    }

    fn idle(epoch: u64, next: Option<i64>, position: i64, end: i64) -> BTreeMap<i32, Idle> {
        let idle = Idle {
            epoch,
            expects: Expected::After(next),
            position,
            end,
        };
        BTreeMap::from([(3, idle)])
    }

    #[test]
    fn a_message_that_waits_from_one_look_to_the_next_shows_a_stall() {
        let looks = [
            (idle(1, None, 0, 5), idle(1, None, 0, 5), Some(3)),
            (idle(1, Some(4), 4, 5), idle(1, Some(4), 4, 9), Some(3)),
        ];
        for (before, now, found) in looks {
            assert_eq!(stalled(&before, &now), found, "{before:?}, {now:?}");
        }
    }

    #[test]
    fn a_partition_that_moved_or_had_nothing_to_fetch_is_not_stalled() {
        let looks = [
            // A message arrived meanwhile.
            (idle(1, None, 0, 5), idle(1, Some(3), 3, 5)),
            // The partition was assigned again.
            (idle(1, None, 0, 5), idle(2, None, 0, 5)),
            // The message came after the first look.
            (idle(1, Some(5), 5, 5), idle(1, Some(5), 5, 6)),
            // Retention deleted what waited.
            (idle(1, None, 0, 5), idle(1, None, 5, 5)),
            (BTreeMap::new(), idle(1, None, 0, 5)),
        ];
        for (before, now) in looks {
            assert_eq!(stalled(&before, &now), None, "{before:?}, {now:?}");
        }
    }
}

//! Up to when has a lane been settled? Kafka answers with offsets, without a message.
//!
//! When the sweeper asks, the end of every partition is noted. All that lay before has been decided once
//! the group's committed offsets have passed those ends. What retention removed counts as passed: it will
//! never be delivered, so its jobs are orphans. A partition whose end moved back was wiped or made
//! again; nothing of what it held will come either.
//!
//! ```text
//!   settled(partition)  ⇔  max(committed, log start) ≥ end at the time of asking,  or end now < end then
//! ```
//! A partition that is no more will deliver nothing either.
//!
//! Exact but for one thing: a message whose delivery the producer gave up on may still arrive. The sweeper
//! suspects nothing that is younger than that takes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jobwire_core::hint::Marker;
use jobwire_core::job::Lane;
use jobwire_core::transport::{Control, TransportError};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::connection::{ANSWER, Context};
use crate::control::ControlLine;
use crate::ending::Elsewhere;
use crate::error::explain_error;
use crate::producers::blocking;
use crate::topology::Topology;

/// How often the group's offsets are looked at while an answer is awaited.
const LOOK: Duration = Duration::from_millis(500);
const LOOK_RARELY: Duration = Duration::from_secs(5);
/// Questions that may be open; more are refused.
const OPEN: usize = 64;
/// A client that nobody asked for so long is let go.
const IDLE: Duration = Duration::from_secs(120);

/// The most partitions of which it is remembered that hints were lost.
const REMEMBER: usize = 10_000;

type Asker = Elsewhere<BaseConsumer<Context>>;

/// The ends of a lane's partitions when the sweeper asked.
struct Question {
    lane: Lane,
    marker: Marker,
    ends: Vec<(i32, i64)>,
}

/// Where the sweeper asks.
pub(crate) struct Settled {
    topology: Topology,
    config: ClientConfig,
    context: Context,
    askers: Mutex<HashMap<Lane, Arc<Asker>>>,
    /// Log starts behind which hints were lost, so that each loss is told once.
    told: Mutex<HashMap<(Lane, i32), i64>>,
    questions: mpsc::Sender<Question>,
}

/// The task that watches for the answers.
pub(crate) struct Watch {
    settled: Arc<Settled>,
    asked: mpsc::Receiver<Question>,
    control: Arc<ControlLine>,
}

pub(crate) fn settled(
    mut config: ClientConfig,
    context: Context,
    topology: Topology,
    control: Arc<ControlLine>,
) -> (Arc<Settled>, Watch) {
    config
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false");
    let (questions, asked) = mpsc::channel(OPEN);
    let settled = Arc::new(Settled {
        topology,
        config,
        context,
        askers: Mutex::default(),
        told: Mutex::default(),
        questions,
    });
    let watch = Watch {
        settled: settled.clone(),
        asked,
        control,
    };
    (settled, watch)
}

impl Settled {
    /// Note where the lane ends now; [`Control::MarkerBack`] is heard here when all of it has been decided.
    pub(crate) async fn ask(&self, lane: &Lane, marker: Marker) -> Result<(), TransportError> {
        // Counted now: somebody may have added some, and published to them already.
        let partitions = self.topology.partitions(lane).await?;
        let partitions = match partitions {
            0 => self.topology.ensure_lane(lane).await?,
            some => some,
        };
        let ends = self.watermarks(lane, 0..partitions).await?;
        let ends = ends.into_iter().map(|(at, _, end)| (at, end)).collect();
        let question = Question {
            lane: lane.clone(),
            marker,
            ends,
        };
        self.questions
            .try_send(question)
            .map_err(|_| TransportError::Full)
    }

    /// Partition, log start and end.
    async fn watermarks(
        &self,
        lane: &Lane,
        partitions: impl Iterator<Item = i32> + Send + 'static,
    ) -> Result<Vec<(i32, i64, i64)>, TransportError> {
        let topic = self.topology.endpoint.topic(lane);
        let producers = &self.topology.producers;
        producers
            .ask(move |client| {
                let ask = |at| {
                    client
                        .fetch_watermarks(&topic, at, ANSWER)
                        .map(|(start, end)| (at, start, end))
                };
                let asked: Result<Vec<_>, _> = partitions.map(ask).collect();
                asked.map_err(|error| explain_error(&error, &topic))
            })
            .await
    }

    /// The client that may ask for the group of a lane.
    fn asker(&self, lane: &Lane) -> Result<Arc<Asker>, TransportError> {
        let mut askers = self.askers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(asker) = askers.get(lane) {
            return Ok(asker.clone());
        }
        let mut config = self.config.clone();
        config.set("group.id", self.topology.endpoint.group(lane));
        let asker = BaseConsumer::from_config_and_context(&config, self.context.clone())
            .map_err(|error| explain_error(&error, "offsets"))?;
        let asker = Arc::new(Elsewhere::new(asker));
        askers.insert(lane.clone(), asker.clone());
        Ok(asker)
    }

    fn forget_askers(&self) {
        let mut askers = self.askers.lock().unwrap_or_else(PoisonError::into_inner);
        askers.clear();
    }

    /// Has it been settled?
    async fn answer(&self, question: &Question) -> Result<bool, TransportError> {
        let partitions = self.topology.partitions(&question.lane).await?;
        if partitions == 0 {
            // It may be made again, and fills from its beginning then.
            return Ok(false);
        }
        let asker = self.asker(&question.lane)?;
        let topic = self.topology.endpoint.topic(&question.lane);
        let lane = question.lane.clone();
        let mut ends = question.ends.clone();
        // What lay in a partition that is no more will not come.
        ends.retain(|(partition, _)| *partition < partitions);
        let asked = ends.clone();
        let committed = blocking(move || {
            let partitions = asked.iter().map(|(partition, _)| *partition);
            committed(&asker, &topic, partitions)
        })
        .await?;
        let topic = self.topology.endpoint.topic(&lane);
        let seen: HashMap<i32, i64> = ends
            .iter()
            .filter_map(|(at, _)| Some((*at, offset_of(&committed, &topic, *at)?)))
            .collect();
        // The others are passed.
        ends.retain(|(at, end)| seen.get(at).is_none_or(|seen| seen < end));
        let open: Vec<i32> = ends.iter().map(|(at, _)| *at).collect();
        let now = self.watermarks(&lane, open.into_iter()).await?;
        let mut settled = true;
        for ((partition, end), (_, start, now)) in ends.into_iter().zip(now) {
            let seen = seen.get(&partition).copied().unwrap_or(0);
            if now < end {
                tracing::warn!(%lane, partition, "a partition was wiped; the jobs that it hinted will be hinted again");
                continue;
            }
            if seen < start && self.is_news(&lane, partition, start) {
                tracing::warn!(%lane, partition, lost = start - seen, "retention removed hints that nobody had received; their jobs will be hinted again");
            }
            settled &= start >= end;
        }
        Ok(settled)
    }

    /// Remember where a log starts; false where that was known.
    fn is_news(&self, lane: &Lane, partition: i32, start: i64) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= REMEMBER {
            told.clear();
        }
        told.insert((lane.clone(), partition), start) != Some(start)
    }
}

/// How far the group is.
fn committed(
    asker: &Asker,
    topic: &str,
    partitions: impl Iterator<Item = i32>,
) -> Result<TopicPartitionList, TransportError> {
    // Nobody else serves this client's events: errors, and the wish for another token.
    while asker.poll(Duration::ZERO).is_some() {}
    let mut list = TopicPartitionList::new();
    for partition in partitions {
        list.add_partition(topic, partition);
    }
    asker
        .committed_offsets(list, ANSWER)
        .map_err(|error| explain_error(&error, topic))
}

/// What waits in a lane, and how long the brokers took to say how far the group is.
pub(crate) struct Count {
    pub(crate) waiting: i64,
    pub(crate) round_trip: Duration,
}

impl Settled {
    /// Count what waits in a lane.
    pub(crate) async fn count(&self, lane: &Lane) -> Result<Count, TransportError> {
        let partitions = self.topology.partitions(lane).await?;
        let asker = self.asker(lane)?;
        let topic = self.topology.endpoint.topic(lane);
        let (committed, round_trip) = blocking(move || {
            let asked = Instant::now();
            let committed = committed(&asker, &topic, 0..partitions)?;
            Ok((committed, asked.elapsed()))
        })
        .await?;
        let topic = self.topology.endpoint.topic(lane);
        let waiting = self.watermarks(lane, 0..partitions).await?;
        let waiting = waiting.into_iter().map(|(at, start, end)| {
            let seen = offset_of(&committed, &topic, at).unwrap_or(start);
            (end - seen.max(start)).max(0)
        });
        Ok(Count {
            waiting: waiting.sum(),
            round_trip,
        })
    }
}

fn offset_of(list: &TopicPartitionList, topic: &str, partition: i32) -> Option<i64> {
    match list.find_partition(topic, partition)?.offset() {
        Offset::Offset(offset) => Some(offset),
        _ => None,
    }
}

impl Watch {
    pub(crate) async fn run(&mut self, stop: CancellationToken) {
        let mut open: Vec<Question> = Vec::new();
        let mut look = LOOK;
        loop {
            let wait = if open.is_empty() { IDLE } else { look };
            let asked = tokio::select! {
                () = stop.cancelled() => break,
                asked = tokio::time::timeout(wait, self.asked.recv()) => asked,
            };
            match asked {
                Ok(Some(question)) => {
                    if open.len() >= OPEN {
                        open.remove(0);
                    }
                    open.push(question);
                    look = LOOK;
                    continue;
                }
                Ok(None) => break,
                Err(_) if open.is_empty() => {
                    self.settled.forget_askers();
                    continue;
                }
                // A deep lane is not asked about twice a second for hours.
                Err(_) => look = (look * 5 / 4).min(LOOK_RARELY),
            }
            let mut still_open = Vec::new();
            for question in open {
                let answer = tokio::select! {
                    () = stop.cancelled() => break,
                    answer = self.settled.answer(&question) => answer,
                };
                match answer {
                    Ok(true) => self.control.tell_here(Control::MarkerBack {
                        lane: question.lane,
                        marker: question.marker,
                    }),
                    Ok(false) => still_open.push(question),
                    Err(problem) => {
                        tracing::debug!(lane = %question.lane, %problem, "offsets can't be read");
                        still_open.push(question);
                    }
                }
            }
            open = still_open;
        }
        self.settled.forget_askers();
    }
}

//! Answers the sweeper's markers by offsets, without a message.
//!
//! For a marker, the end of every partition is recorded. When the group's committed offsets have
//! passed these ends, every hint published before the marker has been decided. Hints that retention
//! deleted count as passed: they are never delivered, so their jobs are orphans. A partition whose
//! end moved back was wiped or created again, and does not deliver its former hints.
//!
//! ```text
//!   settled(partition)  ⇔  max(committed, log start) ≥ recorded end,  or current end < recorded end
//! ```
//! A partition that no longer exists counts as settled too.
//!
//! One case is not exact: a message may still arrive after its publish has failed. The sweeper
//! suspects only jobs that are older than the time that this can take.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use jobwire_core::hint::Marker;
use jobwire_core::job::Lane;
use jobwire_core::telemetry::log_throttle::LogThrottle;
use jobwire_core::transport::{Control, TransportError};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::BaseConsumer;
use rdkafka::{ClientConfig, Offset};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::blocking::blocking;
use crate::connection::Context;
use crate::control::ControlLine;
use crate::ending::Elsewhere;
use crate::error::explain_error;
use crate::offsets::{ISOLATION, committed, edges, offset_of};
use crate::topology::Topology;

/// The interval between two reads of the group's offsets while markers are open.
const LOOK: Duration = Duration::from_millis(500);
/// The longest such interval; it grows while the markers stay open.
const LOOK_RARELY: Duration = Duration::from_secs(5);
/// Maximum number of open markers. More markers are refused, or replace the oldest one.
const OPEN: usize = 64;
/// The idle time after which the clients are dropped.
const IDLE: Duration = Duration::from_secs(120);

/// Maximum number of partitions for which a reported loss of hints is remembered.
const REMEMBER: usize = 10_000;

type Asker = Elsewhere<BaseConsumer<Context>>;

/// A marker, with the ends of the lane's partitions when it was published.
struct Question {
    lane: Lane,
    marker: Marker,
    ends: Vec<(i32, i64)>,
}

/// Takes the sweeper's markers, and counts waiting messages.
pub(crate) struct Settled {
    topology: Topology,
    config: ClientConfig,
    context: Context,
    askers: Mutex<HashMap<Lane, Arc<Asker>>>,
    /// The log starts up to which a loss of hints was logged, so that each loss is logged once.
    told: Mutex<HashMap<(Lane, i32), i64>>,
    /// Limits the log lines about wiped partitions, because each open marker finds them again.
    wiped: Mutex<LogThrottle>,
    questions: mpsc::Sender<Question>,
}

/// The task that reads offsets until the markers are settled.
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
        .set("enable.auto.offset.store", "false")
        .set("isolation.level", ISOLATION);
    let (questions, asked) = mpsc::channel(OPEN);
    let settled = Arc::new(Settled {
        topology,
        config,
        context,
        askers: Mutex::default(),
        told: Mutex::default(),
        wiped: Mutex::default(),
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
    /// Records the current ends of the lane. [`Control::MarkerBack`] is sent to the listeners of
    /// this process when every hint below them has been decided.
    pub(crate) async fn ask(&self, lane: &Lane, marker: Marker) -> Result<(), TransportError> {
        // Not cached: an operator may have added partitions that already hold hints.
        let partitions = self.topology.partitions(lane).await?;
        let partitions = match partitions {
            0 => self.topology.ensure_lane(lane).await?,
            some => some,
        };
        let asker = self.asker(lane)?;
        let topic = self.topology.endpoint.topic(lane);
        let ends = blocking(move || {
            serve_events(&asker);
            edges(&**asker, &topic, 0..partitions, Offset::End)
        });
        let ends = ends.await?;
        let question = Question {
            lane: lane.clone(),
            marker,
            ends,
        };
        self.questions
            .try_send(question)
            .map_err(|_| TransportError::Full)
    }

    /// Returns number, log start and end of each partition.
    async fn watermarks(
        &self,
        lane: &Lane,
        partitions: impl Iterator<Item = i32> + Send + 'static,
    ) -> Result<Vec<(i32, i64, i64)>, TransportError> {
        let asker = self.asker(lane)?;
        let topic = self.topology.endpoint.topic(lane);
        blocking(move || {
            let partitions: Vec<i32> = partitions.collect();
            serve_events(&asker);
            let starts = edges(
                &**asker,
                &topic,
                partitions.iter().copied(),
                Offset::Beginning,
            )?;
            let ends = edges(&**asker, &topic, partitions.into_iter(), Offset::End)?;
            let both = starts.into_iter().zip(ends);
            Ok(both
                .map(|((at, start), (_, end))| (at, start, end))
                .collect())
        })
        .await
    }

    /// Returns the client that reads the offsets of a lane's group.
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

    /// Returns whether every hint before the marker has been settled.
    async fn answer(&self, question: &Question) -> Result<bool, TransportError> {
        let partitions = self.topology.partitions(&question.lane).await?;
        if partitions == 0 {
            // The topic may be created again, and then starts empty.
            return Ok(false);
        }
        let asker = self.asker(&question.lane)?;
        let topic = self.topology.endpoint.topic(&question.lane);
        let lane = question.lane.clone();
        let mut ends = question.ends.clone();
        // A partition that no longer exists delivers no hints.
        ends.retain(|(partition, _)| *partition < partitions);
        let asked = ends.clone();
        let committed = blocking(move || {
            let partitions = asked.iter().map(|(partition, _)| *partition);
            serve_events(&asker);
            committed(&**asker, &topic, partitions)
        })
        .await?;
        let topic = self.topology.endpoint.topic(&lane);
        let seen: HashMap<i32, i64> = ends
            .iter()
            .filter_map(|(at, _)| Some((*at, offset_of(&committed, &topic, *at)?)))
            .collect();
        // The others are settled.
        ends.retain(|(at, end)| seen.get(at).is_none_or(|seen| seen < end));
        let open: Vec<i32> = ends.iter().map(|(at, _)| *at).collect();
        let now = self.watermarks(&lane, open.into_iter()).await?;
        let mut settled = true;
        for ((partition, end), (_, start, now)) in ends.into_iter().zip(now) {
            let seen = seen.get(&partition).copied().unwrap_or(0);
            if now < end {
                let mut wiped = self.wiped.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(more) = wiped.now() {
                    tracing::warn!(
                        %lane,
                        partition,
                        more,
                        "a partition was wiped; the sweeper publishes its hints again"
                    );
                }
                continue;
            }
            if seen < start && self.is_news(&lane, partition, start) {
                tracing::warn!(
                    %lane,
                    partition,
                    lost = start - seen,
                    "retention removed hints that no node had received; the sweeper publishes them \
                     again"
                );
            }
            settled &= start >= end;
        }
        Ok(settled)
    }

    /// Remembers the start of a log. Returns false if it was known.
    fn is_news(&self, lane: &Lane, partition: i32, start: i64) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() >= REMEMBER {
            told.clear();
        }
        told.insert((lane.clone(), partition), start) != Some(start)
    }
}

/// The number of messages that wait in a lane, and the round trip of the request for its offsets.
pub(crate) struct Count {
    pub(crate) waiting: i64,
    pub(crate) round_trip: Duration,
}

impl Settled {
    /// Counts the messages that wait in a lane.
    pub(crate) async fn count(&self, lane: &Lane) -> Result<Count, TransportError> {
        let partitions = self.topology.partitions(lane).await?;
        let asker = self.asker(lane)?;
        let topic = self.topology.endpoint.topic(lane);
        let (committed, round_trip) = blocking(move || {
            let asked = Instant::now();
            serve_events(&asker);
            let committed = committed(&**asker, &topic, 0..partitions)?;
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

/// Serves the client's events: errors, and requests for a token.
fn serve_events(asker: &Asker) {
    while asker.poll(Duration::ZERO).is_some() {}
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
                // A lane with a deep backlog is read less and less often.
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
                        tracing::debug!(
                            lane = %question.lane,
                            %problem,
                            "the lane's offsets can't be read"
                        );
                        still_open.push(question);
                    }
                }
            }
            open = still_open;
        }
        self.settled.forget_askers();
    }
}

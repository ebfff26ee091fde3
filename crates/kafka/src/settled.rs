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
//! The offsets of a lane are read once for all of its open markers, and those of several lanes at once. So a lane
//! whose offsets can't be read delays the next look at the others by the timeout of its requests at most.
//!
//! One case is not exact: a message may still arrive after its publish has failed. The sweeper
//! suspects only jobs that are older than the time that this can take.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use jobwire_core::hint::Marker;
use jobwire_core::job::Lane;
use jobwire_core::telemetry::log_throttle::LogThrottle;
use jobwire_core::transport::{Control, TransportError};
use rdkafka::{ClientConfig, Offset};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::askers::Askers;
use crate::connection::Context;
use crate::control::ControlLine;
use crate::offsets::{committed, edges, offset_of};
use crate::topology::Topology;

/// The interval between two reads of the group's offsets while markers are open.
const LOOK: Duration = Duration::from_millis(500);
/// The longest such interval; it grows while the markers stay open.
const LOOK_RARELY: Duration = Duration::from_secs(5);
/// Maximum number of open markers of a lane. One more replaces the newest: the oldest is answered first.
const OPEN: usize = 64;
/// Maximum number of markers that wait to be opened. More are refused.
const ASKED: usize = 1_024;
/// The idle time after which the clients are dropped.
const IDLE: Duration = Duration::from_secs(120);

/// Maximum number of partitions for which a reported loss of hints is remembered.
const REMEMBER: usize = 10_000;

/// A marker, with the ends of the lane's partitions when it was published.
struct Question {
    lane: Lane,
    marker: Marker,
    ends: Vec<(i32, i64)>,
}

/// Takes the sweeper's markers, and counts waiting messages.
pub(crate) struct Settled {
    topology: Topology,
    askers: Askers,
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
    config: ClientConfig,
    context: Context,
    topology: Topology,
    control: Arc<ControlLine>,
) -> (Arc<Settled>, Watch) {
    let (questions, asked) = mpsc::channel(ASKED);
    let settled = Arc::new(Settled {
        topology,
        askers: Askers::new(config, context),
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

/// What the brokers tell about a partition.
struct Standing {
    committed: Option<i64>,
    start: i64,
    end: i64,
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
        let topic = self.topology.endpoint.topic(lane);
        let group = self.topology.endpoint.group(lane);
        let ends = self.askers.ask(lane, &group, move |asker| {
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

    /// Returns what the brokers tell about each of the lane's partitions, and the time that the first
    /// request took. The brokers have told the number of partitions just now.
    async fn standings(
        &self,
        lane: &Lane,
        partitions: i32,
    ) -> Result<(BTreeMap<i32, Standing>, Duration), TransportError> {
        let topic = self.topology.endpoint.topic(lane);
        let group = self.topology.endpoint.group(lane);
        let asking = self.askers.ask(lane, &group, move |asker| {
            let asked = Instant::now();
            let seen = committed(&**asker, &topic, 0..partitions)?;
            let round_trip = asked.elapsed();
            let starts = edges(&**asker, &topic, 0..partitions, Offset::Beginning)?;
            let ends = edges(&**asker, &topic, 0..partitions, Offset::End)?;
            let both = starts.into_iter().zip(ends);
            let standings = both.map(|((at, start), (_, end))| {
                // An offset beyond the end is one of a topic that was deleted and created again since.
                let committed = offset_of(&seen, &topic, at).filter(|committed| *committed <= end);
                let standing = Standing {
                    committed,
                    start,
                    end,
                };
                (at, standing)
            });
            Ok((standings.collect(), round_trip))
        });
        asking.await
    }

    /// Returns whether every hint before each of a lane's markers has been settled.
    async fn answer(
        &self,
        lane: &Lane,
        questions: &VecDeque<Question>,
    ) -> Result<Vec<bool>, TransportError> {
        let partitions = self.topology.partitions(lane).await?;
        if partitions == 0 {
            // The topic may be created again, and then starts empty.
            return Ok(vec![false; questions.len()]);
        }
        let (standings, _) = self.standings(lane, partitions).await?;
        let answers = questions
            .iter()
            .map(|question| self.is_settled(question, &standings));
        Ok(answers.collect())
    }

    fn is_settled(&self, question: &Question, standings: &BTreeMap<i32, Standing>) -> bool {
        let lane = &question.lane;
        let mut settled = true;
        for (partition, end) in &question.ends {
            // A partition that no longer exists delivers no hints.
            let Some(now) = standings.get(partition) else {
                continue;
            };
            if now.committed.is_some_and(|committed| committed >= *end) {
                continue;
            }
            if now.end < *end {
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
            let seen = now.committed.unwrap_or(0);
            if seen < now.start && self.is_news(lane, *partition, now.start) {
                tracing::warn!(
                    %lane,
                    partition,
                    lost = now.start - seen,
                    "retention removed hints that no node had received; the sweeper publishes them \
                     again"
                );
            }
            settled &= now.start >= *end;
        }
        settled
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
        let (standings, round_trip) = self.standings(lane, partitions).await?;
        let waiting = standings.values().map(|of| {
            let seen = of.committed.unwrap_or(of.start);
            (of.end - seen.max(of.start)).max(0)
        });
        Ok(Count {
            waiting: waiting.sum(),
            round_trip,
        })
    }
}

impl Watch {
    pub(crate) async fn run(&mut self, stop: CancellationToken) {
        let mut open: HashMap<Lane, VecDeque<Question>> = HashMap::new();
        let mut look = LOOK;
        let mut next = Instant::now() + IDLE;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = tokio::time::sleep_until(next.into()) => {}
                asked = self.asked.recv() => {
                    let Some(question) = asked else { break };
                    look = LOOK;
                    // A stream of markers does not put the next look off.
                    next = next.min(Instant::now() + look);
                    let of_lane = open.entry(question.lane.clone()).or_default();
                    if of_lane.len() >= OPEN {
                        // The oldest ones and the newest tell the most.
                        of_lane.remove(OPEN / 2);
                    }
                    of_lane.push_back(question);
                    continue;
                }
            }
            if open.is_empty() {
                self.settled.askers.forget();
                next = Instant::now() + IDLE;
                continue;
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.answer(&mut open) => {}
            }
            // A lane with a deep backlog is read less and less often.
            look = (look * 5 / 4).min(LOOK_RARELY);
            next = Instant::now() + if open.is_empty() { IDLE } else { look };
        }
        self.settled.askers.forget();
    }

    /// Reads the offsets of all lanes with open markers, and tells and removes the markers that are settled.
    async fn answer(&self, open: &mut HashMap<Lane, VecDeque<Question>>) {
        let asking = open
            .iter()
            .map(|(lane, questions)| self.settled.answer(lane, questions));
        let answers = join_all(asking).await;
        for ((lane, questions), answers) in open.iter_mut().zip(answers) {
            let answers = answers.unwrap_or_else(|problem| {
                tracing::debug!(%lane, %problem, "the lane's offsets can't be read");
                Vec::new()
            });
            let mut answers = answers.into_iter();
            questions.retain(|question| {
                let settled = answers.next().unwrap_or(false);
                if settled {
                    self.control.tell_here(Control::MarkerBack {
                        lane: question.lane.clone(),
                        marker: question.marker,
                    });
                }
                !settled
            });
        }
        open.retain(|_, questions| !questions.is_empty());
    }
}

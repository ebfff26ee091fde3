//! The receiver of one lane: a consumer of the lane's group, polled by a separate task.
//!
//! The task never waits for a handler or the database, so it serves rebalances and heartbeats at
//! all times. It takes at most the lane's share of the prefetch: see [`crate::flow`].

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use chrono::Utc;
use futures_util::{FutureExt, StreamExt};
use jobwire_core::hint::Message;
use jobwire_core::job::Lane;
use jobwire_core::telemetry::log_throttle::LogThrottle;
use jobwire_core::telemetry::metrics::HINTS_UNREADABLE;
use jobwire_core::transport::{Delivery, TransportError};
use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::Consumer as _;
use rdkafka::error::KafkaError;
use rdkafka::message::{BorrowedMessage, Message as _};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::connection::{Context, Link};
use crate::crowd;
use crate::ending::Elsewhere;
use crate::error::{explain_error, is_missing_topic};
use crate::flow::Flow;
use crate::lane_client::{LaneClient, LaneConsumer, LaneContext, LaneState};
use crate::memory;
use crate::options::KafkaOptions;
use crate::stall;
use crate::topology::{PROPAGATION, Topology};

/// The pause before the next client, after a refusal or the end of a client.
const PAUSE: Duration = Duration::from_secs(2);
/// The pause while not every broker lists a topic that was just created.
const SHORT_PAUSE: Duration = Duration::from_millis(200);
/// Minimum time that a client waits for the answer to a join.
const SHORTEST_JOIN: Duration = Duration::from_secs(10);
/// The interval between two looks at whether the client has an old problem.
const LOOK: Duration = Duration::from_secs(15);
/// Maximum number of messages that are decoded before the task serves other events.
const BURST: usize = 256;

/// The task that receives one lane until it is stopped.
pub(crate) struct LaneTask {
    pub(crate) state: Arc<LaneState>,
    link: Link,
    topology: Topology,
    options: KafkaOptions,
    config: ClientConfig,
    context: Context,
    stop: CancellationToken,
    unreadable: LogThrottle,
    /// The time at which the lane's topic was found.
    found_at: Option<Instant>,
}

/// Why the polling of a client ended.
enum Ended {
    Stopped,
    Broken,
    /// A broker does not list the lane's topic yet. The client itself would ask again after ten
    /// seconds.
    Early,
    /// The client gave up its partitions, and slots are free again: the next client joins at once.
    Released,
}

impl LaneTask {
    pub(crate) fn new(
        lane: &Lane,
        share: usize,
        topology: &Topology,
        epochs: &Arc<AtomicU64>,
        arrived: &Arc<Notify>,
        stop: CancellationToken,
    ) -> Self {
        let Topology {
            options,
            config,
            context,
            ..
        } = topology;
        let topic = topology.endpoint.topic(lane);
        let state = LaneState::new(lane.clone(), share, topic, epochs.clone(), arrived.clone());
        Self {
            config: configuration(
                config.clone(),
                &topology.endpoint.group(lane),
                share,
                options,
            ),
            state: Arc::new(state),
            link: context.link.clone(),
            topology: topology.clone(),
            options: options.clone(),
            context: context.clone(),
            stop,
            unreadable: LogThrottle::default(),
            found_at: None,
        }
    }

    pub(crate) async fn run(&mut self) {
        let stop = self.stop.clone();
        // A task that died may have left an assignment; its client is ending.
        self.state.assignment().ended();
        while !stop.is_cancelled() {
            let opened = tokio::select! {
                () = stop.cancelled() => break,
                opened = self.open() => opened,
            };
            match opened {
                Ok(consumer) => {
                    let gone = consumer.gone();
                    self.state.assignment().begun(consumer.clone());
                    let ended = self.poll(&consumer).await;
                    self.state.assignment().ended();
                    drop(consumer);
                    match ended {
                        // The task ends only after its client has left the group.
                        Ended::Stopped => {
                            self.state.assignment().paused = true;
                            gone.cancelled().await;
                        }
                        Ended::Broken => {
                            self.found_at = None;
                            pause(&stop, PAUSE).await;
                        }
                        Ended::Early => pause(&stop, SHORT_PAUSE).await,
                        Ended::Released => {}
                    }
                }
                Err(problem) => {
                    self.found_at = None;
                    self.complain(problem);
                    pause(&stop, PAUSE).await;
                }
            }
        }
    }

    async fn open(&mut self) -> Result<LaneClient, TransportError> {
        let context = LaneContext::new(self.context.clone(), &self.state);
        let what = format!("lane '{}'", self.state.lane);
        let consumer = LaneConsumer::from_config_and_context(&self.config, context)
            .map_err(|error| explain_error(&error, &what))?;
        let consumer = Arc::new(Elsewhere::new(consumer));
        // Meanwhile the client finds the coordinator of its group. Brokers that never had a group
        // first create the topic of all groups' offsets, which takes seconds.
        self.topology.ensure_lane(&self.state.lane).await?;
        self.found_at.get_or_insert_with(Instant::now);
        consumer
            .subscribe(&[&self.topic()])
            .map_err(|error| explain_error(&error, &what))?;
        Ok(consumer)
    }

    fn topic(&self) -> String {
        self.topology.endpoint.topic(&self.state.lane)
    }

    /// Reports a transient problem to the link, and another problem to the caller.
    fn complain(&self, problem: TransportError) {
        tracing::debug!(lane = %self.state.lane, %problem, "no hints of the lane for now");
        self.state.assignment().is_kept_out(problem.to_string());
        if problem.is_transient() {
            self.link.suspect(problem);
        } else {
            self.state.assignment().problem = Some(problem);
            self.state.arrived.notify_one();
        }
    }

    async fn poll(&mut self, consumer: &LaneClient) -> Ended {
        let (state, stop) = (self.state.clone(), self.stop.clone());
        let mut messages = consumer.stream();
        let mut flow = Flow::new(self.options.release_after);
        let commits = self.options.commit_interval;
        let mut crowded = pin!(crowd::watch(state.clone(), self.topology.clone()));
        let mut forgotten = pin!(memory::is_lost(state.clone(), consumer.clone(), commits));
        let (topology, lane) = (self.topology.clone(), state.lane.clone());
        let answers = move || {
            let (topology, lane) = (topology.clone(), lane.clone());
            async move { topology.partitions(&lane).await.is_ok_and(|n| n > 0) }
        };
        let mut kept_out = pin!(is_kept_out(state.clone()));
        let mut stalled = pin!(stall::is_found(
            state.clone(),
            consumer.clone(),
            longest_join(&self.options),
            answers,
        ));
        loop {
            let Some((may_poll, look_again)) = flow.steer(&state, &***consumer, Instant::now())
            else {
                return Ended::Released;
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ended::Stopped,
                () = state.wake.notified() => {}
                partition = &mut forgotten => {
                    tracing::warn!(
                        lane = %state.lane,
                        partition,
                        "the group lost its settled offsets: the lane's topic was created again; \
                         reading it from its start"
                    );
                    return Ended::Broken;
                }
                stall = &mut stalled => {
                    tracing::warn!(
                        lane = %state.lane,
                        "the lane's consumer waits although the brokers answer: {stall}; starting \
                         another"
                    );
                    state.assignment().patience.replaced(stall);
                    return Ended::Broken;
                }
                () = &mut kept_out => {
                    tracing::debug!(lane = %state.lane, "the lane's consumer may be well again; starting another");
                    return Ended::Broken;
                }
                never = &mut crowded => match never {},
                message = messages.next(), if may_poll => {
                    let mut next = message;
                    let mut left = BURST;
                    while let Some(message) = next {
                        if let Err(error) = message.map(|message| self.take(&message)) {
                            match self.failed(error) {
                                Some(ended) => return ended,
                                None => break,
                            }
                        }
                        left -= 1;
                        if left == 0 || state.assignment().held() >= state.share() {
                            break;
                        }
                        next = messages.next().now_or_never().flatten();
                        if next.is_none() {
                            state.assignment().ran_dry();
                        }
                    }
                }
                () = tokio::time::sleep_until(look_again) => {
                    if may_poll {
                        state.assignment().ran_dry();
                    }
                }
            }
        }
    }

    fn take(&mut self, message: &BorrowedMessage<'_>) {
        let read = Message::decode(message.payload().unwrap_or_default());
        let state = &self.state;
        let mut assignment = state.assignment();
        let arrived = assignment.arrive(message.partition(), message.offset());
        let Some((ticket, again)) = arrived else {
            return;
        };
        if assignment.paused || assignment.holding {
            // The message was in transit when the partitions were paused, or the client dropped the
            // pause.
            assignment.leaks = true;
            assignment.requeue(&[ticket]);
            return;
        }
        let lane = || state.lane.to_string();
        match read {
            Ok(Message { published_at, body }) => {
                let stamped = || {
                    let millis = message.timestamp().to_millis()?;
                    chrono::DateTime::from_timestamp_millis(millis)
                };
                assignment.ready.push_back(Delivery {
                    lane: state.lane.clone(),
                    body,
                    published_at: published_at.or_else(stamped),
                    received_at: Utc::now(),
                    redelivered: again,
                    ticket,
                });
                drop(assignment);
                state.arrived.notify_one();
            }
            Err(problem) => {
                assignment.settle(&[ticket]);
                drop(assignment);
                metrics::counter!(HINTS_UNREADABLE, "lane" => lane()).increment(1);
                if let Some(more) = self.unreadable.now() {
                    let (partition, offset) = (message.partition(), message.offset());
                    tracing::warn!(
                        lane = %state.lane,
                        partition,
                        offset,
                        %problem,
                        more,
                        "dropped an unreadable message"
                    );
                }
            }
        }
    }

    fn failed(&self, error: KafkaError) -> Option<Ended> {
        let lane = &self.state.lane;
        if let KafkaError::MessageConsumptionFatal(_) = error {
            tracing::warn!(
                %lane,
                %error,
                "the lane's consumer failed and can't recover; starting another"
            );
            self.complain(explain_error(&error, &format!("lane '{lane}'")));
            return Some(Ended::Broken);
        }
        self.context.note(&error, &format!("lane '{lane}'"));
        if error.rdkafka_error_code().is_some_and(is_missing_topic) {
            let is_new = self.found_at.is_some_and(|at| at.elapsed() < PROPAGATION);
            if is_new && self.state.assignment().is_joining() {
                tracing::debug!(%lane, %error, "not every broker lists the lane's topic yet");
                return Some(Ended::Early);
            }
            // The next client creates the topic again, or looks for it. This one would keep the
            // state of the old partitions, and fetch nothing from new ones with the same numbers.
            tracing::warn!(
                %lane,
                %error,
                "the lane's topic was deleted; it is created again if `KafkaOptions::declare` \
                 (setting `kafka_declare`) is true"
            );
            return Some(Ended::Broken);
        }
        let problem = explain_error(&error, &format!("lane '{lane}'"));
        tracing::debug!(%lane, %problem, "the lane's consumer reported an error");
        if !problem.is_transient() {
            self.complain(problem);
        }
        None
    }
}

/// Waits until the client has an old problem.
async fn is_kept_out(state: Arc<LaneState>) {
    while !state.assignment().has_old_trouble() {
        tokio::time::sleep(LOOK).await;
    }
}

async fn pause(stop: &CancellationToken, time: Duration) {
    let _ = tokio::time::timeout(time, stop.cancelled()).await;
}

/// Returns the time that a client waits for the answer to a join.
fn longest_join(options: &KafkaOptions) -> Duration {
    (options.session_timeout * 3).max(SHORTEST_JOIN)
}

fn configuration(
    mut config: ClientConfig,
    group: &str,
    share: usize,
    options: &KafkaOptions,
) -> ClientConfig {
    let millis = |time: Duration| time.as_millis().to_string();
    // The answer to a heartbeat reports a new member, twice in a cooperative rebalance.
    let heartbeat = (options.session_timeout / 3).min(Duration::from_millis(500));
    let join = longest_join(options);
    config
        .set("group.id", group)
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("session.timeout.ms", millis(options.session_timeout))
        .set("heartbeat.interval.ms", millis(heartbeat))
        // The time that the client waits for the answer to a join. It sends no heartbeats
        // meanwhile, and does not notice that the answer was lost with the connection, or in a
        // frozen broker. Kafka's default, five minutes, is for consumers that work between two
        // polls; this one always polls.
        .set("max.poll.interval.ms", millis(join))
        .set("enable.auto.commit", "true")
        .set("auto.commit.interval.ms", millis(options.commit_interval))
        // The receiver stores settled offsets, in order; the client commits only these.
        .set("enable.auto.offset.store", "false")
        // A group without offsets starts at the oldest hint: its job may still wait.
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", crate::offsets::ISOLATION)
        .set(
            "queued.min.messages",
            (share * 4).clamp(64, 100_000).to_string(),
        )
        .set("queued.max.messages.kbytes", "8192")
        // A missing topic is reported at once: it existed when this client was created.
        .set("topic.metadata.propagation.max.ms", "0")
        .set("fetch.queue.backoff.ms", "10")
        .set("fetch.error.backoff.ms", "100")
        .set(
            "statistics.interval.ms",
            millis(options.statistics_interval.unwrap_or_default()),
        );
    if let Some(instance) = &options.instance_id {
        config.set("group.instance.id", instance);
    }
    if let Some(rack) = &options.rack {
        config.set("client.rack", rack);
    }
    config
}

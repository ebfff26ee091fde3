//! Control messages between nodes: JSON over a topic with one partition, best effort.
//!
//! [`tell`](ControlLine::tell) hands a message to the producer and returns. A message that the
//! producer refuses, or can't deliver in time, is lost; the other nodes read the same facts from
//! the database later. The listeners of this process receive a message at once, without the
//! brokers. Every process reads all messages that arrive after its start, without a group.
//!
//! A process reads its own messages, too, and ignores them. A consumer to which they do not come back is
//! replaced: a client of librdkafka (2.12) can lose its last broker, or the start of a fetch
//! ([`crate::stall`]), and then receives nothing, without an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jobwire_core::telemetry::log_throttle::LogThrottle;
use jobwire_core::transport::{Control, Listeners, TransportError};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{Consumer as _, ConsumerContext, StreamConsumer};
use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::message::Message as _;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::sync::broadcast;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::connection::Context;
use crate::ending::Elsewhere;
use crate::error::{explain_error, is_missing_topic};
use crate::publisher::LanePublishers;
use crate::topology::Topology;

/// The pause before the next attempt to read the topic.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause after an error that needs an operator.
const LONG_PAUSE: Duration = Duration::from_secs(30);
/// The shortest interval between two looks at whether own messages come back.
const LOOK: Duration = Duration::from_secs(15);
/// The longest interval, after many consumers that received nothing.
const LOOK_RARELY: Duration = Duration::from_secs(1_800);

impl ConsumerContext for Context {}

/// Publishes control messages, and distributes them to the listeners of this process.
pub(crate) struct ControlLine {
    process: String,
    topic: String,
    listeners: Listeners,
    publishers: Arc<LanePublishers>,
    /// The number of messages that a broker has taken.
    told: Arc<AtomicU64>,
}

impl ControlLine {
    pub(crate) fn new(topic: String, publishers: Arc<LanePublishers>) -> Self {
        Self {
            process: Uuid::new_v4().to_string(),
            topic,
            listeners: Listeners::default(),
            publishers,
            told: Arc::default(),
        }
    }

    pub(crate) fn tell(&self, control: &Control) -> bool {
        self.tell_here(control.clone());
        match control.write() {
            Ok(text) => {
                let publishers = &self.publishers;
                let taken =
                    publishers.send_and_forget(&self.topic, &self.process, &text, &self.told);
                if !taken {
                    tracing::debug!(
                        "the producer refused a control message; other nodes do not receive it"
                    );
                }
                taken
            }
            Err(error) => {
                tracing::debug!(
                    %error,
                    "a control message can't be encoded; other nodes do not receive it"
                );
                false
            }
        }
    }

    /// Sends a message to the listeners of this process only.
    pub(crate) fn tell_here(&self, control: Control) {
        self.listeners.tell(control);
    }

    pub(crate) fn listen(&self) -> broadcast::Receiver<Control> {
        self.listeners.listen()
    }

    pub(crate) fn listener(
        &self,
        mut config: ClientConfig,
        context: Context,
        topology: Topology,
    ) -> Listener {
        config
            // Required by the client; the group is never joined.
            .set("group.id", format!("{}.listener", self.topic))
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "latest")
            .set("queued.max.messages.kbytes", "1024")
            .set("fetch.error.backoff.ms", "200");
        Listener {
            process: self.process.clone(),
            topic: self.topic.clone(),
            listeners: self.listeners.clone(),
            config,
            context,
            topology,
            told: self.told.clone(),
            look: LOOK,
        }
    }
}

/// Finds out whether own messages come back. Begins with the first look: a message that was told before the
/// consumer knew the end of the topic does not come back.
#[derive(Default)]
struct Echo {
    /// The number of told messages at the last look, if there was one.
    told: Option<u64>,
    /// A message has arrived since the last look.
    heard: bool,
    /// None had arrived between the last two looks.
    silent: bool,
    /// Messages that were told before the last look had not come back by then.
    waits: bool,
}

impl Echo {
    /// Returns whether messages that had been told before the last look have not come back by now, although
    /// the brokers answer.
    fn is_missing(&mut self, told: u64, brokers_answer: bool) -> bool {
        let silent = brokers_answer && !std::mem::take(&mut self.heard);
        let missing = silent && self.waits;
        // A message that has arrived may be reported as taken after the look.
        let was_silent = std::mem::replace(&mut self.silent, silent);
        self.waits = silent && was_silent && self.told.is_some_and(|before| told > before);
        self.told = Some(told);
        missing
    }
}

/// Receives the control messages of other processes.
pub(crate) struct Listener {
    process: String,
    topic: String,
    listeners: Listeners,
    config: ClientConfig,
    context: Context,
    topology: Topology,
    told: Arc<AtomicU64>,
    look: Duration,
}

impl Listener {
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let mut every = self.look;
        while !stop.is_cancelled() {
            let pause = tokio::select! {
                () = stop.cancelled() => break,
                opened = self.open() => match opened {
                    Ok(consumer) => {
                        let pause = self.hear(&consumer, &mut every, &stop).await;
                        let gone = consumer.gone();
                        drop(consumer);
                        if stop.is_cancelled() {
                            gone.cancelled().await;
                            break;
                        }
                        pause
                    }
                    Err(problem) => pause_after(&problem),
                },
            };
            let _ = tokio::time::timeout(pause, stop.cancelled()).await;
        }
    }

    async fn open(&self) -> Result<Elsewhere<StreamConsumer<Context>>, TransportError> {
        self.topology.ensure_control().await?;
        let explained = |error| explain_error(&error, &self.topic);
        let consumer =
            StreamConsumer::<Context>::from_config_and_context(&self.config, self.context.clone())
                .map(Elsewhere::new)
                .map_err(explained)?;
        let mut all = TopicPartitionList::new();
        all.add_partition_offset(&self.topic, 0, Offset::End)
            .map_err(explained)?;
        consumer.assign(&all).map_err(explained)?;
        Ok(consumer)
    }

    /// Receives messages until the topic is gone, and returns the pause before the next attempt. `every` is the
    /// interval between two looks, which doubles with each consumer that receives nothing.
    async fn hear(
        &self,
        consumer: &StreamConsumer<Context>,
        every: &mut Duration,
        stop: &CancellationToken,
    ) -> Duration {
        self.listeners.missed();
        let mut unreadable = LogThrottle::default();
        let told = || self.told.load(Ordering::Relaxed);
        let mut echo = Echo::default();
        let mut looks = looks_every(*every);
        loop {
            let received = tokio::select! {
                biased;
                () = stop.cancelled() => return Duration::ZERO,
                received = consumer.recv() => received,
                _ = looks.tick() => {
                    if echo.is_missing(told(), self.context.link.problem().is_none()) {
                        tracing::warn!(
                            "the consumer of control messages receives nothing although the brokers \
                             answer; starting another"
                        );
                        *every = (*every * 2).min(LOOK_RARELY);
                        return Duration::ZERO;
                    }
                    continue;
                }
            };
            match received {
                Ok(message) => {
                    echo.heard = true;
                    if *every > self.look {
                        *every = self.look;
                        looks = looks_every(*every);
                    }
                    if message.key() == Some(self.process.as_bytes()) {
                        continue;
                    }
                    let message = message.payload().unwrap_or_default();
                    self.listeners.read(message, &mut unreadable);
                }
                Err(error) => {
                    // A reported problem is not a silent one.
                    echo.heard = true;
                    self.context.note(&error, &self.topic);
                    if error.rdkafka_error_code().is_some_and(is_missing_topic) {
                        return PAUSE;
                    }
                    if error.rdkafka_error_code() == Some(Code::TopicAuthorizationFailed) {
                        // The client reports it once, and receives nothing.
                        return pause_after(&explain_error(&error, &self.topic));
                    }
                    let _ = tokio::time::timeout(PAUSE, stop.cancelled()).await;
                }
            }
        }
    }
}

fn looks_every(interval: Duration) -> Interval {
    let mut looks = tokio::time::interval_at(Instant::now() + interval, interval);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks
}

/// Names a problem that needs an operator, and returns the pause before the next attempt.
fn pause_after(problem: &TransportError) -> Duration {
    if problem.is_transient() {
        return PAUSE;
    }
    tracing::warn!(
        %problem,
        "can't receive control messages from other nodes; jobs still run, some of them with more latency"
    );
    LONG_PAUSE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_do_not_come_back_are_missed() {
        let silent = |told: &[u64]| {
            let mut echo = Echo::default();
            told.iter().map(|told| echo.is_missing(*told, true)).last()
        };
        assert_eq!(silent(&[0, 0, 0, 0]), Some(false), "nothing was told");
        assert_eq!(
            silent(&[2, 2, 2, 2]),
            Some(false),
            "told before the first look"
        );
        assert_eq!(silent(&[0, 3, 3]), Some(true));
        assert_eq!(silent(&[0, 0, 3]), Some(false), "they may be under way");

        let mut echo = Echo::default();
        assert!(!echo.is_missing(0, true));
        echo.heard = true;
        assert!(!echo.is_missing(3, true));
        assert!(!echo.is_missing(4, true), "4 may have come before the look");
        assert!(!echo.is_missing(4, true));
        assert!(!echo.is_missing(5, true));
        assert!(!echo.is_missing(6, false), "no broker answers");
        assert!(!echo.is_missing(6, true));
        assert!(!echo.is_missing(7, true));
        assert!(echo.is_missing(8, true));
    }
}

//! Topics: created or checked before use.
//!
//! | topic | content | partitions | retention |
//! | --- | --- | --- | --- |
//! | `<prefix>.lane.<lane>` | hints | `kafka_partitions` | `kafka_retention` |
//! | `<prefix>.control` | control messages between nodes | 1 | 1 h |
//! | `<prefix>.events` | the event stream, if it is switched on | `kafka_partitions` | 7 days |
//!
//! With `declare`, the nodes that receive a lane create its missing topic (publishers create only
//! the topic of `default`). Existing topics are not changed. A difference from the settings that
//! costs latency or hints is a warning, never an error, because others may administer the topic.
//! Rights needed: Describe on every topic; Read on lanes and control, and on the groups; Write on
//! lanes, control and events; IdempotentWrite on the cluster (brokers before 3.0); Create and
//! `DescribeConfigs` only with `declare`.
//!
//! With tokens (OAUTHBEARER) no topic is created: the client library's administrative client gets
//! no tokens.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jobwire_core::Lane;
use jobwire_core::transport::{OwnLanes, TransportError};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, ResourceSpecifier, TopicReplication};
use rdkafka::client::{Client, ClientContext};
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::RDKafkaErrorCode;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::blocking::blocking;
use crate::connection::{ANSWER, Context};
use crate::ending::Elsewhere;
use crate::endpoint::Endpoint;
use crate::error::{explain, explain_error, is_missing_topic};
use crate::options::KafkaOptions;
use crate::producers::Producers;

/// Maximum number of copies if `kafka_replication` is `auto`.
const WANTED_COPIES: usize = 3;
/// The retention of the control topic.
const CONTROL_RETENTION: Duration = Duration::from_secs(3600);
/// The retention of the topic of the event stream.
const EVENT_RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);
/// The time within which every broker lists a topic that was just created.
pub(crate) const PROPAGATION: Duration = Duration::from_secs(5);

/// The names and settings of the topics on the brokers.
#[derive(Clone)]
pub(crate) struct Topology {
    pub(crate) endpoint: Endpoint,
    pub(crate) options: KafkaOptions,
    pub(crate) config: ClientConfig,
    pub(crate) context: Context,
    pub(crate) producers: Arc<Producers>,
    /// The lanes whose topics this process creates.
    pub(crate) own: OwnLanes,
    /// The topics as last found. A topic is compared with the settings only when it changes.
    known: Arc<Mutex<HashMap<String, Found>>>,
    beside: Beside,
}

/// Background tasks, which end with the transport.
#[derive(Clone)]
pub(crate) struct Beside {
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
}

/// The wanted properties of a topic.
#[derive(Clone)]
struct Wanted {
    topic: String,
    partitions: i32,
    retention: Duration,
    /// The loss of a confirmed message is final: no sweeper publishes it again.
    keeps: bool,
}

/// The actual properties of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    partitions: i32,
    copies: usize,
    brokers: usize,
}

type Admin = Elsewhere<AdminClient<Context>>;

impl Topology {
    pub(crate) fn new(
        endpoint: Endpoint,
        options: KafkaOptions,
        config: ClientConfig,
        context: Context,
        producers: Arc<Producers>,
        beside: Beside,
    ) -> Self {
        Self {
            endpoint,
            options,
            config,
            context,
            producers,
            beside,
            own: OwnLanes::default(),
            known: Arc::default(),
        }
    }

    /// Returns the current number of partitions of a lane's topic; 0 if the topic does not exist.
    pub(crate) async fn partitions(&self, lane: &Lane) -> Result<i32, TransportError> {
        let found = self.find(self.endpoint.topic(lane)).await?;
        Ok(found.map_or(0, |found| found.partitions))
    }

    /// Ensures that a lane's topic exists, and returns its number of partitions. A process creates
    /// the topics of the lanes that it receives and of `default` only, because a row may name any
    /// lane.
    pub(crate) async fn ensure_lane(&self, lane: &Lane) -> Result<i32, TransportError> {
        let may_make = self.options.declare && self.options.tokens.is_none();
        if may_make && !self.own.contains(lane) {
            return match self.partitions(lane).await? {
                0 => Err(TransportError::NoReceiver(lane.clone())),
                partitions => Ok(partitions),
            };
        }
        let wanted = Wanted {
            topic: self.endpoint.topic(lane),
            partitions: self.options.partitions,
            retention: self.options.retention,
            keeps: false,
        };
        self.ensure(wanted).await
    }

    /// Ensures that the control topic exists, and returns its number of partitions.
    pub(crate) async fn ensure_control(&self) -> Result<i32, TransportError> {
        let wanted = Wanted {
            topic: self.endpoint.control_topic(),
            partitions: 1,
            retention: CONTROL_RETENTION,
            keeps: false,
        };
        self.ensure(wanted).await
    }

    /// Ensures that the topic of the event stream exists, and returns its number of partitions.
    pub(crate) async fn ensure_events(&self) -> Result<i32, TransportError> {
        let wanted = Wanted {
            topic: self.endpoint.events_topic(),
            partitions: self.options.partitions,
            retention: EVENT_RETENTION,
            keeps: true,
        };
        self.ensure(wanted).await
    }

    async fn ensure(&self, wanted: Wanted) -> Result<i32, TransportError> {
        if let Some(found) = self.find(wanted.topic.clone()).await? {
            return Ok(self.seen(&wanted, found));
        }
        if self.options.tokens.is_some() {
            return Err(TransportError::Refused {
                problem: format!("the topic '{}' does not exist", wanted.topic),
                remedy: "create it; with OAUTHBEARER Jobwire creates no topics".to_owned(),
            });
        }
        if !self.options.declare {
            return Err(TransportError::Refused {
                problem: format!("the topic '{}' does not exist", wanted.topic),
                remedy: "create it, or set `kafka_declare = true`".to_owned(),
            });
        }
        self.create(&wanted).await?;
        let end = tokio::time::Instant::now() + PROPAGATION;
        loop {
            if let Some(found) = self.find(wanted.topic.clone()).await? {
                return Ok(self.seen(&wanted, found));
            }
            if tokio::time::Instant::now() >= end {
                return Err(TransportError::Unreachable(format!(
                    "the topic '{}' was created, but the brokers do not list it yet",
                    wanted.topic
                )));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns a topic, if it exists.
    async fn find(&self, topic: String) -> Result<Option<Found>, TransportError> {
        self.producers.ask(move |client| find(client, &topic)).await
    }

    /// Returns the partitions of a topic. Compares a new or changed topic with the settings in a
    /// background task: brokers may take seconds to return the settings of a topic just created.
    fn seen(&self, wanted: &Wanted, found: Found) -> i32 {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.insert(wanted.topic.clone(), found) != Some(found) {
            let (topology, wanted) = (self.clone(), wanted.clone());
            let stop = self.beside.stop.clone();
            self.beside.tasks.spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = topology.compare(&wanted, found) => {}
                }
            });
        }
        found.partitions
    }

    /// Creates an administrative client. This starts threads, so it runs on a blocking thread.
    async fn admin(&self) -> Result<Admin, TransportError> {
        let (config, context) = (self.config.clone(), self.context.clone());
        blocking(move || {
            AdminClient::from_config_and_context(&config, context)
                .map(Elsewhere::new)
                .map_err(|error| explain_error(&error, "topics"))
        })
        .await
    }

    async fn create(&self, wanted: &Wanted) -> Result<(), TransportError> {
        let copies = match self.options.replication {
            Some(copies) => copies,
            None => {
                let topic = wanted.topic.clone();
                let brokers = self.producers.ask(move |client| brokers(client, &topic));
                let brokers = brokers.await?;
                i32::try_from(brokers.clamp(1, WANTED_COPIES)).unwrap_or(1)
            }
        };
        let retention = wanted.retention.as_millis().to_string();
        // Segments are deleted as a whole, so a segment must be much shorter than the retention.
        let segment = (wanted.retention / 4).as_millis().to_string();
        let mut topic = NewTopic::new(
            &wanted.topic,
            wanted.partitions,
            TopicReplication::Fixed(copies),
        )
        .set("cleanup.policy", "delete")
        .set("retention.ms", &retention)
        .set("segment.ms", &segment);
        if wanted.keeps && copies > 2 {
            topic = topic.set("min.insync.replicas", "2");
        }
        let options = AdminOptions::new()
            .request_timeout(Some(ANSWER))
            .operation_timeout(Some(ANSWER));
        let made = self
            .admin()
            .await?
            .create_topics([&topic], &options)
            .await
            .map_err(|error| explain_error(&error, &wanted.topic))?;
        for result in made {
            match result {
                Ok(name) => tracing::info!(
                    topic = name,
                    partitions = wanted.partitions,
                    copies,
                    "created a topic"
                ),
                // Another node created it first.
                Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((name, code)) => {
                    return Err(explain(code, &format!("creating topic '{name}'")));
                }
            }
        }
        Ok(())
    }

    /// Logs the differences between a topic and the settings.
    async fn compare(&self, wanted: &Wanted, found: Found) {
        let topic = &wanted.topic;
        if found.partitions != wanted.partitions {
            tracing::warn!(
                %topic,
                partitions = found.partitions,
                wanted = wanted.partitions,
                "the number of partitions of a topic differs from the setting; at most one node \
                 per partition can share a lane"
            );
        }
        let copies = match self.options.replication {
            Some(copies) => usize::try_from(copies).unwrap_or(1),
            None => found.brokers.min(WANTED_COPIES),
        };
        if found.copies < copies {
            tracing::warn!(
                %topic, copies = found.copies, wanted = copies,
                "a topic has fewer copies than `KafkaOptions::replication` (setting \
                 `kafka_replication`) asks for: its hints wait while a broker is away"
            );
        }
        if !self.options.declare || self.options.tokens.is_some() {
            return;
        }
        match self.settings(topic).await {
            Ok((in_sync, retention)) => {
                if in_sync.is_some_and(|n| n >= found.copies && found.copies > 1) {
                    tracing::warn!(
                        %topic, copies = found.copies, in_sync,
                        "min.insync.replicas is not less than the number of copies: while one \
                         broker is away no hint is published; lower it"
                    );
                }
                if found.copies > 2 && in_sync == Some(1) && wanted.keeps {
                    tracing::warn!(
                        %topic,
                        "min.insync.replicas is 1: a broker that fails may lose events that it has \
                         confirmed; set it to 2"
                    );
                } else if found.copies > 2 && in_sync == Some(1) {
                    tracing::info!(
                        %topic,
                        "min.insync.replicas is 1: a broker that fails may lose hints; the sweeper \
                         publishes them again"
                    );
                }
                if retention.is_some_and(|kept| kept < wanted.retention) {
                    tracing::warn!(
                        %topic, kept = ?retention, wanted = ?wanted.retention,
                        "a topic keeps hints for less time than the settings ask for; the sweeper \
                         publishes lost hints again"
                    );
                }
            }
            Err(problem) => tracing::debug!(%topic, %problem, "a topic's settings can't be read"),
        }
    }

    /// Returns the topic's `min.insync.replicas` and `retention.ms`.
    async fn settings(
        &self,
        topic: &str,
    ) -> Result<(Option<usize>, Option<Duration>), TransportError> {
        let options = AdminOptions::new().request_timeout(Some(ANSWER));
        let described = self
            .admin()
            .await?
            .describe_configs([&ResourceSpecifier::Topic(topic)], &options)
            .await
            .map_err(|error| explain_error(&error, topic))?;
        let Some(Ok(resource)) = described.into_iter().next() else {
            return Ok((None, None));
        };
        let value = |name: &str| resource.get(name).and_then(|entry| entry.value.clone());
        let in_sync = value("min.insync.replicas").and_then(|text| text.parse().ok());
        let retention = value("retention.ms")
            .and_then(|text| text.parse().ok())
            .map(Duration::from_millis);
        Ok((in_sync, retention))
    }
}

fn brokers<C: ClientContext>(client: &Client<C>, topic: &str) -> Result<usize, TransportError> {
    client
        .fetch_metadata(Some(topic), ANSWER)
        .map(|metadata| metadata.brokers().len())
        .map_err(|error| explain_error(&error, "brokers"))
}

fn find<C: ClientContext>(
    client: &Client<C>,
    topic: &str,
) -> Result<Option<Found>, TransportError> {
    let metadata = client
        .fetch_metadata(Some(topic), ANSWER)
        .map_err(|error| explain_error(&error, topic))?;
    let Some(found) = metadata.topics().iter().find(|t| t.name() == topic) else {
        return Ok(None);
    };
    if let Some(error) = found.error() {
        let code = RDKafkaErrorCode::from(error);
        return if is_missing_topic(code) {
            Ok(None)
        } else {
            Err(explain(code, &format!("topic '{topic}'")))
        };
    }
    if found.partitions().is_empty() {
        return Ok(None);
    }
    let copies = found.partitions().iter().map(|p| p.replicas().len()).min();
    Ok(Some(Found {
        partitions: i32::try_from(found.partitions().len()).unwrap_or(i32::MAX),
        copies: copies.unwrap_or(0),
        brokers: metadata.brokers().len(),
    }))
}

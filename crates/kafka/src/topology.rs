//! Topics: made or checked before they are used.
//!
//! | topic | what it carries | partitions | kept |
//! | --- | --- | --- | --- |
//! | `<prefix>.lane.<lane>` | hints | a setting | a setting |
//! | `<prefix>.control` | what nodes tell each other | 1 | an hour |
//!
//! With `declare`, a missing topic is created by whoever receives it (that of `default` also by publishers); what
//! exists is only looked at. A difference to the settings that costs latency or hints is a warning, never an error: the
//! topic may belong to somebody else. Rights needed: Describe on every topic; Read on lanes and control, and on the
//! groups; Write on lanes and control; IdempotentWrite on the cluster (brokers before 3.0); Create and
//! `DescribeConfigs` only with `declare`.
//!
//! With tokens (OAUTHBEARER) topics are only used: the client library gives its administrative client none.

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

use crate::connection::{ANSWER, Context};
use crate::ending::Elsewhere;
use crate::endpoint::Endpoint;
use crate::error::{explain, explain_error, is_missing_topic};
use crate::options::KafkaOptions;
use crate::producers::{Producers, blocking};

/// Copies that are wanted where the settings name no number.
const WANTED_COPIES: usize = 3;
const CONTROL_RETENTION: Duration = Duration::from_secs(3600);
/// A topic that was just made is shown by every broker within this.
pub(crate) const PROPAGATION: Duration = Duration::from_secs(5);

/// Names and settings of what is on the brokers.
#[derive(Clone)]
pub(crate) struct Topology {
    pub(crate) endpoint: Endpoint,
    pub(crate) options: KafkaOptions,
    pub(crate) config: ClientConfig,
    pub(crate) context: Context,
    pub(crate) producers: Arc<Producers>,
    /// The lanes whose topics this process makes.
    pub(crate) own: OwnLanes,
    /// What was found last: it is looked at closely only when that changes.
    known: Arc<Mutex<HashMap<String, Found>>>,
    beside: Beside,
}

/// Tasks that no caller waits for. They end with the transport.
#[derive(Clone)]
pub(crate) struct Beside {
    pub(crate) tasks: TaskTracker,
    pub(crate) stop: CancellationToken,
}

/// What a topic should be like.
#[derive(Clone)]
struct Wanted {
    topic: String,
    partitions: i32,
    retention: Duration,
}

/// What a topic is like.
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

    /// The partitions of a lane's topic now; none where there is no such topic.
    pub(crate) async fn partitions(&self, lane: &Lane) -> Result<i32, TransportError> {
        let found = self.find(self.endpoint.topic(lane)).await?;
        Ok(found.map_or(0, |found| found.partitions))
    }

    /// Make sure that a lane's topic is there; returns its partitions. Only a process that receives the lane makes
    /// it, and the one of `default`: a row may name any lane.
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
        };
        self.ensure(wanted).await
    }

    /// The same for the topic of what nodes tell each other.
    pub(crate) async fn ensure_control(&self) -> Result<i32, TransportError> {
        let wanted = Wanted {
            topic: self.endpoint.control_topic(),
            partitions: 1,
            retention: CONTROL_RETENTION,
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
                remedy: "create it: with OAUTHBEARER Jobwire only uses what exists".to_owned(),
            });
        }
        if !self.options.declare {
            return Err(TransportError::Refused {
                problem: format!("the topic '{}' does not exist", wanted.topic),
                remedy: "create it, or let Jobwire do it (`kafka_declare = true`)".to_owned(),
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
                    "the topic '{}' was made, and is not to be seen yet",
                    wanted.topic
                )));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A topic, if it is there.
    async fn find(&self, topic: String) -> Result<Option<Found>, TransportError> {
        self.producers.ask(move |client| find(client, &topic)).await
    }

    /// A new topic, or one that has changed, is compared with the wanted one in a task of its own:
    /// brokers that have just made it may take seconds to tell its settings.
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

    /// Making a client starts threads.
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
        // Segments are removed as a whole: one must end well before the retention does.
        let segment = (wanted.retention / 4).as_millis().to_string();
        let topic = NewTopic::new(
            &wanted.topic,
            wanted.partitions,
            TopicReplication::Fixed(copies),
        )
        .set("cleanup.policy", "delete")
        .set("retention.ms", &retention)
        .set("segment.ms", &segment);
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
                    "made a topic"
                ),
                // Another node was quicker.
                Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
                Err((name, code)) => return Err(explain(code, &format!("making topic '{name}'"))),
            }
        }
        Ok(())
    }

    /// Say what is not as it was wanted.
    async fn compare(&self, wanted: &Wanted, found: Found) {
        let topic = &wanted.topic;
        if found.partitions != wanted.partitions {
            tracing::warn!(
                %topic,
                partitions = found.partitions,
                wanted = wanted.partitions,
                "a topic has another number of partitions than is set; so many nodes can share it"
            );
        }
        let copies = match self.options.replication {
            Some(copies) => usize::try_from(copies).unwrap_or(1),
            None => found.brokers.min(WANTED_COPIES),
        };
        if found.copies < copies {
            tracing::warn!(
                %topic, copies = found.copies, wanted = copies,
                "a topic has fewer copies than is set: hints wait while its broker is away"
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
                        "min.insync.replicas is not less than the copies: one broker away stops all hints"
                    );
                }
                if found.copies > 2 && in_sync == Some(1) {
                    tracing::info!(
                        %topic,
                        "min.insync.replicas is 1: a broker that fails may lose hints, which the sweeper then heals"
                    );
                }
                if retention.is_some_and(|kept| kept < wanted.retention) {
                    tracing::warn!(
                        %topic, kept = ?retention, wanted = ?wanted.retention,
                        "a topic keeps hints for less time than is set; the sweeper heals what is lost"
                    );
                }
            }
            Err(problem) => tracing::debug!(%topic, %problem, "a topic's settings can't be read"),
        }
    }

    /// `min.insync.replicas` and `retention.ms`.
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

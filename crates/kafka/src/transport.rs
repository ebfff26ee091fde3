//! The transport: one producer, one consumer per received lane, and their shared state.

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use jobwire_core::hint::{Hint, Marker};
use jobwire_core::job::Lane;
use jobwire_core::runtime::supervisor::supervised;
use jobwire_core::transport::{
    Control, EventPublisher, Lifetime, Publisher, Receiver, Subscription, Transport,
    TransportError, TransportHealth,
};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::Producer as _;
use tokio::sync::{Notify, broadcast};

use crate::configuration::configuration;
use crate::connection::{ANSWER, Context, Link, keep};
use crate::control::ControlLine;
use crate::endpoint::Endpoint;
use crate::error::explain_error;
use crate::events::Events;
use crate::lane::LaneTask;
use crate::lane_client::LaneState;
use crate::options::KafkaOptions;
use crate::producers::Producers;
use crate::publisher::{self, LanePublishers};
use crate::receiver::KafkaReceiver;
use crate::settled::{Settled, settled};
use crate::statistics::{self, Census};
use crate::topology::{Beside, Topology};

/// The time that [`KafkaTransport::connect`] waits for the brokers.
const FIRST_ATTEMPT: Duration = Duration::from_secs(8);

/// The Kafka transport. See the [crate](crate) for an example. Cheap to clone; the connections end
/// when the last clone, publisher and receiver is dropped.
#[derive(Clone)]
pub struct KafkaTransport(Arc<Shared>);

struct Shared {
    endpoint: Endpoint,
    options: KafkaOptions,
    topology: Topology,
    link: Link,
    publishers: Arc<LanePublishers>,
    events: Arc<Events>,
    control: Arc<ControlLine>,
    settled: Arc<Settled>,
    /// Numbers the assignments of all receivers.
    epochs: Arc<AtomicU64>,
    /// The lanes of all receivers.
    received: Mutex<Vec<Weak<LaneState>>>,
    /// Ends the connections when it is dropped.
    lifetime: Lifetime,
}

impl Shared {
    fn received(&self) -> MutexGuard<'_, Vec<Weak<LaneState>>> {
        self.received.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the states of the receivers of this lane.
    fn receivers(&self, lane: &Lane) -> Vec<Arc<LaneState>> {
        let received = self.received();
        let of_lane = received.iter().filter_map(Weak::upgrade);
        of_lane.filter(|state| state.lane == *lane).collect()
    }
}

impl KafkaTransport {
    /// Connects to
    /// `kafka://[user:password@]host[:port][,…][/prefix][?group=NAME&tls=true&sasl=MECHANISM]`.
    ///
    /// Returns within some seconds. Brokers that are away are no error: the transport keeps trying
    /// in the background, and [`Publisher::health`] reports the problem. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`TransportError::Setting`] if the URL or a setting is wrong, [`TransportError::Refused`] if
    /// the brokers refuse user, password or certificate. Both need an operator.
    pub async fn connect(url: &str, options: KafkaOptions) -> Result<Self, TransportError> {
        if let Some(mistake) = options.mistakes().into_iter().next() {
            return Err(mistake.into());
        }
        let endpoint = Endpoint::parse(url)?;
        let config = configuration(&endpoint, &options)?;
        let link = Link::new();
        let context = Context {
            link: link.clone(),
            tokens: options.tokens.clone(),
            statistics: statistics::record,
        };
        let producing = publisher::configuration(config.clone(), &options);
        let producers = Arc::new(Producers::new(producing, context.clone())?);
        let lifetime = Lifetime::default();
        let (keepers, stop) = (lifetime.keepers(), lifetime.stop());
        let topology = Topology::new(
            endpoint.clone(),
            options.clone(),
            config.clone(),
            context.clone(),
            producers.clone(),
            Beside {
                tasks: keepers.clone(),
                stop: stop.clone(),
            },
        );
        let probe = prober(producers.clone(), endpoint.control_topic());
        let (link_kept, kept, stopped) = (link.clone(), endpoint.clone(), stop.clone());
        keepers.spawn(supervised("kafka link", stop.clone(), async move || {
            keep(
                link_kept.clone(),
                kept.clone(),
                stopped.clone(),
                probe.clone(),
            )
            .await;
        }));
        let events = Arc::new(Events::new(
            link.clone(),
            topology.clone(),
            producers.clone(),
            lifetime.closing(),
        ));
        let publishers = Arc::new(LanePublishers::new(
            link.clone(),
            topology.clone(),
            options.clone(),
            producers,
            &lifetime,
        ));
        let control = Arc::new(ControlLine::new(
            endpoint.control_topic(),
            publishers.clone(),
        ));
        let listener = control.listener(config.clone(), context.clone(), topology.clone());
        let stopped = stop.clone();
        keepers.spawn(supervised(
            "kafka listener",
            stop.clone(),
            async move || {
                listener.run(stopped.clone()).await;
            },
        ));
        let (settled, mut watch) = settled(
            config.clone(),
            context.clone(),
            topology.clone(),
            control.clone(),
        );
        let stopped = stop.clone();
        keepers.spawn(supervised("kafka offsets", stop.clone(), async move || {
            watch.run(stopped.clone()).await;
        }));
        let transport = Self(Arc::new(Shared {
            endpoint,
            options,
            topology,
            link,
            publishers,
            events,
            control,
            settled,
            epochs: Arc::new(AtomicU64::new(1)),
            received: Mutex::default(),
            lifetime,
        }));
        // Only an error that needs an operator is returned; other errors are transient.
        match transport.0.link.first_attempt(FIRST_ATTEMPT).await {
            Err(problem) if !problem.is_transient() => Err(problem),
            _ => Ok(transport),
        }
    }
}

/// Returns a function that requests metadata from the brokers. It blocks.
///
/// librdkafka (2.12) can lose its last broker when that broker restarts, and then connects to none
/// for five minutes (`metadata.recovery.rebootstrap.trigger.ms`). So a producer that repeatedly
/// reaches no broker is replaced by a new one, which starts with the brokers of the URL.
fn prober(
    producers: Arc<Producers>,
    topic: String,
) -> impl Fn() -> Result<(), TransportError> + Clone + Send + Sync + 'static {
    let failures = Arc::new(AtomicU32::new(0));
    move || {
        let producer = producers.current();
        let Err(error) = producer.client().fetch_metadata(Some(&topic), ANSWER) else {
            failures.store(0, Ordering::Relaxed);
            return Ok(());
        };
        // A silent broker does not count: the drop of the old client would wait for its answer.
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::BrokerTransportFailure)
            && replaces_after(failures.fetch_add(1, Ordering::Relaxed) + 1)
        {
            producers.replace(&producer, "the producer reaches no broker");
        }
        Err(explain_error(&error, "the brokers"))
    }
}

/// Returns whether this number of failures in a row calls for a new client: 5, 10, 20, 40, …
const fn replaces_after(failures: u32) -> bool {
    failures.is_multiple_of(5) && (failures / 5).is_power_of_two()
}

#[async_trait]
impl Transport for KafkaTransport {
    fn name(&self) -> &'static str {
        "kafka"
    }

    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::new(self.clone())
    }

    fn events(&self) -> Option<Arc<dyn EventPublisher>> {
        Some(self.0.events.clone())
    }

    async fn subscribe(
        &self,
        subscription: Subscription,
    ) -> Result<Box<dyn Receiver>, TransportError> {
        let shared = &self.0;
        shared.lifetime.ensure_open()?;
        shared.topology.own.add(&subscription.lanes);
        if shared.link.is_up() {
            for lane in &subscription.lanes {
                match shared.publishers.partitions(lane).await {
                    Err(problem) if !problem.is_transient() => return Err(problem),
                    _ => {}
                }
            }
        }
        let arrived = Arc::new(Notify::new());
        let stop = shared.lifetime.closing().child_token();
        let share = usize::from(subscription.prefetch) / subscription.lanes.len().max(1);
        let mut lanes = Vec::new();
        for lane in &subscription.lanes {
            let mut task = LaneTask::new(
                lane,
                share,
                &shared.topology,
                &shared.epochs,
                &arrived,
                stop.clone(),
            );
            lanes.push(task.state.clone());
            let task = supervised("kafka lane", stop.clone(), async move || {
                task.run().await;
            });
            shared.lifetime.tasks().spawn(task);
        }
        {
            let mut received = shared.received();
            received.retain(|state| state.strong_count() > 0);
            received.extend(lanes.iter().map(Arc::downgrade));
        }
        if let Some(every) = shared.options.statistics_interval {
            let census = Census {
                lanes: lanes.clone(),
                settled: shared.settled.clone(),
                every,
            };
            let stopped = stop.clone();
            let census = supervised("kafka census", stop.clone(), async move || {
                census.run(stopped.clone()).await;
            });
            shared.lifetime.tasks().spawn(census);
        }
        Ok(Box::new(KafkaReceiver {
            lanes,
            link: shared.link.clone(),
            arrived,
            stop,
            closing: shared.lifetime.closing(),
            turn: 0,
        }))
    }

    fn listen(&self) -> broadcast::Receiver<Control> {
        self.0.control.listen()
    }

    /// Lets receivers leave their groups and waits for confirms, then ends the clients. Abandons
    /// tasks that have not ended in time.
    async fn close(&self, within: Duration) {
        let publishers = &self.0.publishers;
        let flush = async |left| publishers.flush(left).await;
        self.0.lifetime.close(within, flush).await;
    }
}

#[async_trait]
impl Publisher for KafkaTransport {
    async fn publish(&self, lane: &Lane, hints: Vec<Hint>) -> Result<(), TransportError> {
        self.0.publishers.publish(lane, hints).await
    }

    fn confirm_timeout(&self) -> Duration {
        self.0.publishers.patience()
    }

    async fn publish_marker(&self, lane: &Lane, marker: Marker) -> Result<(), TransportError> {
        self.0.lifetime.ensure_open()?;
        if let Some(problem) = self.0.link.problem() {
            return Err(problem);
        }
        self.0.settled.ask(lane, marker).await
    }

    fn tell(&self, control: Control) -> bool {
        self.0.control.tell(&control)
    }

    fn health(&self) -> TransportHealth {
        if let Some(closing) = self.0.lifetime.health() {
            return closing;
        }
        let problem = self.0.link.problem();
        TransportHealth {
            publishing: problem.is_none(),
            receiving: problem.is_none(),
            blocked: false,
            joining: false,
            problem: problem.map(|problem| problem.to_string()),
        }
    }

    fn health_of(&self, lane: &Lane) -> TransportHealth {
        let health = self.health();
        if !health.receiving {
            return health;
        }
        let receivers = self.0.receivers(lane);
        let trouble = receivers
            .iter()
            .find_map(|state| state.assignment().trouble().map(str::to_owned));
        let joining = trouble.is_none() && receivers.iter().any(|s| s.assignment().is_joining());
        let waits =
            || format!("this node waits until the group of lane '{lane}' assigns partitions");
        TransportHealth {
            receiving: trouble.is_none() && !joining,
            joining,
            problem: trouble.or_else(|| joining.then(waits)),
            ..health
        }
    }
}

impl fmt::Debug for KafkaTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaTransport")
            .field("endpoint", &self.0.endpoint)
            .field("options", &self.0.options)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_replaced_at_growing_distances() {
        let replaced: Vec<u32> = (1..=100).filter(|n| replaces_after(*n)).collect();
        assert_eq!(replaced, [5, 10, 20, 40, 80]);
    }
}

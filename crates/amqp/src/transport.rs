//! The transport: two kept connections, and the tasks that use them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use async_trait::async_trait;
use jobwire_core::hint::{Hint, Marker, Message};
use jobwire_core::job::Lane;
use jobwire_core::transport::{
    Control, EventPublisher, Lifetime, Publisher, Receiver, Subscription, Transport,
    TransportError, TransportHealth,
};
use tokio::sync::broadcast;

use crate::connection::{Direction, Keeper, Link};
use crate::control::{ControlLine, control};
use crate::endpoint::Endpoint;
use crate::events::Events;
use crate::options::AmqpOptions;
use crate::publisher::LanePublishers;
use crate::receiver::AmqpReceiver;
use crate::statistics::{Statistics, Unsettled};
use crate::tls;
use crate::topology::Topology;
use crate::troubles::Troubles;
use jobwire_core::hint::packing::pack;

/// The time that [`AmqpTransport::connect`] waits for the broker.
const FIRST_ATTEMPT: Duration = Duration::from_secs(2);

/// The RabbitMQ transport. See the [crate](crate) for an example. Cheap to clone. The connections
/// close when the last clone, publisher and receiver is dropped.
#[derive(Clone)]
pub struct AmqpTransport(Arc<Shared>);

struct Shared {
    endpoint: Endpoint,
    options: AmqpOptions,
    topology: Topology,
    receive: Link,
    publishers: Arc<LanePublishers>,
    events: Arc<Events>,
    control: ControlLine,
    unsettled: Unsettled,
    troubles: Troubles,
    /// The next epoch; channels of all receivers have different ones.
    epochs: Arc<AtomicU64>,
    /// Ends the connections when it is dropped.
    lifetime: Lifetime,
}

impl AmqpTransport {
    /// Connects to `amqps://user:password@host:port/virtual-host`, or `amqp://`. Commas separate
    /// the hosts of a cluster.
    ///
    /// Waits for the broker for at most two seconds. **Returns `Ok` also while the broker is
    /// away**: the transport keeps trying in the background, and [`Publisher::health`] reports the
    /// state. Meanwhile nodes take jobs from the database. The hints of new jobs are buffered; a
    /// hint that does not fit or becomes too old is dropped, and the sweeper finds its job. Needs a
    /// tokio runtime.
    ///
    /// # Errors
    /// Fails only if an operator is needed. [`TransportError::Setting`]: the URL is wrong, a TLS
    /// file can't be used, or the broker's certificate can't be trusted.
    /// [`TransportError::Refused`]: another option is wrong, or the broker refuses user, password
    /// or virtual host.
    pub async fn connect(url: &str, options: AmqpOptions) -> Result<Self, TransportError> {
        options.validate()?;
        let endpoint = Endpoint::parse(url, &options.security)?.shuffled();
        if let Some(mistake) = endpoint.mistakes(&options.security).into_iter().next() {
            return Err(mistake.into());
        }
        if endpoint.is_tls() {
            tls::connector(&options.security)?;
        } else if !endpoint.is_loopback() {
            tracing::info!(
                %endpoint,
                "the connections to the broker are not encrypted: `security.plaintext` (setting \
                 `broker_plaintext`) allows it"
            );
        }
        let lifetime = Lifetime::default();
        let (keepers, stop) = (lifetime.keepers(), lifetime.stop());
        let keep = |direction| {
            let keeper = Keeper::new(direction, endpoint.clone(), options.clone(), stop.clone());
            let link = keeper.link();
            keepers.spawn(keeper.keep());
            link
        };
        let (publish, receive) = (keep(Direction::Publish), keep(Direction::Receive));
        let topology = Topology::new(endpoint.clone(), &options);
        let (line, far_end) = control(topology.clone(), stop.clone());
        let (telling, hearing) = far_end.start(publish.clone(), receive.clone());
        keepers.spawn(telling);
        keepers.spawn(hearing);
        let publishers = Arc::new(LanePublishers::new(
            publish.clone(),
            topology.clone(),
            options.clone(),
            &lifetime,
        ));
        let events = Arc::new(Events::new(
            publish.clone(),
            topology.clone(),
            options.clone(),
            lifetime.closing(),
        ));
        let unsettled = Unsettled::default();
        if let Some(interval) = options.statistics_interval {
            let statistics = Statistics {
                interval,
                topology: topology.clone(),
                publishers: publishers.clone(),
                receive: receive.clone(),
                unsettled: unsettled.clone(),
            };
            keepers.spawn(stop.run_until_cancelled_owned(statistics.run()));
        }
        let transport = Self(Arc::new(Shared {
            publishers,
            events,
            unsettled,
            troubles: Troubles::default(),
            endpoint,
            options,
            topology,
            receive,
            control: line,
            epochs: Arc::new(AtomicU64::new(1)),
            lifetime,
        }));
        transport.first_attempt(publish).await?;
        Ok(transport)
    }

    /// Waits for the first attempt in both directions. Fails only if an operator is needed.
    async fn first_attempt(&self, mut publish: Link) -> Result<(), TransportError> {
        let mut receive = self.0.receive.clone();
        let (published, received) = tokio::join!(
            publish.first_attempt(FIRST_ATTEMPT),
            receive.first_attempt(FIRST_ATTEMPT)
        );
        for attempt in [published, received] {
            match attempt {
                Err(problem) if !problem.is_transient() => return Err(problem),
                _ => {}
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Transport for AmqpTransport {
    fn name(&self) -> &'static str {
        "rabbitmq"
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
        shared.publishers.own.add(&subscription.lanes);
        let mut receiver = AmqpReceiver::new(
            shared.receive.clone(),
            shared.topology.clone(),
            &subscription,
            &shared.unsettled,
            &shared.troubles,
            &shared.epochs,
            &shared.lifetime,
        );
        receiver.open().await?;
        Ok(Box::new(receiver))
    }

    fn listen(&self) -> broadcast::Receiver<Control> {
        self.0.control.listen()
    }

    /// Waits for the confirms of publishes under way and for receivers to close their channels,
    /// then closes the connections. Aborts work that has not ended in time.
    async fn close(&self, within: Duration) {
        // The channels have no buffer to flush.
        self.0.lifetime.close(within, async |_| {}).await;
    }
}

#[async_trait]
impl Publisher for AmqpTransport {
    async fn publish(&self, lane: &Lane, hints: Vec<Hint>) -> Result<(), TransportError> {
        let messages = pack(hints, self.0.options.hints_per_message);
        if messages.is_empty() {
            return Ok(());
        }
        self.0.publishers.publish(lane, messages).await
    }

    fn confirm_timeout(&self) -> Duration {
        self.0.options.confirm_timeout
    }

    async fn publish_marker(&self, lane: &Lane, marker: Marker) -> Result<(), TransportError> {
        let message = Message::marker(marker).encode();
        self.0.publishers.publish(lane, vec![message]).await
    }

    fn tell(&self, control: Control) -> bool {
        self.0.control.tell(control)
    }

    fn health(&self) -> TransportHealth {
        if let Some(closing) = self.0.lifetime.health() {
            return closing;
        }
        let publish = self.0.publishers.link.session();
        let receive = self.0.receive.session();
        let blocked = publish.as_ref().ok().and_then(|session| session.blocked());
        let problem = match (&publish, &receive, &blocked) {
            (Err(problem), ..) | (_, Err(problem), _) => Some(problem.to_string()),
            (.., Some(reason)) => Some(TransportError::Blocked(reason.clone()).to_string()),
            _ => None,
        };
        TransportHealth {
            publishing: publish.is_ok() && blocked.is_none(),
            receiving: receive.is_ok(),
            blocked: blocked.is_some(),
            joining: false,
            problem,
        }
    }

    fn health_of(&self, lane: &Lane) -> TransportHealth {
        let health = self.health();
        match self.0.troubles.with(lane) {
            Some(problem) if health.receiving => TransportHealth {
                receiving: false,
                problem: Some(problem),
                ..health
            },
            _ => health,
        }
    }
}

impl fmt::Debug for AmqpTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpTransport")
            .field("endpoint", &self.0.endpoint)
            .field("options", &self.0.options)
            .finish_non_exhaustive()
    }
}

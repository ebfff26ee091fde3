//! Control messages between nodes: JSON over a fanout exchange, best effort.
//!
//! `tell` puts a message into a bounded buffer and returns; a separate task publishes it. A message
//! is dropped, and counted in the log, if the buffer is full or the broker is away. The other nodes
//! then read the same facts from the database later. Messages that address jobs to a node are tried
//! again for [`JOBS_FOR`] before. A beat that has waited behind them for [`BEATS_FOR`] is dropped,
//! because it would make a dead node look alive. This process receives its own messages at once,
//! without the broker.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use jobwire_core::runtime::supervisor::survived;
use jobwire_core::telemetry::log_throttle::LogThrottle;
use jobwire_core::transport::{Control, Listeners, TransportError};
use lapin::options::{BasicAckOptions, BasicPublishOptions};
use lapin::{BasicProperties, Channel};
use tokio::sync::{broadcast, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::connection::Link;
use crate::session::Session;
use crate::topology::Topology;

/// Maximum number of messages that wait to be published.
const TELL_BUFFER: usize = 256;
/// The time for which a message that addresses jobs to a node is tried again. Later messages wait
/// meanwhile, at most [`TELL_BUFFER`] of them.
const JOBS_FOR: Duration = Duration::from_secs(30);
/// The time for which a beat may wait for its turn.
const BEATS_FOR: Duration = Duration::from_secs(3);
/// The pause before a message is tried again.
const BEFORE_AGAIN: Duration = Duration::from_millis(250);
/// The pause after a transient failure.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause after a failure that needs an operator.
const LONG_PAUSE: Duration = Duration::from_secs(30);

/// Sends and receives control messages: the side of the callers.
pub(crate) struct ControlLine {
    telling: mpsc::Sender<(Instant, Control)>,
    listeners: Listeners,
    dropped: Arc<AtomicU64>,
}

/// Two tasks to be spawned: the side of the broker.
pub(crate) struct ControlTasks {
    process: Uuid,
    topology: Topology,
    told: mpsc::Receiver<(Instant, Control)>,
    listeners: Listeners,
    dropped: Arc<AtomicU64>,
    stop: CancellationToken,
}

pub(crate) fn control(topology: Topology, stop: CancellationToken) -> (ControlLine, ControlTasks) {
    let (telling, told) = mpsc::channel(TELL_BUFFER);
    let listeners = Listeners::default();
    let dropped = Arc::new(AtomicU64::new(0));
    let line = ControlLine {
        telling,
        listeners: listeners.clone(),
        dropped: dropped.clone(),
    };
    let tasks = ControlTasks {
        process: Uuid::new_v4(),
        topology,
        told,
        listeners,
        dropped,
        stop,
    };
    (line, tasks)
}

impl ControlLine {
    pub(crate) fn tell(&self, control: Control) -> bool {
        self.listeners.tell(control.clone());
        let taken = self.telling.try_send((Instant::now(), control)).is_ok();
        if !taken {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    pub(crate) fn listen(&self) -> broadcast::Receiver<Control> {
        self.listeners.listen()
    }
}

impl ControlTasks {
    /// Returns the futures to spawn: the first publishes, the second receives.
    pub(crate) fn start(
        self,
        publish: Link,
        receive: Link,
    ) -> (impl Future<Output = ()>, impl Future<Output = ()>) {
        let teller = Teller {
            process: self.process.to_string(),
            topology: self.topology.clone(),
            told: self.told,
            dropped: self.dropped,
            link: publish,
            channel: None,
        };
        let listener = Listener {
            process: self.process,
            topology: self.topology,
            listeners: self.listeners,
            link: receive,
            unreadable: LogThrottle::default(),
        };
        let stop = self.stop.clone();
        let telling = async move {
            let _ = stop.run_until_cancelled(teller.run()).await;
        };
        let stop = self.stop;
        let hearing = async move {
            let _ = stop.run_until_cancelled(listener.run()).await;
        };
        (telling, hearing)
    }
}

struct Teller {
    process: String,
    topology: Topology,
    told: mpsc::Receiver<(Instant, Control)>,
    dropped: Arc<AtomicU64>,
    link: Link,
    channel: Option<Channel>,
}

impl Teller {
    async fn run(mut self) {
        while let Some((told_at, control)) = self.told.recv().await {
            let Some(problem) = self.try_to_send(told_at, control).await else {
                continue;
            };
            let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
            tracing::debug!(
                problem,
                dropped,
                "dropped a control message to the other nodes"
            );
        }
    }

    /// Publishes a message. Returns the problem if it could not.
    async fn try_to_send(&mut self, told_at: Instant, control: Control) -> Option<String> {
        let text = match control.write() {
            Ok(text) => text,
            Err(error) => return Some(error.to_string()),
        };
        let (jobs, age) = (control.addresses_jobs(), told_at.elapsed());
        if control.is_beat() && age > BEATS_FOR {
            return Some(format!("it has waited for {age:?}"));
        }
        loop {
            let published = survived("amqp telling", self.publish(&text)).await;
            let problem = match published {
                Some(published) => published.err()?.to_string(),
                None => "the task panicked".to_owned(),
            };
            self.channel = None;
            if !jobs || told_at.elapsed() >= JOBS_FOR {
                return Some(problem);
            }
            tokio::time::sleep(BEFORE_AGAIN).await;
        }
    }

    async fn publish(&mut self, text: &[u8]) -> Result<(), TransportError> {
        let session = self.link.session()?;
        if let Some(reason) = session.blocked() {
            return Err(TransportError::Blocked(reason));
        }
        let channel = match self.channel.take().filter(|c| c.status().connected()) {
            Some(channel) => channel,
            None => {
                self.topology.ensure_control(&session).await?;
                session.channel().await?
            }
        };
        let exchange = self.topology.control_exchange();
        let properties = BasicProperties::default()
            .with_content_type("application/json".into())
            .with_app_id(self.process.as_str().into())
            .with_delivery_mode(1);
        // The channel has no confirms: this awaits the socket only.
        let written = channel.basic_publish(
            exchange.as_str().into(),
            "".into(),
            BasicPublishOptions::default(),
            text,
            properties,
        );
        session
            .answer(async {
                let written = written.await;
                let failed = |e| TransportError::Unreachable(format!("{e}"));
                written.map(drop).map_err(failed)
            })
            .await?;
        self.channel = Some(channel);
        Ok(())
    }
}

struct Listener {
    process: Uuid,
    topology: Topology,
    listeners: Listeners,
    link: Link,
    unreadable: LogThrottle,
}

impl Listener {
    async fn run(mut self) {
        loop {
            let pause = match self.link.session_within(LONG_PAUSE).await {
                Ok(session) => survived("amqp hearing", self.listen(&session))
                    .await
                    .unwrap_or(LONG_PAUSE),
                Err(_) => Duration::ZERO,
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Listens until the session, the channel or the queue ends. Returns the pause to take then.
    async fn listen(&mut self, session: &Session) -> Duration {
        let (channel, mut consumer) = match self.topology.listen(session, self.process).await {
            Ok(listening) => listening,
            Err(problem) if problem.is_transient() => return PAUSE,
            Err(problem) => {
                tracing::warn!(
                    %problem,
                    "cannot receive control messages from other nodes; jobs still run, some of \
                     them with more latency"
                );
                return LONG_PAUSE;
            }
        };
        self.listeners.missed();
        let own = self.process.to_string();
        loop {
            let delivery = tokio::select! {
                () = session.over() => return Duration::ZERO,
                delivery = consumer.next() => delivery,
            };
            let Some(Ok(delivery)) = delivery else {
                let _ = channel.close(200, "OK".into()).now_or_never();
                return PAUSE;
            };
            // The first poll writes it, in order. A failure ends the consumer as well.
            let settled = channel.basic_ack(delivery.delivery_tag, BasicAckOptions::default());
            let _ = settled.now_or_never();
            let from = delivery.properties.app_id().as_ref();
            if from.is_some_and(|from| from.as_str() == own) {
                continue;
            }
            self.listeners.read(&delivery.data, &mut self.unreadable);
        }
    }
}

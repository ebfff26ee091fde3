//! The transport without a broker: PostgreSQL wakes the nodes (`NOTIFY`), and they claim.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use jobwire_core::{Node, Outcome, PgStore, PgTransport, Running};
//!
//! let store = PgStore::connect("postgres://user:password@host/database").await?;
//! let transport = Arc::new(PgTransport::new(&store));
//! Node::builder(store, transport)
//!     .handler("send-invoice", |job: Running<u64>| async move {
//!         println!("invoice for order {}", job.payload);
//!         Ok(Outcome::Done)
//!     })
//!     .run_until(async { let _ = tokio::signal::ctrl_c().await; })
//!     .await?;
//! # Ok(()) }
//! ```
//!
//! * **After the commit**: the commit hook publishes hints after COMMIT, and this transport turns
//!   them into one wake for each lane, with the number of jobs. A NOTIFY takes a lock of the whole
//!   server at its commit. So it is never part of a creating transaction, the session does not wait
//!   for the disk, and a process sends at most one every five milliseconds.
//! * **One connection** for each process, outside of the pools of the store. It sends and listens,
//!   so a connection that fails is noticed by the next message. A process that only creates jobs
//!   does not listen.
//! * **Proof**: a session listens once its own message has come back. A pooler that shares sessions
//!   or a connection that is dead shows in the health of the transport.
//! * **Lost wakes**: a new session wakes its node for all lanes. A node claims by itself if it hears
//!   no leader for [`claim_interval`](crate::NodeOptions::claim_interval), and the leader wakes the
//!   lanes in which it sees waiting jobs at that interval.
//! * **Control messages** travel in the same way, divided into parts that PostgreSQL takes. A new
//!   session tells its process that messages may have been lost, and a leader then asks the database,
//!   since timers may have been set meanwhile. The earliest timer that this process has set waits for
//!   the next session; other messages are dropped with a session.
//!
//! Wakes and control messages contain no data of jobs but ids, types and lanes. Each user of the
//! database can read and send them. A forged wake costs a claim.

mod message;
mod outbox;
mod session;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::PgConnectOptions;
use tokio::sync::{Notify, broadcast, watch};

use super::{PgOptions, PgStore, address};
use crate::hint::{Hint, Marker};
use crate::job::Lane;
use crate::runtime::supervisor::supervised;
use crate::store::error::StoreError;
use crate::transport::{
    Control, Delivery, Lifetime, Listeners, Publisher, Receiver, Subscription, Ticket, Transport,
    TransportError, TransportHealth, Wakes,
};
use outbox::Outbox;

/// The name of this transport in logs, metrics, the leader's row and the rows of the nodes.
pub const NAME: &str = "postgres";
/// The time within which a statement that sends wakes must be answered.
const CONFIRM: Duration = Duration::from_secs(5);

/// The state of the session.
#[derive(Clone, Debug, Default)]
struct Link {
    /// Whether the first session is still being opened.
    opens: bool,
    /// Whether messages can be sent.
    sends: bool,
    /// Whether a message of this session has come back.
    listens: bool,
    problem: Option<String>,
}

/// The state that the transport and its session share.
struct Shared {
    connect: PgConnectOptions,
    /// Identifies this process among the senders.
    from: u64,
    wakes: Arc<Wakes>,
    control: Listeners,
    outbox: Mutex<Outbox>,
    filled: Notify,
    sent: Notify,
    /// Whether a part of this process wants to hear messages.
    wanted: watch::Sender<bool>,
    link: watch::Sender<Link>,
}

impl Shared {
    /// Locks the outbox. A poisoned lock only means that a thread panicked elsewhere; the outbox is
    /// still valid.
    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listens(&self) {
        self.wanted
            .send_if_modified(|wanted| !std::mem::replace(wanted, true));
    }
}

/// The transport without a broker. Several nodes on one PostgreSQL database use it. See the
/// [module](self).
#[derive(Clone)]
pub struct PgTransport(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    lifetime: Lifetime,
}

impl PgTransport {
    /// Creates the transport of a store's database. The transport connects in the background, and
    /// again after each loss. Needs a tokio runtime.
    #[must_use]
    pub fn new(store: &PgStore) -> Self {
        Self::start(PgConnectOptions::clone(&store.pool().connect_options()))
    }

    /// Creates the transport of the database with this URL, for a process without a store. Of the
    /// options only [`plaintext`](PgOptions::plaintext) counts.
    ///
    /// # Errors
    /// [`StoreError::Config`] if the URL can't be read, or leads to another machine without
    /// verified TLS.
    pub fn of_url(url: &str, options: &PgOptions) -> Result<Self, StoreError> {
        Ok(Self::start(address::connect_options(
            url,
            options.plaintext,
        )?))
    }

    fn start(connect: PgConnectOptions) -> Self {
        let connect = connect
            .application_name("jobwire wakes")
            .extra_float_digits(None);
        let shared = Arc::new(Shared {
            connect,
            from: rand::random(),
            wakes: Arc::default(),
            control: Listeners::default(),
            outbox: Mutex::default(),
            filled: Notify::new(),
            sent: Notify::new(),
            wanted: watch::Sender::new(false),
            link: watch::Sender::new(Link {
                opens: true,
                problem: Some("the connection for wakes is being opened".to_owned()),
                ..Link::default()
            }),
        });
        let lifetime = Lifetime::default();
        let (of_task, stop) = (shared.clone(), lifetime.stop());
        lifetime.keepers().spawn(supervised(
            "postgres wakes",
            lifetime.stop(),
            async move || {
                session::keep(&of_task, &stop).await;
            },
        ));
        Self(Arc::new(Handle { shared, lifetime }))
    }

    /// Waits until a message of this process has come back to it. Returns the time that it took
    /// from the call.
    ///
    /// # Errors
    /// The reason why it did not come back within this time.
    pub async fn comes_back(&self, within: Duration) -> Result<Duration, TransportError> {
        let shared = &self.0.shared;
        let began = tokio::time::Instant::now();
        shared.listens();
        let mut link = shared.link.subscribe();
        let listens = link.wait_for(|link| link.listens);
        if let Ok(Ok(_)) = tokio::time::timeout(within, listens).await {
            return Ok(began.elapsed());
        }
        let problem = shared.link.borrow().problem.clone();
        Err(TransportError::Unreachable(problem.unwrap_or_else(|| {
            format!("no notification came back within {within:?}")
        })))
    }
}

#[async_trait]
impl Transport for PgTransport {
    fn name(&self) -> &'static str {
        NAME
    }

    fn wakes(&self) -> Option<Arc<Wakes>> {
        Some(self.0.shared.wakes.clone())
    }

    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::new(self.clone())
    }

    async fn subscribe(
        &self,
        subscription: Subscription,
    ) -> Result<Box<dyn Receiver>, TransportError> {
        self.0.lifetime.ensure_open()?;
        let shared = &self.0.shared;
        shared.wakes.receive(subscription.lanes);
        shared.listens();
        Ok(Box::new(NoHints))
    }

    fn listen(&self) -> broadcast::Receiver<Control> {
        self.0.shared.listens();
        self.0.shared.control.listen()
    }

    async fn close(&self, within: Duration) {
        let shared = &self.0.shared;
        let flush = async |left: Duration| {
            let emptied = async {
                let may_send = |link: &Link| link.sends || link.opens;
                loop {
                    let mut sent = std::pin::pin!(shared.sent.notified());
                    // What is sent from now on ends the wait.
                    sent.as_mut().enable();
                    if !shared.outbox().is_busy() || !may_send(&shared.link.borrow()) {
                        return;
                    }
                    shared.filled.notify_one();
                    sent.await;
                }
            };
            let _ = tokio::time::timeout(left, emptied).await;
        };
        self.0.lifetime.close(within, flush).await;
    }
}

#[async_trait]
impl Publisher for PgTransport {
    async fn publish(&self, lane: &Lane, hints: Vec<Hint>) -> Result<(), TransportError> {
        self.0.lifetime.ensure_open()?;
        let shared = &self.0.shared;
        // The nodes of this process need no message.
        shared.wakes.ready_here(lane);
        // A command that creates jobs and ends does not publish again.
        if shared.link.borrow().opens {
            let mut link = shared.link.subscribe();
            let opened = link.wait_for(|link| !link.opens);
            let _ = tokio::time::timeout(CONFIRM, opened).await;
        }
        if let Some(problem) = unsent(&shared.link.borrow()) {
            return Err(TransportError::Unreachable(problem));
        }
        let jobs = u64::try_from(hints.len()).unwrap_or(u64::MAX);
        let mut batch = shared.outbox().wake(lane, jobs);
        shared.filled.notify_one();
        let answered = tokio::time::timeout(CONFIRM, batch.wait_for(Option::is_some)).await;
        match answered {
            Ok(Ok(result)) => result.clone().unwrap_or(Ok(())),
            Ok(Err(_)) => Err(TransportError::Unreachable(
                "the connection for wakes was lost".to_owned(),
            )),
            Err(_) => Err(TransportError::Timeout(CONFIRM)),
        }
    }

    async fn publish_marker(&self, lane: &Lane, _: Marker) -> Result<(), TransportError> {
        // No hint waits anywhere, so there is nothing to mark. The nodes look for jobs.
        self.0.lifetime.ensure_open()?;
        self.wake(std::slice::from_ref(lane));
        Ok(())
    }

    fn wake(&self, lanes: &[Lane]) {
        let shared = &self.0.shared;
        let draw = rand::random();
        for lane in lanes {
            shared.wakes.waiting(lane, draw);
        }
        if unsent(&shared.link.borrow()).is_none() {
            let mut outbox = shared.outbox();
            for lane in lanes {
                outbox.waits(lane);
            }
            drop(outbox);
            shared.filled.notify_one();
        }
    }

    fn confirm_timeout(&self) -> Duration {
        CONFIRM
    }

    fn tell(&self, control: Control) -> bool {
        let shared = &self.0.shared;
        let link = shared.link.borrow().clone();
        let is_unsent = unsent(&link).is_some();
        let is_timer = matches!(control, Control::TimerSet { .. });
        if is_unsent && is_timer {
            // The leader may be in this process.
            shared.control.tell(control.clone());
        }
        // A command that tells something and ends does not wait for the first session.
        if is_unsent && !link.opens && !is_timer {
            return false;
        }
        let told = shared.outbox().tell(shared.from, &control);
        shared.filled.notify_one();
        told
    }

    fn health(&self) -> TransportHealth {
        if let Some(closing) = self.0.lifetime.health() {
            return closing;
        }
        let shared = &self.0.shared;
        let link = shared.link.borrow();
        TransportHealth {
            publishing: link.sends,
            receiving: link.listens || !*shared.wanted.borrow(),
            blocked: false,
            joining: false,
            problem: link.problem.clone(),
        }
    }
}

/// Returns the reason why no message can be sent now.
fn unsent(link: &Link) -> Option<String> {
    let unnamed = || "the connection for wakes is not open".to_owned();
    (!link.sends).then(|| link.problem.clone().unwrap_or_else(unnamed))
}

/// The receiver of a transport that carries no hints.
struct NoHints;

#[async_trait]
impl Receiver for NoHints {
    async fn receive(&mut self, _: usize) -> Result<Vec<Delivery>, TransportError> {
        std::future::pending().await
    }

    async fn settle(&mut self, _: &[Ticket]) {}

    async fn requeue(&mut self, _: &[Ticket]) {}

    async fn pause(&mut self) {}

    async fn resume(&mut self) {}
}

/// Lanes and the numbers of jobs that became ready in them; 0 if the number is not known.
type Lanes = BTreeMap<Lane, u64>;

//! The node: creates its parts, starts them and stops them.
//!
//! ```no_run
//! # async fn example(store: jobwire_core::PgStore, transport: std::sync::Arc<dyn jobwire_core::Transport>) -> Result<(), Box<dyn std::error::Error>> {
//! use jobwire_core::{Node, Outcome, Running};
//!
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
//! Shutdown has two phases. First the node takes no more work: it requeues undecided hints and
//! gives up leadership. Running jobs have [`NodeOptions::shutdown_timeout`] to end. Then they are
//! asked to stop; a job that still runs is released and hinted, and no attempt is spent.

mod bulk;
mod declare;
mod execute;
mod health;
mod registry;
mod suspensions;

use std::future::Future;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::gauge;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use crate::event::{JobListener, Listeners};
use crate::fleet::Fleet;
use crate::job::NodeId;
use crate::job::args::JobArgs;
use crate::job::periodic::PeriodicJob;
use crate::job::scope::{Scope, Services};
use crate::leader;
use crate::leader::{batches, events, periodic, pruning, searches, tap, timers};
use crate::producer::commit_hook::CommitHook;
use crate::runtime::panic_place;
use crate::runtime::supervisor::Supervisor;
use crate::store::attempts::AttemptsKept;
use crate::store::error::StoreError;
use crate::store::{CycleOutcome, LeaderCycle, ProcessLock, Store, Succession};
use crate::telemetry::gauges::Gauges;
use crate::telemetry::label;
use crate::telemetry::metrics as m;
use crate::transport::Transport;
use crate::worker::addressed;
use crate::worker::batch_ends;
use crate::worker::cached_metrics::CachedMetrics;
use crate::worker::completer::{self, Batcher};
use crate::worker::consumer;
use crate::worker::context::NodeContext;
use crate::worker::departures::Departures;
use crate::worker::elastic_slots;
use crate::worker::fallback;
use crate::worker::finished::Finished;
use crate::worker::handler::{HandlerOptions, HandlerResult, Handlers, IntoOutcome, Running};
use crate::worker::held_instances::HeldInstances;
use crate::worker::inbox::Inbox;
use crate::worker::leadership::Leadership;
use crate::worker::lease_book::LeaseBook;
use crate::worker::limit::Limit;
use crate::worker::middleware::Middleware;
use crate::worker::own_hints::OwnHints;
use crate::worker::permit_exchange;
use crate::worker::reach;
use crate::worker::refused_outcomes::RefusedOutcomes;
use crate::worker::renewal;
use crate::worker::reports::Reports;
use crate::worker::row_pause::RowPause;
use crate::worker::served::Served;
use crate::worker::signals::Signals;
use crate::worker::slot_limit::SlotLimit;
use crate::worker::slot_pool::SlotPool;
use crate::worker::slots::Slots;
use crate::worker::stop_counts::StopCounts;
use crate::worker::suspects::Suspects;

pub use crate::node::health::{HealthWatch, NodeHealth};
pub use crate::worker::options::{BadOption, NodeOptions};
use declare::declare;
pub use execute::Executed;
pub use registry::Registry;

/// The reason why a node does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Invalid options.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Options(Vec<BadOption>),
    /// An error of the database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An in-process node serves its database alone (protocol rule 33).
    #[error(
        "node {leader} runs on this database with the {transport} transport, and an in-process \
         node serves its database alone; stop that node, or run several nodes on PostgreSQL with \
         one broker"
    )]
    NotAlone {
        /// The other node.
        leader: NodeId,
        /// Its transport.
        transport: String,
    },
    /// Two nodes of one slot pool use one transport.
    #[error(
        "another node of this slot pool uses the same transport, and the hints of its database \
         would reach this node; give each node a transport of its own, with a prefix of its own"
    )]
    SharedTransport,
}

/// Builds a [`Node`].
#[must_use = "a builder does nothing until it runs"]
pub struct NodeBuilder {
    store: Arc<dyn Store>,
    transport: Arc<dyn Transport>,
    handlers: Handlers,
    options: NodeOptions,
    hook: Option<CommitHook>,
    slots: Option<SlotPool>,
    periodic: Vec<PeriodicJob>,
    listeners: Listeners,
    id: NodeId,
}

impl NodeBuilder {
    /// Uses this id instead of a random one, so that a simulation can be replayed. Two starts must
    /// never share an id, because it identifies the holder of a lock.
    pub fn id(mut self, id: NodeId) -> Self {
        self.id = id;
        self
    }

    /// Runs jobs of this type with an async closure over a typed payload.
    pub fn handler<P, F, Fut, O>(mut self, job_type: impl Into<String>, run: F) -> Self
    where
        F: Fn(Running<P>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<O>> + Send + 'static,
        P: DeserializeOwned + Send + 'static,
        O: IntoOutcome + 'static,
    {
        self.handlers.add(job_type, run);
        self
    }

    /// Runs jobs of this type with an async closure over a typed payload, with options.
    pub fn handler_with<P, F, Fut, O>(
        mut self,
        job_type: impl Into<String>,
        options: HandlerOptions,
        run: F,
    ) -> Self
    where
        F: Fn(Running<P>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<O>> + Send + 'static,
        P: DeserializeOwned + Send + 'static,
        O: IntoOutcome + 'static,
    {
        self.handlers.add_with(job_type, options, run);
        self
    }

    /// Runs [typed jobs](JobArgs) with an async closure.
    pub fn job<A, F, Fut, O>(mut self, run: F) -> Self
    where
        A: JobArgs,
        F: Fn(Running<A>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<O>> + Send + 'static,
        O: IntoOutcome + 'static,
    {
        self.handlers.job(run);
        self
    }

    /// Runs [typed jobs](JobArgs) with an async closure, with options.
    pub fn job_with<A, F, Fut, O>(mut self, options: HandlerOptions, run: F) -> Self
    where
        A: JobArgs,
        F: Fn(Running<A>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<O>> + Send + 'static,
        O: IntoOutcome + 'static,
    {
        self.handlers.job_with(options, run);
        self
    }

    /// Puts a [middleware](crate::worker::middleware) around every handler that was added so far.
    /// Logs a warning if there is none.
    pub fn layer(mut self, middleware: impl Middleware) -> Self {
        self.handlers.layer(middleware);
        self
    }

    /// Adds these handlers to those added so far. Of two handlers of a type, the later one is used.
    pub fn handlers(mut self, handlers: Handlers) -> Self {
        self.handlers.extend(&handlers);
        self
    }

    /// Uses these options.
    pub fn options(mut self, options: NodeOptions) -> Self {
        self.options = options;
        self
    }

    /// Publishes hints through this hook, which is shared with producers of the same process.
    /// Default: a new hook.
    pub fn hook(mut self, hook: CommitHook) -> Self {
        self.hook = Some(hook);
        self
    }

    /// Takes the slots of running jobs from this pool, which nodes of other databases in this
    /// process share. Default: its own slots, as many as [`concurrency`](NodeOptions::concurrency).
    /// Each node of a pool needs its own transport, with different names of queues or topics,
    /// because hints of one database are of no use to another.
    pub fn slots(mut self, slots: &SlotPool) -> Self {
        self.slots = Some(slots.clone());
        self
    }

    /// Declares a [periodic job](crate::job::periodic) at the start. All nodes of a fleet may
    /// declare it; it exists once.
    pub fn periodic(mut self, job: PeriodicJob) -> Self {
        self.periodic.push(job);
        self
    }

    /// Adds a [listener](crate::event) to the events of the jobs that this node locks, runs and, while
    /// it leads, moves, and to those of the clients over its [hook](Node::hook).
    pub fn listener(mut self, listener: impl JobListener) -> Self {
        self.listeners.add(listener);
        self
    }

    /// Starts the node. The first node of a process adds a panic hook, which notes the place of a
    /// panic and calls the previous hook.
    ///
    /// # Errors
    /// [`StartError`] with the remedy. Then nothing was started.
    pub async fn start(self) -> Result<Node, StartError> {
        Node::start(self).await
    }

    /// Starts the node, runs it until `shutdown` is ready, and stops it in two phases.
    ///
    /// # Errors
    /// [`StartError`] with the remedy. Then nothing was started.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<(), StartError> {
        let node = self.start().await?;
        shutdown.await;
        node.stop().await;
        Ok(())
    }

    /// Takes a share of the slots.
    fn join(&mut self) -> Result<Slots, StartError> {
        let concurrency = self.options.concurrency;
        let pool = self.slots.take();
        let pool = pool.unwrap_or_else(|| SlotPool::new(concurrency));
        self.options.concurrency = concurrency.min(pool.slots());
        let elastic = self.options.elastic.map(|_| self.options.first_slots());
        let limit = self.options.slot_limit.clone();
        let limit = limit.or(elastic.map(SlotLimit::new));
        let share = pool.join(concurrency, limit, &self.transport);
        share.map(Slots::new).ok_or(StartError::SharedTransport)
    }

    /// Returns the data that the parts of the node share, and the receivers of outcomes and own
    /// hints.
    fn share(
        self,
        slots: Slots,
        reach: Scope,
    ) -> (Arc<NodeContext>, mpsc::Receiver<Finished>, OwnHints) {
        let Self {
            store,
            transport,
            handlers,
            options,
            hook,
            slots: _,
            periodic: _,
            listeners,
            id,
        } = self;
        let gauges = Gauges::new(options.database.clone());
        let hook = hook
            .unwrap_or_else(|| CommitHook::start(transport.publisher(), options.hook.clone()))
            .with_listeners(listeners);
        let mut handlers = handlers;
        suspensions::serve(&mut handlers, &store, &hook);
        bulk::serve(&mut handlers, &store, &hook);
        let (finished, queue) = mpsc::channel(options.concurrency.max(64) * 2);
        let (inbox, hints) = Inbox::open();
        label::receives(&options.lane_names());
        let context = Arc::new(NodeContext {
            id,
            hook: Arc::new(hook),
            served: Served::new(
                handlers,
                options.scope.clone(),
                reach,
                gauges.of_node(m::TYPES_CLOSED),
            ),
            row_pause: RowPause::default(),
            unreadable: Mutex::default(),
            slots,
            permits: Arc::default(),
            refused: RefusedOutcomes::default(),
            leases: Arc::new(LeaseBook::new(
                options.lease,
                gauges.of_node(m::JOBS_IN_FLIGHT),
            )),
            instances: HeldInstances::default(),
            stops: StopCounts::default(),
            cached_metrics: CachedMetrics::new(),
            departures: Departures::default(),
            inbox,
            suspects: Suspects::default(),
            finished,
            jobs: TaskTracker::new(),
            signals: Signals::default(),
            leadership: Leadership::none(),
            fleet: Fleet::default(),
            reports: Reports::new(gauges.clone()),
            gauges,
            database_away: AtomicBool::new(false),
            store,
            transport,
            options,
        });
        context.fleet.enlist(context.membership(), context.beat());
        (context, queue, Arc::new(tokio::sync::Mutex::new(hints)))
    }
}

/// Checks that the store has the ranks of jobs, if the node is to start jobs in their order.
async fn ensure_ranks(builder: &NodeBuilder) -> Result<(), StartError> {
    if builder.options.start_order.is_arrival() || builder.store.ranks(&[]).await?.is_some() {
        return Ok(());
    }
    let problem = format!(
        "is `{}`, and the store `{}` starts jobs in the order of their hints only; leave it empty",
        builder.options.start_order,
        builder.store.name()
    );
    Err(StartError::Options(vec![BadOption {
        option: "start_order",
        problem,
    }]))
}

/// A running node. Stop it with [`stop`](Self::stop). If it is dropped instead, other nodes take
/// its jobs over when their leases end, and a warning is logged.
#[must_use = "a node that is dropped runs no more jobs; keep it, and call `stop` at the end"]
pub struct Node {
    context: Arc<NodeContext>,
    workers: Supervisor,
    keepers: Supervisor,
    alone: Alone,
}

/// The lock of a node that serves its database alone. A dropped node keeps the lock, because its
/// handlers may still run.
struct Alone(Option<ProcessLock>);

impl Drop for Alone {
    fn drop(&mut self) {
        if let Some(lock) = self.0.take() {
            lock.keep();
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if !self.context.signals.draining.is_cancelled() {
            tracing::warn!(
                node = %self.context.id,
                "the node was dropped without `stop`; it takes no more jobs, and its running jobs \
                 run again when their leases have ended"
            );
        }
    }
}

impl Node {
    /// Creates the builder of a node on a store and a transport.
    pub fn builder(store: impl Store, transport: Arc<dyn Transport>) -> NodeBuilder {
        Self::on(Arc::new(store), transport)
    }

    /// Creates the builder of a node on a shared store.
    pub fn on(store: Arc<dyn Store>, transport: Arc<dyn Transport>) -> NodeBuilder {
        NodeBuilder {
            store,
            transport,
            handlers: Handlers::default(),
            options: NodeOptions::default(),
            hook: None,
            slots: None,
            periodic: Vec::new(),
            listeners: Listeners::default(),
            id: NodeId::generate(),
        }
    }

    async fn start(mut builder: NodeBuilder) -> Result<Self, StartError> {
        builder.options.validate().map_err(StartError::Options)?;
        let slots = builder.join()?;
        builder.store.check().await?.ready()?;
        for limit in builder.handlers.limits() {
            keeps_permits(&*builder.store, limit)?;
        }
        ensure_ranks(&builder).await?;
        let id = builder.id;
        panic_place::install();
        if builder.handlers.types().is_empty() {
            tracing::warn!(
                node = %id,
                "this node has no handler, so it runs no job; add handlers with `job` or `handler` \
                 before `start`, or later through `Node::registry`"
            );
        }
        let (mut process_lock, mut alive) = (None, None);
        if builder.transport.is_single_node() {
            match builder.store.succeed(id).await? {
                Succession::Ours(lock) => process_lock = Some(lock),
                Succession::HeldBy(node) => alive = Some(node),
                Succession::Unknown => {}
            }
        }
        // Runs before the first leader cycle: a node that must not lock must not lead.
        builder.store.begin_locking().await?;
        ensure_alone(id, &builder, alive).await?;
        let encryption = builder.options.encryption.as_ref();
        declare(&*builder.store, id, encryption, &builder.periodic).await?;
        let reach = builder.store.reach().await;
        let reachable = reach.as_ref().map(|reach| Scope::clone(&reach.borrow()));
        let (context, queue, own_hints) = builder.share(slots, reachable.unwrap_or_default());
        context.store.write_node(&context.membership()).await?;
        let draining = context.signals.draining.clone();
        gauge!(m::BUILD_INFO, "version" => env!("CARGO_PKG_VERSION"), "store" => context.store.name(),
            "transport" => context.transport.name())
        .set(1.0);

        let keepers = keep(&context, queue);
        let mut workers = Supervisor::default();
        let node = context.clone();
        workers.spawn("leader", draining.clone(), move || {
            leader::lead(node.clone())
        });
        let node = context.clone();
        workers.spawn("searches", draining.clone(), move || {
            searches::search(node.clone())
        });
        let node = context.clone();
        workers.spawn("timers", draining.clone(), move || {
            timers::move_timers(node.clone())
        });
        let node = context.clone();
        workers.spawn("periodic jobs", draining.clone(), move || {
            periodic::create_jobs(node.clone())
        });
        let node = context.clone();
        workers.spawn("dates of periodic jobs", draining.clone(), move || {
            periodic::correct_dates(node.clone())
        });
        if !context.store.calendars().is_empty() {
            let node = context.clone();
            workers.spawn("left periodic jobs", draining.clone(), move || {
                periodic::create_left_jobs(node.clone())
            });
        }
        let node = context.clone();
        workers.spawn("batches", draining.clone(), move || {
            batches::look_after(node.clone())
        });
        let node = context.clone();
        workers.spawn("pruning", draining.clone(), move || {
            pruning::prune(node.clone())
        });
        let node = context.clone();
        workers.spawn("events", draining.clone(), move || {
            events::publish(node.clone())
        });
        let node = context.clone();
        workers.spawn("tap", draining.clone(), move || tap::follow(node.clone()));
        let node = context.clone();
        workers.spawn("consumer", draining.clone(), move || {
            consumer::consume(node.clone(), own_hints.clone())
        });
        let node = context.clone();
        workers.spawn("claim", draining.clone(), move || {
            fallback::claim(node.clone())
        });
        if context.options.elastic.is_some() {
            let node = context.clone();
            workers.spawn("elastic slots", draining.clone(), move || {
                elastic_slots::adapt(node.clone())
            });
        }
        if let Some(reach) = reach {
            let node = context.clone();
            workers.spawn("reach", draining, move || {
                reach::follow(node.clone(), reach.clone())
            });
        }
        tracing::info!(
            node = %id, store = context.store.name(), transport = context.transport.name(),
            concurrency = context.options.concurrency, "node started"
        );
        Ok(Self {
            context,
            workers,
            keepers,
            alone: Alone(process_lock),
        })
    }

    /// Returns the node's id.
    #[must_use]
    pub fn id(&self) -> NodeId {
        self.context.id
    }

    /// Returns the hook through which producers of the same process publish hints.
    #[must_use]
    pub fn hook(&self) -> CommitHook {
        CommitHook::clone(&self.context.hook)
    }

    /// Returns the registry, which changes the types and the scope of the node while it runs.
    #[must_use]
    pub fn registry(&self) -> Registry {
        Registry(self.context.clone())
    }

    /// Returns the health of the node.
    #[must_use]
    pub fn health(&self) -> NodeHealth {
        self.watch().health()
    }

    /// Returns a handle to the node's health, for health endpoints.
    #[must_use]
    pub fn watch(&self) -> HealthWatch {
        HealthWatch {
            context: self.context.clone(),
            workers: self.workers.health.clone(),
            keepers: self.keepers.health.clone(),
        }
    }

    /// Stops the node in two phases. See the [module](self).
    pub async fn stop(mut self) {
        let context = &self.context;
        tracing::info!(
            node = %context.id,
            running = context.leases.len(),
            "node stops taking work"
        );
        context.signals.draining.cancel();
        // A statement that was already sent may take long, and the jobs that it locks are known
        // only afterwards.
        self.workers.join(Duration::from_secs(20)).await;
        context.jobs.close();
        if tokio::time::timeout(context.options.shutdown_timeout, context.jobs.wait())
            .await
            .is_err()
        {
            tracing::info!(
                node = %context.id, running = context.leases.len(),
                "stopping and releasing running jobs: `shutdown_timeout` has passed"
            );
            context.signals.stop_jobs.cancel();
            // Each job ends, or is dropped after its grace period.
            let _ = tokio::time::timeout(Duration::from_secs(10), context.jobs.wait()).await;
        }
        context.signals.ended.cancel();
        self.keepers.join(Duration::from_secs(30)).await;
        batch_ends::say_farewell(context).await;
        context.hook.close(Duration::from_secs(5)).await;
        if context.jobs.is_empty()
            && let Some(lock) = self.alone.0.take()
        {
            lock.release();
        }
        tracing::info!(node = %context.id, "node stopped");
    }
}

/// Fails if the store does not keep the permits of this limit.
fn keeps_permits(store: &dyn Store, limit: &Limit) -> Result<(), StoreError> {
    if store.has_permits() {
        return limit.check().map_err(StoreError::Config);
    }
    Err(StoreError::Config(format!(
        "a handler has a limit (`HandlerOptions::limit`), and the store `{}` does not support \
         limits; remove the limit, or limit the node with `HandlerOptions::concurrency`",
        store.name()
    )))
}

/// Starts the keepers. They outlive the workers, so that running jobs are renewed and committed
/// until the end.
fn keep(context: &Arc<NodeContext>, queue: mpsc::Receiver<Finished>) -> Supervisor {
    let mut keepers = Supervisor::default();
    let batcher = Arc::new(tokio::sync::Mutex::new(Batcher::new(
        queue,
        context.options.concurrency,
    )));
    let node = context.clone();
    keepers.spawn("completion", context.signals.ended.clone(), move || {
        completer::commit_all(node.clone(), batcher.clone())
    });
    let node = context.clone();
    keepers.spawn("renewal", context.signals.ended.clone(), move || {
        renewal::renew_all(node.clone())
    });
    let node = context.clone();
    keepers.spawn("permits", context.signals.ended.clone(), move || {
        permit_exchange::exchange_all(node.clone())
    });
    let node = context.clone();
    keepers.spawn("departures", context.signals.ended.clone(), move || {
        batch_ends::end_batches(node.clone())
    });
    let node = context.clone();
    keepers.spawn("addressed jobs", context.signals.ended.clone(), move || {
        addressed::take_all(node.clone())
    });
    keepers
}

/// Ensures that an in-process node serves its database alone: its hints reach no other node. The
/// process of the node `alive` lives, even if its lease has ended: a frozen node may continue.
/// Another leader may have died; this function waits until its lease ends.
async fn ensure_alone(
    id: NodeId,
    builder: &NodeBuilder,
    alive: Option<NodeId>,
) -> Result<(), StartError> {
    let (transport, options) = (&builder.transport, &builder.options);
    if let Some(leader) = alive {
        return Err(StartError::NotAlone {
            leader,
            transport: transport.name().to_owned(),
        });
    }
    let cycle = LeaderCycle {
        node: id,
        lease: options.leader_lease(),
        transport: transport.name(),
        reset_at_most: 0,
        clock: None,
        may_wait: Duration::ZERO,
        grace: Duration::ZERO,
        services: Services::default(),
        again_after: options.sweep_interval,
        hint_at_most: 0,
        attempts_kept: AttemptsKept::new(),
    };
    let mut waited = false;
    loop {
        let CycleOutcome::Follows {
            leader,
            transport: theirs,
            remaining,
            ..
        } = builder.store.run_leader_cycle(&cycle).await?
        else {
            return Ok(());
        };
        let fits = !transport.is_single_node() && theirs == transport.name();
        let mixed_fleet = !transport.is_single_node() && theirs != "in-process";
        if fits || mixed_fleet {
            return Ok(());
        }
        if waited {
            return Err(StartError::NotAlone {
                leader,
                transport: theirs,
            });
        }
        waited = true;
        tracing::info!(
            %leader, transport = theirs, seconds = remaining.as_secs_f64(),
            "another node leads on this database; waiting until its lease ends, in case it has died"
        );
        tokio::time::sleep(remaining + Duration::from_millis(100)).await;
    }
}

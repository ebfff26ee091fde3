//! One run: the real nodes over the simulated database and broker, in virtual time, on one thread.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jobwire_core::store::{Origin, SuspensionScope};
use jobwire_core::{CommitHook, HookOptions, Lane, Node, NodeId, NodeOptions, Transport};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, sleep, sleep_until};
use uuid::Uuid;

use super::Simulation;
use super::bug::Bug;
use super::clock::DatabaseClock;
use super::database::Database;
use super::fault_injector::{FaultInjector, FaultRates};
use super::handler::{Work, handlers};
use super::link::Link;
use super::scenario::{Creation, Scenario, Step};
use super::store::MemoryStore;
use super::trace::Trace;
use super::transport::{Broker, SimTransport};
use crate::history::{self, Checker, Entry, Event, Limits, Outcome as Fate, Report};

/// The maximum time after the last fault until everything is done. Lost markers are replaced at
/// growing intervals, and a job's hints back off: this takes minutes.
const DRAINED_WITHIN: Duration = Duration::from_secs(1_800);

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// The checker's report on its history.
    pub report: Report,
    /// Problems beside the report.
    pub problems: Vec<String>,
    /// The time from the last fault until everything was done.
    pub drained_after: Duration,
    /// The number of faults.
    pub faults: usize,
    /// The trace, if the run was traced.
    pub trace: String,
}

impl Outcome {
    /// Returns the broken invariants.
    #[must_use]
    pub fn invariants(&self) -> Vec<history::Invariant> {
        let mut broken: Vec<_> = self.report.kept.iter().map(|kept| kept.invariant).collect();
        broken.sort_unstable();
        broken.dedup();
        broken
    }

    /// Returns whether there is no violation and no problem.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.report.holds() && self.problems.is_empty()
    }
}

pub(super) struct World {
    scenario: Scenario,
    bug: Option<Bug>,
    store: MemoryStore,
    broker: Arc<Broker>,
    injector: Arc<FaultInjector>,
    trace: Arc<Trace>,
    links: Mutex<Vec<Arc<Link>>>,
    ids: Mutex<SmallRng>,
    start: Instant,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub(super) fn new(scenario: Scenario, simulation: Simulation) -> World {
        let Simulation {
            bug,
            traced,
            slow_markers,
            ..
        } = simulation;
        let trace = Arc::new(if traced {
            Trace::begin()
        } else {
            Trace::default()
        });
        let injector = Arc::new(FaultInjector::new(scenario.seed ^ 0x5eed));
        let database = Database::new(DatabaseClock::simulated(), bug, trace.clone());
        let store = MemoryStore::new(database);
        let broker = Arc::new(
            Broker::new(store.shared(), bug, scenario.who).with_slow_markers(slow_markers),
        );
        let away = || {
            Arc::new(Link::new(
                "nobody".to_owned(),
                injector.clone(),
                trace.clone(),
            ))
        };
        World {
            links: Mutex::new((0..scenario.nodes).map(|_| away()).collect()),
            ids: Mutex::new(SmallRng::seed_from_u64(scenario.seed ^ 0x1d)),
            start: Instant::now(),
            scenario,
            bug,
            store,
            broker,
            injector,
            trace,
        }
    }

    fn moment(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    pub(super) async fn run(self) -> Outcome {
        let world = Arc::new(self);
        for at in 0..world.scenario.nodes {
            tokio::spawn(world.clone().live(at));
        }
        let creator = Arc::new(Link::new(
            "creator".to_owned(),
            world.injector.clone(),
            world.trace.clone(),
        ));
        let transport = SimTransport::new(world.broker.clone(), creator);
        let hook = CommitHook::start(transport.publisher(), world.hook_options());
        for (at, step) in world.scenario.steps.clone() {
            sleep_until(world.moment(at)).await;
            world.apply(&hook, step);
        }
        sleep_until(world.moment(world.scenario.healed_at())).await;
        world.trace.say(|| "healed".to_owned());
        world
            .injector
            .change(|fault_rates| *fault_rates = FaultRates::default());
        let drained = world.drain().await;
        world.judge(drained)
    }

    fn hook_options(&self) -> HookOptions {
        let mut options = HookOptions::default();
        options.max_age = Duration::from_millis(self.scenario.suspect_after);
        options
    }

    fn node_options(&self) -> NodeOptions {
        let mut options = NodeOptions::default();
        options.concurrency = self.scenario.concurrency;
        options.lease = Duration::from_millis(self.scenario.lease);
        options.sweep_interval = Duration::from_millis(self.scenario.sweep);
        options.suspect_after = Duration::from_millis(self.scenario.suspect_after);
        options.shutdown_timeout = Duration::from_millis(self.scenario.patience);
        options.lanes = vec![Lane::default().into()];
        options.hook = self.hook_options();
        options
    }

    /// Runs the lives of one node, each with a new id, as after any start.
    async fn live(self: Arc<Self>, at: usize) {
        let mut ends: Vec<(u64, bool, u64)> = Vec::new();
        for (moment, step) in &self.scenario.steps {
            match step {
                Step::Crash { node, away } if *node == at => ends.push((*moment, true, *away)),
                Step::Stop { node, away } if *node == at => ends.push((*moment, false, *away)),
                _ => {}
            }
        }
        for (moment, crashes, away) in ends {
            let (link, node) = self.start(at).await;
            sleep_until(self.moment(moment)).await;
            if crashes {
                link.say(|| "dies".to_owned());
                link.kill();
                drop(node);
            } else {
                link.say(|| "is asked to stop".to_owned());
                node.stop().await;
                link.say(|| "has stopped".to_owned());
                link.kill();
            }
            sleep(Duration::from_millis(away)).await;
        }
        let _running = self.start(at).await;
        std::future::pending::<()>().await;
    }

    async fn start(&self, at: usize) -> (Arc<Link>, Node) {
        loop {
            let id = {
                let mut ids = locked(&self.ids);
                NodeId::from_uuid(Uuid::from_u64_pair(ids.random(), ids.random()))
            };
            self.trace.node(id);
            let name = format!("node {}", at + 1);
            let link = Link::new(name, self.injector.clone(), self.trace.clone());
            let link = Arc::new(link);
            link.say(|| format!("starts as {id:?}"));
            if let Some(mine) = locked(&self.links).get_mut(at) {
                *mine = link.clone();
            }
            let store = self.store.over(link.clone());
            let transport = SimTransport::new(self.broker.clone(), link.clone());
            let node = Node::builder(store, Arc::new(transport))
                .id(id)
                .options(self.node_options())
                .handlers(handlers(&link, &self.store));
            match node.start().await {
                Ok(node) => return (link, node),
                Err(error) => {
                    link.say(|| format!("does not start: {error}"));
                    link.kill();
                    sleep(Duration::from_millis(500)).await;
                }
            }
        }
    }

    fn apply(self: &Arc<Self>, hook: &CommitHook, step: Step) {
        if step.is_fault() {
            self.trace.say(|| format!("{step:?}"));
        }
        match step {
            Step::Create(how, works) => self.create(hook, how, &works),
            Step::Crash { .. } | Step::Stop { .. } => {}
            Step::Freeze { node, millis } => {
                if let Some(link) = locked(&self.links).get(node) {
                    link.freeze(Duration::from_millis(millis));
                }
            }
            Step::BadDatabase { millis, kind } => {
                let set = move |fault_rates: &mut FaultRates, chance: u32| match kind {
                    0 => fault_rates.fails = chance,
                    1 => fault_rates.answer_lost = chance,
                    2 => fault_rates.late = chance,
                    3 => fault_rates.slow = chance,
                    _ => fault_rates.busy = chance,
                };
                self.for_a_while(
                    millis,
                    move |fault_rates| set(fault_rates, 400),
                    move |fault_rates| {
                        set(fault_rates, 0);
                    },
                );
            }
            Step::DatabaseAway { millis } => self.for_a_while(
                millis,
                |fault_rates| fault_rates.fails = 1_000,
                |fault_rates| fault_rates.fails = 0,
            ),
            Step::BadBroker { millis } => self.for_a_while(
                millis,
                |fault_rates| {
                    fault_rates.lost = 250;
                    fault_rates.doubled = 200;
                    fault_rates.reordered = 300;
                    fault_rates.unsettled = 200;
                    fault_rates.unconfirmed = 150;
                },
                |fault_rates| {
                    fault_rates.lost = 0;
                    fault_rates.doubled = 0;
                    fault_rates.reordered = 0;
                    fault_rates.unsettled = 0;
                    fault_rates.unconfirmed = 0;
                },
            ),
            Step::BrokerAway { millis } => self.for_a_while(
                millis,
                |fault_rates| fault_rates.broker_away = true,
                |fault_rates| fault_rates.broker_away = false,
            ),
            Step::Purge => self.broker.purge(),
            Step::ClockAhead { millis } => {
                let ahead = Duration::from_millis(millis);
                self.store.database().clock.jump(ahead);
            }
            Step::Suspend { instance, millis } => {
                let scope = SuspensionScope::ProcessInstance(format!("i{instance}"));
                let (_, ready) = self.store.database().suspend(&scope);
                hook.publish(jobwire_core::producer::commit_hook::Cause::Operator, ready);
                let (world, hook) = (self.clone(), hook.clone());
                tokio::spawn(async move {
                    sleep(Duration::from_millis(millis)).await;
                    let ready = world.store.database().activate(&scope);
                    world.trace.say(|| format!("{scope:?} is activated"));
                    hook.publish(jobwire_core::producer::commit_hook::Cause::Operator, ready);
                });
            }
        }
    }

    fn for_a_while(
        self: &Arc<Self>,
        millis: u64,
        begin: impl FnOnce(&mut FaultRates),
        end: impl FnOnce(&mut FaultRates) + Send + 'static,
    ) {
        self.injector.change(begin);
        let injector = self.injector.clone();
        tokio::spawn(async move {
            sleep(Duration::from_millis(millis)).await;
            injector.change(end);
        });
    }

    fn create(self: &Arc<Self>, hook: &CommitHook, how: Creation, works: &[Work]) {
        let mut database = self.store.database();
        let now = database.now();
        let jobs: Vec<_> = works.iter().map(|work| work.new_job(now)).collect();
        if how == Creation::RolledBack {
            let mut hinted = Vec::new();
            for job in jobs {
                let made = history::Creation {
                    outcome: Fate::RolledBack,
                    ..history::Creation::plain(0)
                };
                let id = job.id();
                database.record(id, Event::Created(Arc::new(made)));
                if self.bug == Some(Bug::HintsBeforeTheCommit) {
                    let ready = jobwire_core::hint::Ready {
                        lane: Lane::default(),
                        hint: jobwire_core::Hint::new(id),
                    };
                    hinted.push(ready);
                }
            }
            // The broker records in the same history as it receives the hints, perhaps at once.
            drop(database);
            hook.publish(jobwire_core::producer::commit_hook::Cause::Commit, hinted);
            return;
        }
        let origin = if how == Creation::BySql {
            Origin::Sql
        } else {
            Origin::Hook
        };
        let created = database.create(jobs, origin);
        drop(database);
        if let (Creation::Hinted, Ok(created)) = (how, created) {
            hook.committed(created);
        }
    }

    /// Waits until no job is left. Returns how long it took.
    async fn drain(&self) -> Option<Duration> {
        let begun = Instant::now();
        while begun.elapsed() < DRAINED_WITHIN {
            {
                let database = self.store.database();
                if database.executable.is_empty()
                    && database.timers.is_empty()
                    && database.suspended.is_empty()
                {
                    return Some(begun.elapsed());
                }
            }
            sleep(Duration::from_millis(100)).await;
        }
        None
    }

    fn judge(&self, drained: Option<Duration>) -> Outcome {
        let mut problems = Vec::new();
        let mut database = self.store.database();
        if drained.is_none() {
            problems.push(format!(
                "not everything was done {DRAINED_WITHIN:?} after the last fault"
            ));
        } else if !database.leases.is_empty() || !database.doors.is_empty() {
            problems.push(format!(
                "nothing is left to do, but {} leases and {} held instances are left",
                database.leases.len(),
                database.doors.len()
            ));
        }
        database.record_places();
        let entries: Vec<Entry> = std::mem::take(&mut database.history);
        drop(database);
        let limits = Limits {
            drained: true,
            found: true,
            handlers: true,
            rehints: self.scenario.exact.then_some(0),
            ..Limits::default()
        };
        Outcome {
            seed: self.scenario.seed,
            report: Checker::check(limits, entries),
            problems,
            drained_after: drained.unwrap_or(DRAINED_WITHIN),
            faults: self
                .scenario
                .steps
                .iter()
                .filter(|(_, step)| step.is_fault())
                .count(),
            trace: self.trace.text(),
        }
    }
}

//! Days of periodic jobs: nodes that declare the same schedules, die at random moments, and often
//! at the moment at which a job is due.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use jobwire_core::{Lane, NewJob, Node, NodeId, NodeOptions, PeriodicJob};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::clock::DatabaseClock;
use super::database::Database;
use super::fault_injector::{FaultInjector, FaultRates};
use super::handler::{Deed, Work, handlers};
use super::link::Link;
use super::store::MemoryStore;
use super::transport::{Broker, SimTransport};
use super::{Who, in_virtual_time};
use crate::history::{Checker, Entry, Event, Limits, Report};

/// Schedules that a fleet keeps for some time.
#[derive(Clone, Debug)]
pub struct Days {
    /// The seed, which determines everything.
    pub seed: u64,
    /// The time of the database at the beginning.
    pub from: DateTime<Utc>,
    /// The length.
    pub length: Duration,
    /// The schedules, each with its name.
    pub schedules: Vec<(String, String)>,
}

/// What happened in these days.
#[derive(Debug)]
pub struct Kept {
    /// The due date of each job that was created, in order.
    pub due: Vec<DateTime<Utc>>,
    /// The number of nodes that died.
    pub deaths: usize,
    /// The checker's report on the history.
    pub report: Report,
}

/// The number of nodes.
const NODES: usize = 3;
/// The distance of the due dates at which nodes die.
const HALF_HOUR: u64 = 1_800_000;

struct Fleet {
    days: Days,
    store: MemoryStore,
    broker: Arc<Broker>,
    injector: Arc<FaultInjector>,
    random: Mutex<SmallRng>,
    start: Instant,
    deaths: Mutex<usize>,
}

impl Days {
    /// Lets the fleet run.
    #[must_use]
    pub fn run(self) -> Kept {
        in_virtual_time(async { Fleet::new(self).run().await })
    }
}

impl Fleet {
    fn new(days: Days) -> Fleet {
        let clock = DatabaseClock::simulated_from(days.from);
        let store = MemoryStore::new(Database::new(clock, None, Arc::default()));
        Fleet {
            broker: Arc::new(Broker::new(store.shared(), None, Who::Fleet)),
            injector: Arc::new(FaultInjector::new(days.seed)),
            random: Mutex::new(SmallRng::seed_from_u64(days.seed ^ 0x5c4ed)),
            start: Instant::now(),
            deaths: Mutex::default(),
            store,
            days,
        }
    }

    async fn run(self) -> Kept {
        let fleet = Arc::new(self);
        for _ in 0..NODES {
            tokio::spawn(fleet.clone().live());
        }
        // The database fails at times, also between the commit of a date and its answer.
        fleet.injector.change(|rates| {
            rates.fails = 5;
            rates.answer_lost = 20;
        });
        sleep(fleet.days.length).await;
        fleet
            .injector
            .change(|rates| *rates = FaultRates::default());
        // Everything that is due by now is created and done.
        sleep(Duration::from_secs(3 * 3_600)).await;
        let mut database = fleet.store.database();
        database.record_places();
        let entries: Vec<Entry> = std::mem::take(&mut database.history);
        drop(database);
        let mut due: Vec<DateTime<Utc>> = entries
            .iter()
            .filter_map(|entry| match &entry.event {
                Event::Created(creation) => DateTime::from_timestamp_micros(creation.due?),
                _ => None,
            })
            .collect();
        due.sort_unstable();
        let limits = Limits {
            drained: true,
            found: true,
            handlers: true,
            ..Limits::default()
        };
        let deaths = *fleet.deaths.lock().unwrap_or_else(PoisonError::into_inner);
        Kept {
            due,
            deaths,
            report: Checker::check(limits, entries),
        }
    }

    fn random<T>(&self, draw: impl FnOnce(&mut SmallRng) -> T) -> T {
        draw(&mut self.random.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs the lives of one node.
    async fn live(self: Arc<Self>) {
        loop {
            let (link, node) = self.start().await;
            let mut life = self.random(|random| random.random_range(1_200_000..9_000_000));
            if self.random(|random| random.random_bool(0.7)) {
                // Dies within a few milliseconds of a due date.
                let passed = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(0);
                let late = self.random(|random| random.random_range(0..20));
                life = (passed + life).next_multiple_of(HALF_HOUR) - passed + late;
            }
            sleep(Duration::from_millis(life)).await;
            if self.start.elapsed() > self.days.length {
                // The last lives last.
                let _node = node;
                std::future::pending::<()>().await;
                return;
            }
            link.kill();
            drop(node);
            *self.deaths.lock().unwrap_or_else(PoisonError::into_inner) += 1;
            let away = self.random(|random| random.random_range(1_000..1_200_000));
            sleep(Duration::from_millis(away)).await;
        }
    }

    async fn start(&self) -> (Arc<Link>, Node) {
        loop {
            let id = self.random(|random| {
                NodeId::from_uuid(Uuid::from_u64_pair(random.random(), random.random()))
            });
            let link = Link::new("node".to_owned(), self.injector.clone(), Arc::default());
            let link = Arc::new(link);
            let store = self.store.over(link.clone());
            let transport = SimTransport::new(self.broker.clone(), link.clone());
            let mut node = Node::builder(store, Arc::new(transport))
                .id(id)
                .options(options())
                .handlers(handlers(&link, &self.store));
            for (name, schedule) in &self.days.schedules {
                node = node.periodic(PeriodicJob::new(name, schedule, job()));
            }
            match node.start().await {
                Ok(node) => return (link, node),
                Err(_) => {
                    link.kill();
                    sleep(Duration::from_millis(500)).await;
                }
            }
        }
    }
}

/// Long intervals: an idle fleet has little to simulate.
fn options() -> NodeOptions {
    let mut options = NodeOptions::default();
    options.concurrency = 4;
    options.lease = Duration::from_secs(600);
    options.sweep_interval = Duration::from_secs(120);
    options.suspect_after = Duration::from_secs(30);
    options.lanes = vec![Lane::default().into()];
    options
}

fn job() -> NewJob {
    let work = Work {
        job_type: Work::TYPES[0],
        instance: None,
        concurrent: false,
        millis: 2_000,
        deed: Deed::Done,
        obeys: true,
        due_in: None,
        repeat: None,
    };
    work.new_job(DateTime::UNIX_EPOCH)
}

//! The producers, which create jobs during the faults.
//!
//! Each producer creates a few jobs in a transaction, now and then enough to fill messages, and
//! ends it in one of these ways: it commits and the hints are published; it commits and "dies"
//! before they are published (the hook never fires); it rolls back; it dies in the middle. One
//! producer writes plain SQL. One goes through a proxy that cuts connections in the middle of a
//! COMMIT, so that the answer is lost. The outcome that a producer sees goes into the ledger.

use super::deploys::{SlowCreator, deploy};
use super::ledger::{Ledger, NotingPublisher};
use super::options::Options;
use super::workload::Maker;
use super::world::World;
use crate::history::Outcome;
use jobwire_core::producer::commit_hook::HookOptions;
use jobwire_core::{Client, CommitHook, JobId, NewJob, PgStore, StoreError, Transport};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

/// The way in which a producer reaches the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Library,
    /// Through the library; each commit is answered and hinted.
    Well,
    /// Through a proxy that cuts connections.
    Cut,
    /// Plain SQL.
    Sql,
}

/// Producers wait while the backlog exceeds the jobs of this many seconds.
const BACKLOG_SECONDS: u32 = 45;
/// The deadline of each transaction.
const DEADLINE: Duration = Duration::from_secs(20);
/// The share of transactions that may be large enough to fill messages.
const BULK: f64 = 0.02;
const TICK: Duration = Duration::from_millis(100);
/// The age at which producers and nodes drop a hint that was not confirmed. Longer than a
/// confirmation may take, so that a hint that failed once is tried again.
pub(super) const HINT_MAX_AGE: Duration = Duration::from_secs(3);

/// All producers of a run.
#[derive(Debug)]
pub struct Producers {
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Producers {
    /// Starts the producers. `backlog` is the last known number of waiting jobs.
    pub async fn start(
        world: &Arc<World>,
        options: &Options,
        ledger: &Ledger,
        backlog: &Arc<AtomicI64>,
    ) -> Producers {
        let stop = Arc::new(AtomicBool::new(false));
        let transport = world.transport().await;
        let mut tasks = JoinSet::new();
        let ways = if options.faults {
            [Way::Library, Way::Library, Way::Cut, Way::Sql]
        } else {
            [Way::Well; 4]
        };
        for (number, way) in ways.into_iter().enumerate() {
            let through = (way == Way::Cut).then_some(&world.producers);
            let store = world.store(through).await;
            let mut hook = HookOptions::default();
            hook.max_age = HINT_MAX_AGE;
            let publisher = NotingPublisher::new(transport.publisher(), ledger.clone());
            let hook = CommitHook::start(Arc::new(publisher), hook);
            let random = SmallRng::seed_from_u64(options.seed.wrapping_mul(31) + number as u64);
            let producer = Producer {
                way,
                jobs: store.client(hook),
                ledger: ledger.clone(),
                maker: Maker::new(random, number, options, world.clock.clone()),
                bulk: 2 * options.hints_per_message,
                // The producer whose connections are cut creates fewer jobs.
                per_tick: f64::from(options.rate) / 10.0 * if way == Way::Cut { 0.1 } else { 0.3 },
                most: i64::from(options.rate * BACKLOG_SECONDS),
                backlog: backlog.clone(),
                stop: stop.clone(),
                _transport: transport.clone(),
            };
            tasks.spawn(producer.work());
        }
        if options.deploys {
            for number in 0..2 {
                let random = SmallRng::seed_from_u64(options.seed.wrapping_mul(37) + number);
                let number = 100 + usize::try_from(number).unwrap_or_default();
                let publisher = NotingPublisher::new(transport.publisher(), ledger.clone());
                let mut hook = HookOptions::default();
                hook.max_age = HINT_MAX_AGE;
                let hook = CommitHook::start(Arc::new(publisher), hook);
                let creator = SlowCreator {
                    jobs: world.store(None).await.client(hook),
                    ledger: ledger.clone(),
                    maker: Maker::new(random, number, options, world.clock.clone()),
                    stop: stop.clone(),
                };
                tasks.spawn(creator.work());
            }
            tasks.spawn(deploy(world.clone(), stop.clone()));
        }
        let cutter = Cutter {
            world: world.clone(),
            random: SmallRng::seed_from_u64(options.seed ^ 0x0c07),
            stop: stop.clone(),
        };
        tasks.spawn(cutter.work());
        Producers { stop, tasks }
    }

    /// Stops the producers and waits for their end.
    pub async fn stop(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            if let Err(error) = ended {
                panic!("a producer failed: {error}");
            }
        }
    }
}

/// Cuts the connections of the producer behind the proxy, often during a statement.
struct Cutter {
    world: Arc<World>,
    random: SmallRng,
    stop: Arc<AtomicBool>,
}

impl Cutter {
    async fn work(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            let pause = Duration::from_millis(self.random.random_range(100..1_500));
            tokio::time::sleep(pause).await;
            self.world.producers.cut();
        }
    }
}

struct Producer {
    way: Way,
    jobs: Client<PgStore>,
    ledger: Ledger,
    maker: Maker,
    /// The maximum number of jobs in one transaction.
    bulk: usize,
    per_tick: f64,
    most: i64,
    backlog: Arc<AtomicI64>,
    stop: Arc<AtomicBool>,
    _transport: Arc<dyn Transport>,
}

impl Producer {
    async fn work(mut self) {
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Burst);
        let mut owed = 0.0;
        while !self.stop.load(Ordering::Relaxed) {
            ticks.tick().await;
            if self.backlog.load(Ordering::Relaxed) > self.most {
                owed = 0.0;
                continue;
            }
            // After an outage the producer catches up, up to a limit.
            owed = (owed + self.per_tick).min(self.per_tick * 100.0);
            while owed >= 1.0 && !self.stop.load(Ordering::Relaxed) {
                // A large transaction makes the debt negative: the producer pauses afterwards.
                let many = self.maker.random().random_bool(BULK);
                let most = if many {
                    self.bulk
                } else {
                    (owed as usize).clamp(1, 12)
                };
                let count = self.maker.random().random_range(1..=most);
                owed -= count as f64;
                self.transaction(count).await;
            }
        }
    }

    async fn transaction(&mut self, count: usize) {
        let jobs: Vec<NewJob> = (0..count).map(|_| self.maker.make()).collect();
        let fate: f64 = self.maker.random().random();
        let fate = if self.way == Way::Well { 1.0 } else { fate };
        let done = match self.way {
            Way::Sql => tokio::time::timeout(DEADLINE, self.by_sql(jobs, fate)).await,
            _ => tokio::time::timeout(DEADLINE, self.by_library(jobs, fate)).await,
        };
        if !matches!(done, Ok(true)) {
            // The database is away.
            tokio::time::sleep(TICK).await;
        }
    }

    /// Returns false if the database could not be reached.
    async fn by_library(&self, jobs: Vec<NewJob>, fate: f64) -> bool {
        let ids: Vec<JobId> = jobs.iter().map(NewJob::id).collect();
        self.ledger.open(&ids);
        if fate < 0.08 {
            return self.without_firing(jobs, &ids).await;
        }
        let Ok(mut transaction) = self.jobs.begin().await else {
            return false;
        };
        if transaction.create_many(jobs).await.is_err() {
            return false;
        }
        if fate < 0.14 {
            // Rolls back, or drops the transaction as a killed process would.
            if fate < 0.11 {
                let _ = transaction.rollback().await;
            }
            self.ledger.settle(&ids, Outcome::RolledBack);
            return true;
        }
        self.ledger.ended(&ids, &transaction.commit().await);
        true
    }

    /// Commits without firing the hook, like a process that dies right after its commit.
    async fn without_firing(&self, jobs: Vec<NewJob>, ids: &[JobId]) -> bool {
        let Ok(mut transaction) = self.jobs.store().pool().begin().await else {
            return false;
        };
        let mut hook = self.jobs.hook();
        if hook.create_many(&mut transaction, jobs).await.is_err() {
            return false;
        }
        drop(hook);
        let answer = transaction.commit().await;
        self.ledger
            .ended(ids, &answer.map_err(StoreError::CommitUnknown));
        true
    }

    /// Creates each job with one statement, like a program in another language.
    async fn by_sql(&self, jobs: Vec<NewJob>, fate: f64) -> bool {
        const CREATE: &str =
            "SELECT jobwire.create_job(type => $1, payload => $2::json, process_instance => $3,
            due_at => $4, retry_policy => $5, repeat => $6)";
        let Ok(mut transaction) = self.jobs.store().pool().begin().await else {
            return false;
        };
        let mut ids = Vec::new();
        for job in jobs {
            let Ok(job) = job.into_job(0, chrono::Utc::now(), jobwire_core::Lane::default()) else {
                continue;
            };
            let id = sqlx::query_scalar(CREATE)
                .bind(&job.job_type)
                .bind(job.payload.get())
                .bind(&job.process_instance)
                .bind(job.due_at)
                .bind(&job.retry_policy)
                .bind(&job.repeat)
                .fetch_one(&mut *transaction)
                .await;
            let Ok(id) = id else { return false };
            ids.push(JobId::from_uuid(id));
        }
        self.ledger.open(&ids);
        if fate < 0.08 {
            let _ = transaction.rollback().await;
            self.ledger.settle(&ids, Outcome::RolledBack);
            return true;
        }
        let answer = transaction.commit().await;
        self.ledger
            .ended(&ids, &answer.map_err(StoreError::CommitUnknown));
        true
    }
}

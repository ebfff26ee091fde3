//! The faults that a chaos run injects.
//!
//! Each fault is a task: it breaks a node or a server, waits, and repairs it. Faults overlap, but a
//! node or server that is broken gets no second fault.

use super::flood::flood;
use super::ledger::Ledger;
use super::nonsense;
use super::world::{AnyBroker, Node, PREFIX, World};
use crate::{Direction, Flow, KafkaAdmin, Proxy, Stop};
use jobwire_core::hint::Hint;
use jobwire_core::{JobId, Lane};
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use sqlx::Connection;
use sqlx::postgres::PgConnection;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fault {
    /// A node gets SIGKILL; a new process takes its place, perhaps with a shifted clock.
    KillNode,
    /// A node gets SIGTERM; a new process takes its place.
    StopNode,
    /// A node gets SIGSTOP, and SIGCONT up to twelve seconds later.
    FreezeNode,
    /// The connections of a node to the database are reset.
    CutDatabase,
    /// The connections of a node to the broker are reset.
    CutBroker,
    /// The connections of a node to the database stay open and carry no byte in either direction.
    StallDatabase,
    /// The connections of a node to the broker stay open and carry no byte in either direction.
    StallBroker,
    /// The database gets the requests of a node; no answer comes back.
    HalfOpenDatabase,
    /// The broker gets the messages of a node; no answer comes back.
    HalfOpenBroker,
    /// The connections of a node to the database are slow.
    SlowDatabase,
    /// The connections of a node to the broker are reset, and new ones are refused.
    RefuseBroker,
    /// The broker shuts down in good order, and starts again.
    StopBroker,
    /// The broker crashes, and starts again.
    KillBroker,
    /// The broker gets SIGSTOP; its connections stay open.
    FreezeBroker,
    /// The queue or topic of the lane loses its messages.
    Purge,
    /// The queue or topic of the lane is deleted.
    DeleteQueue,
    /// RabbitMQ blocks publishers: its limit for free disk space is set above the free space.
    Alarm,
    /// The database shuts down in good order, and starts again.
    RestartDatabase,
    /// The database crashes, and recovers.
    CrashDatabase,
    /// The database is away for longer than a lease lasts.
    LoseDatabase,
    /// The clock of the database jumps ahead, most often by more than a lease.
    JumpClock,
    /// A foreign program writes invalid rows.
    WriteNonsense,
    /// Jobs are created that keep all nodes busy for many seconds.
    Flood,
    /// `pg_terminate_backend` ends all connections to the database.
    TerminateBackends,
    /// Forged hints are published: doubled ones, late ones, and hints of jobs that do not exist.
    ForgeHints,
}

use Fault::{
    Alarm, CrashDatabase, CutBroker, CutDatabase, DeleteQueue, Flood, ForgeHints, FreezeBroker,
    FreezeNode, HalfOpenBroker, HalfOpenDatabase, JumpClock, KillBroker, KillNode, LoseDatabase,
    Purge, RefuseBroker, RestartDatabase, SlowDatabase, StallBroker, StallDatabase, StopBroker,
    StopNode, TerminateBackends, WriteNonsense,
};

/// The faults to draw from. A fault that is listed twice is drawn twice as often.
const LOTS: [Fault; 40] = [
    KillNode,
    KillNode,
    KillNode,
    StopNode,
    StopNode,
    FreezeNode,
    FreezeNode,
    FreezeNode,
    CutDatabase,
    CutDatabase,
    CutBroker,
    CutBroker,
    StallDatabase,
    StallDatabase,
    StallBroker,
    StallBroker,
    HalfOpenDatabase,
    HalfOpenDatabase,
    HalfOpenBroker,
    SlowDatabase,
    RefuseBroker,
    StopBroker,
    KillBroker,
    FreezeBroker,
    Purge,
    Purge,
    DeleteQueue,
    Alarm,
    RestartDatabase,
    CrashDatabase,
    LoseDatabase,
    JumpClock,
    JumpClock,
    WriteNonsense,
    WriteNonsense,
    WriteNonsense,
    Flood,
    TerminateBackends,
    ForgeHints,
    ForgeHints,
];

/// The number of injections of each fault.
pub type Injected = BTreeMap<Fault, u64>;

/// Draws faults and injects them.
#[derive(Debug)]
pub struct Faults {
    world: Arc<World>,
    ledger: Ledger,
    random: SmallRng,
    pace: Duration,
    running: JoinSet<()>,
    injected: Arc<Mutex<Injected>>,
}

impl Faults {
    /// Creates the faults of a seed.
    #[must_use]
    pub fn new(world: Arc<World>, ledger: Ledger, seed: u64, pace: Duration) -> Faults {
        Faults {
            world,
            ledger,
            random: SmallRng::seed_from_u64(seed),
            pace,
            running: JoinSet::new(),
            injected: Arc::default(),
        }
    }

    /// Waits a while, then injects a fault.
    ///
    /// # Panics
    /// If a fault could not be healed.
    pub async fn next(&mut self) {
        let pace = self.pace.as_secs_f64();
        let pause = Duration::from_secs_f64(self.random.random_range(0.1..1.9) * pace);
        tokio::time::sleep(pause).await;
        while let Some(ended) = self.running.try_join_next() {
            ended.unwrap_or_else(|error| panic!("a fault could not be healed: {error}"));
        }
        // Each fault takes the same draws, used or not: a seed always leads to the same faults.
        let fault = *LOTS.choose(&mut self.random).unwrap_or(&KillNode);
        let victim = self.random.random_range(0..self.world.nodes.len());
        let length = self.random.random_range(0.2..1.0);
        let shift = self.shift();
        let order = SmallRng::seed_from_u64(self.random.random());
        let victim = self.world.nodes[victim].clone();
        let injection = Injection {
            world: self.world.clone(),
            ledger: self.ledger.clone(),
            injected: self.injected.clone(),
            victim,
            length,
            shift,
            random: order,
        };
        self.running.spawn(injection.inject(fault));
    }

    fn shift(&mut self) -> Option<String> {
        // A process whose clock is ahead makes ids that sort after those of the others.
        let shifts = [
            None,
            None,
            Some("+41s"),
            Some("+3600s"),
            Some("-37s"),
            Some("-3600s"),
        ];
        let shift = shifts.choose(&mut self.random).copied().flatten()?;
        self.world.clock_library?;
        Some(shift.to_owned())
    }

    /// Waits until the current faults have ended, and repairs the network.
    ///
    /// # Panics
    /// If a fault could not be healed.
    pub async fn heal(mut self) -> Injected {
        while let Some(ended) = self.running.join_next().await {
            ended.unwrap_or_else(|error| panic!("a fault could not be healed: {error}"));
        }
        self.world.heal_network().await;
        let injected = self.injected.lock().unwrap_or_else(PoisonError::into_inner);
        injected.clone()
    }
}

struct Injection {
    world: Arc<World>,
    ledger: Ledger,
    injected: Arc<Mutex<Injected>>,
    victim: Arc<tokio::sync::Mutex<Node>>,
    /// The duration of the fault as a share of its longest time: from 0.2 to 1.
    length: f64,
    shift: Option<String>,
    random: SmallRng,
}

impl Injection {
    fn began(&self, fault: Fault, whom: &str) {
        self.world.say(&format!("{fault:?} {whom}"));
        let mut injected = self.injected.lock().unwrap_or_else(PoisonError::into_inner);
        *injected.entry(fault).or_default() += 1;
    }

    async fn last(&self, seconds: f64) {
        tokio::time::sleep(Duration::from_secs_f64(seconds * self.length)).await;
    }

    async fn inject(self, fault: Fault) {
        match fault {
            KillNode | StopNode | FreezeNode | CutDatabase | CutBroker | StallDatabase
            | StallBroker | HalfOpenDatabase | HalfOpenBroker | SlowDatabase | RefuseBroker => {
                self.hurt_node(fault).await;
            }
            StopBroker | KillBroker | FreezeBroker | Purge | DeleteQueue | Alarm => {
                self.hurt_broker(fault).await;
            }
            RestartDatabase | CrashDatabase | LoseDatabase | TerminateBackends => {
                self.hurt_database(fault).await;
            }
            JumpClock => {
                self.began(JumpClock, "");
                let seconds = 4.0 + 90.0 * self.length * self.length;
                self.world.jump(Duration::from_secs_f64(seconds.round()));
            }
            WriteNonsense => self.write_nonsense().await,
            Flood => {
                self.began(Flood, "");
                flood(&self.world, &self.ledger, 0.9).await;
            }
            ForgeHints => self.forge().await,
        }
    }

    async fn hurt_node(&self, fault: Fault) {
        let Ok(mut node) = self.victim.try_lock() else {
            return;
        };
        self.began(fault, &format!("node {}", node.number()));
        let since = self.world.clock.now();
        let broker = node.broker.clone();
        match fault {
            KillNode => {
                node.kill();
                self.last(3.0).await;
                self.world
                    .start_node(&mut node, self.shift.as_deref())
                    .await;
            }
            StopNode => {
                self.world.terminate(&mut node).await;
                self.world
                    .start_node(&mut node, self.shift.as_deref())
                    .await;
            }
            FreezeNode => {
                node.freeze();
                self.last(12.0).await;
                node.thaw();
            }
            CutDatabase => node.database.cut(),
            CutBroker => broker.cut(),
            StallDatabase => self.stop_flow(&node.database, &BOTH, 12.0).await,
            StallBroker => self.stop_flow(&broker, &BOTH, 12.0).await,
            HalfOpenDatabase => {
                self.stop_flow(&node.database, &[Direction::ToClient], 12.0)
                    .await;
            }
            HalfOpenBroker => self.stop_flow(&broker, &[Direction::ToClient], 12.0).await,
            SlowDatabase => {
                node.database
                    .set_both(Flow::Delay(Duration::from_secs_f64(0.05 * self.length)));
                self.last(10.0).await;
                node.database.set_both(Flow::Pass);
            }
            _ => {
                broker.refuse().await;
                broker.cut();
                self.last(10.0).await;
                broker.accept().await;
            }
        }
        self.world.hurt_since(node.number(), since);
    }

    async fn stop_flow(&self, proxy: &Proxy, directions: &[Direction], seconds: f64) {
        for direction in directions {
            proxy.set(*direction, Flow::Stall);
        }
        self.last(seconds).await;
        // Half of the stalls end with a reset of the connections, as a failover does.
        if self.length > 0.6 {
            proxy.cut();
        }
        proxy.set_both(Flow::Pass);
    }

    async fn hurt_broker(&self, fault: Fault) {
        let Ok(mut broker) = self.world.broker.try_lock() else {
            return;
        };
        self.began(fault, "");
        let since = self.world.clock.now();
        match (&mut *broker, fault) {
            (AnyBroker::RabbitMq(rabbitmq), StopBroker) => {
                rabbitmq.stop().await;
                self.last(6.0).await;
                rabbitmq.start_again().await;
            }
            (AnyBroker::RabbitMq(rabbitmq), KillBroker) => {
                rabbitmq.flush().await;
                rabbitmq.kill();
                self.last(6.0).await;
                rabbitmq.start_again().await;
            }
            (AnyBroker::RabbitMq(rabbitmq), FreezeBroker) => {
                rabbitmq.freeze();
                self.last(10.0).await;
                rabbitmq.thaw();
            }
            (AnyBroker::RabbitMq(_), Purge | DeleteQueue) => {
                let _ =
                    tokio::time::timeout(Duration::from_secs(20), self.empty_queue(fault)).await;
            }
            (AnyBroker::RabbitMq(rabbitmq), _) => {
                rabbitmq
                    .ctl()
                    .run(&["set_disk_free_limit", "1000000GB"])
                    .await;
                self.last(10.0).await;
                rabbitmq.ctl().run(&["set_disk_free_limit", "50MB"]).await;
            }
            (AnyBroker::Kafka(kafka), StopBroker | Alarm) => {
                kafka.stop().await;
                self.last(6.0).await;
                kafka.start_again().await;
            }
            (AnyBroker::Kafka(kafka), KillBroker) => {
                kafka.kill();
                self.last(6.0).await;
                kafka.start_again().await;
            }
            (AnyBroker::Kafka(kafka), FreezeBroker) => {
                kafka.freeze();
                self.last(10.0).await;
                kafka.thaw();
            }
            (AnyBroker::Kafka(kafka), _) => {
                let admin = kafka.admin();
                let emptied = self.empty_topic(&admin, fault);
                let _ = tokio::time::timeout(Duration::from_secs(30), emptied).await;
            }
        }
        self.world.outage_since(since);
    }

    async fn empty_queue(&self, fault: Fault) -> Result<(), lapin::Error> {
        use lapin::options::{QueueDeleteOptions, QueuePurgeOptions};
        let queue = format!("{PREFIX}.lane.{}", Lane::DEFAULT);
        let properties = lapin::ConnectionProperties::default();
        let connection = lapin::Connection::connect(&self.world.broker_url, properties).await?;
        let channel = connection.create_channel().await?;
        if fault == Purge {
            let options = QueuePurgeOptions::default();
            channel.queue_purge(queue.as_str().into(), options).await?;
        } else {
            let options = QueueDeleteOptions::default();
            channel.queue_delete(queue.as_str().into(), options).await?;
        }
        connection.close(200, "done".into()).await
    }

    async fn empty_topic(&self, admin: &KafkaAdmin, fault: Fault) {
        let topic = format!("{PREFIX}.lane.{}", Lane::DEFAULT);
        if fault == DeleteQueue {
            admin.delete_topic(&topic).await;
            return;
        }
        for (partition, end) in (0..).zip(admin.end_offsets(&topic).await) {
            admin.delete_records(&topic, partition, end).await;
        }
    }

    async fn hurt_database(&self, fault: Fault) {
        let Ok(mut postgres) = self.world.postgres.try_lock() else {
            return;
        };
        self.began(fault, "");
        let since = self.world.clock.now();
        match fault {
            RestartDatabase | CrashDatabase | LoseDatabase => {
                let how = if fault == CrashDatabase {
                    Stop::Immediate
                } else {
                    Stop::Fast
                };
                postgres.stop(how).await;
                self.last(4.0).await;
                if fault == LoseDatabase {
                    tokio::time::sleep(self.world.lease()).await;
                }
                postgres.start_again().await;
            }
            _ => {
                let store = self.world.store(None).await;
                let _ = sqlx::query(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                     WHERE datname = current_database() AND pid <> pg_backend_pid()",
                )
                .execute(store.pool())
                .await;
                jobwire_core::Store::close(&store).await;
            }
        }
        self.world.outage_since(since);
    }

    async fn write_nonsense(mut self) {
        self.began(WriteNonsense, "");
        let rows = 5 + (45.0 * self.length) as usize;
        // If the connection is lost, the rows written before suffice.
        if let Ok(mut connection) = PgConnection::connect(&self.world.url).await {
            let written = nonsense::write(&mut connection, &mut self.random, rows);
            let _ = tokio::time::timeout(Duration::from_secs(20), written).await;
        }
    }

    async fn forge(mut self) {
        self.began(ForgeHints, "");
        let transport = self.world.transport().await;
        let publisher = transport.publisher();
        let mut jobs = self.ledger.some(2_000);
        jobs.extend((0..100).map(|_| JobId::generate()));
        jobs.extend_from_within(..jobs.len() / 2);
        jobs.shuffle(&mut self.random);
        let lane = Lane::default();
        for hints in jobs.chunks(200) {
            let hints = hints.iter().map(|id| Hint {
                // Some hints name an instance, whether or not their job belongs to it.
                instance: self.random.random_bool(0.1).then(|| "p0-0-1".to_owned()),
                ..Hint::new(*id)
            });
            let hints = hints.collect();
            let published = publisher.publish(&lane, hints);
            let _ = tokio::time::timeout(Duration::from_secs(5), published).await;
        }
        transport.close(Duration::from_secs(5)).await;
    }
}

const BOTH: [Direction; 2] = [Direction::ToServer, Direction::ToClient];

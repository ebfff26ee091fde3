//! The death of one node in a world without any other fault, for the bound of a takeover (protocol
//! rule 24).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::DateTime;
use jobwire_core::producer::commit_hook::HookOptions;
use jobwire_core::store::Origin;
use jobwire_core::{CommitHook, JobId, Node, NodeId, NodeOptions, Transport};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::database::Database;
use super::fault_injector::FaultInjector;
use super::handler::{Deed, Work, handlers};
use super::link::Link;
use super::store::MemoryStore;
use super::transport::{Broker, SimTransport};
use super::{Who, in_virtual_time};
use crate::history::Event;

/// A node that dies while it holds jobs.
#[derive(Clone, Copy, Debug)]
pub struct Death {
    /// The seed, which determines everything.
    pub seed: u64,
    /// Whether the node is the leader.
    pub of_the_leader: bool,
    /// The lease of jobs.
    pub lease: Duration,
    /// The sweep interval.
    pub sweep_interval: Duration,
}

const NODES: usize = 3;
const JOBS: usize = 30;
/// The survivors have room for all jobs of the dead node, which take at most a quarter of the slots.
const SLOTS: usize = 256;
/// Longer than a takeover.
const WORKS: Duration = Duration::from_secs(3_600);

impl Death {
    /// Lets the node die. Returns how long each of its jobs waited for its next start.
    #[must_use]
    pub fn takeovers(self) -> Vec<Duration> {
        in_virtual_time(async { Fleet::new(self).run().await })
    }
}

struct Fleet {
    death: Death,
    store: MemoryStore,
    broker: Arc<Broker>,
    injector: Arc<FaultInjector>,
    random: SmallRng,
}

impl Fleet {
    fn new(death: Death) -> Fleet {
        let store = MemoryStore::new(Database::simulated());
        Fleet {
            broker: Arc::new(Broker::new(store.shared(), None, Who::Fleet)),
            injector: Arc::new(FaultInjector::new(death.seed)),
            random: SmallRng::seed_from_u64(death.seed ^ 0x0dea_d000),
            store,
            death,
        }
    }

    fn link(&self, name: &str) -> Arc<Link> {
        let link = Link::new(name.to_owned(), self.injector.clone(), Arc::default());
        Arc::new(link)
    }

    async fn run(mut self) -> Vec<Duration> {
        let mut nodes = Vec::new();
        for _ in 0..NODES {
            nodes.push(self.start().await);
            self.pause(1_000).await;
        }
        let creator = SimTransport::new(self.broker.clone(), self.link("creator"));
        let hook = CommitHook::start(creator.publisher(), HookOptions::default());
        for _ in 0..JOBS {
            let created = self.store.database().create(vec![job()], Origin::Hook);
            hook.committed(created.expect("the job is valid"));
            self.pause(2_000).await;
        }
        // At any point of the leader's interval and of the leases.
        self.pause(60_000).await;
        let leader = self.store.database().leader.clone();
        let leader = leader.expect("a node leads").node;
        let victim = nodes.iter().position(|(id, _, _)| {
            (*id == leader) == self.death.of_the_leader && !self.held_by(*id).is_empty()
        });
        let Some(victim) = victim else {
            return Vec::new();
        };
        let (id, link, node) = nodes.swap_remove(victim);
        let lost = self.held_by(id);
        link.kill();
        drop(node);
        self.until_started(&lost).await
    }

    /// Pauses for at most this many milliseconds.
    async fn pause(&mut self, at_most: u64) {
        let millis = self.random.random_range(1..=at_most);
        sleep(Duration::from_millis(millis)).await;
    }

    fn held_by(&self, node: NodeId) -> BTreeSet<JobId> {
        let database = self.store.database();
        let held = database.leases.iter();
        held.filter(|(_, lease)| lease.owner == Some(node))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Waits until each of these jobs has started again. Returns how long each of them waited, or that it
    /// still waits after an hour.
    async fn until_started(&self, jobs: &BTreeSet<JobId>) -> Vec<Duration> {
        let died = Instant::now();
        let seen = self.store.database().history.len();
        let (mut waiting, mut waited) = (jobs.clone(), Vec::new());
        while !waiting.is_empty() && died.elapsed() < WORKS {
            sleep(Duration::from_millis(50)).await;
            for entry in self.store.database().history.iter().skip(seen) {
                let is_start = matches!(entry.event, Event::Started { .. });
                if is_start && waiting.remove(&entry.job) {
                    waited.push(died.elapsed());
                }
            }
        }
        waited.extend(waiting.iter().map(|_| WORKS));
        waited
    }

    async fn start(&mut self) -> (NodeId, Arc<Link>, Node) {
        let id = Uuid::from_u64_pair(self.random.random(), self.random.random());
        let id = NodeId::from_uuid(id);
        let link = self.link("node");
        let transport = SimTransport::new(self.broker.clone(), link.clone());
        let node = Node::builder(self.store.over(link.clone()), Arc::new(transport))
            .id(id)
            .options(self.options())
            .handlers(handlers(&link, &self.store))
            .start()
            .await
            .expect("nothing fails in this world");
        (id, link, node)
    }

    fn options(&self) -> NodeOptions {
        let mut options = NodeOptions::default();
        options.concurrency = SLOTS;
        options.lease = self.death.lease;
        options.sweep_interval = self.death.sweep_interval;
        options
    }
}

fn job() -> jobwire_core::NewJob {
    let work = Work {
        job_type: Work::TYPES[0],
        instance: None,
        concurrent: false,
        millis: u64::try_from(WORKS.as_millis()).unwrap_or(u64::MAX),
        deed: Deed::Done,
        obeys: true,
        due_in: None,
        repeat: None,
    };
    work.new_job(DateTime::UNIX_EPOCH)
}

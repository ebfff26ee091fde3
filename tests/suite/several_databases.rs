//! Nodes of several databases in one process, with one pool of slots. On SQLite. Budget: 10 s.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobwire::node::StartError;
use jobwire::{
    HandlerResult, InProcessTransport, NewJob, Node, NodeOptions, Running, SlotPool, SqliteStore,
    Transport,
};
use jobwire_tests::{Scratch, eventually};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::sync::Semaphore;

const SOON: Duration = Duration::from_secs(60);
const SLOTS: usize = 4;

/// What the handlers of both databases share: the jobs that run, and the jobs that are done, each
/// with the name of its database.
#[derive(Default)]
struct Runs {
    running: AtomicUsize,
    most: AtomicUsize,
    done: Mutex<Vec<&'static str>>,
}

impl Runs {
    async fn run(
        &self,
        database: &'static str,
        work: impl Future<Output = ()>,
    ) -> HandlerResult<()> {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        work.await;
        self.running.fetch_sub(1, Ordering::SeqCst);
        self.done.lock().unwrap().push(database);
        Ok(())
    }
}

struct Database {
    store: SqliteStore,
    _home: Scratch,
}

impl Database {
    async fn new() -> Self {
        let home = Scratch::new();
        let url = format!("sqlite:{}", home.join("jobs.db").display());
        let store = SqliteStore::connect(&url).await.unwrap();
        store.migrate().await.unwrap();
        Self { store, _home: home }
    }

    async fn create(&self, node: &Node, jobs: u64) {
        let jobs = (0..jobs).map(|number| NewJob::of("work", &number));
        let client = self.store.client(node.hook());
        client.create_many(jobs.collect()).await.unwrap();
    }

    async fn node<F, W>(&self, pool: &SlotPool, database: &'static str, work: F) -> Node
    where
        F: Fn() -> W + Send + Sync + 'static,
        W: Future<Output = HandlerResult<()>> + Send + 'static,
    {
        let options = NodeOptions::default()
            .concurrency(SLOTS)
            .database(Some(database.to_owned()));
        Node::builder(self.store.clone(), Arc::new(InProcessTransport::new()))
            .options(options)
            .handler("work", move |_: Running<u64>| work())
            .slots(pool)
            .start()
            .await
            .unwrap()
    }
}

#[tokio::test]
async fn a_flood_in_one_database_leaves_the_other_its_part_of_the_slots() {
    let (flood, trickle) = (Database::new().await, Database::new().await);
    let runs = Arc::new(Runs::default());
    let pool = SlotPool::new(SLOTS);
    let (first, second) = (runs.clone(), runs.clone());
    // No job ends before all exist.
    let gate = Arc::new(Semaphore::new(0));
    let brief = |gate: Arc<Semaphore>| async move {
        drop(gate.acquire().await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let (of_flood, of_trickle) = (gate.clone(), gate.clone());
    let flooded = flood
        .node(&pool, "flood", move || {
            let (runs, gate) = (first.clone(), of_flood.clone());
            async move { runs.run("flood", brief(gate)).await }
        })
        .await;
    let trickled = trickle
        .node(&pool, "trickle", move || {
            let (runs, gate) = (second.clone(), of_trickle.clone());
            async move { runs.run("trickle", brief(gate)).await }
        })
        .await;
    flood.create(&flooded, 300).await;
    trickle.create(&trickled, 30).await;
    gate.add_permits(SLOTS);
    eventually("all jobs to be done", SOON, async || {
        (runs.done.lock().unwrap().len() == 330).then_some(())
    })
    .await;
    let done = runs.done.lock().unwrap().clone();
    let last = done
        .iter()
        .rposition(|database| *database == "trickle")
        .unwrap();
    let before = done[..last]
        .iter()
        .filter(|database| **database == "flood")
        .count();
    // Of equal parts, 40 jobs of the flood run meanwhile. Without them, most of its 400 do.
    assert!(
        before < 200,
        "{before} jobs of the flood ran before the last of the others"
    );
    assert!(runs.most.load(Ordering::SeqCst) <= SLOTS);
    flooded.stop().await;
    trickled.stop().await;
}

#[tokio::test]
async fn long_jobs_of_one_database_leave_a_slot_to_the_other() {
    let (long, short) = (Database::new().await, Database::new().await);
    let runs = Arc::new(Runs::default());
    let pool = SlotPool::new(SLOTS);
    let gate = Arc::new(Semaphore::new(0));
    let (first, second, opens) = (runs.clone(), runs.clone(), gate.clone());
    let blocked = long
        .node(&pool, "long", move || {
            let (runs, gate) = (first.clone(), opens.clone());
            async move {
                runs.run("long", async { gate.acquire().await.unwrap().forget() })
                    .await
            }
        })
        .await;
    long.create(&blocked, 10).await;
    eventually("the long jobs to fill the pool", SOON, async || {
        (runs.running.load(Ordering::SeqCst) == SLOTS).then_some(())
    })
    .await;
    let free = short
        .node(&pool, "short", move || {
            let runs = second.clone();
            async move { runs.run("short", async {}).await }
        })
        .await;
    short.create(&free, 10).await;
    // The pool was full when this node joined; it gets the first slot that becomes free.
    gate.add_permits(1);
    eventually("the short jobs to be done", SOON, async || {
        let done = runs.done.lock().unwrap();
        (done.iter().filter(|database| **database == "short").count() == 10).then_some(())
    })
    .await;
    assert_eq!(runs.running.load(Ordering::SeqCst), SLOTS - 1);
    gate.add_permits(10);
    blocked.stop().await;
    free.stop().await;
}

#[tokio::test]
async fn two_databases_cannot_share_a_transport() {
    let (one, other) = (Database::new().await, Database::new().await);
    let transport: Arc<dyn Transport> = Arc::new(InProcessTransport::new());
    let pool = SlotPool::new(SLOTS);
    let first = Node::builder(one.store.clone(), transport.clone())
        .slots(&pool)
        .start()
        .await
        .unwrap();
    let second = Node::builder(other.store.clone(), transport)
        .slots(&pool)
        .start()
        .await;
    let refused = second
        .err()
        .expect("the transport is used by the first node");
    assert!(matches!(refused, StartError::SharedTransport), "{refused}");
    assert!(
        refused.to_string().contains("a transport of its own"),
        "{refused}"
    );
    first.stop().await;
}

#[tokio::test]
async fn each_database_has_gauges_of_its_own() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = recorder.handle();
    let _local = metrics::set_default_local_recorder(&recorder);
    let (one, other) = (Database::new().await, Database::new().await);
    let pool = SlotPool::new(SLOTS);
    let mut nodes = Vec::new();
    for (database, name) in [(&one, "orders"), (&other, "invoices")] {
        nodes.push(database.node(&pool, name, || async { Ok(()) }).await);
    }
    for name in ["orders", "invoices"] {
        eventually("the node to lead", SOON, async || {
            let leads = format!("jobwire_leader{{database=\"{name}\"}} 1");
            page.render().contains(&leads).then_some(())
        })
        .await;
    }
    assert!(page.render().contains(&format!("jobwire_slots {SLOTS}")));
    for node in nodes {
        node.stop().await;
    }
    assert!(page.render().contains("jobwire_slots 0"));
}

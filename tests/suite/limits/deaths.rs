//! The death of a node that holds all permits of a limit, on SQLite and without a broker: the limit
//! is not exceeded, and all permits come back.
//!
//! The service keeps the calls of the victim, so that it dies while it holds each permit. The calls
//! of the heir are kept until as many run as the limit allows: then no permit is lost.
//!
//! Nodes borrow permits of a large limit ahead: some die while they have permits that no job uses.

use std::time::Duration;

use jobwire_core::{Client, JobQuery, NewJob, SqlStore, Store};
use jobwire_tests::{Program, Running, Scratch, Signal, eventually, shared};
use serde_json::json;

use super::service::{Calls, service};
use crate::fleet::Fleet;
use crate::no_broker::waking;

const LIMIT: usize = 3;

/// The jobs of a tenant that has many, and those of one that comes behind it.
const FLOOD: usize = 40;
const LATE: usize = 4;

const SOON: Duration = Duration::from_secs(60);

/// The order in which the jobs over the limit start.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Creation,
    Fair,
}

/// Three jobs at once, and what calls them.
struct Limited {
    order: Order,
    calls: Calls,
    address: String,
}

impl Limited {
    async fn new(order: Order) -> Self {
        let calls = Calls::default();
        let address = service(&calls).await;
        calls.keep();
        Self {
            order,
            calls,
            address,
        }
    }

    /// Returns the settings of both nodes.
    fn settings(&self) -> Vec<(&str, &str)> {
        let limit = match self.order {
            Order::Creation => "http=3",
            Order::Fair => "http=3/fair:tenant",
        };
        vec![
            ("JOBWIRE_TYPE_LIMITS", limit),
            ("JOBWIRE_HTTP_ALLOW_HOSTS", &self.address),
            // No call of the service ends by its timeout.
            ("JOBWIRE_TYPE_TIMEOUTS", "http=1h"),
            // The heir waits for its end, and a living node on a busy machine renews it in time.
            ("JOBWIRE_LEASE", "5s"),
        ]
    }

    /// Creates all jobs, and waits until three of them run and all others wait for a permit.
    async fn begin<S: SqlStore>(&self, jobs: &Client<S>, store: &S) {
        for (tenant, number) in [("flood", FLOOD), ("late", LATE)] {
            let call = json!({ "url": format!("http://{}/{tenant}", self.address) });
            let of = |_| {
                let job = NewJob::of("http", &call).max_attempts(1_000);
                job.tenant(tenant)
            };
            jobs.create_many((0..number).map(of).collect())
                .await
                .unwrap();
        }
        self.calls.until_begun(LIMIT, SOON).await;
        eventually("the others to wait", SOON, async || {
            let waiting = store.waiting_for_permits(10).await.ok()?;
            let all = i64::try_from(FLOOD + LATE - LIMIT).ok()?;
            (waiting.first()?.jobs == all).then_some(())
        })
        .await;
    }

    /// Waits until the heir has all permits: as many of its calls run as the limit allows. Then it runs
    /// all jobs.
    async fn end<S: Store>(&self, store: &S) {
        self.calls.until_begun(2 * LIMIT, SOON).await;
        self.calls.let_go();
        eventually("all jobs to be done", SOON, async || {
            (store.count(&JobQuery::default()).await.ok()? == 0).then_some(())
        })
        .await;
        assert_eq!(self.calls.most(), LIMIT, "reached, and never exceeded");
        let paths = self.calls.paths();
        assert!(paths.len() >= FLOOD + LATE + LIMIT, "{paths:?}");
        if self.order == Order::Fair {
            let last = paths.iter().rposition(|path| path == "/late").unwrap();
            let before = paths[..last].iter().filter(|path| *path == "/flood");
            let before = before.count();
            assert!(before <= FLOOD / 2, "{before} of the flood in {paths:?}");
        }
    }
}

async fn kill(mut victim: Running) {
    victim.signal(Signal::SIGKILL);
    victim.exit(SOON).await;
}

/// One process at a time: the next one starts after the death.
async fn on_sqlite(order: Order) {
    let home = Scratch::new();
    let url = format!("sqlite:{}", home.join("jobwire.db").display());
    let store = crate::world::patient_file(&url).await;
    store.migrate().await.unwrap();
    let limited = Limited::new(order).await;
    let node = async || {
        let mut program = Program::jobwire()
            .in_directory(home.path())
            .args(["run", "--http", "127.0.0.1:0"])
            .env("JOBWIRE_SWEEP_INTERVAL", "1s");
        for (name, value) in limited.settings() {
            program = program.env(name, value);
        }
        let node = program.start();
        node.wait_for_line("is ready", SOON).await;
        node
    };
    let victim = node().await;
    let jobs = Client::without_hints(store.clone());
    limited.begin(&jobs, &store).await;
    kill(victim).await;
    let _heir = node().await;
    limited.end(&store).await;
}

/// PostgreSQL wakes the nodes. The heir is there before the death.
async fn without_a_broker(order: Order) {
    let database = shared::postgres().await.migrated_database().await;
    let fleet = Fleet::new(database, shared::rabbitmq().await.space().await).await;
    let limited = Limited::new(order).await;
    let mut settings = limited.settings();
    settings.push(("JOBWIRE_CLAIM_INTERVAL", "1s"));
    let node = async || fleet.node_on(&fleet.database, "none", &settings).await;
    let victim = node().await;
    let jobs = waking(&fleet.store).await;
    limited.begin(&jobs, &fleet.store).await;
    let _heir = node().await;
    kill(victim).await;
    limited.end(&fleet.store).await;
}

#[tokio::test]
async fn a_limit_holds_on_sqlite_over_the_death_of_the_process() {
    on_sqlite(Order::Creation).await;
}

#[tokio::test]
async fn a_fair_limit_holds_on_sqlite_over_the_death_of_the_process() {
    on_sqlite(Order::Fair).await;
}

#[tokio::test]
async fn a_limit_holds_without_a_broker_over_the_death_of_a_node() {
    without_a_broker(Order::Creation).await;
}

#[tokio::test]
async fn a_fair_limit_holds_without_a_broker_over_the_death_of_a_node() {
    without_a_broker(Order::Fair).await;
}

/// A node borrows an eighth of this limit ahead. One node dies while all permits are in use, and one while
/// few are, just after the nodes have borrowed ahead. Afterwards no permit is lost.
#[tokio::test]
async fn a_limit_whose_permits_are_borrowed_ahead_is_not_exceeded_while_nodes_are_killed() {
    const LARGE: usize = 24;
    const FLOOD: usize = 100;
    const FEW: usize = 6;
    const TRIES: usize = 12;
    let database = shared::postgres().await.migrated_database().await;
    let fleet = Fleet::new(database, shared::rabbitmq().await.space().await).await;
    let calls = Calls::default();
    let address = service(&calls).await;
    let settings = [
        ("JOBWIRE_TYPE_LIMITS", "http=24"),
        ("JOBWIRE_HTTP_ALLOW_HOSTS", &*address),
        // No call of the service ends by its timeout.
        ("JOBWIRE_TYPE_TIMEOUTS", "http=1h"),
        // Calls of a victim that this process has not read by the end of its lease would count beside
        // those of its heirs.
        ("JOBWIRE_LEASE", "5s"),
    ];
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(fleet.node(&settings).await);
    }
    let call = json!({ "url": format!("http://{address}/") });
    let create = async |number: usize| {
        let jobs = (0..number).map(|_| NewJob::of("http", &call).max_attempts(1_000));
        let created = fleet.jobs.create_many(jobs.collect()).await;
        created.unwrap();
    };
    let borrowed = async || -> i64 {
        let borrowed = "SELECT coalesce(sum(number), 0)::bigint FROM jobwire.permit";
        let borrowed = sqlx::query_scalar(borrowed).fetch_one(fleet.store.pool());
        borrowed.await.unwrap()
    };

    // A permit that no job takes goes back after a second, which a busy machine may miss.
    calls.keep();
    let mut few = 0;
    loop {
        few += 1;
        create(1).await;
        calls.until_begun(few, SOON).await;
        if borrowed().await > i64::try_from(few).unwrap() {
            break;
        }
        assert!(few < TRIES, "no node borrows ahead");
    }
    create(FLOOD).await;
    calls.until_begun(LARGE, SOON).await;
    kill(nodes.remove(0)).await;
    calls.let_go();
    fleet.until_empty(SOON).await;

    calls.keep();
    let begun = calls.begun();
    create(FEW).await;
    calls.until_begun(begun + FEW, SOON).await;
    kill(nodes.remove(0)).await;
    create(FLOOD).await;
    calls.let_go();
    fleet.until_empty(SOON).await;

    calls.keep();
    let begun = calls.begun();
    create(FLOOD).await;
    calls.until_begun(begun + LARGE, SOON).await;
    calls.let_go();
    fleet.until_empty(SOON).await;
    assert_eq!(calls.most(), LARGE, "reached, and never exceeded");
}

//! A fleet of programs without a broker, and its change to one. tests/store has the tests of wakes.
//! Budget: 40 s.

use std::time::Duration;

use jobwire_core::{Client, NewJob, PgStore, PgTransport, Store};
use jobwire_tests::{Cases, Program, Scratch, Signal, eventually, shared};
use serde_json::json;

use crate::fleet::Fleet;
use crate::world::hook;

const SOON: Duration = Duration::from_secs(60);

/// Returns a creator that wakes nodes, as a program without a broker.
pub(crate) async fn waking(store: &PgStore) -> Client<PgStore> {
    let transport = PgTransport::new(store);
    transport.comes_back(SOON).await.unwrap();
    let jobs = store.client(hook(&transport, Duration::from_secs(60)));
    // The transport lives as long as the producer, as in a separate program.
    let _: &'static PgTransport = Box::leak(Box::new(transport));
    jobs
}

async fn fleet() -> Fleet {
    let database = shared::postgres().await.create_database().await;
    Fleet::new(database, shared::rabbitmq().await.space().await).await
}

#[tokio::test]
async fn killed_nodes_and_cut_connections_lose_no_job_without_a_broker() {
    let fleet = fleet().await;
    let jobs = waking(&fleet.store).await;
    let settings = [("JOBWIRE_CLAIM_INTERVAL", "1s")];
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(fleet.node_on(&fleet.database, "none", &settings).await);
    }
    let cases = Cases::of(&fleet.store);
    for round in 0..6 {
        cases.create(&jobs, "default", 20, 3).await;
        if round == 2 {
            nodes.remove(0).signal(Signal::SIGKILL);
        }
        sqlx::query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name = 'jobwire wakes'",
        )
        .execute(fleet.store.pool())
        .await
        .unwrap();
    }
    cases.all_have_run(SOON).await;
}

#[tokio::test]
async fn a_fleet_without_a_broker_changes_to_one_while_it_works() {
    let fleet = fleet().await;
    let (before, after) = (waking(&fleet.store).await, &fleet.jobs);
    let settings = [("JOBWIRE_CLAIM_INTERVAL", "1s")];
    let mut old = fleet.node_on(&fleet.database, "none", &settings).await;
    let cases = Cases::of(&fleet.store);
    cases.create(&before, "default", 10, 2).await;
    // Both kinds of nodes live, and both kinds of creators.
    let _new = fleet.node(&[("JOBWIRE_LANES", "default,late")]).await;
    cases.create(&before, "default", 10, 2).await;
    cases.create(after, "default", 10, 2).await;
    cases.all_have_run(SOON).await;
    // A job of an old creator in a lane of new nodes only: a new node leads at the latest when the
    // old one stops, and finds it.
    let late = NewJob::of("event", &json!({ "position": 1 }));
    let late = late.instance("late").element("step").lane("late");
    before.create(late).await.unwrap();
    cases.create(&before, "default", 10, 2).await;
    old.signal(Signal::SIGTERM);
    old.exit(SOON).await;
    cases.create(after, "default", 10, 2).await;
    fleet.until_empty(SOON).await;
    assert_eq!((cases.events().await, cases.doubled().await), (101, 0));
}

#[tokio::test]
async fn the_doctor_tells_what_wakes_the_nodes_and_what_plain_sql_waits_for() {
    let home = Scratch::new();
    let database = shared::postgres().await.create_database().await;
    let store = PgStore::connect(&database).await.unwrap();
    store.migrate().await.unwrap();
    let doctor = |broker: &str| {
        Program::jobwire()
            .in_directory(home.path())
            .args(["doctor", "--database", &database, "--broker", broker])
            .run(SOON)
    };
    let (status, lines) = doctor("none").await;
    let said = lines.join("\n");
    assert!(status.success(), "{said}");
    for part in [
        "PostgreSQL wakes the nodes",
        "jobs of plain SQL wait for the leader, up to 10s",
        "wal_level = logical",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    // A node that is alone must not run beside nodes that are woken.
    let node = Program::jobwire()
        .in_directory(home.path())
        .args(["run", "--database", &database, "--broker", "none"])
        .args(["--http", "127.0.0.1:0"])
        .start();
    node.wait_for_line("broker none,", SOON).await;
    eventually("the node to be seen", SOON, || async {
        (!store.nodes().await.ok()?.is_empty()).then_some(())
    })
    .await;
    let (status, lines) = doctor("in-process:").await;
    let said = lines.join("\n");
    assert!(
        !status.success() && said.contains("set --broker none"),
        "{said}"
    );
}

//! The tap in a fleet: one node has it, the leader.

use std::time::Duration;

use jobwire_tests::wait::patience;
use jobwire_tests::{Signal, eventually, shared};

use super::world::{run, slots, until_streaming};
use crate::fleet::Fleet;
use crate::world::SOON;

const SETTINGS: [(&str, &str); 1] = [("JOBWIRE_TAP", "on")];

async fn slot(fleet: &Fleet) -> Option<String> {
    sqlx::query_scalar(
        "SELECT slot_name::text FROM pg_replication_slots WHERE database = current_database() AND active",
    )
    .fetch_optional(fleet.store.pool())
    .await
    .unwrap()
}

#[tokio::test]
async fn the_next_leader_taps_when_the_leader_is_killed() {
    let database = shared::postgres().await.create_database().await;
    let fleet = Fleet::new(database, shared::rabbitmq().await.space().await).await;
    fleet.store.create_tap().await.unwrap();
    let mut first = fleet.node(&SETTINGS).await;
    until_streaming(&fleet.store).await;
    let before = slot(&fleet).await;
    let second = fleet.node(&SETTINGS).await;
    assert_eq!(slots(&fleet.store).await, 1);
    run(
        &fleet.store,
        "SELECT jobwire.create_job(type => 'noop') FROM generate_series(1, 20)",
    )
    .await;
    fleet.until_empty(SOON).await;

    first.signal(Signal::SIGKILL);
    first.exit(SOON).await;
    run(
        &fleet.store,
        "SELECT jobwire.create_job(type => 'noop') FROM generate_series(1, 20)",
    )
    .await;
    second.wait_for_line("the commit tap stands", SOON).await;
    eventually("the slot of the next leader alone", SOON, || async {
        let now = slot(&fleet).await;
        (now.is_some() && now != before && slots(&fleet.store).await == 1).then_some(())
    })
    .await;
    fleet.until_empty(SOON).await;
    drop(second);
    eventually("no slot", Duration::from_secs(60), || async {
        (slots(&fleet.store).await == 0).then_some(())
    })
    .await;
}

/// Creates jobs of plain SQL, each after the end of the one before. The leader looks every five seconds,
/// and a wake lets the nodes look once more within a quarter of a second. So without the tap all of
/// them would take far longer than the deadline.
async fn each_job_of_plain_sql_is_woken(fleet: &Fleet) {
    const JOBS: usize = 200;
    let jobs = async {
        for _ in 0..JOBS {
            let create = "SELECT jobwire.create_job(type => 'noop')";
            run(&fleet.store, create).await;
            fleet.until_empty(SOON).await;
        }
    };
    let all = tokio::time::timeout(patience(Duration::from_secs(20)), jobs).await;
    all.expect("the jobs start at their commit");
}

/// No node of this fleet looks by itself: it claims when it is woken.
#[tokio::test]
async fn without_a_broker_the_tap_wakes_the_nodes_and_that_of_the_next_leader_does_too() {
    let database = shared::postgres().await.create_database().await;
    let fleet = Fleet::new(database, shared::rabbitmq().await.space().await).await;
    fleet.store.create_tap().await.unwrap();
    let settings = [
        ("JOBWIRE_CLAIM_INTERVAL", "1h"),
        // The leader looks as often as this, and its lease ends soon after its death.
        ("JOBWIRE_SWEEP_INTERVAL", "5s"),
        ("JOBWIRE_LEASE", "10s"),
    ];
    let node = async || fleet.node_on(&fleet.database, "none", &settings).await;
    let mut first = node().await;
    first.wait_for_line("the commit tap stands", SOON).await;
    let second = node().await;
    each_job_of_plain_sql_is_woken(&fleet).await;

    first.signal(Signal::SIGKILL);
    first.exit(SOON).await;
    second.wait_for_line("the commit tap stands", SOON).await;
    each_job_of_plain_sql_is_woken(&fleet).await;
}

//! The tap in a fleet: one node has it, the leader.

use std::time::Duration;

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

//! Outages of the tap: jobs of plain SQL start within seconds all the same, and nothing stays
//! behind.

use std::time::Duration;

use super::world::{Tapped, seldom, slots, terminate, until_no_slot, until_streaming};
use crate::world::{World, pass};
use jobwire_core::TapMode;

#[tokio::test]
async fn all_jobs_run_though_the_walsender_is_terminated_under_load() {
    const CREATORS: usize = 4;
    const EACH: usize = 150;
    let tapped = Tapped::new().await;
    let create = async |creator: usize| {
        for n in 0..EACH {
            tapped.create(&format!("{creator} {n}")).await;
        }
    };
    let creating = async { tokio::join!(create(0), create(1), create(2), create(3)) };
    let breaking = async {
        let mut ended = 0;
        while ended < 3 {
            until_streaming(&tapped.world.store).await;
            ended += terminate(&tapped.world.store).await;
        }
    };
    tokio::join!(creating, breaking);
    let all = CREATORS * EACH;
    let mut ran = tapped.notes.until(all).await;
    tapped.world.until_empty().await;
    ran.sort_unstable();
    ran.dedup();
    assert_eq!(ran.len(), all);
    let extra = tapped.hints() - all as u64;
    assert!(extra <= all as u64 / 100, "{extra} extra hints");
    tapped.node.stop().await;
}

#[tokio::test]
async fn a_node_that_stops_leaves_no_slot() {
    let tapped = Tapped::new().await;
    assert_eq!(slots(&tapped.world.store).await, 1);
    tapped.node.stop().await;
    until_no_slot(&tapped.world.store).await;
}

#[tokio::test]
async fn jobs_that_wait_when_the_tap_stands_are_found() {
    let world = World::new().await;
    world.store.create_tap().await.unwrap();
    // A transaction that is open while the node starts delays the slot, and the leader cycle does
    // not see its jobs.
    let mut open = world.store.pool().begin().await.unwrap();
    sqlx::query("SELECT jobwire.create_job(type => 'note', payload => '\"early\"')")
        .execute(&mut *open)
        .await
        .unwrap();
    let tapped = Tapped::with(world, seldom()).await;
    pass(Duration::from_secs(1)).await;
    open.commit().await.unwrap();
    assert_eq!(tapped.notes.until(1).await, ["early"]);
    tapped.node.stop().await;
}

#[tokio::test]
async fn a_tap_that_is_removed_and_set_up_again_is_used_again() {
    let world = World::new().await;
    world.store.create_tap().await.unwrap();
    let mut options = seldom();
    options.tap = TapMode::On;
    let tapped = Tapped::with(world, options).await;
    tapped.settle().await;
    tapped.world.store.drop_tap().await.unwrap();
    tapped.create("after the removal").await;
    tapped.notes.until(1).await;
    until_no_slot(&tapped.world.store).await;
    tapped.create("without a tap").await;
    tapped.notes.until(2).await;
    tapped.world.store.create_tap().await.unwrap();
    until_streaming(&tapped.world.store).await;
    tapped.create("with a tap").await;
    tapped.notes.until(3).await;
    tapped.node.stop().await;
}

#[tokio::test]
async fn a_tap_that_is_off_is_not_opened() {
    let world = World::new().await;
    world.store.create_tap().await.unwrap();
    let mut options = seldom();
    options.tap = TapMode::Off;
    let off = Tapped::with(world, options).await;
    off.create("left to the leader").await;
    pass(Duration::from_secs(3)).await;
    assert_eq!(off.notes.all(), Vec::<String>::new());
    assert_eq!(slots(&off.world.store).await, 0);
    off.node.stop().await;
}

/// Nobody who has not set the tap up pays for it.
#[tokio::test]
async fn without_a_publication_no_connection_is_made_for_it() {
    let world = World::new().await;
    let tapped = Tapped::with(world, seldom()).await;
    let replicates = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'jobwire-tap'";
    pass(Duration::from_secs(2)).await;
    assert_eq!(tapped.world.count(replicates).await, 0);
    assert_eq!(slots(&tapped.world.store).await, 0);
    tapped.node.stop().await;
}

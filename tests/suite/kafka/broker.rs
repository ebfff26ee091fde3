//! A broker that dies, stops, freezes, loses its data or fills its disk. Each test has its own
//! broker.

use std::time::Duration;

use jobwire_core::transport::Publisher;
use jobwire_tests::{Kafka, KafkaSettings, SmallDisk, eventually};

use super::fleet::*;

/// The broker is killed, stopped for long and frozen. Jobs are created before, during and after.
#[tokio::test]
async fn a_broker_that_dies_stops_or_freezes_loses_no_job() {
    let mut broker = Kafka::start().await;
    let fleet = Fleet::on(&broker.url()).await;
    let (one, two) = (fleet.node().await, fleet.node().await);
    fleet.create(10, 2).await;
    fleet.have_run(1).await;

    broker.kill();
    fleet.create(10, 2).await;
    broker.start_again().await;
    fleet.create(10, 2).await;
    fleet.all_have_run().await;

    broker.stop().await;
    eventually("the outage to be noticed", HEALED, || async {
        (!Publisher::health(&fleet.transport).publishing).then_some(())
    })
    .await;
    for _ in 0..15 {
        fleet.create(1, 2).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    broker.start_again().await;
    fleet.create(10, 2).await;
    fleet.all_have_run().await;

    broker.freeze();
    fleet.create(10, 2).await;
    eventually("the frozen broker to be noticed", HEALED, || async {
        fleet.create(1, 1).await;
        (!Publisher::health(&fleet.transport).publishing).then_some(())
    })
    .await;
    broker.thaw();
    fleet.create(10, 2).await;
    fleet.all_have_run().await;
    fleet.until_healthy().await;
    one.stop().await;
    two.stop().await;
}

/// The wipe removes all hints, topics and groups, but no job.
#[tokio::test]
async fn a_wiped_broker_is_healed_by_the_sweeper() {
    let mut broker = Kafka::start().await;
    let fleet = Fleet::on(&broker.url()).await;
    let first = fleet.node().await;
    fleet.create(5, 2).await;
    fleet.all_have_run().await;
    first.stop().await;
    // No node receives these before the wipe.
    fleet.create(30, 2).await;
    eventually("the hints to be in the log", HEALED, || async {
        let ends = fleet.admin().end_offsets(&fleet.topic()).await;
        let there = ends.iter().sum::<i64>() > 4;
        if !there {
            // The hook drops hints that it could not publish within their maximum age.
            fleet.create(5, 1).await;
        }
        there.then_some(())
    })
    .await;
    let node = fleet.node().await;
    broker.kill();
    broker.wipe().await;
    broker.start_again().await;
    fleet.create(10, 2).await;
    fleet.all_have_run().await;
    node.stop().await;
}

#[tokio::test]
async fn a_full_disk_costs_hints_and_no_job() {
    let Some(disk) = SmallDisk::mount(48) else {
        return;
    };
    let settings = KafkaSettings::new()
        .log_directory(disk.path())
        // A broker that cannot write stops, as Kafka does; its operator starts it again.
        .set("log.segment.bytes", 1024 * 1024)
        .set("log.index.size.max.bytes", 64 * 1024);
    let mut broker = Kafka::start_with(settings).await;
    let fleet = Fleet::on(&broker.url()).await;
    let node = fleet.node().await;
    fleet.create(5, 2).await;
    fleet.all_have_run().await;
    disk.fill();
    eventually("the broker to stop", HEALED, || {
        let ended = broker.ended();
        let created = fleet.create(5, 40);
        async move {
            created.await;
            ended.then_some(())
        }
    })
    .await;
    fleet.create(5, 2).await;
    disk.make_room();
    broker.kill();
    broker.start_again().await;
    fleet.create(5, 2).await;
    fleet.all_have_run().await;
    node.stop().await;
}

//! Priorities that no living node takes, as the leader sees them.

use jobwire_core::NewJob;
use jobwire_core::job::scope::Scope;
use jobwire_core::{Outcome, Running, Store};
use jobwire_tests::eventually;
use metrics_exporter_prometheus::PrometheusBuilder;

use super::world::SOON;
use crate::world::{World, quick};

#[tokio::test]
async fn the_leader_counts_the_gaps_between_priorities_while_jobs_wait() {
    // On a current-thread runtime every task of the node records here.
    let recorder = PrometheusBuilder::new().build_recorder();
    let scraped = recorder.handle();
    let _here = metrics::set_default_local_recorder(&recorder);
    let gaps = || {
        let text = scraped.render();
        let mut lines = text.lines();
        let line = lines.find(|line| line.starts_with("jobwire_priority_gaps"));
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
    };
    let world = World::new().await;
    let note = |_: Running<()>| async { Ok(Outcome::Done) };
    let middle = Scope::default().min_priority(10).max_priority(20);
    let node = world
        .node()
        .options(quick().scope(middle))
        .handler("note", note)
        .start()
        .await
        .unwrap();
    let waits = world.jobs.create(NewJob::of("note", &())).await.unwrap();
    let until = async |expected: u64| {
        eventually("the leader to look", SOON, async || {
            (gaps() == Some(expected)).then_some(())
        })
        .await;
    };
    // One below the range of the node, and one above it.
    until(2).await;
    world.store.delete(waits).await.unwrap();
    until(0).await;
    node.stop().await;
}

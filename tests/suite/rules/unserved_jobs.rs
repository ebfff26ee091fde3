//! The count of the jobs that no living node takes, as the leader sees them.

use jobwire_core::job::scope::Scope;
use jobwire_core::{JobQuery, NewJob, Outcome, Running};
use jobwire_tests::eventually;
use metrics_exporter_prometheus::PrometheusBuilder;

use super::world::SOON;
use crate::world::{World, quick};

#[tokio::test]
async fn the_leader_counts_jobs_that_no_node_takes_until_one_takes_them() {
    // On a current-thread runtime every task of the node records here.
    let recorder = PrometheusBuilder::new().build_recorder();
    let scraped = recorder.handle();
    let _here = metrics::set_default_local_recorder(&recorder);
    let until = async |job_type: &str, expected: u64| {
        let series = format!("jobwire_unserved_jobs{{type=\"{job_type}\"}} {expected}");
        eventually(&series, SOON, async || {
            let text = scraped.render();
            text.lines().any(|line| line == series).then_some(())
        })
        .await;
    };
    let world = World::new().await;
    let note = |_: Running<()>| async { Ok(Outcome::Done) };
    let acme = Scope::default().tenants(["acme"]);
    let node = world
        .node()
        .options(quick().scope(acme))
        .handler("note", note)
        .start()
        .await
        .unwrap();
    for (job_type, tenant, jobs) in [("fax", "acme", 3), ("note", "initech", 2)] {
        for _ in 0..jobs {
            let job = NewJob::of(job_type, &()).tenant(tenant);
            world.jobs.create(job).await.unwrap();
        }
    }
    until("fax", 3).await;
    until("note", 2).await;
    // The type is served, while jobs of the other one still wait.
    node.registry().register("fax", note).unwrap();
    until("fax", 0).await;
    until("note", 2).await;
    // Nothing waits any more.
    node.registry().take_all_tenants();
    until("note", 0).await;
    let left = world.jobs.list(&JobQuery::default()).await.unwrap();
    assert!(left.is_empty(), "{left:?}");
    node.stop().await;
}

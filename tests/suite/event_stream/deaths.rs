//! The leader dies between the broker's confirm and the deletion of what it has published.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;

use jobwire_core::NewJob;
use jobwire_tests::{Signal, shared};
use serde_json::json;

use super::brokers::{Queue, SOON};
use super::switch_on;
use crate::fleet::Fleet;

/// The crash point of the leader: its page is published and not deleted.
pub(crate) const POINT: &str = "events-published";

#[tokio::test]
async fn a_leader_that_dies_while_it_publishes_loses_no_event_and_repeats_ids_only() {
    let database = shared::postgres().await.migrated_database().await;
    let fleet = Fleet::new(database, shared::rabbitmq().await.space().await).await;
    switch_on(&fleet.store).await;
    let mut queue = Queue::bind(&fleet.space, "#").await;
    let deadly = format!("{POINT}=return");
    let points = [("FAILPOINTS", deadly.as_str())];
    let mut victim = fleet.start_on(&fleet.database, &fleet.space.url, &points);
    let job =
        |number: u64| NewJob::of("noop", &json!({})).instance(format!("order-{}", number % 2));
    let jobs = fleet.jobs.create_many((0..10).map(job).collect());
    let jobs = jobs.await.unwrap();
    let status = victim.exit(SOON).await;
    assert_eq!(status.signal(), Some(Signal::SIGABRT as i32), "{status}");
    let _heir = fleet.node(&[]).await;

    let mut seen = BTreeSet::new();
    let mut repeated = 0;
    let mut done = Vec::new();
    // The victim may have published the end of every job.
    while done.len() < jobs.len() || repeated == 0 {
        let one = queue.next().await;
        if !seen.insert(one.text("id").to_owned()) {
            repeated += 1;
            continue;
        }
        let job = one.text("subject").to_owned();
        match one.kind() {
            "succeeded" => done.push(job),
            "created" | "locked" => assert!(!done.contains(&job), "{one:?}"),
            other => panic!("{other}"),
        }
    }
    // Jobs whose holder died are locked twice.
    assert!(seen.len() >= 3 * jobs.len(), "{}", seen.len());
    done.sort_unstable();
    done.dedup();
    assert_eq!(done.len(), jobs.len());
    for job in jobs {
        assert!(done.contains(&job.to_string()));
    }
}

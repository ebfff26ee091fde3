//! A standby before and after its promotion.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobwire_core::{Client, JobId, PgStore, Store};
use jobwire_tests::{Flow, Postgres, Program, Proxy, Running, Stop, eventually, http, shared};

use super::{SOON, endpoint, event, until_problem, until_ready};
use crate::fleet::Fleet;

/// A standby is read-only: a node does not start on it.
#[tokio::test]
async fn a_standby_is_refused_at_the_start_with_the_reason() {
    let primary = Postgres::start().await;
    let database = primary.create_database().await;
    let store = PgStore::connect(&database).await.unwrap();
    store.migrate().await.unwrap();
    let standby = primary.start_standby(&primary.address()).await;
    let name = database.rsplit('/').next().unwrap();
    let standby = standby.url(name);
    for command in ["doctor", "run"] {
        let (status, said) = Program::jobwire()
            .args([command, "--database", &standby])
            .env("JOBWIRE_HTTP", "127.0.0.1:0")
            .run(SOON)
            .await;
        assert!(!status.success(), "{command}: {said:#?}");
        let said = said.join("\n");
        assert!(said.contains("standby"), "{command}: {said}");
    }
}

/// The jobs whose COMMIT was answered, in order.
type Known = Arc<Mutex<Vec<JobId>>>;

/// Creates jobs one after the other until it is aborted, whether or not the database answers.
async fn load(jobs: Client<PgStore>, known: Known) {
    for position in 1_i64.. {
        let job = event(&format!("case-{}", position % 7), position);
        if let Ok(id) = jobs.create(job).await {
            known.lock().unwrap().push(id);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn refused_as_gone(endpoint: &str) -> Option<u64> {
    let metrics = http::get(endpoint, "/metrics").await.ok()?.body;
    let counter = "jobwire_hints_refused_total{reason=\"gone\"} ";
    let count = metrics
        .lines()
        .find_map(|line| line.strip_prefix(counter))?;
    count.parse().ok()
}

/// The primary dies under load before its standby has received the last commits, and the address
/// leads to the standby from then on. Each job that exists there is done once; the hints of the
/// others are settled and counted.
#[tokio::test]
async fn a_standby_that_is_promoted_under_load_finishes_what_it_knows_of() {
    let mut primary = Postgres::start().await;
    let database = primary.create_database().await;
    let address = Proxy::start(&primary.address()).await;
    let space = shared::rabbitmq().await.space().await;
    let fleet = Fleet::new(address.url(&database), space).await;
    let replication = Proxy::start(&primary.address()).await;
    let standby = primary
        .start_standby(&format!("{}", replication.address()))
        .await;
    // The queue of a lane exists once the lane had a receiver.
    let receiver = fleet.node(&[("JOBWIRE_LANES", "later")]).await;
    let job = event("early", 1).lane("later");
    fleet.jobs.create(job).await.unwrap();
    fleet.until_empty(SOON).await;
    drop(receiver);
    let settings = [("JOBWIRE_STATEMENT_TIMEOUT", "5s")];
    let nodes: [Running; 2] = [fleet.node(&settings).await, fleet.node(&settings).await];
    let known = Known::default();
    let creating = tokio::spawn(load(fleet.jobs.clone(), known.clone()));
    eventually("events to be done", SOON, async || {
        (fleet.cases().events().await >= 30).then_some(())
    })
    .await;

    replication.set_both(Flow::Stall);
    // The standby will never have these jobs; no node receives their lane now.
    let mut forgotten = Vec::new();
    for position in 1..=5 {
        let job = event("forgotten", position).lane("later");
        forgotten.push(fleet.jobs.create(job).await.unwrap());
    }
    let before = fleet.cases().events().await;
    eventually(
        "events to be done that the standby never receives",
        SOON,
        async || (fleet.cases().events().await >= before + 10).then_some(()),
    )
    .await;
    primary.stop(Stop::Immediate).await;
    address.lead_to(&standby.address());
    // For a moment the address leads to a read-only server.
    until_problem(&endpoint(&nodes[0]).await, "leader").await;
    standby.promote().await;

    let lost_or_kept = known.lock().unwrap().len();
    let last = eventually("a job to be created on the new primary", SOON, async || {
        known.lock().unwrap().get(lost_or_kept).copied()
    })
    .await;
    let later = fleet.node(&[("JOBWIRE_LANES", "later")]).await;
    let endpoint_of_later = endpoint(&later).await;
    eventually(
        "the hints of the missing jobs to be counted",
        SOON,
        async || (refused_as_gone(&endpoint_of_later).await? >= 5).then_some(()),
    )
    .await;
    creating.abort();
    fleet.until_empty(SOON).await;
    assert_eq!(fleet.cases().doubled().await, 0, "no event twice");
    let done = "SELECT count(*) FROM jobwire.event_log WHERE job_id = $1";
    let done: i64 = sqlx::query_scalar(done)
        .bind(last.uuid())
        .fetch_one(fleet.store.pool())
        .await
        .unwrap();
    assert_eq!(done, 1);
    for id in &forgotten {
        assert!(fleet.store.get(*id).await.unwrap().is_none());
    }
    for node in &nodes {
        until_ready(&endpoint(node).await).await;
    }
}

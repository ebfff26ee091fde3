//! Rule 21: a job is an orphan only if its hint is neither on another node nor in an open
//! transaction.

use std::time::Duration;

use jobwire_core::{JobQuery, NewJob, Store};
use jobwire_tests::{eventually, shared};
use serde_json::json;

use super::world::{SOON, count_hints_again, hinted_again, until_led};
use crate::fleet::Fleet;
use crate::world::pass;

const SETTINGS: [(&str, &str); 3] = [
    ("JOBWIRE_CONCURRENCY", "8"),
    ("JOBWIRE_SUSPECT_AFTER", "1s"),
    ("JOBWIRE_LEASE", "30s"),
];

async fn fleet_of_two() -> (Fleet, [jobwire_tests::Running; 2]) {
    let database = shared::postgres().await.create_database().await;
    let fleet = Fleet::new(database, shared::rabbitmq().await.space().await).await;
    let nodes = [fleet.node(&SETTINGS).await, fleet.node(&SETTINGS).await];
    fleet.jobs.create(NewJob::of("noop", &())).await.unwrap();
    until_led(&fleet.store).await;
    fleet.until_empty(SOON).await;
    count_hints_again(&fleet.store).await;
    (fleet, nodes)
}

/// Hints wait on each node behind long jobs, while markers pass through the other node.
#[tokio::test]
async fn hints_that_a_marker_has_overtaken_are_not_called_lost() {
    let (fleet, _nodes) = fleet_of_two().await;
    let mut tx = fleet.jobs.begin().await.unwrap();
    let job = |n: usize| {
        let ms = if (n / 16).is_multiple_of(2) { 500 } else { 1 };
        NewJob::of("sleep", &json!({ "ms": ms }))
    };
    tx.create_many((0..512).map(job).collect()).await.unwrap();
    tx.commit().await.unwrap();
    fleet.until_empty(SOON).await;
    let again = hinted_again(&fleet.store).await;
    assert!(again <= 5, "{again} of 512 jobs were hinted again");
}

/// The jobs are ready since their INSERT, but they are committed much later.
#[tokio::test]
async fn jobs_of_a_long_transaction_are_not_called_lost() {
    let (fleet, _nodes) = fleet_of_two().await;
    // Work for both nodes, so that other jobs wait while markers come and go.
    let mut tx = fleet.jobs.begin().await.unwrap();
    let long = (0..160).map(|_| NewJob::of("sleep", &json!({ "ms": 700 })));
    let mut late = fleet.jobs.begin().await.unwrap();
    // Like an application that uses a savepoint.
    sqlx::raw_sql("SAVEPOINT nested")
        .execute(&mut *late)
        .await
        .unwrap();
    late.create_many((0..50).map(|_| NewJob::of("noop", &())).collect())
        .await
        .unwrap();
    sqlx::raw_sql("RELEASE SAVEPOINT nested")
        .execute(&mut *late)
        .await
        .unwrap();
    tx.create_many(long.collect()).await.unwrap();
    tx.commit().await.unwrap();
    // Longer than the time after which a job is suspected.
    pass(Duration::from_secs(4)).await;
    late.commit().await.unwrap();
    fleet.until_empty(SOON).await;
    let again = hinted_again(&fleet.store).await;
    assert!(again <= 2, "{again} of 210 jobs were hinted again");
}

/// A node that is stopped does not answer; its silence delays the search by one marker.
#[tokio::test]
async fn lost_hints_are_found_beside_a_node_that_does_not_answer() {
    let (fleet, [_leader, other]) = fleet_of_two().await;
    other.signal(jobwire_tests::Signal::SIGSTOP);
    // This client publishes no hint.
    let producer = jobwire_core::Client::without_hints(fleet.store.clone());
    producer.create(NewJob::of("noop", &())).await.unwrap();
    sqlx::raw_sql("UPDATE jobwire.job SET hints = 1, ready_at = ready_at - interval '1 minute'")
        .execute(fleet.store.pool())
        .await
        .unwrap();
    eventually("the job to run", SOON, async || {
        let left = fleet.store.count(&JobQuery::default()).await.unwrap();
        (left == 0).then_some(())
    })
    .await;
    other.signal(jobwire_tests::Signal::SIGCONT);
}

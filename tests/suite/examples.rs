//! Runs the examples, so that they stay correct. Budget: 15 s.

use std::time::Duration;

use jobwire_tests::wait::patience;
use jobwire_tests::{Scratch, shared};

#[path = "../../examples/encryption.rs"]
#[allow(dead_code, reason = "its `main` is for people")]
mod encryption;
#[path = "../../examples/exclusive.rs"]
#[allow(dead_code, reason = "its `main` is for people")]
mod exclusive;
#[path = "../../examples/rabbitmq.rs"]
#[allow(dead_code, reason = "its `main` is for people")]
mod rabbitmq;
#[path = "../../examples/transactional_enqueue.rs"]
#[allow(dead_code, reason = "its `main` is for people")]
mod transactional_enqueue;

const DEADLINE: Duration = Duration::from_secs(60);

async fn within<T>(example: impl Future<Output = T>) -> T {
    tokio::time::timeout(patience(DEADLINE), example)
        .await
        .expect("the example ends")
}

#[tokio::test]
async fn transactional_enqueue_sends_no_invoice_for_what_was_rolled_back() {
    let database = shared::postgres().await.create_database().await;
    let orders = within(transactional_enqueue::run(&database)).await.unwrap();
    assert_eq!(orders, [1, 3]);
}

#[tokio::test]
async fn encryption_opens_what_old_and_new_keys_have_sealed() {
    let scratch = Scratch::new();
    let database = format!("sqlite:{}", scratch.join("encryption.db").display());
    let charged = within(encryption::run(&database)).await.unwrap();
    let key = |id: &str| Some(id.to_owned());
    let expected = [
        ("card-1".to_owned(), key("2026-10")),
        ("card-2".to_owned(), key("2026-11")),
        ("card-3".to_owned(), None),
    ];
    assert_eq!(charged, expected);
}

#[tokio::test]
async fn exclusive_keeps_the_order_of_each_instance() {
    let scratch = Scratch::new();
    let database = format!("sqlite:{}", scratch.join("exclusive.db").display());
    let ran = within(exclusive::run(&database)).await.unwrap();
    for order in ["order-1", "order-2", "order-3"] {
        let steps = ran.iter().filter(|(o, _)| o == order).map(|(_, s)| &**s);
        assert_eq!(
            steps.collect::<Vec<_>>(),
            ["check", "charge", "pack", "ship"],
            "{order}"
        );
    }
}

#[tokio::test]
async fn rabbitmq_runs_every_job_once_on_two_nodes() {
    let database = shared::postgres().await.create_database().await;
    let space = shared::rabbitmq().await.space().await;
    let ran = within(rabbitmq::run(&database, &space.url, &space.prefix)).await;
    let jobs: Vec<i64> = ran.unwrap().into_iter().map(|(job, _)| job).collect();
    assert_eq!(jobs, (1..=20).collect::<Vec<_>>());
}

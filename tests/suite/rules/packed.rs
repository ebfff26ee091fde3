//! Rule 17: a message with several hints is settled when the last one is decided.

use std::time::Duration;

use jobwire_core::hint::Message;
use jobwire_core::{JobQuery, NewJob, Store};
use jobwire_tests::{Signal, eventually, shared};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Connection, ConnectionProperties};
use serde_json::json;

use super::world::{SOON, create};
use crate::fleet::Fleet;
use crate::world::pass;

/// One job at a time, no sweep within a test, and a lease that outlasts a kill.
const UNSWEPT: [(&str, &str); 5] = [
    ("JOBWIRE_CONCURRENCY", "1"),
    ("JOBWIRE_LEASE", "1h"),
    ("JOBWIRE_SWEEP_INTERVAL", "1h"),
    ("JOBWIRE_SUSPECT_AFTER", "1h"),
    ("JOBWIRE_HINT_MAX_AGE", "1m"),
];

/// A message has three hints. The node locks the first job, for which it has a slot, and is killed.
/// The message comes again, to another node: the other two jobs run, and the first one's lock still
/// holds.
#[tokio::test]
async fn what_a_killed_node_had_not_decided_of_a_message_comes_again() {
    let database = shared::postgres().await.create_database().await;
    let fleet = Fleet::new(database, shared::rabbitmq().await.space().await).await;
    let victim = fleet.node(&UNSWEPT).await;
    // When this job is done, the queue exists and the node has had its leader cycle.
    let first = NewJob::of("noop", &());
    fleet.jobs.create(first).await.unwrap();
    super::world::until_led(&fleet.store).await;
    fleet.until_empty(SOON).await;

    let long = NewJob::of("sleep", &json!({ "ms": 600_000 }));
    let mut hints = vec![create(&fleet.store, long).await];
    for position in 1..=2 {
        let event = NewJob::of("event", &json!({ "position": position }));
        let event = event.instance(format!("case-{position}")).element("step");
        hints.push(create(&fleet.store, event).await);
    }
    let connection = Connection::connect(&fleet.space.url, ConnectionProperties::default());
    let connection = connection.await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let confirming = channel.confirm_select(ConfirmSelectOptions::default());
    confirming.await.unwrap();
    let queue = format!("{}.lane.default", fleet.space.prefix);
    let message = Message::hints(hints).encode();
    let published = channel.basic_publish(
        "".into(),
        queue.as_str().into(),
        BasicPublishOptions::default(),
        &message,
        BasicProperties::default(),
    );
    published.await.unwrap().await.unwrap();

    eventually("the node to hold the first job", SOON, async || {
        (fleet.leased().await == 1).then_some(())
    })
    .await;
    assert_eq!(fleet.cases().events().await, 0, "its only slot is taken");
    // A node that settles too early needs a moment to do so.
    pass(Duration::from_secs(1)).await;
    victim.signal(Signal::SIGKILL);
    let _heir = fleet.node(&UNSWEPT).await;
    eventually("the undecided jobs to run", SOON, async || {
        (fleet.cases().events().await == 2).then_some(())
    })
    .await;
    let left = fleet.store.count(&JobQuery::default()).await.unwrap();
    assert_eq!(left, 1, "the lock of the first one still holds");
    assert_eq!(fleet.cases().doubled().await, 0);
}

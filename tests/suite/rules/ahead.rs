//! A node counts what it holds ahead of its slots in hints, not in messages of many hints.

use std::cell::Cell;

use jobwire_amqp::{AmqpOptions, AmqpTransport};
use jobwire_core::{CommitHook, HookOptions, JobQuery, NewJob, Store, Transport};
use jobwire_tests::{HintAccount, eventually, http, shared};
use serde_json::json;

use super::world::{SOON, until_led};
use crate::fleet::Fleet;

const SLOTS: u64 = 8;
const PACKED: usize = 4;
const SETTINGS: [(&str, &str); 3] = [
    ("JOBWIRE_CONCURRENCY", "8"),
    ("JOBWIRE_SUSPECT_AFTER", "20s"),
    ("JOBWIRE_LEASE", "30s"),
];

/// Returns the number of hints that a node has received and not decided.
async fn held(address: &str) -> Option<u64> {
    let page = http::get(address, "/metrics").await.ok()?.body;
    let account = HintAccount::read(&page);
    account
        .received
        .checked_sub(account.decided + account.returned)
}

/// At first a node holds twice as many messages as it has slots, with four hints in each.
#[tokio::test]
async fn nodes_with_long_jobs_hold_twice_their_slots_in_hints_of_packed_messages() {
    let database = shared::postgres().await.create_database().await;
    let fleet = Fleet::new(database, shared::rabbitmq().await.space().await).await;
    let nodes = [fleet.node(&SETTINGS).await, fleet.node(&SETTINGS).await];
    let [mut one, mut other] = [const { String::new() }; 2];
    for (node, address) in nodes.iter().zip([&mut one, &mut other]) {
        let ready = node.wait_for_line("is ready", SOON).await;
        *address = http::address_in(&ready);
    }
    until_led(&fleet.store).await;

    let mut options = AmqpOptions::default();
    options.prefix.clone_from(&fleet.space.prefix);
    options.hints_per_message = PACKED;
    let producer = AmqpTransport::connect(&fleet.space.url, options);
    let producer = producer.await.unwrap();
    let hook = CommitHook::start(producer.publisher(), HookOptions::default());
    let mut tx = fleet.store.client(hook).begin().await.unwrap();
    let job = |_| NewJob::of("sleep", &json!({ "ms": 400 }));
    tx.create_many((0..600).map(job).collect()).await.unwrap();
    tx.commit().await.unwrap();

    // It passes soon, and not on both at the same time.
    let took_many = Cell::new((false, false));
    eventually("both nodes to take many hints", SOON, async || {
        let (of_one, of_other) = took_many.get();
        let of_one = of_one || held(&one).await? > SLOTS * 5;
        let of_other = of_other || held(&other).await? > SLOTS * 5;
        took_many.set((of_one, of_other));
        (of_one && of_other).then_some(())
    })
    .await;
    // A new consumer may start while half of that number is still held.
    let few = SLOTS * 3;
    let left = eventually("both nodes to hold few hints", SOON, async || {
        let (one, other) = (held(&one).await?, held(&other).await?);
        let left = fleet.store.count(&JobQuery::default()).await.ok()?;
        (left == 0 || (one <= few && other <= few)).then_some(left)
    })
    .await;
    assert!(left >= 100, "only {left} jobs were left by then");
    // The number stays low while there are more hints to take.
    let most = Cell::new(0);
    eventually("most jobs to be done", SOON, || async {
        let now = held(&one).await?.max(held(&other).await?);
        most.set(most.get().max(now));
        let left = fleet.store.count(&JobQuery::default()).await.ok()?;
        (left < 100).then_some(())
    })
    .await;
    let most = most.get();
    assert!(most <= few, "a node held {most} hints again");
    fleet.until_empty(SOON).await;
}

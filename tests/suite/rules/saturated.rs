//! Rule 18: no hint waits unsettled behind a long job while another node is idle.

use std::sync::Arc;

use jobwire_core::{
    CommitHook, HandlerError, HookOptions, NewJob, Node, Outcome, PgStore, Running,
};
use jobwire_tests::{eventually, shared, shared::Space};
use tokio::sync::Semaphore;

use super::world::{SOON, store, unswept, until_led};
use crate::world::{Notes, connect};

/// Starts a node that runs this many jobs at once; `long` jobs end when the gate opens.
async fn node(
    store: &PgStore,
    space: &Space,
    concurrency: usize,
    notes: &Notes,
    gate: &Arc<Semaphore>,
) -> Node {
    let mut options = unswept();
    options.concurrency = concurrency;
    let (seen, noted, gate) = (notes.clone(), notes.clone(), gate.clone());
    Node::builder(store.clone(), connect(space, 1).await)
        .options(options)
        .handler("short", move |_: Running<()>| {
            noted.add("short");
            async { Ok(Outcome::Done) }
        })
        .handler("long", move |_: Running<()>| {
            let (seen, gate) = (seen.clone(), gate.clone());
            async move {
                seen.add("long");
                gate.acquire().await.map_err(HandlerError::from)?.forget();
                Ok(Outcome::Done)
            }
        })
        .start()
        .await
        .unwrap()
}

/// Only the broker can give these hints to the idle node, and the long job ends only when the test
/// opens the gate.
#[tokio::test]
async fn what_a_saturated_node_holds_goes_to_an_idle_one() {
    let (store, space) = (store().await, shared::rabbitmq().await.space().await);
    let producer = connect(&space, 1).await;
    let mut options = HookOptions::default();
    // A slow machine must not drop a hint, since no sweep would find its job.
    options.max_age = SOON;
    let hook = CommitHook::start(producer.publisher(), options);
    let jobs = store.client(hook);
    let gate = Arc::new(Semaphore::new(0));
    let (first, second) = (Notes::default(), Notes::default());
    let busy = node(&store, &space, 1, &first, &gate).await;
    until_led(&store).await;
    // The long job takes the only slot before the last six jobs are created, so the node receives
    // their hints without a free slot.
    jobs.create(NewJob::of("short", &())).await.unwrap();
    first.until_within(1, SOON).await;
    jobs.create(NewJob::of("long", &())).await.unwrap();
    first.until_within(2, SOON).await;
    let waiting = || async {
        let sql = "SELECT count(*) FROM jobwire.job WHERE type = 'short'";
        let waiting: i64 = sqlx::query_scalar(sql)
            .fetch_one(store.pool())
            .await
            .unwrap();
        waiting
    };
    for _ in 0..6 {
        jobs.create(NewJob::of("short", &())).await.unwrap();
    }
    let idle = node(&store, &space, 4, &second, &gate).await;
    eventually("the idle node to run the waiting jobs", SOON, async || {
        (waiting().await == 0).then_some(())
    })
    .await;
    assert_eq!(second.all(), ["short"; 6]);
    assert_eq!(first.all(), ["short", "long"]);

    // With a free slot and no other node, the first node takes hints as before.
    idle.stop().await;
    jobs.create(NewJob::of("short", &())).await.unwrap();
    gate.add_permits(1);
    first.until_within(3, SOON).await;
    assert_eq!(first.all(), ["short", "long", "short"]);
    busy.stop().await;
    producer.close(SOON).await;
}

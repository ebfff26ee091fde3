//! A chain of jobs of one instance passes its slot from one to the next. It does not keep it for ever while
//! other jobs wait for a slot.

use std::time::Duration;

use jobwire_core::{HandlerResult, Handlers, NewJob, Outcome, Running};
use jobwire_tests::shared;

use super::faults::Fixture;
use super::world::unswept;
use crate::world::Notes;

/// The chain takes more than a second, and slots are shared each quarter of one.
const CHAIN: i64 = 100;
const TAKES: Duration = Duration::from_millis(10);
const OTHER: i64 = 1_000;

#[tokio::test]
async fn a_long_chain_of_an_instance_leaves_its_slot_to_a_job_that_waits() {
    let world = Fixture::on(&shared::postgres().await.create_database().await).await;
    let notes = Notes::default();
    let mut handlers = Handlers::default();
    let noted = notes.clone();
    handlers.add("effect", move |job: Running<i64>| {
        noted.add(job.payload.to_string());
        async {
            tokio::time::sleep(TAKES).await;
            HandlerResult::Ok(Outcome::Done)
        }
    });
    let sibling = |n: i64| NewJob::of("effect", &n).instance("case");
    // Its hint stands before those of the other siblings.
    world.create_one(sibling(1)).await;
    world.create_one(NewJob::of("effect", &OTHER)).await;
    for n in 2..=CHAIN {
        world.create_one(sibling(n)).await;
    }
    let mut options = unswept();
    options.concurrency = 1;
    let node = world.start_with(options, handlers).await;
    world.until_left(0).await;
    let order = notes.all();
    let chain: Vec<_> = order.iter().filter(|n| **n != OTHER.to_string()).collect();
    let expected: Vec<_> = (1..=CHAIN).map(|n| n.to_string()).collect();
    assert!(chain.into_iter().eq(&expected), "{order:?}");
    let before = order.iter().position(|n| *n == OTHER.to_string());
    assert!(before < Some(CHAIN as usize / 2), "{before:?}");
    node.stop().await;
}

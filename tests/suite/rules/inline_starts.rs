//! The consumer's task polls a job that comes alone for the first time, unless jobs of its type
//! keep their thread (docs/internals/measurements.md, 0022).

use std::time::Duration;

use jobwire_core::{NewJob, Outcome, Running};
use jobwire_tests::wait::patience;

use crate::world::{Notes, SOON, World};

#[expect(
    clippy::disallowed_methods,
    reason = "this is what no handler should do"
)]
fn keep_the_thread() {
    std::thread::sleep(Duration::from_millis(20));
}

/// The task in which a job began shows which task polled it first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_long_turn_and_the_next_jobs_have_tasks_of_their_own() {
    let world = World::new().await;
    let notes = Notes::default();
    let seen = notes.clone();
    let node = world
        .node()
        .handler("moody", move |job: Running<bool>| {
            let seen = seen.clone();
            async move {
                if job.payload {
                    keep_the_thread();
                }
                seen.add(tokio::task::id().to_string());
                Ok(Outcome::Done)
            }
        })
        .start()
        .await
        .unwrap();
    let run_one = async |long: bool| {
        let job = NewJob::of("moody", &long);
        world.jobs.create(job).await.unwrap();
        let task = notes.until(1).await.remove(0);
        notes.clear();
        task
    };
    // Even on a slow machine, two polls in a row are short at some time.
    let twice_the_same = async {
        let mut last = run_one(false).await;
        loop {
            let task = run_one(false).await;
            if task == last {
                return task;
            }
            last = task;
        }
    };
    let consumer = tokio::time::timeout(patience(SOON), twice_the_same).await;
    let consumer = consumer.expect("two jobs in one task");
    run_one(true).await;
    for _ in 0..3 {
        assert_ne!(run_one(false).await, consumer);
    }
    world.until_empty().await;
    node.stop().await;
}

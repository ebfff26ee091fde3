//! Jobs that end faster than their outcomes can be committed: the node locks no more jobs than its
//! slots and the queue of outcomes hold.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jobwire_core::NewJob;
use jobwire_tests::eventually;
use tokio::sync::Semaphore;

use super::world::{SOON, unswept, waits};
use crate::world::{Notes, World};

const JOBS: usize = 2_000;
/// Four slots, 128 outcomes in the queue, a batch that gathers, and two batches under way.
const AT_MOST: i64 = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outcomes_that_can_not_be_committed_hold_back_the_locks() {
    let world = World::new().await;
    let notes = Notes::default();
    let gate = Arc::new(Semaphore::new(0));
    let mut options = unswept();
    options.concurrency = 4;
    let node = world
        .node()
        .options(options)
        .handler("work", waits(&notes, &gate))
        .start()
        .await
        .unwrap();
    super::world::until_led(&world.store).await;
    let mut tx = world.jobs.begin().await.unwrap();
    let jobs = (0..JOBS).map(|_| NewJob::of("work", &()));
    tx.create_many(jobs.collect()).await.unwrap();
    tx.commit().await.unwrap();
    notes.until(4).await;
    // The completion of the first four jobs waits for these rows.
    let mut holder = world.store.pool().begin().await.unwrap();
    let held = sqlx::query("SELECT job_id FROM jobwire.job_lease FOR UPDATE")
        .fetch_all(&mut *holder)
        .await
        .unwrap();
    assert_eq!(held.len(), 4);
    gate.add_permits(JOBS);
    let leases = || world.count("SELECT count(*) FROM jobwire.job_lease");
    eventually("the node to lock more jobs", SOON, async || {
        (leases().await > 4).then_some(())
    })
    .await;
    let later = Instant::now() + Duration::from_secs(2);
    while Instant::now() < later {
        let held = leases().await;
        assert!(held <= AT_MOST, "{held} jobs are held");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    holder.rollback().await.unwrap();
    world.until_empty().await;
    assert_eq!(notes.all().len(), JOBS);
    node.stop().await;
}

//! Rule 7: a job whose row another transaction has locked for a moment is neither gone nor running.
//! Its hint is tried again, and never settled. No sweeps run here.

use jobwire_core::{NewJob, Outcome, Running, Transport};
use jobwire_tests::eventually;
use metrics_exporter_prometheus::PrometheusBuilder;

use super::world::{SOON, create, refused, unswept};
use crate::world::{Notes, World};

/// Locks the job's row, starts a node, hints the job, and unlocks the row after this many refusals.
/// The job then runs.
async fn runs_when_its_row_is_free(job: NewJob, attempts: u64) {
    // On a current-thread runtime every task of the node records here.
    let recorder = PrometheusBuilder::new().build_recorder();
    let scraped = recorder.handle();
    let _here = metrics::set_default_local_recorder(&recorder);
    let world = World::new().await;
    let notes = Notes::default();
    let seen = notes.clone();
    let hint = create(&world.store, job).await;
    let mut other = world.store.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM jobwire.job WHERE id = $1 FOR UPDATE")
        .bind(hint.id.uuid())
        .execute(&mut *other)
        .await
        .unwrap();
    // Not earlier: a node hints the waiting jobs that it finds at its start.
    let node = world
        .node()
        .options(unswept())
        .handler("note", move |_: Running<()>| {
            let seen = seen.clone();
            async move {
                seen.add("ran");
                Ok(Outcome::Done)
            }
        })
        .start()
        .await
        .unwrap();
    let lane = jobwire_core::Lane::default();
    let publisher = world.transport.publisher();
    publisher.publish(&lane, vec![hint]).await.unwrap();
    eventually("the hint to be refused as busy", SOON, async || {
        (refused(&scraped, "busy") >= attempts).then_some(())
    })
    .await;
    assert_eq!(notes.all().len(), 0, "the job ran while its row was locked");
    other.rollback().await.unwrap();
    notes.until_within(1, SOON).await;
    world.until_empty().await;
    assert_eq!(notes.all().len(), 1);
    node.stop().await;
}

fn plain() -> NewJob {
    NewJob::of("note", &())
}

fn exclusive() -> NewJob {
    NewJob::of("note", &()).instance("a")
}

#[tokio::test]
async fn a_busy_row_is_tried_again_and_its_job_runs() {
    runs_when_its_row_is_free(plain(), 1).await;
    runs_when_its_row_is_free(exclusive(), 1).await;
}

/// The row stays locked for long: the hint goes back to the broker more than once.
#[tokio::test]
async fn a_row_that_stays_busy_sends_its_hint_round_and_its_job_runs() {
    runs_when_its_row_is_free(plain(), 65).await;
    runs_when_its_row_is_free(exclusive(), 65).await;
}

//! Heartbeats of running handlers.

use std::time::Duration;

use jobwire_core::{HandlerOptions, JobState, NewJob, Outcome, Running};
use jobwire_harness::eventually;
use jobwire_harness::world::{SOON, quick};

use super::bed::Bed;
use super::world::{SqlBench, World};

pub(super) async fn a_handler_without_a_heartbeat_times_out_and_one_with_it_goes_on<S: SqlBench>(
    w: &World<S>,
) {
    let bed = Bed::new(w);
    let options = HandlerOptions::default().heartbeat_timeout(Duration::from_secs(1));
    let stuck = |job: Running<()>| async move {
        job.stop.cancelled().await;
        Ok(Outcome::Done)
    };
    // Runs longer than the time between two heartbeats.
    let slow = |job: Running<()>| async move {
        for _ in 0..20 {
            job.heartbeat();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(Outcome::Done)
    };
    let node = bed
        .node(quick())
        .handler_with("stuck", options.clone(), stuck)
        .handler_with("slow", options, slow);
    let node = node.start().await.unwrap();
    let jobs = ["slow", "stuck"].map(|name| NewJob::of(name, &()).max_attempts(1));
    let created = bed.create(jobs.into()).await;
    let view = eventually("the stuck attempt to fail", SOON, async || {
        let view = w.view(created[1]).await?;
        (view.state == JobState::DeadLetter).then_some(view)
    })
    .await;
    let message = view.exception_message.unwrap();
    assert!(message.contains("no heartbeat for 1s"), "{message}");
    bed.until_done(created[0]).await;
    node.stop().await;
}

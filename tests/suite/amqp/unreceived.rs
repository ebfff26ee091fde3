//! A lane that can't be consumed, although the connection and the other lanes work.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::{Lane, NewJob, Node, Outcome, Running};
use jobwire_tests::eventually;

use super::vhost::*;
use crate::world::{Notes, SOON, World, hook, quick};

const LOW: &str = "low";

/// A stranger is the only consumer of the lane's queue, and acknowledges nothing. The other lane delivers
/// all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_jobs_of_a_lane_that_can_not_be_received_are_claimed() {
    let (world, vhost, notes) = (
        World::new().await,
        VirtualHost::new().await,
        Notes::default(),
    );
    let transport = Arc::new(vhost.transport().await);
    let jobs = world
        .store
        .client(hook(&*transport, Duration::from_secs(1)));
    let seen = notes.clone();
    let mut options = quick();
    options.lanes = vec![Lane::default().into(), Lane::unchecked(LOW).into()];
    options.claim_after = Some(Duration::from_secs(2));
    let node = Node::builder(world.store.clone(), transport.clone())
        .options(options)
        .handler("note", move |running: Running<()>| {
            let lane = running.job.lane.to_string();
            if lane == LOW {
                seen.add(lane);
            }
            async move { Ok(Outcome::Done) }
        })
        .start()
        .await
        .unwrap();
    jobs.create(NewJob::of("note", &()).lane(LOW))
        .await
        .unwrap();
    notes.until(1).await;

    // The node consumes a queue again as soon as it was deleted, so it may come first.
    let queue = format!("{}.lane.{LOW}", vhost.space.prefix);
    let alone = eventually("the stranger to be the only consumer", SOON, async || {
        let stranger = vhost.stranger().await;
        stranger.delete(&queue).await;
        let ours = [kind("classic"), number("x-queue-version", 2)];
        stranger.try_declare(&queue, &ours).await.ok()?;
        let consumer = stranger.consume_alone(&queue).await.ok()?;
        Some((stranger, consumer))
    })
    .await;

    jobs.create(NewJob::of("note", &()).lane(LOW))
        .await
        .unwrap();
    eventually("the job to be claimed", SOON, async || {
        jobs.create(NewJob::of("note", &())).await.unwrap();
        (notes.all().len() == 2).then_some(())
    })
    .await;
    drop(alone);
    eventually("the lane to be received again", SOON, async || {
        jobs.create(NewJob::of("note", &())).await.unwrap();
        node.health().claiming.is_empty().then_some(())
    })
    .await;
    node.stop().await;
}

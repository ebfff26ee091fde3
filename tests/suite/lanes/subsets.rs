//! Nodes that receive some of the lanes.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jobwire_core::LaneOrder;
use jobwire_tests::eventually;

use super::world::{BACKLOG, SOON, World, lanes, noting, of};
use crate::world::Notes;

pub(super) async fn a_node_with_some_lanes_leaves_the_others_to_others(world: &World) {
    let (first, second) = (Notes::default(), Notes::default());
    let options = lanes(4, &[("mail", 1), ("default", 1)], LaneOrder::Weighted);
    let one = noting(world.node(options).await, &first, Duration::ZERO);
    let one = one.start().await.unwrap();
    world.create("mail", 20).await;
    world.create("bulk", 20).await;
    first.until_within(20, SOON).await;
    assert_eq!(world.waiting("bulk").await, 20);
    let options = lanes(4, &[("bulk", 1)], LaneOrder::Weighted);
    let other = noting(world.node(options).await, &second, Duration::ZERO);
    let other = other.start().await.unwrap();
    world.until_empty("bulk").await;
    world.create("mail", 20).await;
    world.until_empty("mail").await;
    assert_eq!(
        (of("mail", &first.all()), of("bulk", &first.all())),
        (40, 0)
    );
    assert_eq!(
        (of("mail", &second.all()), of("bulk", &second.all())),
        (0, 20)
    );
    one.stop().await;
    other.stop().await;
}

/// Rule 18 for each lane: a busy node requeues the hints of a lane whose turn never comes.
pub(super) async fn what_a_low_lane_waits_for_in_vain_goes_to_an_idle_node(world: &World) {
    let (first, second) = (Notes::default(), Notes::default());
    let options = lanes(1, &[("high", 1), ("low", 1)], LaneOrder::Strict);
    let busy = noting(world.node(options).await, &first, Duration::from_millis(20));
    let busy = busy.start().await.unwrap();
    world.create("high", BACKLOG as usize).await;
    first.until_within(5, SOON).await;
    world.create("low", 10).await;
    let options = lanes(4, &[("low", 1)], LaneOrder::Weighted);
    let idle = noting(world.node(options).await, &second, Duration::ZERO);
    let idle = idle.start().await.unwrap();
    let least = AtomicI64::new(i64::MAX);
    eventually("the low lane to be done", SOON, async || {
        least.fetch_min(world.keep_busy("high").await, Ordering::Relaxed);
        let done = world.waiting("low").await == 0;
        let by_the_idle = of("low", &second.all()) > 0;
        // If the broker delivers the high lane slowly, its node may have done the low jobs itself.
        if done && !by_the_idle {
            world.create("low", 10).await;
        }
        (done && by_the_idle).then_some(())
    })
    .await;
    let least = least.into_inner();
    assert!(least > 0, "the better lane was idle for a while");
    busy.stop().await;
    idle.stop().await;
}

//! Nodes that receive some of the lanes.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jobwire_core::LaneOrder;
use jobwire_tests::eventually;

use super::fleet::{BACKLOG, Fleet, SOON, lanes, noting, of};
use crate::world::Notes;

pub(super) async fn a_node_with_some_lanes_leaves_the_others_to_others(fleet: &Fleet) {
    let (first, second) = (Notes::default(), Notes::default());
    fleet.declare(&["bulk"]).await;
    let options = lanes(4, &[("mail", 1), ("default", 1)], LaneOrder::Weighted);
    let one = noting(fleet.node(options).await, &first, Duration::ZERO);
    let one = one.start().await.unwrap();
    fleet.create("mail", 20).await;
    fleet.create("bulk", 20).await;
    first.until_within(20, SOON).await;
    assert_eq!(fleet.waiting("bulk").await, 20);
    let options = lanes(4, &[("bulk", 1)], LaneOrder::Weighted);
    let other = noting(fleet.node(options).await, &second, Duration::ZERO);
    let other = other.start().await.unwrap();
    fleet.until_empty("bulk").await;
    fleet.create("mail", 20).await;
    fleet.until_empty("mail").await;
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
pub(super) async fn what_a_low_lane_waits_for_in_vain_goes_to_an_idle_node(fleet: &Fleet) {
    let (first, second) = (Notes::default(), Notes::default());
    let options = lanes(1, &[("high", 1), ("low", 1)], LaneOrder::Strict);
    let busy = noting(fleet.node(options).await, &first, Duration::from_millis(20));
    let busy = busy.start().await.unwrap();
    fleet.create("high", BACKLOG as usize).await;
    first.until_within(5, SOON).await;
    fleet.create("low", 10).await;
    let options = lanes(4, &[("low", 1)], LaneOrder::Weighted);
    let idle = noting(fleet.node(options).await, &second, Duration::ZERO);
    let idle = idle.start().await.unwrap();
    let least = AtomicI64::new(i64::MAX);
    eventually("the low lane to be done", SOON, async || {
        least.fetch_min(fleet.keep_busy("high").await, Ordering::Relaxed);
        let done = fleet.waiting("low").await == 0;
        let by_the_idle = of("low", &second.all()) > 0;
        // If the broker delivers the high lane slowly, its node may have done the low jobs itself.
        if done && !by_the_idle {
            fleet.create("low", 10).await;
        }
        (done && by_the_idle).then_some(())
    })
    .await;
    let least = least.into_inner();
    assert!(least > 0, "the better lane was idle for a while");
    busy.stop().await;
    idle.stop().await;
}

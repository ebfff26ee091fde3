//! Changing the lane that jobs get, and draining the old lane.

use std::time::Duration;

use jobwire_core::{Lane, LaneMove, LaneOrder, LaneRule, NewJob, Store};

use super::fleet::{Fleet, SOON, lanes, noting, of};
use crate::world::Notes;

pub(super) async fn a_changed_mapping_drains_the_old_lane(fleet: &Fleet) {
    fleet.declare(&["old"]).await;
    let rule = |lane: &str| LaneRule::to(lane).job_type("note");
    fleet.store.set_lane_rules(&[rule("old")]).await.unwrap();
    let create = async |count: u64| {
        let mut tx = fleet.jobs.begin().await.unwrap();
        let jobs = (0..count).map(|number| NewJob::of("note", &number));
        tx.create_many(jobs.collect()).await.unwrap();
        tx.commit().await.unwrap();
        fleet.until_published().await;
    };
    create(30).await;
    let later = NewJob::of("note", &99).delay(Duration::from_secs(3600));
    fleet.jobs.create(later).await.unwrap();
    assert_eq!(fleet.waiting("old").await, 31);

    // From now on the rules name another lane, and the node receives only that one.
    fleet.store.set_lane_rules(&[rule("new")]).await.unwrap();
    let notes = Notes::default();
    let options = lanes(4, &[("new", 1)], LaneOrder::Weighted);
    let node = noting(fleet.node(options).await, &notes, Duration::ZERO);
    let node = node.start().await.unwrap();
    create(5).await;
    notes.until_within(5, SOON).await;
    assert_eq!(of("new", &notes.all()), 5, "no node receives the old lane");
    assert_eq!(fleet.waiting("old").await, 31);

    let plan = LaneMove::new(Lane::unchecked("old"), Lane::unchecked("new"));
    let moved = plan.run(&fleet.store, &fleet.hook, |_| ()).await.unwrap();
    assert_eq!((moved.jobs(), moved.hints), (31, moved.ready));
    // Not earlier: a timer that becomes due while it is moved is a separate case.
    sqlx::query("UPDATE jobwire.timer_job SET due_at = clock_timestamp()")
        .execute(fleet.store.pool())
        .await
        .unwrap();
    fleet.until_empty("new").await;
    assert_eq!(of("new", &notes.all()), 36, "{:?}", notes.all());
    assert_eq!(fleet.waiting("old").await, 0);
    node.stop().await;
}

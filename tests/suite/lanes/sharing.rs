//! How lanes share the slots of a node.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jobwire_core::{Client, CommitHook, LaneOrder, NewJob};
use jobwire_tests::eventually;

use super::fleet::{BACKLOG, Fleet, SOON, lanes, noting, of, plugged};
use crate::world::{Notes, pass};

pub(super) async fn under_strict_order_nothing_of_a_lower_lane_starts_first(fleet: &Fleet) {
    let notes = Notes::default();
    let options = lanes(1, &[("high", 1), ("low", 1)], LaneOrder::Strict);
    let (node, gate) = plugged(fleet, options, &notes).await;
    // The lower lane's jobs are older.
    fleet.create("low", 150).await;
    fleet.create("high", 150).await;
    gate.add_permits(1);
    let starts = notes.until_within(300, SOON).await;
    let last_high = starts.iter().rposition(|s| s.starts_with("high ")).unwrap();
    let early = of("low", &starts[..last_high]);
    // Without an order, all 150; with a broker that delivers slowly, some.
    assert!(
        early <= 100,
        "{early} jobs of the lower lane came first: {starts:?}"
    );
    node.stop().await;
}

pub(super) async fn under_weights_each_lane_has_its_share_of_the_starts(fleet: &Fleet) {
    let notes = Notes::default();
    let options = lanes(1, &[("light", 1), ("heavy", 4)], LaneOrder::Weighted);
    let (node, gate) = plugged(fleet, options, &notes).await;
    fleet.create("light", 150).await;
    fleet.create("heavy", 150).await;
    gate.add_permits(1);
    let starts = notes.until_within(300, SOON).await;
    // Counts only while both lanes have jobs left. The broker may delay one of them for a while;
    // the other lane then gets its share earlier or later.
    let last = |lane: &str| starts.iter().rposition(|s| s.starts_with(lane)).unwrap();
    let both = &starts[..last("light ").min(last("heavy "))];
    // 80, if all jobs were there from the start.
    let shares: Vec<usize> = both.windows(100).map(|some| of("heavy", some)).collect();
    assert!(
        shares.iter().any(|heavy| (70..=90).contains(heavy)),
        "{shares:?}: {starts:?}"
    );
    node.stop().await;
}

/// Young hints of the lower lane get no turn, as under strict order.
pub(super) async fn under_aging_each_tenth_start_is_of_a_lane_whose_hints_are_old(fleet: &Fleet) {
    for (aging, is_old) in [(600, false), (1, true)] {
        let notes = Notes::default();
        let mut options = lanes(1, &[("high", 1), ("low", 1)], LaneOrder::Aging);
        options.lane_aging = Duration::from_secs(aging);
        let (node, gate) = plugged(fleet, options, &notes).await;
        // The lower lane's hints are older.
        fleet.create("low", 150).await;
        pass(Duration::from_millis(1_100)).await;
        fleet.create("high", 150).await;
        gate.add_permits(1);
        let starts = notes.until_within(300, SOON).await;
        // Counts only while both lanes have jobs left. While the broker delays the better lane, the
        // other one starts several jobs in a row.
        let last_high = starts.iter().rposition(|s| s.starts_with("high ")).unwrap();
        let both = starts[..last_high].iter().enumerate();
        let low: Vec<usize> = both
            .filter(|(_, start)| start.starts_with("low "))
            .map(|(at, _)| at)
            .collect();
        let is_tenth = |pair: &[usize]| (9..=11).contains(&(pair[1] - pair[0]));
        let mut some = low.windows(4);
        let shares = some.any(|some| some.windows(2).all(is_tenth));
        assert_eq!(shares, is_old, "{aging} s: {low:?}: {starts:?}");
        node.stop().await;
    }
}

pub(super) async fn what_comes_later_in_a_better_lane_overtakes(fleet: &Fleet) {
    let notes = Notes::default();
    let options = lanes(1, &[("high", 1), ("low", 1)], LaneOrder::Strict);
    let (node, gate) = plugged(fleet, options, &notes).await;
    // The only slot is taken, so these wait on the node or in the broker.
    fleet.create("low", 150).await;
    fleet.create("high", 1).await;
    gate.add_permits(1);
    let starts = notes.until_within(151, SOON).await;
    let overtook = starts.iter().position(|s| s.starts_with("high ")).unwrap();
    assert!(overtook <= 100, "it came after {overtook}: {starts:?}");
    node.stop().await;
}

pub(super) async fn inside_a_lane_the_first_in_is_the_first_out(fleet: &Fleet) {
    let notes = Notes::default();
    fleet.declare(&["a", "b"]).await;
    for _ in 0..4 {
        for lane in ["a", "b"] {
            fleet.create(lane, 10).await;
        }
    }
    let options = lanes(1, &[("a", 2), ("b", 1)], LaneOrder::Weighted);
    let node = noting(fleet.node(options).await, &notes, Duration::ZERO);
    let node = node.start().await.unwrap();
    let starts = notes.until_within(80, SOON).await;
    for lane in ["a", "b"] {
        let mine: Vec<&String> = starts.iter().filter(|s| s.starts_with(lane)).collect();
        let numbers = (0..40).map(|n| format!("{lane} {}", n % 10));
        assert!(
            mine.into_iter().eq(&numbers.collect::<Vec<_>>()),
            "{starts:?}"
        );
    }
    node.stop().await;
}

/// The hints of the low lane are lost, as after a purge of its queue, and the jobs are there. Its
/// marker comes back although the better lane always has hints waiting.
pub(super) async fn lost_hints_of_a_low_lane_are_healed_while_a_better_one_is_busy(fleet: &Fleet) {
    let notes = Notes::default();
    let options = lanes(2, &[("busy", 5), ("low", 1)], LaneOrder::Weighted);
    let node = noting(fleet.node(options).await, &notes, Duration::from_millis(20));
    let node = node.start().await.unwrap();
    fleet.create("busy", BACKLOG as usize).await;
    notes.until_within(5, SOON).await;
    let lost = Client::new(fleet.store.clone(), CommitHook::disconnected());
    let mut tx = lost.begin().await.unwrap();
    let jobs = (0..20_u64).map(|number| NewJob::of("note", &number).lane("low"));
    tx.create_many(jobs.collect()).await.unwrap();
    tx.commit().await.unwrap();
    let least = AtomicI64::new(i64::MAX);
    eventually("the low lane to be healed", SOON, async || {
        least.fetch_min(fleet.keep_busy("busy").await, Ordering::Relaxed);
        (fleet.waiting("low").await == 0).then_some(())
    })
    .await;
    assert_eq!(of("low", &notes.all()), 20);
    let least = least.into_inner();
    assert!(least > 0, "the better lane was idle for a while");
    node.stop().await;
}

use std::time::Duration;

use jobwire_core::JobState;

use super::world::{Bench, World, ids, node, work};

pub(super) async fn due_timers_move_once_in_order_of_their_dates<S: Bench>(w: &World<S>) {
    let jobs: Vec<_> = (0..4)
        .map(|_| work().delay(Duration::from_secs(600)))
        .collect();
    let made: Vec<_> = jobs.iter().map(|j| j.id()).collect();
    let created = w.create(jobs).await;
    assert!(created.ready.is_empty() && created.timer.is_some());
    assert!(w.store.move_due_timers(10).await.unwrap().ready.is_empty());
    w.make_due(made[0], 100).await;
    w.make_due(made[1], 300).await;
    w.make_due(made[2], 200).await;
    let moved = w.store.move_due_timers(10).await.unwrap();
    assert_eq!(ids(&moved.ready), [made[1], made[2], made[0]]);
    assert!(w.store.move_due_timers(10).await.unwrap().ready.is_empty());
    for id in &made[..3] {
        let view = w.view(*id).await.unwrap();
        assert_eq!(view.state, JobState::Executable);
        // Ready from now on, whatever its date was.
        assert!((moved.now - view.ready_at).num_seconds().abs() < 50);
    }
    assert_eq!(w.hold(node(), &moved.ready[0].hint).await.job.id, made[1]);
}

pub(super) async fn the_next_due_date_is_told<S: Bench>(w: &World<S>) {
    assert_eq!(w.store.move_due_timers(10).await.unwrap().next_due, None);
    let (due, later) = (
        work().delay(Duration::from_secs(60)),
        work().delay(Duration::from_secs(600)),
    );
    let (due_id, later_id) = (due.id(), later.id());
    w.create(vec![later, due]).await;
    w.make_due(due_id, 1).await;
    let moved = w.store.move_due_timers(10).await.unwrap();
    assert_eq!(ids(&moved.ready), [due_id]);
    assert_eq!(moved.next_due, w.view(later_id).await.unwrap().due_at);
    assert!(moved.next_due.unwrap() > moved.now);
}

pub(super) async fn no_more_than_asked_for_move<S: Bench>(w: &World<S>) {
    let jobs: Vec<_> = (0..5)
        .map(|_| work().delay(Duration::from_secs(60)))
        .collect();
    let made: Vec<_> = jobs.iter().map(|j| j.id()).collect();
    w.create(jobs).await;
    for (id, seconds) in made.iter().zip([5, 4, 3, 2, 1]) {
        w.make_due(*id, seconds).await;
    }
    let mut moved = Vec::new();
    for count in [2, 2, 1] {
        let page = w.store.move_due_timers(2).await.unwrap();
        assert_eq!(page.ready.len(), count);
        // What is left is due already: the mover goes on at once.
        assert_eq!(
            page.next_due.is_some_and(|due| due <= page.now),
            moved.len() < 3 && count == 2
        );
        moved.extend(ids(&page.ready));
    }
    assert_eq!(moved, made);
}

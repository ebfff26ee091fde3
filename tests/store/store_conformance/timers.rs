use std::time::Duration;

use jobwire_core::hint::Hint;
use jobwire_core::store::{Handoff, Refusal, SuspensionScope};
use jobwire_core::{JobId, JobQuery, JobState, Lane, NewJob};

use super::world::{Bench, LEASE, World, done, ids, job_ids, node, terms, unserved, work};

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
        // Ready from now on, not since the due date.
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
        // The remaining timers are due already, so the mover continues at once.
        assert_eq!(
            page.next_due.is_some_and(|due| due <= page.now),
            moved.len() < 3 && count == 2
        );
        moved.extend(ids(&page.ready));
    }
    assert_eq!(moved, made);
}

/// Creates timers that are due, in this order.
async fn due<S: Bench>(w: &World<S>, jobs: Vec<NewJob>) -> Vec<JobId> {
    let made: Vec<JobId> = jobs.iter().map(NewJob::id).collect();
    let later = |job: NewJob| job.delay(Duration::from_secs(60));
    w.create(jobs.into_iter().map(later).collect()).await;
    for (id, ago) in made.iter().rev().zip(1..) {
        w.make_due(*id, ago).await;
    }
    made
}

pub(super) async fn few_due_timers_are_locked_where_they_may_run<S: Bench>(w: &World<S>) {
    let jobs = vec![
        work(),
        unserved(),
        work().lane("elsewhere"),
        work().instance("case").exclusive(),
        work().lane("own"),
        work(),
    ];
    let made = due(w, jobs).await;
    let lanes = [Lane::default(), Lane::unchecked("own")];
    let here = node();
    let moved = w.store.take_due_timers(&terms(here), &lanes, 5).await;
    let moved = moved.unwrap();
    assert_eq!(job_ids(&moved.locked), [made[0], made[4]]);
    assert_eq!(ids(&moved.ready), [made[1], made[2], made[3]]);
    assert!(
        moved.next_due.unwrap() <= moved.now,
        "the last one is due, too"
    );
    for locked in &moved.locked {
        assert_eq!(locked.strikes, 0);
        assert!((locked.locked_at - moved.now).as_seconds_f64().abs() < 50.0);
        assert!(locked.fence.number() > 0);
        let view = w.view(locked.job.id).await.unwrap();
        assert_eq!(view.state, JobState::Executable);
        assert_eq!(view.lock_owner, Some(here.uuid()));
        assert_eq!(view.fence, Some(locked.fence.number()));
        let lasts = view.lock_expires_at.unwrap() - moved.now;
        assert!((lasts.as_seconds_f64() - LEASE.as_secs_f64()).abs() < 50.0);
        // No other node gets the job.
        let hint = Hint::new(locked.job.id);
        assert_eq!(w.refusal(node(), &hint).await, Some(Refusal::Locked));
    }
    let [first, second] = &moved.locked[..] else {
        unreachable!()
    };
    assert_ne!(first.fence, second.fence);
    let both = [done(first), done(second)];
    let settled = w.store.complete(here, &both, &Handoff::Hint).await;
    assert_eq!(settled.unwrap().applied.len(), 2);
    assert_eq!(w.state(made[0]).await, None);
    // A timer that was not locked is for the node that gets its hint.
    assert_eq!(w.hold(node(), &moved.ready[2].hint).await.job.id, made[3]);
    let rest = w.store.take_due_timers(&terms(here), &lanes, 5).await;
    let rest = rest.unwrap();
    assert_eq!(job_ids(&rest.locked), [made[5]]);
    assert_eq!((rest.ready.len(), rest.next_due), (0, None));
}

pub(super) async fn no_timer_is_locked_that_is_suspended<S: Bench>(w: &World<S>) {
    let made = due(w, vec![work().tenant("t"), work()]).await;
    let tenant = SuspensionScope::Tenant("t".to_owned());
    w.store.suspend(&tenant).await.unwrap();
    let (here, lanes) = (node(), [Lane::default()]);
    let moved = w.store.take_due_timers(&terms(here), &lanes, 5).await;
    let moved = moved.unwrap();
    // The other timer may be locked here or left to its hint.
    let mut others = job_ids(&moved.locked);
    others.extend(ids(&moved.ready));
    assert_eq!(others, [made[1]]);
    assert_eq!(w.state(made[0]).await, Some(JobState::Suspended));
    // A job that became a timer since then is moved with the others, and its hint is refused.
    let late = due(w, vec![work().tenant("t")]).await;
    let moved = w.store.take_due_timers(&terms(here), &lanes, 5).await;
    let moved = moved.unwrap();
    assert_eq!((job_ids(&moved.locked), ids(&moved.ready)), (vec![], late));
    let refused = w.refusal(here, &moved.ready[0].hint).await;
    assert_eq!(refused, Some(Refusal::Suspended));
}

pub(super) async fn a_timer_for_the_end_of_time_is_read<S: Bench>(w: &World<S>) {
    w.create(vec![work().delay(Duration::MAX)]).await;
    let moved = w.store.move_due_timers(10).await.unwrap();
    assert!(moved.ready.is_empty() && moved.next_due.unwrap() > moved.now);
    assert_eq!(w.find(JobQuery::default()).await.len(), 1);
}

use std::time::Duration;

use jobwire_core::Calendars;
use jobwire_core::job::series::next_occurrence;
use jobwire_core::store::{Completion, Destination, Failure, Handoff};
use jobwire_core::{JobQuery, JobState};

use super::world::{Bench, World, done, give_up, ids, node, retry_after, take, work};

pub(super) async fn a_completed_job_leaves_nothing_behind<S: Bench>(w: &World<S>) {
    let hint = w.one(work().instance("order-17")).await;
    let worker = node();
    let job = w.hold(worker, &hint).await;
    w.fail(worker, retry_after(&job, Duration::from_secs(1)))
        .await;
    assert_eq!(w.rows("job_exception").await, 1);
    w.make_due(hint.id, 1).await;
    w.store.move_due_timers(10).await.unwrap();
    let job = w.hold(worker, &hint).await;
    let completion = Completion {
        has_traces: true,
        cancelled: false,
        ..done(&job)
    };
    let settled = w
        .store
        .complete(worker, &[completion], &take(worker))
        .await
        .unwrap();
    assert_eq!(settled.applied, [hint.id]);
    for table in [
        "job",
        "timer_job",
        "job_lease",
        "job_exception",
        "instance_lock",
    ] {
        assert_eq!(w.rows(table).await, 0, "{table}");
    }
}

pub(super) async fn a_failed_job_waits_by_the_databases_clock<S: Bench>(w: &World<S>) {
    let hint = w.one(work()).await;
    let worker = node();
    let job = w.hold(worker, &hint).await;
    let before = w.store.move_due_timers(0).await.unwrap().now;
    let settled = w
        .fail(worker, retry_after(&job, Duration::from_millis(60_500)))
        .await;
    let after = w.store.move_due_timers(0).await.unwrap().now;
    assert_eq!(settled.applied, [hint.id]);
    assert!(settled.ready.is_empty() && settled.next.is_empty());
    let view = w.view(hint.id).await.unwrap();
    assert_eq!(view.state, JobState::Timer);
    assert_eq!(view.due_at, settled.timer);
    let due = view.due_at.unwrap();
    let delay = Duration::from_millis(60_500);
    assert!(before + delay <= due && due <= after + delay, "{due}");
    assert_eq!((view.retries, view.failures), (2, 1));
    assert_eq!(view.exception_message.as_deref(), Some("no luck"));
    assert_eq!((view.lock_owner, view.fence), (None, None));
    assert_eq!(w.rows("job_lease").await, 0);
}

pub(super) async fn the_earliest_retry_is_told<S: Bench>(w: &World<S>) {
    let hints = w.ready(vec![work(), work(), work()]).await;
    let worker = node();
    let jobs = w.lock(worker, &hints).await.jobs;
    let failed = [
        retry_after(&jobs[0], Duration::from_secs(60)),
        retry_after(&jobs[1], Duration::from_secs(30)),
        give_up(&jobs[2]),
    ];
    let settled = w.store.fail(worker, &failed, &Handoff::Hint).await.unwrap();
    assert_eq!(settled.applied.len(), 3);
    assert_eq!(settled.timer, w.view(jobs[1].job.id).await.unwrap().due_at);
    assert_eq!(w.state(jobs[2].job.id).await, Some(JobState::DeadLetter));
}

pub(super) async fn a_dead_letter_keeps_message_and_stack<S: Bench>(w: &World<S>) {
    let hint = w.one(work()).await;
    let worker = node();
    let job = w.hold(worker, &hint).await;
    let mut failure = give_up(&job);
    failure.stack = Some("x".repeat(100_000));
    let settled = w.fail(worker, failure.clone()).await;
    assert_eq!((settled.applied, settled.timer), (vec![hint.id], None));
    let (view, dead, stack) = w.store.get(hint.id).await.unwrap().unwrap();
    assert_eq!(view.state, JobState::DeadLetter);
    assert_eq!((dead.retries, dead.failures), (0, 1));
    assert_eq!(dead.exception_message.as_deref(), Some("no luck"));
    assert_eq!(stack, failure.stack);
    assert_eq!(dead.decode::<i64>().unwrap(), 17);
}

pub(super) async fn a_snooze_keeps_the_last_message<S: Bench>(w: &World<S>) {
    let hint = w.one(work()).await;
    let worker = node();
    let job = w.hold(worker, &hint).await;
    w.fail(worker, retry_after(&job, Duration::from_secs(1)))
        .await;
    w.make_due(hint.id, 1).await;
    w.store.move_due_timers(10).await.unwrap();
    let job = w.hold(worker, &hint).await;
    let snooze = Failure {
        to: Destination::Retry {
            delay: Duration::from_secs(1),
            since: None,
            retries: job.job.retries,
            failures: job.job.failures,
        },
        message: None,
        stack: None,
        held: job.held(),
        attempt: None,
    };
    w.fail(worker, snooze).await;
    let (view, _, stack) = w.store.get(hint.id).await.unwrap().unwrap();
    assert_eq!((view.retries, view.failures), (2, 1));
    assert_eq!(view.exception_message.as_deref(), Some("no luck"));
    assert_eq!(stack.as_deref(), Some("at the first step"));
}

pub(super) async fn a_wait_counts_from_the_old_due_date_if_that_has_passed<S: Bench>(w: &World<S>) {
    let (wait, minute) = (Duration::from_secs(60), chrono::Duration::seconds(60));
    let now = chrono::Utc::now();
    // A date of whole seconds is stored exactly by every database.
    let date = |minutes: i64| {
        let at = now + chrono::Duration::minutes(minutes);
        chrono::DateTime::from_timestamp(at.timestamp(), 0).unwrap()
    };
    let worker = node();
    for (since, expected) in [
        (Some(date(-10)), Some(date(-9))),
        (Some(date(60)), None),
        (None, None),
    ] {
        let hint = w.one(work()).await;
        let job = w.hold(worker, &hint).await;
        let mut failure = retry_after(&job, wait);
        failure.to = Destination::Retry {
            delay: wait,
            since,
            retries: 2,
            failures: 1,
        };
        w.fail(worker, failure).await;
        let due = w.view(hint.id).await.unwrap().due_at.unwrap();
        match expected {
            Some(expected) => assert_eq!(due, expected),
            None => {
                let late = (due - now - minute).num_seconds().abs();
                assert!(late < 20, "due {late} s off, counted from {since:?}");
            }
        }
    }
}

pub(super) async fn a_released_job_is_ready_again<S: Bench>(w: &World<S>) {
    let hints = w.ready(vec![work().lane("fast"), work()]).await;
    let worker = node();
    let job = w.hold(worker, &hints[0]).await;
    w.make_old(60).await;
    let old = w.view(hints[0].id).await.unwrap().ready_at;
    let settled = w.release(worker, job.held()).await;
    assert_eq!(settled.applied, [hints[0].id]);
    assert_eq!(ids(&settled.ready), [hints[0].id]);
    assert_eq!(settled.ready[0].lane.as_str(), "fast");
    let view = w.view(hints[0].id).await.unwrap();
    assert!(view.ready_at > old);
    assert_eq!((view.retries, view.failures), (3, 0));
    w.hold(node(), &hints[0]).await;
}

pub(super) async fn the_next_occurrence_is_created_with_the_completion<S: Bench>(w: &World<S>) {
    let hint = w
        .one(work().repeat_text("R3/PT10M").instance("order-17"))
        .await;
    let worker = node();
    let job = w.hold(worker, &hint).await;
    let next = next_occurrence(&job.job, job.job.ready_at, &Calendars::default()).unwrap();
    let next_id = next.id();
    let completion = Completion {
        next: Some(Box::new(next)),
        ..done(&job)
    };
    let settled = w
        .store
        .complete(worker, &[completion], &take(worker))
        .await
        .unwrap();
    assert_eq!(settled.applied, [hint.id]);
    let (view, next, _) = w.store.get(next_id).await.unwrap().unwrap();
    assert_eq!(view.state, JobState::Timer);
    assert_eq!(settled.timer, view.due_at);
    assert_eq!(next.correlation_id, hint.id.uuid());
    assert_eq!(next.repeat.as_deref(), Some("R2/PT600S"));
    assert!(next.seq > job.job.seq && next.exclusive);
    let of_the_series = JobQuery::default().correlation_id(hint.id.uuid());
    assert_eq!(w.find(of_the_series).await, [next_id]);
}

pub(super) async fn a_lost_lock_creates_no_next_occurrence<S: Bench>(w: &World<S>) {
    let hint = w.one(work().repeat_text("R3/PT10M")).await;
    let worker = node();
    let job = w.hold(worker, &hint).await;
    w.die(hint.id).await;
    let completion = Completion {
        next: next_occurrence(&job.job, job.job.ready_at, &Calendars::default()).map(Box::new),
        ..done(&job)
    };
    let settled = w
        .store
        .complete(worker, &[completion], &take(worker))
        .await
        .unwrap();
    assert!(settled.applied.is_empty() && settled.timer.is_none());
    assert_eq!(w.rows("timer_job").await, 0);
    assert_eq!(w.rows("job").await, 1);
}

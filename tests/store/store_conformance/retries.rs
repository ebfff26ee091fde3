//! When a node tries a job again: by the function of its handler, from its due date, at a date of its
//! handler, after a snooze and after a conflict.

use std::time::Duration;

use jobwire_core::chrono::{DateTime, TimeDelta, Utc};
use jobwire_core::{
    HandlerError, HandlerOptions, JobQuery, JobState, JobView, NewJob, NodeOptions, Outcome,
    RetryFrom, RetryPolicy, Running,
};
use jobwire_harness::eventually;
use jobwire_harness::world::{SOON, quick};

use super::bed::Bed;
use super::world::{SqlBench, World};

const HOUR: Duration = Duration::from_secs(3_600);

/// Asserts that a date is this far from now, but for the time that a slow machine has taken.
fn assert_about(due: DateTime<Utc>, from_now: TimeDelta) {
    let wait = due - Utc::now();
    let slack = TimeDelta::minutes(10);
    assert!(from_now - slack < wait && wait <= from_now, "{wait}");
}

pub(super) async fn the_function_of_a_handler_chooses_the_wait_by_the_job_and_its_error<
    S: SqlBench,
>(
    w: &World<S>,
) {
    let bed = Bed::new(w);
    let options = HandlerOptions::default()
        .retry(RetryPolicy::fixed(HOUR * 2))
        .retry_by(|job, error| {
            let is_busy = error.message == "busy" && job.tenant.as_deref() != Some("acme");
            is_busy.then(|| RetryPolicy::fixed(HOUR))
        });
    let fails =
        |job: Running<String>| async move { Err::<Outcome, _>(HandlerError::retry(job.payload)) };
    let node = bed.node(quick()).handler_with("fail", options, fails);
    let node = node.start().await.unwrap();
    let fail = |message: &str| NewJob::of("fail", message);
    let own = RetryPolicy::fixed(HOUR * 4);
    let jobs = vec![
        // The function goes before the policy of the job.
        fail("busy").retry_policy(own.clone()),
        // It chooses nothing: the job's own policy, or that of the handler.
        fail("no luck").retry_policy(own),
        fail("busy").tenant("acme"),
    ];
    let created = bed.create(jobs).await;
    for (id, hours) in created.into_iter().zip([1, 4, 2]) {
        let view = eventually("the next attempt to be dated", SOON, async || {
            w.view(id)
                .await
                .filter(|view| view.state == JobState::Timer)
        })
        .await;
        assert_eq!((view.retries, view.failures), (2, 1));
        assert_about(view.due_at.unwrap(), TimeDelta::hours(hours));
    }
    node.stop().await;
}

/// Lets a job fail that was due half an hour ago, and returns it with its old due date.
async fn failed<S: SqlBench>(w: &World<S>, options: NodeOptions) -> (DateTime<Utc>, JobView) {
    let bed = Bed::new(w);
    let fails =
        |_: Running<()>| async { Err::<Outcome, _>(HandlerError::retry("the bank is closed")) };
    let node = bed.node(options).handler("pay", fails);
    let node = node.start().await.unwrap();
    // A date of whole seconds is stored exactly by every database.
    let due = DateTime::from_timestamp(Utc::now().timestamp() - 1_800, 0).unwrap();
    let id = bed.create(vec![NewJob::of("pay", &()).due(due)]).await[0];
    let view = eventually("the next attempt to be dated", SOON, async || {
        let view = w.view(id).await?;
        (view.state == JobState::Timer && view.failures == 1).then_some(view)
    })
    .await;
    node.stop().await;
    w.store.delete(id).await.unwrap();
    (due, view)
}

pub(super) async fn a_node_counts_the_wait_from_now_or_from_the_due_date_of_the_attempt<
    S: SqlBench,
>(
    w: &World<S>,
) {
    let options = || quick().retry(RetryPolicy::fixed(HOUR));
    let (_, view) = failed(w, options()).await;
    assert_about(view.due_at.unwrap(), TimeDelta::hours(1));
    let (due, view) = failed(w, options().retry_from(RetryFrom::DueDate)).await;
    assert_eq!(view.due_at, Some(due + TimeDelta::hours(1)));
}

/// A retry spends an attempt, a snooze does not. A date in the past means at once.
pub(super) async fn a_handler_names_the_date_of_the_next_attempt<S: SqlBench>(w: &World<S>) {
    // A date of whole seconds is stored exactly by every database.
    let date = DateTime::from_timestamp(Utc::now().timestamp() + 3_600, 0).unwrap();
    let bed = Bed::new(w);
    let (seen, runs) = (bed.notes.clone(), bed.notes.clone());
    let closed = move |job: Running<String>| {
        let runs = runs.clone();
        async move {
            let (what, when) = job.payload.split_once(' ').unwrap();
            runs.add(job.payload.clone());
            let is_first = runs.all().iter().filter(|run| **run == job.payload).count() == 1;
            let at = match when {
                "later" => date,
                _ if !is_first => return Ok(Outcome::Done),
                "before" | "skip" | "all" => date - TimeDelta::hours(2),
                _ => DateTime::<Utc>::MIN_UTC,
            };
            match what {
                "snooze" => Ok(Outcome::SnoozeUntil(at)),
                _ => Err(HandlerError::retry_at(at, "the bank is closed")),
            }
        }
    };
    // The date counts, and neither the policy nor the function of the type.
    let options = HandlerOptions::default()
        .retry(RetryPolicy::fixed(HOUR * 2))
        .retry_by(|_, _| Some(RetryPolicy::fixed(HOUR * 3)));
    let node = bed.node(quick()).handler_with("pay", options, closed);
    let node = node.start().await.unwrap();
    let pay = |payload: &str| NewJob::of("pay", payload);
    let later = vec![pay("snooze later"), pay("retry later")];
    let later = bed.create(later).await;
    for (id, (retries, failures)) in later.into_iter().zip([(3, 0), (2, 1)]) {
        let view = eventually("the next attempt to be dated", SOON, async || {
            let view = w.view(id).await?;
            (view.state == JobState::Timer).then_some(view)
        })
        .await;
        assert_eq!(view.due_at, Some(date));
        assert_eq!((view.retries, view.failures), (retries, failures));
    }
    let past = [
        "snooze before",
        "retry before",
        "snooze first",
        "retry first",
    ];
    for id in bed.create(past.map(pay).into()).await {
        bed.until_done(id).await;
    }
    // The date of a series does not go back: the occurrence runs, and the next one is after it.
    for catch_up in ["skip", "all"] {
        for what in ["snooze", "retry"] {
            let payload = format!("{what} {catch_up}");
            let repeating = pay(&payload)
                .repeat(format!("R3/PT1H[catch-up={catch_up}]").parse().unwrap())
                .due(Utc::now());
            bed.create(vec![repeating]).await;
            eventually("the second run", SOON, async || {
                let runs = seen.all();
                (runs.iter().filter(|run| **run == payload).count() == 2).then_some(())
            })
            .await;
        }
    }
    let next = eventually("the next occurrences", SOON, async || {
        let jobs = w.store.find(&JobQuery::default()).await.ok()?;
        let timers = jobs.iter().filter(|job| job.state == JobState::Timer);
        let next = timers.filter_map(|job| job.due_at.filter(|due| *due != date));
        let next: Vec<_> = next.collect();
        (next.len() == 4).then_some(next)
    })
    .await;
    assert!(next.iter().all(|due| *due > Utc::now()), "{next:?}");
    assert_eq!(
        seen.all().iter().filter(|run| run.ends_with("all")).count(),
        4
    );
    // Without another attempt there is no date.
    let last = bed.create(vec![pay("retry later").max_attempts(1)]).await[0];
    eventually("the dead letter", SOON, async || {
        let view = w.view(last).await?;
        (view.state == JobState::DeadLetter).then_some(())
    })
    .await;
    node.stop().await;
}

pub(super) async fn a_snooze_and_a_conflict_cost_no_attempt<S: SqlBench>(w: &World<S>) {
    let bed = Bed::new(w);
    let seen = bed.notes.clone();
    let patient = move |job: Running<()>| {
        let seen = seen.clone();
        async move {
            seen.add(format!("{} retries", job.job.retries));
            match seen.all().len() {
                1 => Ok(Outcome::Snooze(Duration::from_millis(50))),
                2 => Err(HandlerError::conflict("somebody else was faster")),
                _ => Ok(Outcome::Done),
            }
        }
    };
    let node = bed.node(quick()).handler("patient", patient);
    let node = node.start().await.unwrap();
    let job = NewJob::of("patient", &()).max_attempts(1);
    let id = bed.create(vec![job]).await[0];
    bed.until_done(id).await;
    assert_eq!(bed.notes.all(), ["1 retries"; 3]);
    node.stop().await;
}

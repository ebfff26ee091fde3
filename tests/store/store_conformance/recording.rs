//! Attempts that a node records, and history jobs that it works off in groups.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobwire_core::job::LockedJob;
use jobwire_core::store::Membership;
use jobwire_core::{
    GroupOptions, HandlerError, HandlerOptions, HandlerResult, Handlers, JobId, JobState,
    LaneShare, NewJob, Outcome, RetryPolicy, Running,
};
use jobwire_harness::eventually;
use jobwire_harness::world::{SOON, quick};

use super::bed::{Bed, noting};
use super::membership::membership;
use super::world::{SqlBench, World, node, work};

const WEEK: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Fails once, and is done then.
async fn fails_once(job: Running<u64>) -> HandlerResult<Outcome> {
    if job.job.failures == 0 {
        return Err(HandlerError::retry("no luck"));
    }
    Ok(Outcome::Done)
}

/// Returns the outcome and the message of each recorded attempt.
async fn told<S: SqlBench>(w: &World<S>, id: JobId) -> Vec<(String, Option<String>)> {
    let attempts = w.store.attempts(id, 10).await.unwrap();
    attempts
        .into_iter()
        .map(|attempt| (attempt.outcome, attempt.message))
        .collect()
}

fn failed(message: &str) -> (String, Option<String>) {
    ("retry".to_owned(), Some(message.to_owned()))
}

fn done() -> (String, Option<String>) {
    ("done".to_owned(), None)
}

fn died() -> (String, Option<String>) {
    ("node-died".to_owned(), None)
}

/// A type asks for it in its options, or `Handlers::keep_attempts` does. By default no attempt is
/// recorded.
pub(super) async fn a_node_records_the_attempts_of_types_that_ask_for_it<S: SqlBench>(
    w: &World<S>,
) {
    let at_once = HandlerOptions::default().retry(RetryPolicy::fixed(Duration::ZERO));
    let kept = at_once.clone().keep_attempts(WEEK);
    let in_transaction = |job: Running<u64>| async move {
        drop(job.transaction::<S>().await?);
        fails_once(job).await
    };
    let mut handlers = Handlers::default();
    handlers.add_with("kept", kept.clone(), fails_once);
    handlers.add_with("in-transaction", kept.in_transaction(), in_transaction);
    handlers.add_with("asked-for", at_once.clone(), fails_once);
    handlers.add_with("plain", at_once, fails_once);
    assert!(handlers.keep_attempts("asked-for", WEEK));
    assert!(!handlers.keep_attempts("unknown", WEEK));
    let types = ["kept", "in-transaction", "asked-for", "plain"];

    let bed = Bed::new(w);
    let node = bed.node(quick()).handlers(handlers).start().await.unwrap();
    let jobs = types.map(|job_type| NewJob::of(job_type, &17));
    let ids = bed.create(jobs.into()).await;
    bed.until_left(0).await;
    for (job_type, id) in types.into_iter().zip(&ids).take(3) {
        assert_eq!(
            told(w, *id).await,
            [failed("no luck"), done()],
            "{job_type}"
        );
        let attempts = bed.client.attempts(*id, 10).await.unwrap();
        assert!(attempts[0].fence < attempts[1].fence, "{attempts:?}");
        for attempt in &attempts {
            assert_eq!((attempt.job, attempt.node), (*id, node.id()));
            assert_eq!(attempt.job_type, job_type);
            assert!(attempt.started_at <= attempt.ended_at, "{attempt:?}");
        }
    }
    assert!(told(w, ids[3]).await.is_empty());
    assert_eq!(w.rows("attempt").await, 6);
    node.stop().await;
}

/// Lets a node die with a job of the type `work`, before a node starts.
async fn lost<S: SqlBench>(w: &World<S>) -> LockedJob {
    let hint = w.one(work()).await;
    let job = w.hold(node(), &hint).await;
    w.expire(hint.id).await;
    job
}

/// The node that comes after the dead one leads, and serves the type.
pub(super) async fn the_attempts_of_a_dead_node_are_recorded_by_one_that_records_its_type<
    S: SqlBench,
>(
    w: &World<S>,
) {
    let lost = lost(w).await;
    let options = HandlerOptions::default().keep_attempts(WEEK);
    let mut handlers = Handlers::default();
    handlers.add_with("work", options, |_: Running<u64>| async { Ok(()) });
    let bed = Bed::new(w);
    let node = bed.node(quick()).handlers(handlers).start().await.unwrap();
    bed.until_left(0).await;
    assert_eq!(told(w, lost.job.id).await, [died(), done()]);
    let attempts = bed.client.attempts(lost.job.id, 10).await.unwrap();
    assert_eq!(attempts[0].fence, lost.fence);
    assert_ne!(attempts[0].node, node.id());
    assert_eq!(attempts[1].node, node.id());
    node.stop().await;
}

/// The row of the dead node names the type. The leader has no handler for it.
pub(super) async fn the_attempts_of_a_dead_node_are_recorded_by_a_leader_without_its_types<
    S: SqlBench,
>(
    w: &World<S>,
) {
    let lost = lost(w).await;
    w.store
        .write_node(&Membership {
            types: vec!["work".to_owned()],
            attempts_kept: [("work".to_owned(), WEEK)].into(),
            ..membership(node())
        })
        .await
        .unwrap();
    let bed = Bed::new(w);
    let other = noting(&bed.notes);
    let leader = bed.node(quick()).handler("other", other);
    let leader = leader.start().await.unwrap();
    let attempts = eventually("the attempt to be recorded", SOON, async || {
        let attempts = told(w, lost.job.id).await;
        (!attempts.is_empty()).then_some(attempts)
    })
    .await;
    assert_eq!(attempts, [died()]);
    leader.stop().await;
}

/// The jobs of a failed group run alone, and only the bad one is tried again.
pub(super) async fn history_jobs_are_worked_off_in_groups_on_a_node_of_their_lane<S: SqlBench>(
    w: &World<S>,
) {
    const GROUP: usize = 5;
    const BAD: u64 = 3;
    let calls: Arc<Mutex<Vec<Vec<u64>>>> = Arc::default();
    let write = {
        let calls = calls.clone();
        move |jobs: Vec<Arc<Running<u64>>>| {
            let mut numbers: Vec<u64> = jobs.iter().map(|job| job.payload).collect();
            numbers.sort_unstable();
            calls.lock().unwrap().push(numbers);
            let is_bad = |job: &Arc<Running<u64>>| job.payload == BAD && job.job.failures == 0;
            let fails = jobs.iter().any(is_bad);
            async move {
                if fails {
                    return Err(HandlerError::retry("not yet"));
                }
                Ok(())
            }
        }
    };
    let options = HandlerOptions::default().keep_attempts(WEEK);
    // A full group is called at once. The second attempt of the bad job waits for others.
    let group = GroupOptions::default()
        .at_most(GROUP)
        .within(Duration::from_secs(1));
    let mut handlers = Handlers::default();
    handlers.group_with("write-history", options, group, write);

    let bed = Bed::new(w);
    let of = |number: u64| NewJob::of("write-history", &number);
    // Of the same type, and in the lane `default`.
    let business = bed.create(vec![of(99)]).await[0];
    let ids = bed.create((1..=5).map(|n| of(n).history()).collect()).await;
    let of_node = quick()
        .lanes(vec![LaneShare::new("history", 1)])
        .history_retry(RetryPolicy::fixed(Duration::ZERO))
        .retry(RetryPolicy::fixed(Duration::from_secs(3_600)));
    let node = bed.node(of_node).handlers(handlers);
    let node = node.start().await.unwrap();
    bed.until_left(1).await;
    let mut made = calls.lock().unwrap().clone();
    assert_eq!(made[0], [1, 2, 3, 4, 5]);
    made[1..].sort();
    let alone = [1, 2, BAD, BAD, 4, 5].map(|number| vec![number]);
    assert_eq!(made[1..], alone);
    for (number, id) in (1..).zip(&ids) {
        let expected = match number {
            BAD => vec![failed("not yet"), done()],
            _ => vec![done()],
        };
        assert_eq!(told(w, *id).await, expected, "{number}");
    }

    // A group that does not fail needs one call.
    bed.create((6..=10).map(|n| of(n).history()).collect())
        .await;
    bed.until_left(1).await;
    let made = calls.lock().unwrap().clone();
    assert_eq!(made.len(), 8);
    assert_eq!(made[7], [6, 7, 8, 9, 10]);
    assert_eq!(w.state(business).await, Some(JobState::Executable));
    node.stop().await;
}

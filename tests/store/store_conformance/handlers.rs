//! What a node does with the handlers of the user, and with their answers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobwire_core::chrono::{TimeDelta, Utc};
use jobwire_core::store::{PauseScope, SUSPENSION_TYPE};
use jobwire_core::{
    BULK_TYPE, BulkOperation, HandlerError, HandlerOptions, HandlerResult, JobEvent, JobId,
    JobQuery, JobState, JobView, NewJob, Outcome, RetryPolicy, Running,
};
use jobwire_harness::eventually;
use jobwire_harness::world::{SOON, quick};
use tokio::sync::Semaphore;

use super::bed::Bed;
use super::world::{SqlBench, World};

/// Waits until a job is in this state.
async fn until_in<S: SqlBench>(w: &World<S>, id: JobId, state: JobState) -> JobView {
    eventually("the state of the job", SOON, async || {
        w.view(id).await.filter(|view| view.state == state)
    })
    .await
}

/// The handler's own wait counts, and not that of a policy. It spends an attempt.
pub(super) async fn a_handler_says_when_its_job_is_tried_again<S: SqlBench>(w: &World<S>) {
    const HOUR: Duration = Duration::from_secs(3_600);
    let bed = Bed::new(w);
    let busy = |_: Running<u64>| async {
        Err::<Outcome, _>(HandlerError::retry_in(HOUR, "the bank is closed"))
    };
    let at_once = HandlerOptions::default().retry(RetryPolicy::fixed(Duration::ZERO));
    let node = bed.node(quick()).handler_with("pay", at_once, busy);
    let node = node.start().await.unwrap();
    let pay = || NewJob::of("pay", &1);
    let jobs = vec![pay().max_attempts(3), pay().max_attempts(1)];
    let created = bed.create(jobs).await;
    let waits = until_in(w, created[0], JobState::Timer).await;
    assert_eq!((waits.retries, waits.failures), (2, 1));
    assert_eq!(&*waits.exception_message.unwrap(), "the bank is closed");
    let wait = waits.due_at.unwrap() - Utc::now();
    let hour = TimeDelta::hours(1);
    assert!(
        hour - TimeDelta::minutes(5) < wait && wait <= hour,
        "{wait}"
    );
    // Without another attempt there is no other time.
    let letter = until_in(w, created[1], JobState::DeadLetter).await;
    assert_eq!(&*letter.exception_message.unwrap(), "the bank is closed");
    node.stop().await;
}

pub(super) async fn a_panic_a_timeout_and_a_bad_payload_are_failures_like_any_other<S: SqlBench>(
    w: &World<S>,
) {
    let panics = |_: Running<()>| async {
        if true {
            panic!("oh no");
        }
        Ok(Outcome::Done)
    };
    let never_ends = |_: Running<()>| std::future::pending::<HandlerResult<Outcome>>();
    let is_done = |_: Running<u64>| async { Ok::<_, HandlerError>(Outcome::Done) };
    let briefly = HandlerOptions::default().timeout(Duration::from_millis(50));
    let bed = Bed::new(w);
    let node = bed
        .node(quick())
        .handler("panic", panics)
        .handler_with("slow", briefly, never_ends)
        .handler("number", is_done);
    let node = node.start().await.unwrap();
    let bad = "`payload` does not match the payload type of a `number` job";
    for (job, expected) in [
        (NewJob::of("panic", &()), "panicked: oh no"),
        (NewJob::of("slow", &()), "longer than its timeout"),
        (NewJob::of("number", "not a number"), bad),
    ] {
        let id = bed.create(vec![job.max_attempts(1)]).await[0];
        let letter = until_in(w, id, JobState::DeadLetter).await;
        let message = letter.exception_message.unwrap();
        assert!(message.contains(expected), "{message}");
    }
    eventually("the node to be ready", SOON, async || {
        node.health().ready.then_some(())
    })
    .await;
    node.stop().await;
}

/// Of a repeating job, and of one whose handler works in the completing transaction, which is rolled
/// back.
pub(super) async fn a_job_that_its_handler_cancels_is_deleted_and_no_occurrence_follows<
    S: SqlBench,
>(
    w: &World<S>,
) {
    let heard: Arc<Mutex<Vec<(JobId, &str)>>> = Arc::default();
    let notes = heard.clone();
    let listener = move |event: &JobEvent| {
        let event = (event.job, event.kind.name());
        notes.lock().unwrap().push(event);
    };
    let withdrawn = || HandlerError::cancel("the order was withdrawn");
    let send = move |_: Running<u64>| async move { Err::<Outcome, _>(withdrawn()) };
    let book = move |job: Running<u64>| async move {
        let mut tx = job.transaction::<S>().await?;
        tx.create(NewJob::of("other", &1)).await?;
        drop(tx);
        Err::<Outcome, _>(withdrawn())
    };
    let kept = HandlerOptions::default().keep_attempts(Duration::from_secs(3_600));
    let bed = Bed::new(w);
    let node = bed.node(quick()).listener(listener);
    let node = node.handler_with("send", kept.clone(), send);
    let node = node.handler_with("book", kept.in_transaction(), book);
    let node = node.start().await.unwrap();
    let ids = bed
        .create(vec![
            NewJob::of("send", &1).instance("i").repeat_text("R/PT10M"),
            NewJob::of("book", &1).instance("i"),
        ])
        .await;
    bed.until_left(0).await;
    for id in &ids {
        let attempts = bed.client.attempts(*id, 10).await.unwrap();
        assert_eq!(attempts.len(), 1, "{attempts:?}");
        assert_eq!(attempts[0].outcome, "cancelled");
        let message = attempts[0].message.as_deref();
        assert_eq!(message, Some("the order was withdrawn"));
    }
    assert!(bed.client.errors(None, 10).await.unwrap().is_empty());
    assert_eq!(w.rows("incident").await, 0);
    node.stop().await;
    let kinds = ["locked", "started", "cancelled"];
    let each = ids.iter().flat_map(|id| kinds.map(|kind| (*id, kind)));
    let told = eventually("the events", SOON, async || {
        let heard = heard.lock().unwrap();
        (heard.len() >= 6).then(|| heard.clone())
    })
    .await;
    assert_eq!(told, each.collect::<Vec<_>>());
}

async fn refuse(job: Running<serde_json::Value>) -> HandlerResult<Outcome> {
    let refused = format!("`{}` is not allowed", job.job.job_type);
    Err(HandlerError::unrecoverable(refused))
}

/// One replaces it at the start of its node, and the other one while the node runs.
pub(super) async fn a_handler_of_the_user_replaces_a_built_in_one<S: SqlBench>(w: &World<S>) {
    let bed = Bed::new(w);
    let node = bed.node(quick()).handler(SUSPENSION_TYPE, refuse);
    let node = node.start().await.unwrap();
    node.registry().register(BULK_TYPE, refuse).unwrap();
    let pause = bed.client.pause_at(&PauseScope::All, Utc::now());
    let pause = pause.await.unwrap();
    let kept = NewJob::of("other", &1);
    let kept = bed.create(vec![kept]).await[0];
    let delete = BulkOperation::delete(JobQuery::default().job_type("other"));
    let delete = bed.create(vec![delete.job().unwrap()]).await[0];
    for (id, job_type) in [(pause, SUSPENSION_TYPE), (delete, BULK_TYPE)] {
        let letter = until_in(w, id, JobState::DeadLetter).await;
        let refused = format!("`{job_type}` is not allowed");
        assert_eq!(letter.exception_message, Some(refused));
    }
    assert!(w.store.suspensions().await.unwrap().is_empty());
    assert_eq!(w.state(kept).await, Some(JobState::Executable));
    node.stop().await;
}

/// The first job ends within `shutdown_timeout`. The second one is created when the stop has begun.
pub(super) async fn a_job_that_ends_during_a_shutdown_is_done_and_a_new_one_is_left<S: SqlBench>(
    w: &World<S>,
) {
    let bed = Bed::new(w);
    let (notes, gate) = (bed.notes.clone(), Arc::new(Semaphore::new(0)));
    let waits = gate.clone();
    let send = move |job: Running<String>| {
        notes.add(job.payload);
        let gate = waits.clone();
        async move {
            gate.acquire().await.unwrap().forget();
            Ok(Outcome::Done)
        }
    };
    let kept = HandlerOptions::default().keep_attempts(Duration::from_secs(3_600));
    let node = bed.node(quick().shutdown_timeout(SOON));
    let node = node.handler_with("send", kept, send);
    let node = node.start().await.unwrap();
    let first = bed.create(vec![NewJob::of("send", "first")]).await[0];
    bed.notes.until(1).await;
    let stop = async {
        node.stop().await;
        bed.notes.add("stopped");
    };
    // The stop begins when it is polled first.
    let beside = async {
        let second = bed.create(vec![NewJob::of("send", "second")]).await[0];
        assert_eq!(w.state(first).await, Some(JobState::Executable));
        gate.add_permits(2);
        second
    };
    let ((), second) = tokio::join!(biased; stop, beside);
    assert_eq!(w.state(first).await, None);
    let attempts = bed.client.attempts(first, 10).await.unwrap();
    let outcomes: Vec<&str> = attempts.iter().map(|of| &*of.outcome).collect();
    assert_eq!(outcomes, ["done"]);
    let left = w.view(second).await.unwrap();
    assert_eq!((left.state, left.retries), (JobState::Executable, 3));
    assert_eq!((left.lock_owner, left.fence), (None, None));
    assert!(bed.client.attempts(second, 10).await.unwrap().is_empty());
    assert_eq!(bed.notes.all(), ["first", "stopped"]);
}

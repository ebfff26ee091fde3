use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use chrono::{DateTime, Utc};
use jobwire_core::{Job, JobId, NewJob, testing};

use super::*;
use crate::gate::Pass;
use crate::lists::Said;
use crate::options::EngineOptions;
use crate::parts::Parts;

/// The start of a request by the database's clock.
const SENT: DateTime<Utc> = DateTime::UNIX_EPOCH;
/// Longer than a request may wait in the engine's pool.
const LATE: Duration = Duration::from_secs(120);

/// A store whose engine gives no answer, or always this one. Its transactions have ended, and its rows
/// stay.
struct Silent {
    parts: Parts,
    sent: AtomicUsize,
    answer: Option<Answer>,
    /// Whether the engine extends the locks.
    renews: bool,
    /// Whether the engine answers other requests.
    hears: AtomicBool,
}

#[async_trait]
impl Executing for Silent {
    fn parts(&self) -> &Parts {
        &self.parts
    }

    async fn execute(&self, _: &Route, _: &str, _: &str, _: &Pass) -> Said {
        self.sent.fetch_add(1, Ordering::SeqCst);
        if let Some(answer) = self.answer.clone() {
            return answer.into();
        }
        tokio::time::sleep(self.parts.options.answer_within).await;
        Answer::Unanswered("no answer in time".to_owned()).into()
    }

    fn engine_renews(&self) -> bool {
        self.renews
    }

    async fn still_ours(&self, _: JobId, _: &str) -> Result<bool, StoreError> {
        Ok(true)
    }

    async fn ended(&self, _: &Job, _: &str) -> Result<Ended, StoreError> {
        Ok(Ended::Conflict)
    }

    async fn clock_at(&self, _: Instant) -> Result<DateTime<Utc>, StoreError> {
        Ok(SENT)
    }

    async fn hears(&self, _: &Route) -> bool {
        self.hears.load(Ordering::SeqCst)
    }

    async fn activity(
        &self,
        sent: DateTime<Utc>,
        taken: DateTime<Utc>,
    ) -> Result<Activity, StoreError> {
        assert_eq!(sent, SENT);
        let waited = (taken - sent).to_std().expect("after the request");
        assert!(waited >= LATE, "{waited:?}");
        Ok(Activity::Quiet)
    }
}

/// Returns an engine that does not answer, its handler, and a job.
fn sending() -> (Arc<Silent>, Execute, Running) {
    answering(None, false)
}

/// Returns an engine with this answer, its handler, and a job.
fn answering(answer: Option<Answer>, renews: bool) -> (Arc<Silent>, Execute, Running) {
    let options = EngineOptions::new("http://127.0.0.1:1/process-api")
        .answer_within(Duration::from_secs(5))
        .unknown_for(Duration::from_secs(600));
    let store = Arc::new(Silent {
        parts: Parts::new(options, None, String::new()).expect("usable"),
        sent: AtomicUsize::new(0),
        answer,
        renews,
        hears: AtomicBool::new(false),
    });
    let handler = Execute {
        store: store.clone(),
    };
    let job = testing::running(NewJob::of("async-continuation", &())).expect("a job");
    (store, handler, job)
}

/// A node that was frozen asks its jobs to stop when it goes on. The one that waited here is not sent.
#[tokio::test(start_paused = true)]
async fn a_job_whose_lock_is_lost_is_not_sent() {
    let (store, handler, job) = sending();
    let fence = job.fence;
    CancellationToken::clone(&job.stop).cancel();
    let ended = handler.run(job).await;
    assert!(matches!(ended, Ok(Outcome::Snooze(_))), "{ended:?}");
    assert_eq!(store.sent.load(Ordering::SeqCst), 0);
    assert!(store.parts.calls.is_given_back(fence));
}

/// The request may wait in the engine for longer than any limit, and begin then.
#[tokio::test(start_paused = true)]
async fn the_lock_of_a_request_stays_while_its_address_answers_no_later_one() {
    let (store, handler, job) = sending();
    let fence = job.fence;
    let began = Instant::now();
    let ended = handler.run(job).await;
    assert!(ended.is_err(), "{ended:?}");
    assert!(began.elapsed() >= store.parts.options.unknown_for);
    assert!(store.parts.calls.is_open(fence), "the lock is left");
}

#[tokio::test(start_paused = true)]
async fn a_request_has_ended_when_its_address_answers_later_ones_and_no_transaction_is_open() {
    let (store, handler, job) = sending();
    let fence = job.fence;
    let began = Instant::now();
    let ran = tokio::spawn(async move { handler.run(job).await });
    tokio::time::sleep(LATE).await;
    assert!(!ran.is_finished());
    store.hears.store(true, Ordering::SeqCst);
    let ended = ran.await.expect("it ends");
    assert!(ended.is_err(), "{ended:?}");
    let took = began.elapsed();
    assert!(took >= LATE + BEGINS_WITHIN, "{took:?}");
    assert!(took < LATE + 2 * BEGINS_WITHIN, "{took:?}");
    assert!(!store.parts.calls.is_open(fence), "the job is ready");
}

/// The address has answered: such jobs in a row do not close it for the others.
#[tokio::test(start_paused = true)]
async fn a_failure_that_is_not_recorded_leaves_the_lock_only_to_an_engine_that_extends_it() {
    for renews in [false, true] {
        let (store, handler, job) = answering(Some(Answer::Unrecorded), renews);
        let (id, fence) = (job.job.id, job.fence);
        let began = Instant::now();
        let ended = handler.run(job).await;
        assert!(ended.is_err(), "{ended:?}");
        assert_eq!(store.parts.calls.is_open(fence), renews);
        let waits = if renews {
            Duration::ZERO
        } else {
            crate::traceless::SHORTEST
        };
        assert_eq!(began.elapsed(), waits);
        let times = if renews { 1 } else { 2 };
        assert_eq!(store.parts.traceless.ended(id).times, times);
        assert_eq!(store.parts.routes.problem(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_no_address_executes_is_tried_in_pauses_and_then_released() {
    let (began, stop) = (Instant::now(), CancellationToken::new());
    let mut tries = 1;
    while may_try_again(began, &stop).await {
        tries += 1;
    }
    assert!((PATIENCE..PATIENCE + TRY_AGAIN).contains(&began.elapsed()));
    assert!((45..=51).contains(&tries), "{tries}");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_must_stop_is_not_tried_again() {
    let (began, stop) = (Instant::now(), CancellationToken::new());
    stop.cancel();
    assert!(!may_try_again(began, &stop).await);
    assert_eq!(began.elapsed(), Duration::ZERO);
}

//! The handlers of the town hall. See [`super`] for the jobs that each creates and the failures.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jobwire_core::worker::handler_transaction::TransactionError;
use jobwire_core::{
    HandlerError, HandlerOptions, HandlerResult, Handlers, NewJob, Outcome, PgStore, Running,
    SqliteStore,
};

use crate::handlers::event;

use super::tally::Tally;
use super::{Application, Run};

/// The waiting period before a decision and before archiving.
const WAITING_PERIOD: Duration = Duration::from_secs(1);
/// The retry policy.
const SOON: &str = "300ms";
/// The number of attempts of a delivery.
const DELIVERIES: i32 = 2;

/// Adds the handlers.
pub(super) fn add(handlers: &mut Handlers, run: Run, tally: &Arc<Tally>) {
    let in_transaction = HandlerOptions::default().in_transaction();
    let apart = HandlerOptions::default();
    observed(
        handlers,
        "receive-application",
        &in_transaction,
        tally,
        move |job| receive(run, job),
    );
    observed(handlers, "send-receipt", &apart, tally, send_receipt);
    observed(
        handlers,
        "check-documents",
        &in_transaction,
        tally,
        move |job| check(run, job),
    );
    observed(handlers, "ask-advice", &apart, tally, ask_advice);
    observed(handlers, "decide", &in_transaction, tally, move |job| {
        decide(run, job)
    });
    observed(handlers, "deliver-decision", &apart, tally, move |job| {
        deliver(run, job)
    });
    observed(handlers, "archive", &in_transaction, tally, archive);
}

type Permit = Arc<Running<Application>>;

/// Adds a handler whose attempts are recorded in the tally, from the start to the result.
fn observed<F, Fut>(
    handlers: &mut Handlers,
    job_type: &'static str,
    options: &HandlerOptions,
    tally: &Arc<Tally>,
    work: F,
) where
    F: Fn(Permit) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = HandlerResult<Outcome>> + Send + 'static,
{
    let tally = tally.clone();
    handlers.add_with(
        job_type,
        options.clone(),
        move |job: Running<Application>| {
            let (tally, work, job) = (tally.clone(), work.clone(), Arc::new(job));
            async move {
                let attempt = tally.start(&job.job);
                let answer = work(job).await;
                attempt.end(&answer);
                answer
            }
        },
    );
}

async fn receive(run: Run, job: Permit) -> HandlerResult<Outcome> {
    let number = job.payload.number;
    event::record(&job, 1).await?;
    let receipt = run
        .job("send-receipt", number)
        .concurrent()
        .retry_policy_text(SOON);
    create(&job, vec![receipt, run.job("check-documents", number)]).await
}

async fn send_receipt(job: Permit) -> HandlerResult<Outcome> {
    work(10).await;
    if job.payload.number.is_multiple_of(9) && job.job.failures == 0 {
        return Err(HandlerError::retry("the mail server was busy"));
    }
    Ok(Outcome::Done)
}

async fn check(run: Run, job: Permit) -> HandlerResult<Outcome> {
    let number = job.payload.number;
    event::record(&job, 2).await?;
    let advice = || run.job("ask-advice", number).retry_policy_text(SOON);
    let decision = run.job("decide", number).delay(WAITING_PERIOD);
    create(&job, vec![advice(), advice(), decision]).await
}

async fn ask_advice(job: Permit) -> HandlerResult<Outcome> {
    work(20).await;
    if job.payload.number.is_multiple_of(20) && job.job.failures == 0 {
        return Err(HandlerError::retry(
            "the fire brigade did not pick up the telephone",
        ));
    }
    Ok(Outcome::Done)
}

async fn decide(run: Run, job: Permit) -> HandlerResult<Outcome> {
    let number = job.payload.number;
    event::record(&job, 3).await?;
    let delivery = run
        .job("deliver-decision", number)
        .concurrent()
        .max_attempts(DELIVERIES)
        .retry_policy_text(SOON);
    let archive = run.job("archive", number).delay(WAITING_PERIOD);
    create(&job, vec![delivery, archive]).await
}

async fn deliver(run: Run, job: Permit) -> HandlerResult<Outcome> {
    work(5).await;
    let number = job.payload.number;
    if number == run.moved_away() {
        return Err(HandlerError::unrecoverable(
            "the applicant has moved away, address unknown",
        ));
    }
    if run.never_at_home() == Some(number) {
        return Err(HandlerError::retry("nobody was at home"));
    }
    Ok(Outcome::Done)
}

async fn archive(job: Permit) -> HandlerResult<Outcome> {
    event::record(&job, 4).await?;
    Ok(Outcome::Done)
}

impl Run {
    /// Returns the application whose decision can never be delivered.
    pub(super) fn moved_away(&self) -> u32 {
        self.applications.div_ceil(2)
    }

    /// Returns the application whose delivery fails at each attempt.
    pub(super) fn never_at_home(&self) -> Option<u32> {
        (self.applications > 1).then_some(self.applications)
    }

    /// Returns the expected number of dead letters.
    pub(super) fn dead_letters(&self) -> u64 {
        1 + u64::from(self.never_at_home().is_some())
    }
}

/// Simulates work of the given duration.
async fn work(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// Creates the next jobs in the transaction that completes this one.
async fn create(job: &Running<Application>, next: Vec<NewJob>) -> HandlerResult<Outcome> {
    match job.transaction::<PgStore>().await {
        Ok(mut tx) => {
            tx.create_many(next).await?;
        }
        Err(TransactionError::OtherStore) => {
            job.transaction::<SqliteStore>()
                .await?
                .create_many(next)
                .await?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(Outcome::Done)
}

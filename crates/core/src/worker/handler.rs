//! The handler: the code that runs a job of one type, and what it may answer.
//!
//! A handler is an async closure over a typed payload, or anything that implements [`Handler`]:
//!
//! ```
//! use jobwire_core::{HandlerError, Handlers, Outcome, Running};
//!
//! #[derive(serde::Deserialize)]
//! struct SendInvoice { order: u64 }
//!
//! let mut handlers = Handlers::default();
//! handlers.add("send-invoice", |job: Running<SendInvoice>| async move {
//!     if job.payload.order == 0 {
//!         return Err(HandlerError::unrecoverable("there is no order 0"));
//!     }
//!     Ok(Outcome::Done)
//! });
//! assert!(handlers.get("send-invoice").is_some());
//! ```
//!
//! What a handler answers, and what follows:
//!
//! | answer | the job |
//! | --- | --- |
//! | `Ok(())`, `Ok(Outcome::Done)` | is deleted; a repeating one gets its next occurrence |
//! | `Ok(Outcome::Snooze(d))` | waits so long; no attempt spent |
//! | `Err(HandlerError::retry(…))`, or `?` on any error | waits by the retry policy; one attempt spent; none left: dead letter |
//! | `Err(HandlerError::retry_in(d, …))` | waits so long; one attempt spent |
//! | `Err(HandlerError::unrecoverable(…))` | becomes a dead letter at once |
//! | `Err(HandlerError::conflict(…))` | runs again soon; no attempt spent (optimistic lock, serialization) |
//! | panic, timeout | as `retry` |
//!
//! Handlers share the threads of the node's runtime, with whatever else runs on it: what computes or blocks for more
//! than a fraction of a millisecond belongs in `tokio::task::spawn_blocking`. None may keep its thread (`block_on`,
//! `block_in_place`) to wait for another job: nobody may be left to lock that one.

use std::collections::HashMap;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::job::args::JobArgs;
use crate::job::retry::RetryPolicy;
use crate::job::{Fence, Job, NodeId};
use crate::worker::handler_transaction::{HandlerTransaction, TransactionError, TransactionGuard};
use crate::worker::inline_start::InlineStarts;
use crate::worker::lease_book::Lease;
use crate::worker::middleware::{Layered, Middleware};

/// What became of an attempt that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The job is finished.
    Done,
    /// Run it again after this time; no attempt is spent.
    Snooze(Duration),
}

/// What a handler may answer instead of an [`Outcome`].
pub trait IntoOutcome {
    /// The outcome of the attempt.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

/// The job is finished.
impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Done
    }
}

/// What a failed attempt means for the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// Try again after the time given, or by the retry policy; one attempt is spent.
    Retry(Option<Duration>),
    /// Never try again.
    Unrecoverable,
    /// Somebody else changed the same data; try again soon, no attempt is spent.
    Conflict,
}

/// A failed attempt: the verdict, a message, and the chain of causes.
#[derive(Debug)]
pub struct HandlerError {
    /// What it means for the job.
    pub verdict: Verdict,
    /// For people.
    pub message: String,
    /// The chain of causes, one a line.
    pub stack: Option<String>,
}

impl HandlerError {
    fn new(verdict: Verdict, message: impl Into<String>) -> Self {
        Self {
            verdict,
            message: message.into(),
            stack: None,
        }
    }

    /// Try again by the retry policy.
    pub fn retry(message: impl Into<String>) -> Self {
        Self::new(Verdict::Retry(None), message)
    }

    /// Try again after this time.
    pub fn retry_in(wait: Duration, message: impl Into<String>) -> Self {
        Self::new(Verdict::Retry(Some(wait)), message)
    }

    /// Never try again.
    pub fn unrecoverable(message: impl Into<String>) -> Self {
        Self::new(Verdict::Unrecoverable, message)
    }

    /// Somebody else changed the same data; no attempt is spent.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(Verdict::Conflict, message)
    }
}

/// Any error, also a text or one of `anyhow`, means "try again by the retry policy". A serialization
/// failure or deadlock of the database, in the error or among its sources, is a conflict.
impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let error: Box<dyn std::error::Error + Send + Sync> = error.into();
        let mut causes = vec![error.to_string()];
        let mut conflict = is_conflict(&*error);
        let mut cause = error.source();
        while let Some(next) = cause {
            conflict |= is_conflict(next);
            causes.push(next.to_string());
            cause = next.source();
        }
        Self {
            verdict: if conflict {
                Verdict::Conflict
            } else {
                Verdict::Retry(None)
            },
            message: causes.first().cloned().unwrap_or_default(),
            stack: Some(causes.join("\ncaused by: ")),
        }
    }
}

fn is_conflict(error: &(dyn std::error::Error + 'static)) -> bool {
    error
        .downcast_ref::<sqlx::Error>()
        .and_then(|e| e.as_database_error())
        .and_then(sqlx::error::DatabaseError::code)
        .is_some_and(|code| matches!(code.as_ref(), "40001" | "40P01"))
}

/// What a handler answers: an [`Outcome`], or anything that [becomes one](IntoOutcome).
pub type HandlerResult<O = Outcome> = Result<O, HandlerError>;

/// A job that runs: its data, and what the handler may ask of the node.
pub struct Running<P = ()> {
    /// The decoded payload.
    pub payload: P,
    /// The job.
    pub job: Arc<Job>,
    /// The token of this lock: hand it to systems that can refuse an older one.
    pub fence: Fence,
    /// The node that runs it.
    pub node: NodeId,
    /// Cancelled when the job shall stop: shutdown, timeout, a lost lease, an operator's cancel.
    pub stop: Stop,
    pub(crate) transaction: HandlerTransaction,
}

/// A [`CancellationToken`] that is made when it is first looked at: `job.stop.cancelled().await`,
/// `job.stop.is_cancelled()`, or, to hand it on, `CancellationToken::clone(&job.stop)`.
#[derive(Clone)]
pub struct Stop(pub(crate) StopSignal);

#[derive(Clone)]
pub(crate) enum StopSignal {
    OfLease(Arc<Lease>),
    OfAttempt(CancellationToken),
}

impl Deref for Stop {
    type Target = CancellationToken;

    fn deref(&self) -> &CancellationToken {
        match &self.0 {
            StopSignal::OfLease(lease) => lease.stop.token(),
            StopSignal::OfAttempt(attempt) => attempt,
        }
    }
}

impl<P> Running<P> {
    /// The transaction that completes this job, where its handler is registered
    /// [`in_transaction`](HandlerOptions::in_transaction): what is written here commits together with
    /// the job's completion, or not at all. `S` is the store, for example
    /// [`PgStore`](crate::PgStore).
    ///
    /// # Errors
    /// Where the handler is not registered so, or the node's store is another.
    pub async fn transaction<S: crate::store::SqlStore>(
        &self,
    ) -> Result<TransactionGuard<S>, TransactionError> {
        self.transaction.lock().await
    }

    pub(crate) fn with_payload<Q>(self, payload: Q) -> Running<Q> {
        Running {
            payload,
            job: self.job,
            fence: self.fence,
            node: self.node,
            stop: self.stop,
            transaction: self.transaction,
        }
    }
}

/// Runs jobs of one type.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Run one job. See the [module](self) for what the answer means.
    async fn run(&self, job: Running) -> HandlerResult;
}

/// An async closure over a typed payload.
struct Closure<F, P> {
    run: F,
    payload: PhantomData<fn() -> P>,
}

#[async_trait]
impl<F, Fut, P, O> Handler for Closure<F, P>
where
    F: Fn(Running<P>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HandlerResult<O>> + Send,
    P: DeserializeOwned + Send + 'static,
    O: IntoOutcome,
{
    async fn run(&self, job: Running) -> HandlerResult {
        let payload = job.job.decode().map_err(|e| {
            // It will not decode next time either: an operator or a new release has to look at it.
            HandlerError::unrecoverable(format!(
                "field `payload` does not fit what a `{}` job takes: {e}",
                job.job.job_type
            ))
        })?;
        let answer = (self.run)(job.with_payload(payload)).await?;
        Ok(answer.into_outcome())
    }
}

/// How jobs of one type are run.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct HandlerOptions {
    /// End an attempt that takes longer. Default: none.
    pub timeout: Option<Duration>,
    /// At most so many of this type at once on one node. Default: as many as the node has slots.
    pub concurrency: Option<usize>,
    /// Waits between attempts, where the job itself says nothing. Default: 10 s.
    pub retry: RetryPolicy,
    /// Run inside the transaction that completes the job. Short, database-only work: PostgreSQL ends the
    /// transaction, and the attempt fails, when it asks nothing for as long as
    /// [`PgOptions::idle_in_transaction_timeout`](crate::store::postgres::PgOptions::idle_in_transaction_timeout).
    /// Default: no.
    pub in_transaction: bool,
    /// Hold jobs by locks of their rows instead of leases, where many arrive at once: see
    /// [`row_lock`](Self::row_lock). Without effect together with [`in_transaction`](Self::in_transaction), and in
    /// stores other than PostgreSQL. Default: no.
    pub row_lock: bool,
}

impl HandlerOptions {
    /// End an attempt that takes longer.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// At most so many of this type at once on one node.
    #[must_use]
    pub fn concurrency(mut self, limit: usize) -> Self {
        self.concurrency = Some(limit.max(1));
        self
    }

    /// Waits between attempts.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// Run inside the transaction that completes the job.
    #[must_use]
    pub fn in_transaction(mut self) -> Self {
        self.in_transaction = true;
        self
    }

    /// For short handlers: hold jobs by locks of their rows, where many arrive at once (protocol rule 35).
    ///
    /// A batch is locked, run and deleted in one transaction, which costs the database half of what leases do.
    /// What has not ended after a tenth of a second gets a lease in that transaction and goes on as any other job;
    /// so does what failed, and what was hinted or tried before is held by a lease from the start. The connection
    /// is kept meanwhile, and where no connection is free there are leases.
    ///
    /// The price: while a job is held so, a cut connection lets another node run it beside this one, and this
    /// node's outcome is refused, where a lease would have protected both. Declare only handlers that are
    /// short, and whose second run does no harm.
    #[must_use]
    pub fn row_lock(mut self) -> Self {
        self.row_lock = true;
        self
    }
}

/// A handler and how it is run.
#[derive(Clone)]
pub struct Registration {
    /// Runs the jobs.
    pub handler: Arc<dyn Handler>,
    /// How.
    pub options: HandlerOptions,
    pub(crate) first_turns: Arc<InlineStarts>,
}

/// The handlers of a node, by type. Adding a type again replaces its handler.
#[derive(Clone, Default)]
pub struct Handlers {
    by_type: HashMap<String, Registration>,
}

impl Handlers {
    /// Add an async closure over a typed payload, with default options.
    pub fn add<P, F, Fut, O>(&mut self, job_type: impl Into<String>, run: F)
    where
        F: Fn(Running<P>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<O>> + Send + 'static,
        P: DeserializeOwned + Send + 'static,
        O: IntoOutcome + 'static,
    {
        self.add_with(job_type, HandlerOptions::default(), run);
    }

    /// Add an async closure over a typed payload.
    pub fn add_with<P, F, Fut, O>(
        &mut self,
        job_type: impl Into<String>,
        options: HandlerOptions,
        run: F,
    ) where
        F: Fn(Running<P>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<O>> + Send + 'static,
        P: DeserializeOwned + Send + 'static,
        O: IntoOutcome + 'static,
    {
        let handler = Closure {
            run,
            payload: PhantomData,
        };
        self.register(job_type, options, Arc::new(handler));
    }

    /// Add an async closure over a [typed job](JobArgs), with default options.
    pub fn job<A, F, Fut, O>(&mut self, run: F)
    where
        A: JobArgs,
        F: Fn(Running<A>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<O>> + Send + 'static,
        O: IntoOutcome + 'static,
    {
        self.add(A::TYPE, run);
    }

    /// Add an async closure over a [typed job](JobArgs).
    pub fn job_with<A, F, Fut, O>(&mut self, options: HandlerOptions, run: F)
    where
        A: JobArgs,
        F: Fn(Running<A>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<O>> + Send + 'static,
        O: IntoOutcome + 'static,
    {
        self.add_with(A::TYPE, options, run);
    }

    /// Add anything that implements [`Handler`].
    pub fn register(
        &mut self,
        job_type: impl Into<String>,
        options: HandlerOptions,
        handler: Arc<dyn Handler>,
    ) {
        let registration = Registration {
            handler,
            options,
            first_turns: Arc::default(),
        };
        self.by_type.insert(job_type.into(), registration);
    }

    /// Put a [middleware](crate::worker::middleware) around every handler that was added so far.
    pub fn layer(&mut self, middleware: impl Middleware) {
        let middleware: Arc<dyn Middleware> = Arc::new(middleware);
        for registration in self.by_type.values_mut() {
            registration.handler = Arc::new(Layered {
                middleware: middleware.clone(),
                inner: registration.handler.clone(),
            });
        }
    }

    /// Add all of these.
    pub fn extend(&mut self, others: &Handlers) {
        let others = others.by_type.iter();
        self.by_type
            .extend(others.map(|(job_type, one)| (job_type.clone(), one.clone())));
    }

    /// Remove the handler of a type. False where there was none.
    pub fn remove(&mut self, job_type: &str) -> bool {
        self.by_type.remove(job_type).is_some()
    }

    /// The handler of a type.
    #[must_use]
    pub fn get(&self, job_type: &str) -> Option<&Registration> {
        self.by_type.get(job_type)
    }

    /// Hold jobs of this type by row locks, whatever its handler was registered with
    /// ([`HandlerOptions::row_lock`]). False where the type has no handler.
    pub fn allow_row_lock(&mut self, job_type: &str) -> bool {
        let found = self.by_type.get_mut(job_type);
        found.is_some_and(|registration| {
            registration.options.row_lock = true;
            true
        })
    }

    /// Those of the types that may be held by row locks, sorted.
    pub(crate) fn row_lock_types(&self) -> Vec<String> {
        let by_row = |registration: &Registration| {
            registration.options.row_lock && !registration.options.in_transaction
        };
        let by_row = self.by_type.iter().filter(|(_, r)| by_row(r));
        let mut types: Vec<_> = by_row.map(|(name, _)| name.clone()).collect();
        types.sort_unstable();
        types
    }

    /// The types that have one, sorted.
    #[must_use]
    pub fn types(&self) -> Vec<String> {
        let mut types: Vec<_> = self.by_type.keys().cloned().collect();
        types.sort_unstable();
        types
    }
}

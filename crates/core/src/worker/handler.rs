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
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::de::DeserializeOwned;

use crate::job::args::JobArgs;
use crate::job::retry::RetryPolicy;
use crate::worker::inline_start::InlineStarts;
use crate::worker::middleware::{Layered, Middleware};

pub use crate::worker::outcome::{HandlerError, HandlerResult, IntoOutcome, Outcome, Verdict};
pub(crate) use crate::worker::running::StopSignal;
pub use crate::worker::running::{Handler, Running, Stop};

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
    pub(crate) inline_starts: Arc<InlineStarts>,
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
            inline_starts: Arc::default(),
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

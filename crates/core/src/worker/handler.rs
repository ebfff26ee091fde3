//! The handler: the code that runs jobs of one type, and its possible answers.
//!
//! A handler is an async closure over a typed payload, or an implementation of [`Handler`]:
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
//! The answers of a handler and their effect:
//!
//! | answer | the job |
//! | --- | --- |
//! | `Ok(())`, `Ok(Outcome::Done)` | is deleted; a repeating one gets its next occurrence |
//! | `Ok(Outcome::Snooze(d))` | waits for `d`; no attempt spent |
//! | `Ok(Outcome::SnoozeUntil(t))` | waits until `t`; no attempt spent |
//! | `Err(HandlerError::retry(…))`, or `?` on any error | waits by the retry policy; one attempt spent; none left: dead letter |
//! | `Err(HandlerError::retry_in(d, …))` | waits for `d`; one attempt spent |
//! | `Err(HandlerError::retry_at(t, …))` | waits until `t`; one attempt spent |
//! | `Err(HandlerError::unrecoverable(…))` | becomes a dead letter at once |
//! | `Err(HandlerError::conflict(…))` | runs again soon; no attempt spent (optimistic lock, serialization) |
//! | `Err(HandlerError::cancel(…))` | is deleted like a cancelled one; no occurrence follows |
//! | panic, timeout, no heartbeat in time | as `retry` |
//!
//! Handlers share the threads of the node's runtime with all other tasks on it. Work that computes
//! or blocks for more than a fraction of a millisecond belongs in `tokio::task::spawn_blocking`. A
//! handler must not block its thread (`block_on`, `block_in_place`) to wait for another job: no
//! thread may be left to lock that job.

use std::collections::BTreeMap;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::de::DeserializeOwned;

use crate::job::Job;
use crate::job::args::JobArgs;
use crate::job::retry::RetryPolicy;
use crate::runtime::fast_map::FastMap;
use crate::store::attempts::AttemptsKept;
use crate::worker::inline_start::InlineStarts;
use crate::worker::limit::Limit;
use crate::worker::middleware::{Layered, Middleware};

pub use crate::worker::outcome::{HandlerError, HandlerResult, IntoOutcome, Outcome, Verdict};
pub use crate::worker::retry_function::RetryFunction;
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
    async fn run(&self, job: Running) -> HandlerResult<Outcome> {
        let payload = job
            .job
            .decode()
            .map_err(|error| HandlerError::bad_payload(&job.job.job_type, job.sealed, &error))?;
        let answer = (self.run)(job.with_payload(payload)).await?;
        Ok(answer.into_outcome())
    }
}

/// The options of a handler.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct HandlerOptions {
    /// The maximum duration of an attempt. Default: none.
    pub timeout: Option<Duration>,
    /// The maximum time between two heartbeats of a running handler, which it gives by
    /// [`Running::heartbeat`]: see [`heartbeat_timeout`](Self::heartbeat_timeout). Default: none, no
    /// heartbeat is expected.
    pub heartbeat_timeout: Option<Duration>,
    /// The maximum number of jobs of this type that run at once on one node. Default: all slots.
    pub concurrency: Option<usize>,
    /// A limit of the jobs in the whole fleet, by key: how many run at once, or start in a period.
    /// See [`limit`](Self::limit). Default: none.
    pub limit: Option<Limit>,
    /// The waits between attempts of jobs without their own policy. Default: none, the policy of
    /// the node counts ([`NodeOptions::retry`](crate::NodeOptions::retry)).
    pub retry: Option<RetryPolicy>,
    /// A function that chooses the waits by the job and its error; see
    /// [`retry_by`](Self::retry_by). Default: none.
    pub retry_by: Option<RetryFunction>,
    /// Whether the handler runs inside the transaction that completes the job. For short work in
    /// the database only: PostgreSQL ends a transaction that is idle for
    /// [`PgOptions::idle_in_transaction_timeout`](crate::store::postgres::PgOptions::idle_in_transaction_timeout),
    /// and the attempt fails. Default: no.
    pub in_transaction: bool,
    /// Whether jobs are held by row locks instead of leases if many arrive at once: see
    /// [`row_lock`](Self::row_lock). Has no effect together with
    /// [`in_transaction`](Self::in_transaction), or in stores other than PostgreSQL. Default: no.
    pub row_lock: bool,
    /// The time for which each attempt is kept, for
    /// [`Client::attempts`](crate::Client::attempts). Its row is written with the outcome, so a
    /// completion costs one more insert, and jobs of this type are not held by row locks. If the node
    /// dies, the leader writes the row. Default: none, attempts are not recorded.
    pub keep_attempts: Option<Duration>,
}

impl HandlerOptions {
    /// Ends an attempt that takes longer.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Ends an attempt whose handler gives no heartbeat for this time, as if its
    /// [timeout](Self::timeout) were over: the attempt has failed.
    ///
    /// For handlers that may get stuck and whose whole duration is unknown: they call
    /// [`Running::heartbeat`] after each step. The start of the attempt counts as the first
    /// heartbeat. In a [group](Handlers::group) each job needs its own.
    #[must_use]
    pub fn heartbeat_timeout(mut self, timeout: Duration) -> Self {
        self.heartbeat_timeout = Some(timeout);
        self
    }

    /// Limits the number of jobs of this type that run at once on one node. Its further jobs hold
    /// neither a slot nor a lease while they wait: the node runs jobs of other types, and other
    /// nodes take what waits.
    #[must_use]
    pub fn concurrency(mut self, limit: usize) -> Self {
        self.concurrency = Some(limit.max(1));
        self
    }

    /// Limits the number of jobs that run at once in the whole fleet ([`Limit::running`]), or that start
    /// in a period ([`Limit::rate`]), for the type or for each key: a tenant, a customer, whatever the
    /// [`Limit`] names.
    ///
    /// A job over the limit waits in the database. It holds no slot, spends no attempt, and starts
    /// in creation order when a permit of its key is free. The limit holds while nodes die: the
    /// permits of a dead node are free when its leases have been ended, and, of a rate, have cooled
    /// down. Jobs with a limit are not held by row locks. Stores of process engines support no limit. A
    /// handler has one limit: together with a rate, [`concurrency`](Self::concurrency) limits the jobs
    /// that run at once on a node.
    #[must_use]
    pub fn limit(mut self, limit: Limit) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Sets the waits between attempts.
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = Some(policy);
        self
    }

    /// Chooses the waits between attempts by the job and its error. The policy that the function
    /// returns overrides that of the job. After `None` the usual order applies: the policy of the
    /// job, that of the handler, that of the node. The function is not asked about errors that name
    /// a wait or a date ([`HandlerError::retry_in`], [`HandlerError::retry_at`]) or spend no attempt, nor
    /// after the last attempt. It must not block. If it panics, the usual order applies.
    ///
    /// ```
    /// use std::time::Duration;
    /// use jobwire_core::{HandlerOptions, RetryPolicy};
    ///
    /// let options = HandlerOptions::default().retry_by(|_job, error| {
    ///     let is_busy = error.message.contains("503");
    ///     is_busy.then(|| RetryPolicy::fixed(Duration::from_secs(300)))
    /// });
    /// # assert!(options.retry_by.is_some());
    /// ```
    #[must_use]
    pub fn retry_by<F>(mut self, choose: F) -> Self
    where
        F: Fn(&Job, &HandlerError) -> Option<RetryPolicy> + Send + Sync + 'static,
    {
        self.retry_by = Some(RetryFunction::new(choose));
        self
    }

    /// Runs the handler inside the transaction that completes the job.
    #[must_use]
    pub fn in_transaction(mut self) -> Self {
        self.in_transaction = true;
        self
    }

    /// Records each attempt and keeps it for this time.
    #[must_use]
    pub fn keep_attempts(mut self, keep: Duration) -> Self {
        self.keep_attempts = Some(keep);
        self
    }

    /// Holds jobs by row locks if many arrive at once (protocol rule 35). For short handlers.
    ///
    /// One transaction locks, runs and deletes a batch, at half the cost of leases for the
    /// database. A job that has not ended after a tenth of a second, or that failed, gets a lease
    /// in that transaction and continues like any other job. Jobs that were hinted or tried before
    /// get a lease from the start. The batch keeps its connection meanwhile; if no connection is
    /// free, the jobs get leases.
    ///
    /// The risk: if the connection of a batch is cut, another node may run its jobs at the same
    /// time, and the outcomes of this node are refused. A lease would prevent both. Use row locks
    /// only for handlers that are short and harmless when run twice.
    #[must_use]
    pub fn row_lock(mut self) -> Self {
        self.row_lock = true;
        self
    }
}

/// A handler and its options.
#[derive(Clone)]
pub struct Registration {
    /// The handler.
    pub handler: Arc<dyn Handler>,
    /// Its options.
    pub options: HandlerOptions,
    pub(crate) inline_starts: Arc<InlineStarts>,
}

/// The handlers of a node, by type. Adding a type again replaces its handler.
///
/// The methods take their arguments in one order: the type, the options, the handler. `add` and
/// `job` take no options, and a [typed job](JobArgs) names its type itself.
#[derive(Clone, Default)]
pub struct Handlers {
    /// Shared with the jobs that run.
    by_type: FastMap<String, Arc<Registration>>,
}

impl Handlers {
    /// Adds an async closure over a typed payload, with default options.
    pub fn add<P, F, Fut, O>(&mut self, job_type: impl Into<String>, run: F)
    where
        F: Fn(Running<P>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<O>> + Send + 'static,
        P: DeserializeOwned + Send + 'static,
        O: IntoOutcome + 'static,
    {
        self.add_with(job_type, HandlerOptions::default(), run);
    }

    /// Adds an async closure over a typed payload.
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

    /// Adds an async closure over a [typed job](JobArgs), with default options.
    pub fn job<A, F, Fut, O>(&mut self, run: F)
    where
        A: JobArgs,
        F: Fn(Running<A>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<O>> + Send + 'static,
        O: IntoOutcome + 'static,
    {
        self.add(A::TYPE, run);
    }

    /// Adds an async closure over a [typed job](JobArgs).
    pub fn job_with<A, F, Fut, O>(&mut self, options: HandlerOptions, run: F)
    where
        A: JobArgs,
        F: Fn(Running<A>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<O>> + Send + 'static,
        O: IntoOutcome + 'static,
    {
        self.add_with(A::TYPE, options, run);
    }

    /// Adds an implementation of [`Handler`].
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
        self.by_type.insert(job_type.into(), Arc::new(registration));
    }

    /// Puts a [middleware](crate::worker::middleware) around every handler that was added so far.
    /// Logs a warning if there is none.
    pub fn layer(&mut self, middleware: impl Middleware) {
        if self.by_type.is_empty() {
            tracing::warn!(
                "a middleware was added before any handler, so no handler has it; \
                 call `layer` after the handlers are added"
            );
        }
        let middleware: Arc<dyn Middleware> = Arc::new(middleware);
        for registration in self.by_type.values_mut() {
            let registration = Arc::make_mut(registration);
            registration.handler = Arc::new(Layered {
                middleware: middleware.clone(),
                inner: registration.handler.clone(),
            });
        }
    }

    /// Adds all these handlers.
    pub fn extend(&mut self, others: &Handlers) {
        let others = others.by_type.iter();
        self.by_type
            .extend(others.map(|(job_type, one)| (job_type.clone(), one.clone())));
    }

    /// Removes the handler of a type. Returns false if there is none.
    pub fn remove(&mut self, job_type: &str) -> bool {
        self.by_type.remove(job_type).is_some()
    }

    /// Returns the handler of a type.
    #[must_use]
    pub fn get(&self, job_type: &str) -> Option<&Registration> {
        self.shared(job_type).map(|registration| &**registration)
    }

    /// Returns the handler of a type, as jobs that run hold it.
    pub(crate) fn shared(&self, job_type: &str) -> Option<&Arc<Registration>> {
        self.by_type.get(job_type)
    }

    /// Changes the options of a handler, for attempts that begin from now on. Returns false if the type
    /// has none.
    fn change_options(&mut self, job_type: &str, change: impl FnOnce(&mut HandlerOptions)) -> bool {
        let Some(registration) = self.by_type.get_mut(job_type) else {
            return false;
        };
        change(&mut Arc::make_mut(registration).options);
        true
    }

    /// Holds jobs of this type by row locks, regardless of the handler's own
    /// [option](HandlerOptions::row_lock). Returns false if the type has no handler.
    pub fn allow_row_lock(&mut self, job_type: &str) -> bool {
        self.change_options(job_type, |options| options.row_lock = true)
    }

    /// Ends attempts of this type that take longer, whatever the handler's own
    /// [option](HandlerOptions::timeout). Returns false if the type has no handler.
    pub fn limit_time(&mut self, job_type: &str, timeout: Duration) -> bool {
        self.change_options(job_type, |options| options.timeout = Some(timeout))
    }

    /// Ends attempts of this type whose handler gives no heartbeat for this time, whatever the handler's own
    /// [option](HandlerOptions::heartbeat_timeout). Returns false if the type has no handler.
    pub fn expect_heartbeats(&mut self, job_type: &str, timeout: Duration) -> bool {
        self.change_options(job_type, |options| {
            options.heartbeat_timeout = Some(timeout);
        })
    }

    /// Limits the jobs of this type that run at once on one node, whatever the handler's own
    /// [option](HandlerOptions::concurrency). 0 counts as 1. Returns false if the type has no handler.
    pub fn limit_node(&mut self, job_type: &str, limit: usize) -> bool {
        self.change_options(job_type, |options| {
            options.concurrency = Some(limit.max(1));
        })
    }

    /// Sets the waits between attempts of this type, whatever the handler's own
    /// [option](HandlerOptions::retry). A policy of the job still comes first. Returns false if the
    /// type has no handler.
    pub fn retry(&mut self, job_type: &str, policy: RetryPolicy) -> bool {
        self.change_options(job_type, |options| options.retry = Some(policy))
    }

    /// Records the attempts of this type, whatever the handler's own
    /// [option](HandlerOptions::keep_attempts). Returns false if the type has no handler.
    pub fn keep_attempts(&mut self, job_type: &str, keep: Duration) -> bool {
        self.change_options(job_type, |options| options.keep_attempts = Some(keep))
    }

    /// Limits the jobs of this type in the fleet, whatever the handler's own
    /// [option](HandlerOptions::limit). Returns false if the type has no handler.
    pub fn limit_fleet(&mut self, job_type: &str, limit: Limit) -> bool {
        self.change_options(job_type, |options| options.limit = Some(limit))
    }

    /// Returns whether a handler has a limit of the fleet.
    pub(crate) fn has_limits(&self) -> bool {
        self.limits().next().is_some()
    }

    /// Returns the limits of the fleet.
    pub(crate) fn limits(&self) -> impl Iterator<Item = &Limit> {
        let handlers = self.by_type.values();
        handlers.filter_map(|registration| registration.options.limit.as_ref())
    }

    /// Returns the names of the limits of the fleet.
    pub(crate) fn limit_names(&self) -> Vec<String> {
        let handlers = self.by_type.iter();
        let named = handlers.filter_map(|(job_type, registration)| {
            let limit = registration.options.limit.as_ref()?;
            Some(limit.name_for(job_type))
        });
        named.collect()
    }

    /// Returns the names of the limits of the fleet, each once, with the longest time for which a permit
    /// cools down.
    pub(crate) fn cool_downs(&self) -> Vec<(String, Duration)> {
        let mut cool_downs: BTreeMap<String, Duration> = BTreeMap::new();
        for (job_type, registration) in &self.by_type {
            if let Some(limit) = registration.options.limit.as_ref() {
                let longest = cool_downs.entry(limit.name_for(job_type)).or_default();
                *longest = limit.terms().cool_down.max(*longest);
            }
        }
        cool_downs.into_iter().collect()
    }

    /// Returns the types whose jobs may be held by row locks, sorted.
    pub(crate) fn row_lock_types(&self) -> Vec<String> {
        let by_row = |registration: &Registration| {
            let options = &registration.options;
            options.row_lock
                && !options.in_transaction
                && options.keep_attempts.is_none()
                && options.limit.is_none()
        };
        let by_row = self.by_type.iter().filter(|(_, r)| by_row(r));
        let mut types: Vec<_> = by_row.map(|(name, _)| name.clone()).collect();
        types.sort_unstable();
        types
    }

    /// Returns the types with a limit of the jobs that run at once on a node, sorted.
    pub(crate) fn limited_types(&self) -> Vec<String> {
        let is_limited = |registration: &Registration| registration.options.concurrency.is_some();
        let limited = self.by_type.iter().filter(|(_, r)| is_limited(r));
        let mut types: Vec<_> = limited.map(|(name, _)| name.clone()).collect();
        types.sort_unstable();
        types
    }

    /// Returns the types whose attempts are recorded.
    pub(crate) fn attempts_kept(&self) -> AttemptsKept {
        let kept = self.by_type.iter();
        let kept = kept.filter_map(|(name, of)| Some((name.clone(), of.options.keep_attempts?)));
        kept.collect()
    }

    /// Returns the types that have a handler, sorted.
    #[must_use]
    pub fn types(&self) -> Vec<String> {
        let mut types: Vec<_> = self.by_type.keys().cloned().collect();
        types.sort_unstable();
        types
    }
}

//! Handlers of groups: one call works off several jobs of a type.
//!
//! ```
//! use std::sync::Arc;
//! use jobwire_core::{GroupOptions, Handlers, Running};
//!
//! #[derive(serde::Deserialize)]
//! struct Entry { activity: String }
//!
//! let mut handlers = Handlers::default();
//! handlers.group("history", GroupOptions::default(), |jobs: Vec<Arc<Running<Entry>>>| async move {
//!     let activities: Vec<&str> = jobs.iter().map(|job| &*job.payload.activity).collect();
//!     // Write all of them with one statement, each under the id of its job.
//!     Ok(())
//! });
//! ```
//!
//! A group is a matter of one node, and of the handler alone: each job keeps its own lock, fence,
//! attempts and outcome. A job waits up to [`GroupOptions::within`] for others of its type. The
//! first one whose wait is over, or the one that fills the group, calls the handler for all.
//!
//! If the call fails, or panics, each job of the group is run alone, so that one bad job costs the
//! others nothing. So the handler must bear to see a job again: write under the id of the job, and
//! ignore what is there already.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::worker::handler::{Handler, HandlerError, HandlerResult, Outcome, Running};

/// The options of a handler of groups.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GroupOptions {
    /// Maximum number of jobs in a group. A group holds no more jobs than the node has slots for
    /// their type. Default 100; 1 means no groups.
    pub at_most: usize,
    /// Maximum time for which a job waits for others. A job that is alone starts this much later.
    /// Default 20 ms.
    pub within: Duration,
}

crate::setters! {
    GroupOptions {
        at_most: usize,
        within: Duration,
    }
}

impl Default for GroupOptions {
    fn default() -> Self {
        Self {
            at_most: 100,
            within: Duration::from_millis(20),
        }
    }
}

/// A job that waits for its group, and the way to tell it whether the group is done.
struct Member<P> {
    job: Arc<Running<P>>,
    done: oneshot::Sender<bool>,
}

/// The group that fills at the moment.
struct Filling<P> {
    members: Vec<Member<P>>,
    /// Grows with each group, so that a member sees whether its group was taken.
    number: u64,
    until: Instant,
}

/// The handler of groups of one type.
pub(super) struct GroupHandler<F, P> {
    run: F,
    options: GroupOptions,
    filling: Mutex<Filling<P>>,
}

impl<F, P> GroupHandler<F, P> {
    pub(super) fn new(options: GroupOptions, run: F) -> Self {
        Self {
            run,
            options,
            filling: Mutex::new(Filling {
                members: Vec::new(),
                number: 0,
                until: Instant::now(),
            }),
        }
    }

    /// Locks the group. A poisoned lock only means that a thread panicked elsewhere.
    fn filling(&self) -> MutexGuard<'_, Filling<P>> {
        self.filling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job. Returns the number of its group, the end of the wait, and the group if it is
    /// full.
    fn join(&self, member: Member<P>) -> (u64, Instant, Vec<Member<P>>) {
        let mut filling = self.filling();
        if filling.members.is_empty() {
            filling.until = Instant::now() + self.options.within;
        }
        filling.members.push(member);
        let (number, until) = (filling.number, filling.until);
        let full = filling.members.len() >= self.options.at_most;
        let taken = if full { filling.take() } else { Vec::new() };
        (number, until, taken)
    }

    /// Takes the group of this number, unless another member has taken it.
    fn take(&self, number: u64) -> Vec<Member<P>> {
        let mut filling = self.filling();
        if filling.number == number {
            filling.take()
        } else {
            Vec::new()
        }
    }
}

impl<P> Filling<P> {
    fn take(&mut self) -> Vec<Member<P>> {
        self.number += 1;
        std::mem::take(&mut self.members)
    }
}

impl<F, Fut, P> GroupHandler<F, P>
where
    F: Fn(Vec<Arc<Running<P>>>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HandlerResult<()>> + Send,
    P: Send + Sync + 'static,
{
    /// Works off a group, and tells each member whether it is done. Members that are told nothing,
    /// because this future was dropped, run alone as well.
    async fn work_off(&self, group: Vec<Member<P>>) {
        let (jobs, told): (Vec<_>, Vec<_>) = group.into_iter().map(|m| (m.job, m.done)).unzip();
        let count = jobs.len();
        let is_done = count > 1
            && match AssertUnwindSafe(async { (self.run)(jobs).await })
                .catch_unwind()
                .await
            {
                Ok(Ok(())) => true,
                Ok(Err(error)) => {
                    tracing::info!(error = %error.message, count, "a group of jobs failed; each job runs alone");
                    false
                }
                Err(_) => {
                    tracing::warn!(
                        count,
                        "the handler of a group panicked; each job runs alone"
                    );
                    false
                }
            };
        for done in told {
            // A member that was asked to stop no longer listens.
            let _ = done.send(is_done);
        }
    }
}

#[async_trait]
impl<F, Fut, P> Handler for GroupHandler<F, P>
where
    F: Fn(Vec<Arc<Running<P>>>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HandlerResult<()>> + Send,
    P: DeserializeOwned + Send + Sync + 'static,
{
    async fn run(&self, job: Running) -> HandlerResult<Outcome> {
        let payload: P = job
            .job
            .decode()
            .map_err(|error| HandlerError::bad_payload(&job.job.job_type, &error))?;
        let job = Arc::new(job.with_payload(payload));
        let (done, mut told) = oneshot::channel();
        let member = Member {
            job: job.clone(),
            done,
        };
        let (number, until, full) = self.join(member);
        let group = if full.is_empty() {
            tokio::select! {
                biased;
                answer = &mut told => return self.after(answer.unwrap_or(false), job).await,
                () = tokio::time::sleep_until(until) => self.take(number),
            }
        } else {
            full
        };
        if !group.is_empty() {
            self.work_off(group).await;
        }
        self.after(told.await.unwrap_or(false), job).await
    }
}

impl<F, Fut, P> GroupHandler<F, P>
where
    F: Fn(Vec<Arc<Running<P>>>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HandlerResult<()>> + Send,
    P: Send + Sync + 'static,
{
    /// Ends a job whose group is done, and runs the job alone otherwise.
    async fn after(&self, is_done: bool, job: Arc<Running<P>>) -> HandlerResult<Outcome> {
        if !is_done {
            (self.run)(vec![job]).await?;
        }
        Ok(Outcome::Done)
    }
}

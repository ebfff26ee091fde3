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
//! ignore rows that exist.
//!
//! A job that is asked to stop leaves a group that fills. In a call that has begun it stays: the call
//! may have done its work already, so the job waits for the answer, as long as any handler may. A job
//! whose execution is dropped in a call drops the call, since another node may run the job now. The
//! others run alone.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::worker::handler::{
    Handler, HandlerError, HandlerOptions, HandlerResult, Handlers, Outcome, Running,
};

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

impl Handlers {
    /// Adds an async closure that works off several jobs of a type at once, with default options.
    /// See the [module](self).
    pub fn group<P, F, Fut>(&mut self, job_type: impl Into<String>, group: GroupOptions, run: F)
    where
        F: Fn(Vec<Arc<Running<P>>>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<()>> + Send + 'static,
        P: DeserializeOwned + Send + Sync + 'static,
    {
        self.group_with(job_type, HandlerOptions::default(), group, run);
    }

    /// Adds an async closure that works off several jobs of a type at once. The options hold for
    /// each job: its timeout counts the wait for the group, and its concurrency limits the group.
    /// [`in_transaction`](HandlerOptions::in_transaction) has no effect: the jobs of a group are
    /// completed together, but each by its own lock.
    pub fn group_with<P, F, Fut>(
        &mut self,
        job_type: impl Into<String>,
        options: HandlerOptions,
        group: GroupOptions,
        run: F,
    ) where
        F: Fn(Vec<Arc<Running<P>>>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = HandlerResult<()>> + Send + 'static,
        P: DeserializeOwned + Send + Sync + 'static,
    {
        let options = HandlerOptions {
            in_transaction: false,
            ..options
        };
        self.register(job_type, options, Arc::new(GroupHandler::new(group, run)));
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
    /// Grows with each group, so that a member sees whether its group was taken for a call.
    number: u64,
    until: Instant,
    /// Ends the call of this group.
    dropped: CancellationToken,
}

/// What a job knows of its group. Ends the call of the group if it is dropped while the job is in it
/// and has no answer.
struct Place<'a, P> {
    filling: &'a Mutex<Filling<P>>,
    number: u64,
    until: Instant,
    /// The answer: whether the call has done the job.
    told: oneshot::Receiver<bool>,
    /// Whether the job has left the group, or has the answer. No call is its business any more.
    is_over: bool,
    dropped: CancellationToken,
}

impl<P> Place<'_, P> {
    /// Leaves the group, unless it was taken for a call. Returns whether the job is out of it.
    fn leave(&mut self) -> bool {
        // The lock keeps the group from being taken meanwhile.
        let filling = locked(self.filling);
        let fills = filling.number == self.number;
        if fills {
            self.told.close();
            self.is_over = true;
        }
        fills
    }

    /// Waits for the answer. False if the call was dropped.
    async fn answer(&mut self) -> bool {
        let is_done = (&mut self.told).await.unwrap_or(false);
        self.is_over = true;
        is_done
    }
}

impl<P> Drop for Place<'_, P> {
    fn drop(&mut self) {
        if !self.is_over && !self.leave() {
            self.dropped.cancel();
        }
    }
}

/// Locks the group. A poisoned lock only means that a thread panicked elsewhere.
fn locked<P>(filling: &Mutex<Filling<P>>) -> MutexGuard<'_, Filling<P>> {
    filling.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A group that was taken for a call.
struct Taken<P> {
    members: Vec<Member<P>>,
    dropped: CancellationToken,
}

/// The handler of groups of one type.
struct GroupHandler<F, P> {
    run: F,
    options: GroupOptions,
    filling: Mutex<Filling<P>>,
}

impl<F, P> GroupHandler<F, P> {
    fn new(options: GroupOptions, run: F) -> Self {
        Self {
            run,
            options,
            filling: Mutex::new(Filling {
                members: Vec::new(),
                number: 0,
                until: Instant::now(),
                dropped: CancellationToken::new(),
            }),
        }
    }

    /// Adds a job. Returns its place, and the group if it is full.
    fn join(&self, job: Arc<Running<P>>) -> (Place<'_, P>, Option<Taken<P>>) {
        let (done, told) = oneshot::channel();
        let mut filling = locked(&self.filling);
        filling.drop_the_gone();
        if filling.members.is_empty() {
            filling.until = Instant::now() + self.options.within;
        }
        filling.members.push(Member { job, done });
        let place = Place {
            filling: &self.filling,
            number: filling.number,
            until: filling.until,
            told,
            is_over: false,
            dropped: filling.dropped.clone(),
        };
        let is_full = filling.members.len() >= self.options.at_most;
        let taken = is_full.then(|| filling.take());
        (place, taken)
    }

    /// Takes the group of this number, unless another member has taken it.
    fn take(&self, number: u64) -> Option<Taken<P>> {
        let mut filling = locked(&self.filling);
        (filling.number == number).then(|| filling.take())
    }
}

impl<P> Filling<P> {
    fn take(&mut self) -> Taken<P> {
        self.drop_the_gone();
        self.number += 1;
        Taken {
            members: std::mem::take(&mut self.members),
            dropped: std::mem::take(&mut self.dropped),
        }
    }

    /// Removes the jobs whose executions were dropped. Their nodes or others run them again.
    fn drop_the_gone(&mut self) {
        self.members.retain(|member| !member.done.is_closed());
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
    async fn work_off(&self, group: Taken<P>) {
        let members = group.members.into_iter();
        let (jobs, told): (Vec<_>, Vec<_>) = members.map(|m| (m.job, m.done)).unzip();
        let is_done = jobs.len() > 1 && self.call(jobs, &group.dropped).await;
        for done in told {
            // A member whose execution was dropped no longer listens.
            let _ = done.send(is_done);
        }
    }

    /// Calls the handler for several jobs, until the execution of one is dropped. Returns whether they
    /// are done.
    async fn call(&self, jobs: Vec<Arc<Running<P>>>, dropped: &CancellationToken) -> bool {
        let count = jobs.len();
        let call = AssertUnwindSafe(async { (self.run)(jobs).await }).catch_unwind();
        let ended = tokio::select! {
            biased;
            () = dropped.cancelled() => None,
            ended = call => Some(ended),
        };
        match ended {
            Some(Ok(Ok(()))) => true,
            Some(Ok(Err(error))) => {
                tracing::info!(error = %error.message, count, "a group of jobs failed; each job runs alone");
                false
            }
            Some(Err(_)) => {
                tracing::warn!(
                    count,
                    "the handler of a group panicked; each job runs alone"
                );
                false
            }
            None => {
                tracing::info!(
                    count,
                    "a job of a group was dropped, and the call of the group with it; each of the \
                     others runs alone"
                );
                false
            }
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
            .map_err(|error| HandlerError::bad_payload(&job.job.job_type, job.sealed, &error))?;
        let job = Arc::new(job.with_payload(payload));
        let (mut place, full) = self.join(job.clone());
        let (number, until) = (place.number, place.until);
        let group = match full {
            Some(group) => Some(group),
            None => tokio::select! {
                biased;
                is_done = place.answer() => return self.after(is_done, job).await,
                () = job.stop.cancelled() => {
                    if place.leave() {
                        return Err(stopped());
                    }
                    None
                }
                () = tokio::time::sleep_until(until) => self.take(number),
            },
        };
        if let Some(group) = group {
            self.work_off(group).await;
        }
        let is_done = place.answer().await;
        self.after(is_done, job).await
    }
}

impl<F, Fut, P> GroupHandler<F, P>
where
    F: Fn(Vec<Arc<Running<P>>>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = HandlerResult<()>> + Send,
    P: Send + Sync + 'static,
{
    /// Ends a job whose group is done, and runs the job alone otherwise. A job that was asked to stop
    /// meanwhile does not begin again.
    async fn after(&self, is_done: bool, job: Arc<Running<P>>) -> HandlerResult<Outcome> {
        if !is_done {
            if job.stop.is_cancelled() {
                return Err(stopped());
            }
            (self.run)(vec![job]).await?;
        }
        Ok(Outcome::Done)
    }
}

/// The job did not fail, so no attempt is spent.
fn stopped() -> HandlerError {
    HandlerError::conflict("the job was asked to stop before its group was done")
}

#[cfg(test)]
mod tests {
    use chrono::Utc;
    use futures_util::future::join_all;

    use super::*;
    use crate::job::new_job::NewJob;
    use crate::job::{Fence, Lane, NodeId};
    use crate::worker::checkpoint::Checkpoints;
    use crate::worker::handler::{Stop, StopSignal};
    use crate::worker::handler_transaction::HandlerTransaction;

    fn job(payload: &serde_json::Value) -> Running {
        let job = NewJob::of("write-history", payload);
        let job = job.into_job(1, Utc::now(), Lane::default()).unwrap();
        Running {
            payload: (),
            job: Arc::new(job),
            fence: Fence(1),
            node: NodeId::generate(),
            stop: Stop(StopSignal::OfAttempt(CancellationToken::new())),
            sealed: false,
            transaction: HandlerTransaction::default(),
            lease: Arc::default(),
            leases: None,
            checkpoints: Checkpoints::in_memory(),
        }
    }

    /// The payloads of each call.
    type Calls = Arc<Mutex<Vec<Vec<i64>>>>;

    /// Returns a handler that notes its calls. A call that includes the number 3 fails, one that
    /// includes 13 panics.
    fn noting(calls: &Calls, at_most: usize, within: Duration) -> Arc<dyn Handler> {
        let calls = calls.clone();
        let options = GroupOptions::default().at_most(at_most).within(within);
        Arc::new(GroupHandler::new(
            options,
            move |jobs: Vec<Arc<Running<i64>>>| {
                let calls = calls.clone();
                async move {
                    let numbers: Vec<i64> = jobs.iter().map(|job| job.payload).collect();
                    calls.lock().unwrap().push(numbers.clone());
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    assert!(!numbers.contains(&13), "as the test wants it");
                    if numbers.contains(&3) {
                        return Err(HandlerError::retry("three"));
                    }
                    Ok(())
                }
            },
        ))
    }

    /// Runs jobs with these payloads at once, and returns which ones are done.
    async fn run(handler: &Arc<dyn Handler>, numbers: &[i64]) -> Vec<bool> {
        let runs = numbers.iter().map(|n| handler.run(job(&(*n).into())));
        let results = join_all(runs).await;
        results
            .iter()
            .map(|r| matches!(r, Ok(Outcome::Done)))
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_is_worked_off_in_one_call() {
        let calls = Calls::default();
        let handler = noting(&calls, 10, Duration::from_secs(1));
        let began = Instant::now();
        assert_eq!(run(&handler, &[1, 2, 4]).await, [true; 3]);
        assert_eq!(*calls.lock().unwrap(), [vec![1, 2, 4]]);
        assert!(began.elapsed() >= Duration::from_secs(1));
        // The next ones are another group.
        assert_eq!(run(&handler, &[5, 6]).await, [true; 2]);
        assert_eq!(*calls.lock().unwrap(), [vec![1, 2, 4], vec![5, 6]]);
    }

    /// A job that is asked to stop leaves the group that fills, and is not run by it later.
    #[tokio::test(start_paused = true)]
    async fn a_job_that_is_asked_to_stop_leaves_its_group() {
        let calls = Calls::default();
        let handler = noting(&calls, 10, Duration::from_secs(3_600));
        let stop = CancellationToken::new();
        let mut stopped = job(&1.into());
        stopped.stop = Stop(StopSignal::OfAttempt(stop.clone()));
        let runs = async { tokio::join!(handler.run(stopped), handler.run(job(&2.into()))) };
        let stops = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            stop.cancel();
        };
        let ((first, second), ()) = tokio::join!(runs, stops);
        assert!(first.is_err());
        assert!(matches!(second, Ok(Outcome::Done)));
        assert_eq!(*calls.lock().unwrap(), [vec![2]]);
    }

    /// The job has left, and then another member takes the group for a call.
    #[tokio::test(start_paused = true)]
    async fn a_job_that_has_left_its_group_drops_no_call_of_it() {
        let handler =
            GroupHandler::new(GroupOptions::default(), |_: Vec<Arc<Running<i64>>>| async {
                HandlerResult::Ok(())
            });
        let of = |n: i64| Arc::new(job(&n.into()).with_payload(n));
        let (mut leaves, _) = handler.join(of(1));
        let (mut stays, _) = handler.join(of(2));
        let (dropped, _) = handler.join(of(3));
        assert!(leaves.leave());
        let taken = handler.take(stays.number).unwrap();
        let numbers = taken.members.iter().map(|member| member.job.payload);
        assert_eq!(numbers.collect::<Vec<i64>>(), [2, 3]);
        drop(leaves);
        assert!(!taken.dropped.is_cancelled());
        // One that has the answer drops none either. One that waits for it does.
        let call = taken.dropped.clone();
        let mut members = taken.members.into_iter();
        members.next().unwrap().done.send(true).unwrap();
        assert!(stays.answer().await);
        drop(stays);
        assert!(!call.is_cancelled());
        drop(dropped);
        assert!(call.is_cancelled());
    }

    /// The execution of a job was dropped while its group filled. The next group is another one.
    #[tokio::test(start_paused = true)]
    async fn a_job_that_was_dropped_is_not_worked_off_later() {
        let calls = Calls::default();
        let handler = noting(&calls, 10, Duration::from_secs(10));
        let dropped = tokio::time::timeout(Duration::from_secs(1), handler.run(job(&1.into())));
        assert!(dropped.await.is_err());
        tokio::time::sleep(Duration::from_secs(60)).await;
        let began = Instant::now();
        assert_eq!(run(&handler, &[2]).await, [true]);
        assert_eq!(began.elapsed().as_secs(), 10);
        assert_eq!(*calls.lock().unwrap(), [vec![2]]);
    }

    /// A handler whose first call takes ten seconds, and those of single jobs no time. Notes its calls,
    /// and those that were not dropped.
    fn slow(calls: &Calls, ended: &Calls) -> Arc<dyn Handler> {
        let (calls, ended) = (calls.clone(), ended.clone());
        let options = GroupOptions::default().within(Duration::from_secs(1));
        Arc::new(GroupHandler::new(
            options,
            move |jobs: Vec<Arc<Running<i64>>>| {
                let (calls, ended) = (calls.clone(), ended.clone());
                async move {
                    let numbers: Vec<i64> = jobs.iter().map(|job| job.payload).collect();
                    calls.lock().unwrap().push(numbers.clone());
                    if numbers.len() > 1 {
                        tokio::time::sleep(Duration::from_secs(10)).await;
                    }
                    ended.lock().unwrap().push(numbers);
                    Ok(())
                }
            },
        ))
    }

    /// The call may have done the work of the job already, so the job must not run elsewhere.
    #[tokio::test(start_paused = true)]
    async fn a_job_that_is_asked_to_stop_stays_in_a_call_that_has_begun() {
        for which in [0, 1] {
            let (calls, ended) = (Calls::default(), Calls::default());
            let handler = slow(&calls, &ended);
            let stop = CancellationToken::new();
            let mut jobs = [job(&1.into()), job(&2.into())];
            jobs[which].stop = Stop(StopSignal::OfAttempt(stop.clone()));
            let [first, second] = jobs;
            let runs = async { tokio::join!(handler.run(first), handler.run(second)) };
            let stops = async {
                tokio::time::sleep(Duration::from_secs(5)).await;
                assert_eq!(*calls.lock().unwrap(), [vec![1, 2]]);
                stop.cancel();
            };
            let ((first, second), ()) = tokio::join!(runs, stops);
            assert!(matches!(first, Ok(Outcome::Done)), "{which}: {first:?}");
            assert!(matches!(second, Ok(Outcome::Done)), "{which}: {second:?}");
            assert_eq!(*ended.lock().unwrap(), [vec![1, 2]]);
        }
    }

    /// The execution of a job was dropped in a call. Another node may run the job now, so the call does
    /// not go on with it.
    #[tokio::test(start_paused = true)]
    async fn a_call_is_dropped_with_any_of_its_jobs_and_the_others_run_alone() {
        for which in [1, 2] {
            let (calls, ended) = (Calls::default(), Calls::default());
            let handler = slow(&calls, &ended);
            let began = Instant::now();
            let limit = |n| Duration::from_secs(if n == which { 5 } else { 60 });
            let run = |n: i64| tokio::time::timeout(limit(n), handler.run(job(&n.into())));
            let (first, second, third) = tokio::join!(run(1), run(2), run(3));
            assert_eq!(first.is_err(), which == 1);
            assert_eq!(second.is_err(), which == 2);
            assert!(matches!(third, Ok(Ok(Outcome::Done))));
            let other = 3 - which;
            assert_eq!(
                *calls.lock().unwrap(),
                [vec![1, 2, 3], vec![other], vec![3]]
            );
            assert_eq!(*ended.lock().unwrap(), [vec![other], vec![3]]);
            assert_eq!(began.elapsed().as_secs(), 5);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_group_waits_for_nothing() {
        let calls = Calls::default();
        let handler = noting(&calls, 2, Duration::from_secs(3_600));
        let began = Instant::now();
        assert_eq!(run(&handler, &[1, 2, 4, 5]).await, [true; 4]);
        assert_eq!(*calls.lock().unwrap(), [vec![1, 2], vec![4, 5]]);
        assert!(began.elapsed() < Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn one_bad_job_costs_the_others_of_its_group_nothing() {
        let calls = Calls::default();
        let handler = noting(&calls, 10, Duration::from_millis(20));
        assert_eq!(run(&handler, &[1, 3, 4]).await, [true, false, true]);
        let mut calls = calls.lock().unwrap().clone();
        calls[1..].sort();
        assert_eq!(calls, [vec![1, 3, 4], vec![1], vec![3], vec![4]]);
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_panic_of_a_group_each_job_runs_alone() {
        let calls = Calls::default();
        let handler = noting(&calls, 10, Duration::from_millis(20));
        let bad = handler.run(job(&13.into()));
        let bad = AssertUnwindSafe(bad).catch_unwind();
        let (bad, good) = tokio::join!(bad, handler.run(job(&1.into())));
        assert!(bad.is_err());
        assert!(matches!(good, Ok(Outcome::Done)));
        assert_eq!(calls.lock().unwrap().len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_goes_while_its_group_works_leaves_the_others_to_themselves() {
        let calls = Calls::default();
        let handler = noting(&calls, 2, Duration::from_secs(3_600));
        // The second one fills the group and calls the handler. It is dropped before that ends.
        let waits = tokio::spawn({
            let handler = handler.clone();
            async move { handler.run(job(&1.into())).await }
        });
        tokio::task::yield_now().await;
        let fills = handler.run(job(&2.into()));
        assert!(
            tokio::time::timeout(Duration::from_millis(5), fills)
                .await
                .is_err()
        );
        assert!(matches!(waits.await.unwrap(), Ok(Outcome::Done)));
        assert_eq!(*calls.lock().unwrap(), [vec![1, 2], vec![1]]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_payload_that_does_not_decode_fails_alone() {
        let calls = Calls::default();
        let handler = noting(&calls, 10, Duration::from_millis(20));
        let bad = handler.run(job(&"text".into()));
        let (bad, good) = tokio::join!(bad, handler.run(job(&1.into())));
        assert!(bad.unwrap_err().message.contains("`payload`"));
        assert!(matches!(good, Ok(Outcome::Done)));
        assert_eq!(*calls.lock().unwrap(), [vec![1]]);
    }
}

//! Supervised background tasks. A task that dies is counted, logged, shown in the node's health,
//! and started again after a pause that grows while it keeps dying.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use metrics::counter;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::runtime::panic_place;
use crate::telemetry::metrics as m;

/// The tasks that are down, with the reason.
#[derive(Clone, Default)]
pub(crate) struct TaskHealth(Arc<Mutex<BTreeMap<&'static str, String>>>);

impl TaskHealth {
    pub(crate) fn problems(&self) -> BTreeMap<&'static str, String> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set(&self, task: &'static str, problem: Option<String>) {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match problem {
            Some(problem) => tasks.insert(task, problem),
            None => tasks.remove(task),
        };
    }
}

/// Runs one round of a task that continues after a panic. Logs and counts a panic and returns
/// `None`. For tasks that keep their state outside the round and are not supervised, such as those
/// of the transports.
pub fn survived<T>(
    task: &'static str,
    round: impl Future<Output = T>,
) -> impl Future<Output = Option<T>> {
    // Combinators hold the round once; an `async` block would keep its argument beside the future
    // that it awaits. Every job goes through here.
    let begun =
        std::future::ready(()).map(move |()| crate::runtime::crash_point::task_starts(task));
    let round = begun.then(move |()| round);
    AssertUnwindSafe(round)
        .catch_unwind()
        .map(move |ended| match ended {
            Ok(ended) => Some(ended),
            Err(panic) => {
                tell(task, &describe_panic(&*panic));
                None
            }
        })
}

/// Logs and counts the death of a task.
fn tell(task: &'static str, why: &str) {
    tracing::error!(task, why, "a background task died; it is started again");
    counter!(m::TASK_RESTARTS, "task" => task).increment(1);
}

/// Runs `task` until `stop`, and starts it again whenever it panics or ends earlier. For the tasks
/// of the transports, which no node supervises.
pub async fn supervised(name: &'static str, stop: CancellationToken, mut task: impl AsyncFnMut()) {
    let mut restarts = Restarts::of(name, stop);
    loop {
        let started = Instant::now();
        let running = async {
            crate::runtime::crash_point::task_starts(name);
            task().await;
        };
        let ended = AssertUnwindSafe(running).catch_unwind().await;
        if !restarts.again(started, ended, |_| {}).await {
            return;
        }
    }
}

const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A run of this length resets the pause.
const WELL: Duration = Duration::from_secs(60);

/// The restarts of one task, after pauses that grow while it keeps dying.
struct Restarts {
    name: &'static str,
    stop: CancellationToken,
    pause: Duration,
}

impl Restarts {
    fn of(name: &'static str, stop: CancellationToken) -> Self {
        Self {
            name,
            stop,
            pause: SHORTEST_PAUSE,
        }
    }

    /// Logs, counts and reports the end of a run, and waits. Returns false if `stop` was
    /// cancelled.
    async fn again(
        &mut self,
        started: Instant,
        ended: std::thread::Result<()>,
        report: impl Fn(Option<String>),
    ) -> bool {
        if self.stop.is_cancelled() {
            return false;
        }
        let why = match ended {
            Ok(()) => "ended before it was told to".to_owned(),
            Err(panic) => describe_panic(&*panic),
        };
        tell(self.name, &why);
        report(Some(why));
        if started.elapsed() > WELL {
            self.pause = SHORTEST_PAUSE;
        }
        tokio::select! {
            biased;
            () = self.stop.cancelled() => return false,
            () = tokio::time::sleep(self.pause) => {}
        }
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        report(None);
        true
    }
}

/// The supervised tasks of a node.
#[derive(Default)]
pub(crate) struct Supervisor {
    tasks: JoinSet<()>,
    pub(crate) health: TaskHealth,
}

impl Supervisor {
    /// Runs `task` until `stop`, and starts it again whenever it ends earlier.
    pub(crate) fn spawn<F, Fut>(&mut self, name: &'static str, stop: CancellationToken, task: F)
    where
        F: Fn() -> Fut + Send + 'static,
        Fut: Future<Output = ()> + Send,
    {
        let health = self.health.clone();
        self.tasks.spawn(async move {
            let mut restarts = Restarts::of(name, stop);
            loop {
                let started = Instant::now();
                let running = task();
                let running = async move {
                    crate::runtime::crash_point::task_starts(name);
                    running.await;
                };
                let ended = AssertUnwindSafe(running).catch_unwind().await;
                let report = |problem| health.set(name, problem);
                if !restarts.again(started, ended, report).await {
                    return;
                }
            }
        });
    }

    /// Waits until every task has ended, at most for the given time. Aborts the tasks that remain.
    pub(crate) async fn join(&mut self, within: Duration) {
        let all = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(within, all).await.is_err() {
            tracing::warn!("some background tasks did not stop in time; they are aborted");
            self.tasks.abort_all();
        }
    }
}

/// Returns a description of a panic that was just caught: its message, and its place if known.
pub(crate) fn describe_panic(panic: &(dyn std::any::Any + Send)) -> String {
    let message = panic_place::message(panic);
    match panic_place::place_of(panic) {
        Some(place) => format!("panicked: {message} ({place})"),
        None => format!("panicked: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[tokio::test(start_paused = true)]
    async fn a_task_that_dies_is_started_again_and_reported() {
        let runs = Arc::new(AtomicU32::new(0));
        let stop = CancellationToken::new();
        let mut supervisor = Supervisor::default();
        supervisor.spawn("fragile", stop.clone(), {
            let (runs, stop) = (runs.clone(), stop.clone());
            move || {
                let (runs, stop) = (runs.clone(), stop.clone());
                async move {
                    if runs.fetch_add(1, Ordering::SeqCst) < 2 {
                        panic!("bad luck");
                    }
                    stop.cancel();
                }
            }
        });
        supervisor.join(Duration::from_secs(10)).await;
        assert_eq!(runs.load(Ordering::SeqCst), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_or_ends_too_early_is_started_again() {
        let stop = CancellationToken::new();
        let mut runs = 0;
        supervised("fragile", stop.clone(), async || {
            runs += 1;
            match runs {
                1 => panic!("bad luck"),
                2 => {}
                _ => stop.cancel(),
            }
        })
        .await;
        assert_eq!(runs, 3);
    }
}

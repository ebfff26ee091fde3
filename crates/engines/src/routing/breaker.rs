//! The circuit breaker of an address: while it can't be reached, no execution is tried there and no
//! attempt is spent.
//!
//! ```text
//!             several failures in a row                 a second has passed
//!   closed ─────────────────────────────► open ────────────────────────────► one trial
//!      ▲                                    ▲                                    │
//!      └──────────── an answer ─────────────┴───────────── a failure ────────────┘
//! ```

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::away::Away;

/// The number of failures in a row that open the breaker.
const FAILURES: u32 = 3;
/// The bounds of the pause before a trial.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Whether an address can be reached. Shared by all executions of a process.
#[derive(Debug)]
pub(super) struct Breaker {
    state: Mutex<State>,
    address: String,
    away: Arc<Away>,
}

#[derive(Debug, Default)]
struct State {
    failures: u32,
    open: Option<Open>,
    /// The pause of the next opening, if a look has closed the last one.
    pause: Option<Duration>,
}

#[derive(Debug)]
struct Open {
    since: Instant,
    trial_at: Instant,
    pause: Duration,
    reason: String,
    /// Executions failed, and not only looks.
    by_jobs: bool,
}

impl Breaker {
    /// Returns a closed breaker.
    pub(super) fn new(address: String, away: Arc<Away>) -> Self {
        Self {
            state: Mutex::default(),
            address,
            away,
        }
    }

    /// Locks the state. A poisoned lock means that a thread panicked between whole operations; the
    /// state is still right.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the next trial may be made; `None` if a call may be made now.
    pub(super) fn wait(&self) -> Option<Instant> {
        let mut state = self.state();
        let open = state.open.as_mut()?;
        let now = Instant::now();
        if now < open.trial_at {
            return Some(open.trial_at);
        }
        // This call is the trial; the others wait for its result.
        open.trial_at = now + open.pause;
        None
    }

    /// Returns whether it is open.
    pub(super) fn is_open(&self) -> bool {
        self.state().open.is_some()
    }

    /// Records that the engine answered.
    pub(super) fn answered(&self) {
        let mut state = self.state();
        state.failures = 0;
        state.pause = None;
        if let Some(open) = state.open.take() {
            let seconds = open.since.elapsed().as_millis() as f64 / 1e3;
            self.away.closed();
            tracing::info!(address = self.address, seconds, "the engine answers again");
        }
    }

    /// Records that a look was answered. Closes the breaker. If executions have failed, it closes
    /// after the pause, and the next failure opens it for a longer one.
    pub(super) fn heard(&self) {
        let mut state = self.state();
        let Some(open) = &state.open else {
            return;
        };
        if !open.by_jobs {
            drop(state);
            return self.answered();
        }
        if Instant::now() < open.trial_at {
            return;
        }
        state.pause = Some((open.pause * 2).min(LONGEST_PAUSE));
        state.failures = FAILURES - 1;
        state.open = None;
        self.away.closed();
    }

    /// Records that a look had no answer.
    pub(super) fn silent(&self, reason: &str) {
        self.record(reason, false);
    }

    /// Records that an execution could not be sent, or that the engine can't execute anything.
    pub(super) fn failed(&self, reason: &str) {
        self.record(reason, true);
    }

    fn record(&self, reason: &str, by_job: bool) {
        let mut state = self.state();
        state.failures = state.failures.saturating_add(1);
        let now = Instant::now();
        if let Some(open) = &mut state.open {
            open.by_jobs |= by_job;
            open.pause = (open.pause * 2).min(LONGEST_PAUSE);
            open.trial_at = now + open.pause;
            reason.clone_into(&mut open.reason);
            return;
        }
        if state.failures < FAILURES {
            return;
        }
        self.away.opened();
        tracing::warn!(
            address = self.address,
            reason,
            "the engine can't execute jobs at this address; they go to another one or wait, and no attempt is spent"
        );
        let pause = state.pause.take().unwrap_or(FIRST_PAUSE);
        state.open = Some(Open {
            since: now,
            trial_at: now + pause,
            pause,
            reason: reason.to_owned(),
            by_jobs: by_job,
        });
    }

    /// Returns why the engine can't be reached.
    pub(super) fn problem(&self) -> Option<String> {
        let state = self.state();
        state.open.as_ref().map(|open| {
            format!(
                "the engine at {} has executed nothing for {} s: {}",
                self.address,
                open.since.elapsed().as_secs(),
                open.reason
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::Meter;

    fn closed() -> Breaker {
        let away = Away::new(Meter::new("test"), 1);
        Breaker::new("127.0.0.1:8080".to_owned(), Arc::new(away))
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_open_it_and_one_trial_at_a_time_is_made() {
        let breaker = closed();
        for _ in 1..FAILURES {
            breaker.failed("refused");
            assert!(breaker.wait().is_none());
        }
        breaker.failed("refused");
        let trial = breaker.wait().expect("open");
        assert!(
            breaker
                .problem()
                .is_some_and(|said| said.contains("refused"))
        );
        tokio::time::sleep_until(trial).await;
        assert!(breaker.wait().is_none(), "the trial");
        assert!(breaker.wait().is_some(), "no second one");
        breaker.failed("refused again");
        tokio::time::sleep(LONGEST_PAUSE).await;
        assert!(breaker.wait().is_none());
        breaker.answered();
        assert!(breaker.wait().is_none() && breaker.problem().is_none());
    }

    #[test]
    fn an_answer_between_failures_keeps_it_closed() {
        let breaker = closed();
        for _ in 0..10 {
            breaker.failed("reset");
            breaker.answered();
        }
        assert!(breaker.problem().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_closes_it_at_once_or_after_failed_jobs_when_the_pause_has_passed() {
        let breaker = closed();
        for _ in 0..FAILURES {
            breaker.silent("no answer");
        }
        assert!(breaker.is_open());
        breaker.heard();
        assert!(!breaker.is_open());
        let mut pause = FIRST_PAUSE;
        for _ in 0..FAILURES {
            breaker.failed("reset");
        }
        for _ in 0..3 {
            breaker.heard();
            assert!(breaker.is_open(), "looks are answered, and jobs fail");
            tokio::time::advance(pause).await;
            breaker.heard();
            assert!(!breaker.is_open());
            breaker.failed("reset");
            pause *= 2;
        }
        tokio::time::advance(pause).await;
        breaker.heard();
        breaker.answered();
        breaker.failed("reset");
        assert!(!breaker.is_open(), "a job was executed in between");
    }
}

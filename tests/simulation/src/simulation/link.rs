//! The link of one process to the world: the effects of its death, a freeze and a bad network on
//! its calls.
//!
//! A process acts on the world through its calls of the store, its messages and its handlers. So
//! the calls of a dead process never return, and its handlers never wake. A frozen process sends
//! nothing and receives no answer until it thaws, and then continues with its old state.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jobwire_core::StoreError;
use tokio::time::{Instant, sleep, sleep_until};

use super::database::Database;
use super::fault_injector::FaultInjector;
use super::trace::Trace;

/// The maximum extra delay of a slow or late statement, in milliseconds.
const LONGEST: u64 = 9_000;
/// The time after which an answer counts as lost, in milliseconds.
const DEADLINE: u64 = 2_000;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Link {
    name: String,
    dead: AtomicBool,
    frozen_until: Mutex<Option<Instant>>,
    injector: Arc<FaultInjector>,
    trace: Arc<Trace>,
}

/// The fate of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Fine,
    Fails,
    AnswerLost,
    Late,
    Slow,
}

impl Link {
    pub(super) fn new(name: String, injector: Arc<FaultInjector>, trace: Arc<Trace>) -> Link {
        Link {
            name,
            dead: AtomicBool::new(false),
            frozen_until: Mutex::default(),
            injector,
            trace,
        }
    }

    /// A statement without an answer takes effect within this time or never.
    pub(super) const OUTCOME_WITHIN: Duration = Duration::from_millis(DEADLINE + LONGEST);

    pub(super) fn kill(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    pub(super) fn freeze(&self, length: Duration) {
        let until = Instant::now() + length;
        *self.frozen() = Some(until);
    }

    fn frozen(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.frozen_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn injector(&self) -> &FaultInjector {
        &self.injector
    }

    pub(super) fn say(&self, what: impl FnOnce() -> String) {
        self.trace.say(|| format!("{}: {}", self.name, what()));
    }

    pub(super) fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Waits while the process is frozen, and for ever if it is dead.
    pub(super) async fn gate(&self) {
        loop {
            if self.is_dead() {
                std::future::pending::<()>().await;
            }
            let until = *self.frozen();
            match until {
                Some(until) if until > Instant::now() => sleep_until(until).await,
                _ => return,
            }
        }
    }

    fn fate(&self) -> Fate {
        let fault_rates = self.injector.now();
        let chances = [
            (fault_rates.fails, Fate::Fails),
            (fault_rates.answer_lost, Fate::AnswerLost),
            (fault_rates.late, Fate::Late),
            (fault_rates.slow, Fate::Slow),
        ];
        let mut struck = chances
            .into_iter()
            .filter(|(chance, _)| self.injector.strikes(*chance));
        struck.next().map_or(Fate::Fine, |(_, fate)| fate)
    }

    /// Waits for a short network delay.
    pub(super) async fn travel(&self) {
        let millis = self.injector.up_to(6);
        if millis > 2 {
            sleep(Duration::from_millis(millis - 2)).await;
        }
    }

    /// Runs one atomic step in the database.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        statement: &'static str,
        database: &Arc<Mutex<Database>>,
        effect: impl FnOnce(&mut Database) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        self.gate().await;
        let fate = self.fate();
        if fate != Fate::Fine {
            self.say(|| format!("{statement}: {fate:?}"));
        }
        self.travel().await;
        let lost = || StoreError::Timeout(Duration::from_millis(DEADLINE));
        let result = match fate {
            Fate::Fine => Ok(step(database, effect)),
            Fate::Fails => Err(unreachable()),
            Fate::AnswerLost => {
                step(database, effect);
                sleep(Duration::from_millis(self.injector.up_to(DEADLINE))).await;
                Err(lost())
            }
            Fate::Late => {
                let database = database.clone();
                let late = Duration::from_millis(DEADLINE + self.injector.up_to(LONGEST));
                tokio::spawn(async move {
                    sleep(late).await;
                    step(&database, effect);
                });
                sleep(Duration::from_millis(DEADLINE)).await;
                Err(lost())
            }
            Fate::Slow => {
                sleep(Duration::from_millis(self.injector.up_to(LONGEST))).await;
                Ok(step(database, effect))
            }
        };
        self.travel().await;
        self.gate().await;
        result
    }
}

pub(super) fn unreachable() -> StoreError {
    StoreError::Database(sqlx::Error::Io(std::io::Error::other("the line is cut")))
}

fn step<T>(database: &Mutex<Database>, effect: impl FnOnce(&mut Database) -> T) -> T {
    effect(&mut database.lock().unwrap_or_else(PoisonError::into_inner))
}

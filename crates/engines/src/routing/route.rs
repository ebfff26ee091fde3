//! One address of an engine: its client, its circuit breaker, and what it takes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jobwire_core::job::scope::{Needs, Scope};
use tokio::time::Instant;

use super::away::Away;
use super::breaker::Breaker;
use super::question::Question;
use crate::http::Rest;

/// The number of questions in a row without an answer after which an address counts as unknown.
const MISSED: u32 = 3;

/// One address of an engine.
#[derive(Debug)]
pub(crate) struct Route {
    rest: Rest,
    breaker: Breaker,
    under_way: AtomicUsize,
    question: Option<Question>,
    told: Mutex<Told>,
}

/// What an address has said about itself.
#[derive(Debug, Default)]
struct Told {
    /// The jobs that it takes; `None` while that is unknown.
    scope: Option<Scope>,
    missed: u32,
}

impl Route {
    pub(super) fn new(rest: Rest, question: Option<Question>, away: &Arc<Away>) -> Self {
        Self {
            breaker: Breaker::new(rest.address(), away.clone()),
            rest,
            under_way: AtomicUsize::new(0),
            question,
            told: Mutex::default(),
        }
    }

    /// Returns the client.
    pub(crate) fn rest(&self) -> &Rest {
        &self.rest
    }

    /// A poisoned lock means that a thread panicked between whole operations; what was told is
    /// still right.
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether it takes such a job.
    pub(super) fn takes(&self, needs: &Needs) -> bool {
        let Some(question) = self.question else {
            return true;
        };
        match &self.told().scope {
            Some(scope) => scope.takes(needs),
            None => question.unknown().takes(needs),
        }
    }

    /// Returns the jobs that it takes, if that is known.
    pub(super) fn scope(&self) -> Option<Scope> {
        self.told().scope.clone()
    }

    /// Records the jobs that it takes; `None` if it did not say. Returns whether it has become
    /// unknown by that.
    pub(super) fn takes_only(&self, scope: Option<Scope>) -> bool {
        let mut told = self.told();
        match scope {
            Some(scope) => {
                told.scope = Some(scope);
                told.missed = 0;
                false
            }
            None => {
                told.missed = told.missed.saturating_add(1);
                if told.missed >= MISSED {
                    told.scope = None;
                }
                told.missed == MISSED
            }
        }
    }

    /// Returns the number of its executions under way.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Begins an execution, which is under way until the result is dropped.
    pub(super) fn send(&self) -> Sending<'_> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        Sending(self)
    }

    /// Returns whether its breaker is open.
    pub(super) fn is_away(&self) -> bool {
        self.breaker.is_open()
    }

    /// Returns when its next trial may be made; `None` if a call may be made now.
    pub(super) fn trial(&self) -> Option<Instant> {
        self.breaker.wait()
    }

    /// Records that it answered.
    pub(crate) fn answered(&self) {
        self.breaker.answered();
    }

    /// Records that a look was answered.
    pub(super) fn heard(&self) {
        self.breaker.heard();
    }

    /// Records that a look had no answer.
    pub(super) fn silent(&self, reason: &str) {
        self.breaker.silent(reason);
    }

    /// Records that it could not be reached, or can't execute anything.
    pub(crate) fn failed(&self, reason: &str) {
        self.breaker.failed(reason);
    }

    /// Returns why it can't be reached.
    pub(super) fn problem(&self) -> Option<String> {
        self.breaker.problem()
    }
}

/// An execution at an address, under way until it is dropped.
#[derive(Debug)]
pub(crate) struct Sending<'a>(&'a Route);

impl<'a> Sending<'a> {
    /// Returns the address.
    pub(crate) fn route(&self) -> &'a Route {
        self.0
    }
}

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

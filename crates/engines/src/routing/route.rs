//! One address of an engine: its client, its circuit breaker, and the jobs that it takes.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jobwire_core::job::scope::{Needs, Scope};
use tokio::time::Instant;

use super::away::Away;
use super::breaker::Breaker;
use super::question::Question;
use crate::fault::Fault;
use crate::http::Rest;
use crate::lists::Lists;

/// The number of unanswered queries in a row after which the jobs of an address count as unknown.
const MISSED: u32 = 3;

/// One address of an engine.
#[derive(Debug)]
pub(crate) struct Route {
    rest: Arc<Rest>,
    lists: Arc<Lists>,
    breaker: Breaker,
    under_way: AtomicUsize,
    question: Option<Question>,
    told: Mutex<Told>,
}

/// The last report of an address about itself.
#[derive(Debug, Default)]
struct Told {
    /// The jobs that the address takes; `None` while they are unknown.
    scope: Option<Scope>,
    /// The reason why the address gets no job: its artefact is too old.
    refused: Option<String>,
    missed: u32,
}

impl Route {
    pub(super) fn new(rest: Rest, question: Option<Question>, away: &Arc<Away>) -> Self {
        Self {
            breaker: Breaker::new(rest.address(), away.clone()),
            rest: Arc::new(rest),
            lists: Arc::default(),
            under_way: AtomicUsize::new(0),
            question,
            told: Mutex::default(),
        }
    }

    /// Returns the client.
    pub(crate) fn rest(&self) -> &Arc<Rest> {
        &self.rest
    }

    /// Returns the lists of jobs for the address.
    pub(crate) fn lists(&self) -> &Arc<Lists> {
        &self.lists
    }

    /// A poisoned lock means that a thread panicked between whole operations. The recorded jobs are
    /// still right.
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the address takes such a job.
    pub(super) fn takes(&self, needs: &Needs) -> bool {
        let Some(question) = self.question else {
            return true;
        };
        let told = self.told();
        match &told.scope {
            _ if told.refused.is_some() => false,
            Some(scope) => scope.takes(needs),
            None => question.unknown().takes(needs),
        }
    }

    /// Returns the jobs that the address takes; `None` while they are unknown.
    pub(super) fn scope(&self) -> Option<Scope> {
        self.told().scope.clone()
    }

    /// Records the reason why the address gets no job, and its end. Returns whether the reason is
    /// new.
    pub(super) fn refuse(&self, reason: Option<String>) -> bool {
        let mut told = self.told();
        let is_new = reason.is_some() && told.refused != reason;
        told.refused = reason;
        is_new
    }

    /// Records the jobs that the address takes; `None` if it reported none. Returns whether this
    /// call made them unknown.
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

    /// Returns the number of executions under way at the address.
    pub(super) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }

    /// Begins an execution. The execution is under way until the result is dropped.
    pub(super) fn send(&self) -> Sending<'_> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        Sending(self)
    }

    /// Returns whether the breaker of the address is open.
    pub(super) fn is_away(&self) -> bool {
        self.breaker.is_open()
    }

    /// Returns the time of the next trial; `None` if a call is allowed now.
    pub(super) fn trial(&self) -> Option<Instant> {
        self.breaker.wait()
    }

    /// Records an answer of the address.
    pub(crate) fn answered(&self) {
        self.breaker.answered();
    }

    /// Records an answer to a check.
    pub(super) fn heard(&self) {
        self.breaker.heard();
    }

    /// Records a check without an answer.
    pub(super) fn silent(&self, reason: &str) {
        self.breaker.silent(reason);
    }

    /// Records that the address was unreachable, or could not execute any job.
    pub(crate) fn failed(&self, reason: &str) {
        self.breaker.failed(reason);
    }

    /// Like [`failed`](Self::failed), once for each fault: several jobs may share one.
    pub(crate) fn at_fault(&self, fault: &Fault, reason: &str) {
        if fault.is_new() {
            self.failed(reason);
        }
    }

    /// Returns the reason why the address is unreachable.
    pub(super) fn problem(&self) -> Option<String> {
        self.told()
            .refused
            .clone()
            .or_else(|| self.breaker.problem())
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

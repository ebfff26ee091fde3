//! The jobs that a node takes: the types that it locks, and the scope that jobs of these types must
//! match.
//!
//! Handlers and scope may change while the node runs ([`Registry`](crate::node::Registry)). Running
//! jobs continue. Hints of jobs that the node no longer takes are settled or forwarded, like those
//! of any type without a handler.
//!
//! The locked types are those with a handler, except closed ones. The database may refuse the
//! outcomes of a type, because of a trigger or a foreign key that an operator added, for example.
//! These outcomes wait apart. A type closes when [`MOST`] of its outcomes wait, or, while
//! [`MOST_OF_ALL`] outcomes wait in total, when its next outcome is refused. So the number of
//! waiting outcomes is bounded, and no outcome of another type waits for them. Hints of a closed
//! type are settled as [`Unserved`](crate::store::Refusal::Unserved), and the node leaves the type
//! out of its row and its beats. If no other node serves the type, its jobs wait, and the leader
//! hints them when the type is open again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use metrics::Gauge;
use tokio::sync::watch;

use crate::job::scope::Scope;
use crate::store::attempts::AttemptsKept;
use crate::worker::handler::{Handlers, Registration};

/// Maximum number of outcomes of one type that wait while the type is open.
const MOST: usize = 1_000;
/// Maximum number of waiting outcomes of all types together.
const MOST_OF_ALL: usize = 4 * MOST;
/// Number of waiting outcomes at which a closed type opens again.
const FEW: usize = MOST / 2;

/// The types and the scope that a node serves.
pub(crate) struct Served {
    handlers: RwLock<Handlers>,
    now: Mutex<Now>,
    /// Grows with every change.
    revision: watch::Sender<i64>,
    /// The number of closed types.
    closed: Gauge,
}

struct Now {
    all: Arc<[String]>,
    open: Arc<[String]>,
    /// The types whose jobs may be held by row locks.
    by_row: Arc<[String]>,
    /// The types with a limit of the jobs that run at once on a node, sorted.
    limited: Arc<[String]>,
    /// The scope of the options and the registry.
    own: Scope,
    /// The jobs that the store can run ([`Store::reach`](crate::store::Store::reach)).
    reach: Scope,
    /// The jobs that both scopes take.
    scope: Arc<Scope>,
    /// The types with refused outcomes that wait.
    waiting: HashMap<String, Waiting>,
    total: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    outcomes: usize,
    closed: bool,
    turn: TypeTurn,
}

/// The mutex of a type: only one of its refused outcomes is tried at a time.
pub(crate) type TypeTurn = Arc<tokio::sync::Mutex<()>>;

impl Served {
    /// Creates the state of a node with these handlers, this scope and this reach of its store.
    pub(crate) fn new(handlers: Handlers, own: Scope, reach: Scope, closed: Gauge) -> Self {
        let all: Arc<[String]> = handlers.types().into();
        let now = Now {
            open: all.clone(),
            all,
            by_row: handlers.row_lock_types().into(),
            limited: handlers.limited_types().into(),
            scope: Arc::new(own.and(&reach)),
            own,
            reach,
            waiting: HashMap::new(),
            total: 0,
        };
        closed.set(0.0);
        Self {
            handlers: RwLock::new(handlers),
            now: Mutex::new(now),
            revision: watch::Sender::new(1),
            closed,
        }
    }

    /// Returns the handler of a type, whether the type is open or closed.
    pub(crate) fn handler(&self, job_type: &str) -> Option<Arc<Registration>> {
        self.read_handlers().shared(job_type).cloned()
    }

    /// Returns the handler of a type and the result of `and`. No change replaces the handler before
    /// `and` has returned.
    pub(crate) fn handler_with<T>(
        &self,
        job_type: &str,
        and: impl FnOnce(&Registration) -> T,
    ) -> Option<(Arc<Registration>, T)> {
        let handlers = self.read_handlers();
        let registration = handlers.shared(job_type)?;
        let answer = and(registration);
        Some((registration.clone(), answer))
    }

    /// Changes the handlers. No job finds a handler during the change.
    pub(crate) fn change_handlers<T>(&self, change: impl FnOnce(&mut Handlers) -> T) -> T {
        let mut handlers = self
            .handlers
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut handlers);
        let mut now = self.lock();
        now.all = handlers.types().into();
        now.by_row = handlers.row_lock_types().into();
        now.limited = handlers.limited_types().into();
        self.choose(&mut now);
        changed
    }

    pub(crate) fn change_scope(&self, change: impl FnOnce(&mut Scope)) {
        let mut now = self.lock();
        change(&mut now.own);
        self.take_both(&mut now);
    }

    /// Limits the scope to the jobs that the store can run.
    pub(crate) fn set_reach(&self, reach: Scope) {
        let mut now = self.lock();
        now.reach = reach;
        self.take_both(&mut now);
    }

    fn take_both(&self, now: &mut Now) {
        let scope = now.own.and(&now.reach);
        if scope != *now.scope {
            now.scope = Arc::new(scope);
            self.revision.send_modify(|revision| *revision += 1);
        }
    }

    /// Returns the scope of the options and the registry.
    pub(crate) fn own_scope(&self) -> Scope {
        self.lock().own.clone()
    }

    /// Returns the scope, which limits the jobs of the served types.
    pub(crate) fn scope(&self) -> Arc<Scope> {
        self.lock().scope.clone()
    }

    /// Returns all types with a handler.
    pub(crate) fn all(&self) -> Arc<[String]> {
        self.lock().all.clone()
    }

    /// Returns the types whose jobs may be held by row locks.
    pub(crate) fn by_row(&self) -> Arc<[String]> {
        self.lock().by_row.clone()
    }

    /// Returns the types with a limit of the jobs that run at once on a node, sorted.
    pub(crate) fn limited(&self) -> Arc<[String]> {
        self.lock().limited.clone()
    }

    /// Returns the open types, those without and those with a limit of the jobs that run at once on
    /// a node.
    pub(crate) fn by_limit(&self) -> (Arc<[String]>, Vec<String>) {
        let now = self.lock();
        if now.limited.is_empty() {
            return (now.open.clone(), Vec::new());
        }
        let is_limited = |job_type: &String| now.limited.binary_search(job_type).is_ok();
        let open = now.open.iter().cloned();
        let (limited, others): (Vec<String>, Vec<String>) = open.partition(is_limited);
        (others.into(), limited)
    }

    /// Returns whether a handler has a limit of the fleet.
    pub(crate) fn has_limits(&self) -> bool {
        self.read_handlers().has_limits()
    }

    /// Returns the names of the limits of the fleet.
    pub(crate) fn limit_names(&self) -> Vec<String> {
        self.read_handlers().limit_names()
    }

    /// Returns the names of the limits of the fleet, each once, with the longest time for which a permit
    /// cools down.
    pub(crate) fn cool_downs(&self) -> Vec<(String, Duration)> {
        self.read_handlers().cool_downs()
    }

    /// Returns the types whose attempts are recorded, open or closed.
    pub(crate) fn attempts_kept(&self) -> AttemptsKept {
        self.read_handlers().attempts_kept()
    }

    /// Returns a receiver of the revision, which grows with every change.
    pub(crate) fn revision(&self) -> watch::Receiver<i64> {
        self.revision.subscribe()
    }

    /// Returns the open types.
    pub(crate) fn types(&self) -> Arc<[String]> {
        self.lock().open.clone()
    }

    /// Returns whether every type is open.
    pub(crate) fn all_open(&self) -> bool {
        let now = self.lock();
        now.open.len() == now.all.len()
    }

    /// Returns whether the type is closed: it has a handler, and the node locks none of its jobs.
    pub(crate) fn is_closed(&self, job_type: &str) -> bool {
        let now = self.lock();
        now.waiting.get(job_type).is_some_and(|of| of.closed)
    }

    /// Records that an outcome of this type was refused alone and begins to wait. Returns the
    /// type's mutex.
    pub(crate) fn begin_to_wait(&self, job_type: &str) -> TypeTurn {
        let mut now = self.lock();
        now.total += 1;
        let too_many = now.total >= MOST_OF_ALL;
        let of = now.waiting.entry(job_type.to_owned()).or_default();
        of.outcomes += 1;
        let (waiting, turn) = (of.outcomes, of.turn.clone());
        if (too_many || waiting >= MOST) && !of.closed {
            of.closed = true;
            tracing::error!(
                job_type,
                waiting,
                "the database refuses the outcomes of this type; this node locks no more jobs of \
                 it until fewer outcomes wait; see earlier log lines for the reason"
            );
            self.choose(&mut now);
        }
        turn
    }

    /// Records that a waiting outcome was accepted or given up.
    pub(crate) fn end_to_wait(&self, job_type: &str) {
        let mut now = self.lock();
        let Some(of) = now.waiting.get_mut(job_type) else {
            return;
        };
        of.outcomes -= 1;
        let (outcomes, closed) = (of.outcomes, of.closed);
        if outcomes == 0 {
            now.waiting.remove(job_type);
        } else if closed && outcomes <= FEW {
            of.closed = false;
        }
        now.total -= 1;
        if closed && outcomes <= FEW {
            tracing::info!(job_type, "this node locks jobs of this type again");
            self.choose(&mut now);
        }
    }

    fn choose(&self, now: &mut Now) {
        let closed = |job_type: &String| now.waiting.get(job_type).is_some_and(|of| of.closed);
        let open: Arc<[String]> = now.all.iter().filter(|t| !closed(t)).cloned().collect();
        now.open = open;
        self.closed.set((now.all.len() - now.open.len()) as f64);
        self.revision.send_modify(|revision| *revision += 1);
    }

    fn read_handlers(&self) -> RwLockReadGuard<'_, Handlers> {
        self.handlers.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::handler::{Outcome, Running};

    fn of_types<'a>(types: impl IntoIterator<Item = &'a str>) -> Served {
        let mut handlers = Handlers::default();
        for job_type in types {
            handlers.add(job_type, |_: Running<()>| async { Ok(Outcome::Done) });
        }
        Served::new(handlers, Scope::default(), Scope::default(), Gauge::noop())
    }

    #[test]
    fn a_change_of_handlers_or_scope_is_a_new_revision() {
        let served = served();
        let revision = served.revision();
        assert!(served.change_handlers(|handlers| handlers.remove("mail")));
        assert_eq!(*served.types(), ["report"]);
        assert!(served.handler("mail").is_none() && served.handler("report").is_some());
        served.change_scope(|scope| scope.tenants = Some(["acme".to_owned()].into()));
        let after = *revision.borrow();
        assert_eq!(after, 3);
        served.change_scope(|scope| scope.tenants = Some(["acme".to_owned()].into()));
        assert_eq!(*revision.borrow(), after, "nothing has changed");
    }

    #[test]
    fn the_reach_of_the_store_limits_the_scope_and_the_registry_changes_only_its_own_part() {
        let served = served();
        served.set_reach(Scope::default().deployments(["d1", "d2"]));
        served.change_scope(|scope| scope.deployments = Some(["d2".to_owned()].into()));
        assert_eq!(*served.scope(), Scope::default().deployments(["d2"]));
        served.set_reach(Scope::default().deployments(["d1"]));
        assert!(
            served
                .scope()
                .deployments
                .as_ref()
                .is_some_and(|d| d.is_empty())
        );
        served.set_reach(Scope::default());
        assert_eq!(*served.scope(), Scope::default().deployments(["d2"]));
        let revision = *served.revision().borrow();
        served.set_reach(Scope::default().deployments(["d2", "d3"]));
        assert_eq!(*served.revision().borrow(), revision, "nothing has changed");
    }

    fn served() -> Served {
        of_types(["mail", "report"])
    }

    /// A job must not find the former handler and then create the slots of the new one.
    #[test]
    fn a_handler_is_not_replaced_while_a_job_looks_for_its_slots() {
        let served = served();
        let found = served.handler_with("mail", |registration| {
            assert!(served.handlers.try_write().is_err(), "it can be replaced");
            registration.options.concurrency
        });
        assert_eq!(found.map(|(_, limit)| limit), Some(None));
        served.change_handlers(|_| assert!(served.handlers.try_read().is_err()));
        assert!(served.handler_with("fax", |_| ()).is_none());
    }

    #[test]
    fn a_type_closes_while_too_many_of_its_outcomes_wait() {
        let served = served();
        for _ in 1..MOST {
            served.begin_to_wait("mail");
        }
        served.begin_to_wait("report");
        assert_eq!(*served.types(), ["mail", "report"]);
        served.begin_to_wait("mail");
        assert!(served.is_closed("mail") && !served.is_closed("report"));
        assert_eq!(*served.types(), ["report"]);
        for _ in FEW + 1..MOST {
            served.end_to_wait("mail");
        }
        assert!(served.is_closed("mail"));
        served.end_to_wait("mail");
        assert!(!served.is_closed("mail"));
        assert_eq!(*served.types(), ["mail", "report"]);
    }

    #[test]
    fn where_too_many_of_all_types_wait_the_next_type_closes() {
        let served = of_types(["0", "1", "2", "3", "4"]);
        for job_type in ["0", "1", "2", "3", "4"] {
            for _ in 0..MOST_OF_ALL / 5 {
                served.begin_to_wait(job_type);
            }
        }
        assert_eq!(*served.types(), ["0", "1", "2", "3"]);
        served.begin_to_wait("0");
        assert_eq!(*served.types(), ["1", "2", "3"]);
        assert!(!served.all_open());
    }

    #[test]
    fn the_last_outcome_of_a_type_leaves_nothing_behind() {
        let served = served();
        served.begin_to_wait("mail");
        served.end_to_wait("mail");
        served.end_to_wait("mail");
        let now = served.lock();
        assert!(now.waiting.is_empty() && now.total == 0);
    }
}

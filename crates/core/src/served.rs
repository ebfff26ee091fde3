//! The types whose jobs a node locks now.
//!
//! These are the types with a handler, without those that are closed. A type closes while [`MOST`] outcomes of its jobs
//! wait apart because the database refuses them (a trigger or a foreign key that an operator added, say), or, where
//! [`MOST_OF_ALL`] wait, with its next one. So what waits is bounded, and no outcome of another type waits for it. Hints of a
//! closed type are settled as [`Unserved`](crate::store::Refusal::Unserved), and the node does not name the type in its
//! beats: where no other node serves it, its jobs wait, and the leader hints them once the type is open again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use metrics::gauge;

use crate::metrics as m;

/// Outcomes of one type that wait apart while it is open.
const MOST: usize = 1_000;
/// Of all types.
const MOST_OF_ALL: usize = 4 * MOST;
/// It opens when no more than these are left.
const FEW: usize = MOST / 2;

/// The types whose jobs a node locks now.
#[derive(Debug)]
pub(crate) struct Served {
    all: Arc<[String]>,
    now: Mutex<Now>,
}

#[derive(Debug)]
struct Now {
    open: Arc<[String]>,
    /// Refused outcomes that wait.
    waiting: HashMap<String, Waiting>,
    total: usize,
}

#[derive(Debug, Default)]
struct Waiting {
    outcomes: usize,
    closed: bool,
    turn: TypeTurn,
}

/// One outcome of a type is tried at a time.
pub(crate) type TypeTurn = Arc<tokio::sync::Mutex<()>>;

impl Served {
    /// Of a node with handlers for these types.
    pub(crate) fn new(all: Arc<[String]>) -> Self {
        let now = Now {
            open: all.clone(),
            waiting: HashMap::new(),
            total: 0,
        };
        gauge!(m::TYPES_CLOSED).set(0.0);
        Self {
            all,
            now: Mutex::new(now),
        }
    }

    /// The types that are open.
    pub(crate) fn types(&self) -> Arc<[String]> {
        self.lock().open.clone()
    }

    /// Whether no type is closed.
    pub(crate) fn all_open(&self) -> bool {
        self.lock().open.len() == self.all.len()
    }

    /// Whether the node has a handler for a type and locks none of its jobs.
    pub(crate) fn is_closed(&self, job_type: &str) -> bool {
        let now = self.lock();
        now.waiting.get(job_type).is_some_and(|of| of.closed)
    }

    /// An outcome of this type was refused alone, and begins to wait.
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
                "the database refuses the outcomes of this type; this node locks no more jobs of it until fewer wait; \
                 see the log for the reason"
            );
            self.choose(&mut now);
        }
        turn
    }

    /// It was taken or given up.
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
        now.open = self.all.iter().filter(|t| !closed(t)).cloned().collect();
        gauge!(m::TYPES_CLOSED).set((self.all.len() - now.open.len()) as f64);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served() -> Served {
        Served::new(["mail", "report"].map(str::to_owned).into())
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
        let served = Served::new((0..5).map(|n| n.to_string()).collect());
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

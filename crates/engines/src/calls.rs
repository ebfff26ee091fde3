//! The executions under way from this process, each with the lock under which it was sent.
//!
//! The engine continues an execution whose caller stops waiting. So a lock under which an execution
//! was sent and not answered must not be released, because another node would execute the job at
//! the same time. Such a lock stays until it expires.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jobwire_core::Fence;

/// The least time for which an unanswered execution is remembered. After it the lock has certainly
/// expired.
const REMEMBERED: Duration = Duration::from_secs(24 * 3_600);
/// Maximum number of remembered executions. Beyond it the oldest are forgotten.
const MOST: usize = 100_000;

/// The executions without an answer, by the fence of their lock, and the locks that are given back
/// without an execution.
#[derive(Debug)]
pub(crate) struct Calls {
    open: Mutex<HashMap<Fence, Instant>>,
    given_back: Mutex<HashSet<Fence>>,
    remembered: Duration,
}

impl Calls {
    /// Creates an empty memory. `locked_for` is the longest time for which a lock of an unanswered
    /// execution stays.
    pub(crate) fn new(locked_for: Duration) -> Self {
        Self {
            open: Mutex::default(),
            given_back: Mutex::default(),
            remembered: REMEMBERED.max(locked_for),
        }
    }

    /// Locks the map. A poisoned lock means that a thread panicked between whole operations; the
    /// map is still right.
    fn open(&self) -> MutexGuard<'_, HashMap<Fence, Instant>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that an execution is about to be sent under this lock.
    pub(crate) fn sent(&self, fence: Fence) {
        let mut open = self.open();
        if open.len() >= MOST {
            self.forget(&mut open);
            let oldest = open.iter().min_by_key(|(_, sent)| **sent).map(|(f, _)| *f);
            if let Some(oldest) = oldest.filter(|_| open.len() >= MOST) {
                open.remove(&oldest);
            }
        }
        open.insert(fence, Instant::now());
    }

    /// Records that a lock whose execution has ended is to stay until it expires, as that of an
    /// execution without an answer.
    pub(crate) fn leave(&self, fence: Fence) {
        self.sent(fence);
    }

    fn forget(&self, open: &mut HashMap<Fence, Instant>) {
        open.retain(|_, sent| sent.elapsed() < self.remembered);
    }

    /// Records that the engine has certainly ended the execution.
    pub(crate) fn answered(&self, fence: Fence) {
        self.open().remove(&fence);
    }

    /// Records that the job of this lock is for another node: its lock ends without an execution.
    pub(crate) fn gave_back(&self, fence: Fence) {
        let mut back = self
            .given_back
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if back.len() < MOST {
            back.insert(fence);
        }
    }

    /// Returns whether the job of this lock is for another node, once.
    pub(crate) fn is_given_back(&self, fence: Fence) -> bool {
        let mut back = self
            .given_back
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        back.remove(&fence)
    }

    /// Returns the locks under which an execution was sent and not answered, the last one first.
    pub(crate) fn unanswered(&self) -> Vec<Fence> {
        let mut found: Vec<(Instant, Fence)> = {
            let mut open = self.open();
            self.forget(&mut open);
            open.iter().map(|(fence, sent)| (*sent, *fence)).collect()
        };
        found.sort_unstable_by(|one, other| other.cmp(one));
        found.into_iter().map(|(_, fence)| fence).collect()
    }

    /// Returns whether an execution under this lock was sent and not answered.
    pub(crate) fn is_open(&self, fence: Fence) -> bool {
        self.open().contains_key(&fence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_execution_is_open_from_its_request_to_its_answer() {
        let (calls, fence) = (Calls::new(Duration::ZERO), Fence::new(7));
        assert!(!calls.is_open(fence));
        calls.sent(fence);
        assert!(calls.is_open(fence));
        assert_eq!(calls.unanswered(), [fence]);
        calls.answered(fence);
        assert!(!calls.is_open(fence));
    }

    #[test]
    fn a_lock_is_given_back_once() {
        let (calls, fence) = (Calls::new(Duration::ZERO), Fence::new(7));
        calls.gave_back(fence);
        assert!(calls.is_given_back(fence) && !calls.is_given_back(fence));
        assert!(!calls.is_open(fence));
    }

    #[test]
    fn the_last_execution_comes_first_and_old_ones_are_forgotten() {
        let mut calls = Calls::new(Duration::ZERO);
        assert_eq!(calls.remembered, REMEMBERED);
        for number in 1..=3 {
            calls.sent(Fence::new(number));
        }
        assert_eq!(calls.unanswered(), [3, 2, 1].map(Fence::new));
        calls.remembered = Duration::ZERO;
        assert!(calls.unanswered().is_empty());
        assert!(calls.open().is_empty());
    }

    #[test]
    fn the_memory_is_bounded() {
        let calls = Calls::new(Duration::ZERO);
        for number in 0..(MOST as i64 + 10) {
            calls.sent(Fence::new(number));
        }
        assert_eq!(calls.open().len(), MOST);
    }
}

//! The executions under way from this process, each with the lock under which it was sent.
//!
//! The engine continues an execution whose caller stops waiting. So a lock under which an execution
//! was sent and not answered must not be released, because another node would execute the job at
//! the same time. Such a lock stays until it expires.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jobwire_core::Fence;

/// The time for which an unanswered execution is remembered. After it the lock has certainly
/// expired.
const REMEMBERED: Duration = Duration::from_secs(24 * 3_600);
/// Maximum number of remembered executions. Beyond it the oldest are forgotten.
const MOST: usize = 100_000;

/// The executions without an answer, by the fence of their lock, and the locks that are given back
/// without an execution.
#[derive(Debug, Default)]
pub(crate) struct Calls(Mutex<HashMap<Fence, Instant>>, Mutex<HashSet<Fence>>);

impl Calls {
    /// Locks the map. A poisoned lock means that a thread panicked between whole operations; the
    /// map is still right.
    fn open(&self) -> MutexGuard<'_, HashMap<Fence, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that an execution is about to be sent under this lock.
    pub(crate) fn sent(&self, fence: Fence) {
        let mut open = self.open();
        if open.len() >= MOST {
            open.retain(|_, sent| sent.elapsed() < REMEMBERED);
            let oldest = open.iter().min_by_key(|(_, sent)| **sent).map(|(f, _)| *f);
            if let Some(oldest) = oldest.filter(|_| open.len() >= MOST) {
                open.remove(&oldest);
            }
        }
        open.insert(fence, Instant::now());
    }

    /// Records that the engine has certainly ended the execution.
    pub(crate) fn answered(&self, fence: Fence) {
        self.open().remove(&fence);
    }

    /// Records that the job of this lock is for another node: its lock ends without an execution.
    pub(crate) fn gave_back(&self, fence: Fence) {
        let mut back = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        if back.len() < MOST {
            back.insert(fence);
        }
    }

    /// Returns whether the job of this lock is for another node, once.
    pub(crate) fn is_given_back(&self, fence: Fence) -> bool {
        let mut back = self.1.lock().unwrap_or_else(PoisonError::into_inner);
        back.remove(&fence)
    }

    /// Returns the locks under which an execution was sent and not answered.
    pub(crate) fn unanswered(&self) -> Vec<Fence> {
        self.open().keys().copied().collect()
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
        let (calls, fence) = (Calls::default(), Fence::new(7));
        assert!(!calls.is_open(fence));
        calls.sent(fence);
        assert!(calls.is_open(fence));
        assert_eq!(calls.unanswered(), [fence]);
        calls.answered(fence);
        assert!(!calls.is_open(fence));
    }

    #[test]
    fn a_lock_is_given_back_once() {
        let (calls, fence) = (Calls::default(), Fence::new(7));
        calls.gave_back(fence);
        assert!(calls.is_given_back(fence) && !calls.is_given_back(fence));
        assert!(!calls.is_open(fence));
    }

    #[test]
    fn the_memory_is_bounded() {
        let calls = Calls::default();
        for number in 0..(MOST as i64 + 10) {
            calls.sent(Fence::new(number));
        }
        assert_eq!(calls.open().len(), MOST);
    }
}

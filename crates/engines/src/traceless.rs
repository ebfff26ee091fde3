//! The jobs that the engine rolled back without a trace, and how often in a row.
//!
//! The rows of such a job are as before its execution: no attempt is spent, and no due date is set.
//! So the job is ready again. The reason may be a conflict, which is over soon. Or the engine can't
//! record the failure of the job, and each execution ends like this. So the wait before the next
//! execution doubles. A job that reached the longest wait also keeps its lock after it, until the
//! lock expires. It has no slot meanwhile.
//!
//! An engine, or a page before it, may also answer with success although the row is as before. This is
//! seen when the lock is released, and the job may be locked again at once. So its wait then passes
//! before its next execution.
//!
//! The memory is of this process: another node begins with the shortest wait.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jobwire_core::JobId;

/// The first wait.
pub(crate) const SHORTEST: Duration = Duration::from_millis(100);
/// The number of waits that are twice as long as the one before: the longest is 3.2 s.
const DOUBLED: u32 = 5;
/// The time after which a job is forgotten. It may have moved on another node.
const FORGOTTEN: Duration = Duration::from_secs(600);
/// Maximum number of remembered jobs. Beyond it the oldest are forgotten.
const MOST: usize = 10_000;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Traceless(Mutex<HashMap<JobId, Seen>>);

/// The executions of a job that ended without a trace, in a row.
#[derive(Clone, Copy, Debug)]
struct Seen {
    times: u32,
    last: Instant,
    /// The wait after the last one is still to pass.
    owes: bool,
}

/// The wait of a job until its next execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    /// The number of executions in a row that ended without a trace.
    pub(crate) times: u32,
    /// The time for which the job waits in its slot.
    pub(crate) for_: Duration,
    /// Whether its lock is then left to expire.
    pub(crate) leaves_lock: bool,
}

impl Wait {
    fn after(times: u32) -> Self {
        let doubled = times.saturating_sub(1).min(DOUBLED);
        Self {
            times,
            for_: SHORTEST * (1 << doubled),
            leaves_lock: times > DOUBLED + 1,
        }
    }
}

impl Traceless {
    /// Locks the map. A poisoned lock means that a thread panicked between whole operations; the
    /// map is still right.
    fn seen(&self) -> MutexGuard<'_, HashMap<JobId, Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an execution that ended without a trace. Returns the wait of the job.
    pub(crate) fn ended(&self, id: JobId) -> Wait {
        self.count(id, false)
    }

    /// Records an execution that ended with an answer of success and without a trace.
    pub(crate) fn returned(&self, id: JobId) {
        self.count(id, true);
    }

    /// Returns the wait of a job that has returned, before its next execution. It is owed once.
    pub(crate) fn owed(&self, id: JobId) -> Option<Wait> {
        let mut seen = self.seen();
        let known = seen.get_mut(&id).filter(|known| known.owes)?;
        known.owes = false;
        Some(Wait::after(known.times))
    }

    fn count(&self, id: JobId, owes: bool) -> Wait {
        let (mut seen, now) = (self.seen(), Instant::now());
        let known = seen.get(&id).copied();
        let known = known.filter(|known| now.duration_since(known.last) < FORGOTTEN);
        if known.is_none() && seen.len() >= MOST {
            make_room(&mut seen, now);
        }
        let times = known.map_or(0, |known| known.times).saturating_add(1);
        let last = now;
        seen.insert(id, Seen { times, last, owes });
        Wait::after(times)
    }

    /// Records that the row of a job has moved.
    pub(crate) fn moved(&self, id: JobId) {
        self.seen().remove(&id);
    }
}

fn make_room(seen: &mut HashMap<JobId, Seen>, now: Instant) {
    seen.retain(|_, seen| now.duration_since(seen.last) < FORGOTTEN);
    if seen.len() < MOST {
        return;
    }
    let oldest = seen.iter().min_by_key(|(_, seen)| seen.last);
    if let Some(oldest) = oldest.map(|(id, _)| *id) {
        seen.remove(&oldest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_of_a_job_doubles_until_its_lock_is_left_and_begins_again_when_its_row_moved() {
        let (traceless, id) = (Traceless::default(), JobId::generate());
        for wait in [100, 200, 400, 800, 1_600, 3_200] {
            let found = traceless.ended(id);
            assert_eq!(found.for_, Duration::from_millis(wait));
            assert!(!found.leaves_lock);
        }
        for times in [7, 8] {
            let found = traceless.ended(id);
            assert_eq!((found.times, found.leaves_lock), (times, true));
            assert_eq!(found.for_, Duration::from_millis(3_200));
        }
        assert_eq!(traceless.ended(JobId::generate()).for_, SHORTEST);
        traceless.moved(id);
        assert_eq!(traceless.ended(id), Wait::after(1));
        assert!(Wait::after(u32::MAX).leaves_lock);
    }

    #[test]
    fn a_job_that_returned_owes_its_wait_once() {
        let (traceless, id) = (Traceless::default(), JobId::generate());
        assert_eq!(traceless.owed(id), None);
        for times in 1..=2 {
            traceless.returned(id);
            assert_eq!(traceless.owed(id), Some(Wait::after(times)));
            assert_eq!(traceless.owed(id), None);
        }
        traceless.returned(id);
        traceless.moved(id);
        assert_eq!(traceless.owed(id), None);
        traceless.ended(id);
        assert_eq!(traceless.owed(id), None, "it has waited");
    }

    #[test]
    fn the_memory_is_bounded() {
        let (traceless, first) = (Traceless::default(), JobId::generate());
        traceless.ended(first);
        for _ in 0..MOST {
            traceless.ended(JobId::generate());
        }
        assert_eq!(traceless.seen().len(), MOST);
        assert_eq!(traceless.ended(first).times, 1, "the oldest is forgotten");
    }
}

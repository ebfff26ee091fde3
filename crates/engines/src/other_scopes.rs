//! Reports jobs of other scopes, such as cases, that the engine created after the node's start.
//!
//! The probe refuses an engine that has such jobs, unless an option leaves them to the engine. The engine keeps later ones in the same tables.
//! The property that gives the jobs of processes to Jobwire turns their executor off, too. So the
//! leader searches for them once a minute.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::meter::{Meter, Unrun};
use crate::options::OtherScopes;

/// The pause between two searches.
const EVERY: Duration = Duration::from_secs(60);
/// The pause as a multiple of the duration of a search, which reads every job.
const DISTANCE: u32 = 200;

/// The searches of a leader. See the [module](self).
#[derive(Debug)]
pub(crate) struct Searches {
    /// Whether an engine node is known to run such jobs, so that they are no reason for a warning.
    are_left: bool,
    /// The time of the next search.
    next: Mutex<Option<Instant>>,
}

impl Searches {
    /// Returns the searches of a leader that does this with such jobs.
    pub(crate) fn new(policy: OtherScopes) -> Self {
        Self {
            are_left: policy == OtherScopes::Leave,
            next: Mutex::default(),
        }
    }

    /// Begins a search if the pause is over. Returns its start.
    pub(crate) fn begin(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if next.is_some_and(|next| now < next) {
            return None;
        }
        *next = Some(now + EVERY);
        Some(now)
    }

    /// Ends the search that began at this time, and reports the jobs that it found, by their scope.
    pub(crate) fn end(&self, began: Instant, found: &[(String, i64)], meter: &Meter) {
        let pause = (began.elapsed() * DISTANCE).max(EVERY);
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(began + pause);
        meter.unrun(Unrun::Scope, found.iter().map(|(_, jobs)| jobs).sum());
        if self.are_left {
            return;
        }
        for (scope, jobs) in found.iter().filter(|(_, jobs)| *jobs > 0) {
            tracing::warn!(
                scope,
                jobs,
                "the engine has jobs of another scope, which Jobwire does not run; let an engine node with its own executor run them (jobwire doctor says how)"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_search_comes_once_a_minute_and_a_slow_one_less_often() {
        let (searches, meter) = (Searches::new(OtherScopes::Refuse), Meter::new("test"));
        let began = searches.begin().expect("the first one");
        searches.end(began, &[], &meter);
        tokio::time::sleep(EVERY - Duration::from_secs(1)).await;
        assert_eq!(searches.begin(), None);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let slow = searches.begin().expect("after a minute");
        tokio::time::sleep(Duration::from_secs(2)).await;
        searches.end(slow, &[("cmmn".to_owned(), 3)], &meter);
        tokio::time::sleep(Duration::from_secs(390)).await;
        assert_eq!(searches.begin(), None);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(searches.begin().is_some());
    }
}

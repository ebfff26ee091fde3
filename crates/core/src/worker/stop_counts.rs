//! The jobs whose handlers returned errors after they had been asked to stop, or whose time ended while
//! the connection of their transaction did not respond, and how often.
//!
//! This mostly follows from the database, and the job is released without an attempt. But a job may
//! keep its own lease from being renewed, for example by a lock on its row, and be asked to stop in each
//! run. So the third time counts as a failure. The counts are those of one node, and are forgotten when
//! they become many.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::job::JobId;

/// The number of such errors after which one counts as a failure.
const RELEASES: u32 = 2;
/// Maximum number of counted jobs.
const MOST: usize = 10_000;

/// Counts of stopped jobs. See the [module](self).
#[derive(Default)]
pub(crate) struct StopCounts(Mutex<HashMap<JobId, u32>>);

impl StopCounts {
    /// Counts such an end of a job. Returns whether the job is released without an attempt.
    pub(crate) fn releases(&self, id: JobId) -> bool {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= MOST && !counts.contains_key(&id) {
            counts.clear();
        }
        let count = counts.entry(id).or_default();
        *count += 1;
        let releases = *count <= RELEASES;
        if !releases {
            counts.remove(&id);
        }
        releases
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_third_error_of_a_stopped_job_counts_as_a_failure() {
        let counts = StopCounts::default();
        let (stopped, other) = (JobId::generate(), JobId::generate());
        let told: Vec<bool> = (0..4).map(|_| counts.releases(stopped)).collect();
        assert_eq!(told, [true, true, false, true]);
        assert!(counts.releases(other));
    }
}

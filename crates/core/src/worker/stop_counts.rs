//! The jobs whose handlers returned errors after they had been asked to stop, or whose time ended while
//! the connection of their transaction did not respond, and how often.
//!
//! This mostly follows from the database, and the job is released without an attempt. But a job may
//! keep its own lease from being renewed, for example by a lock on its row, and be asked to stop in each
//! run. So the third time counts as a failure, unless an hour without a run lies between two of them: a job that
//! snoozes for months meets an outage now and then.
//!
//! The faults of the database during a job are kept, too, while the job goes back without an outcome. The
//! counts are those of one node, and are forgotten when they become many.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::job::JobId;
use crate::worker::fault_score::FaultScore;

/// The number of such errors after which one counts as a failure.
const RELEASES: u32 = 2;
/// The time for which the count and the faults of a job are kept.
const KEPT: Duration = Duration::from_secs(3_600);
/// Maximum number of counted jobs.
const MOST: usize = 10_000;

/// Counts of stopped jobs. See the [module](self).
#[derive(Default)]
pub(crate) struct StopCounts {
    stops: Mutex<HashMap<JobId, (Instant, u32)>>,
    scores: Mutex<HashMap<JobId, (Instant, FaultScore)>>,
}

impl StopCounts {
    /// Counts such an end of a run that began then. Returns whether the job is released without an attempt.
    pub(crate) fn releases(&self, id: JobId, began: Instant) -> bool {
        let mut counts = self.stops.lock().unwrap_or_else(PoisonError::into_inner);
        make_room(&mut counts, id);
        let now = Instant::now();
        let (last, count) = counts.entry(id).or_insert((now, 0));
        if began.saturating_duration_since(*last) >= KEPT {
            *count = 0;
        }
        (*last, *count) = (now, *count + 1);
        let releases = *count <= RELEASES;
        if !releases {
            counts.remove(&id);
        }
        releases
    }

    /// Keeps the faults of a job that goes back without an outcome.
    pub(crate) fn keep_score(&self, id: JobId, score: FaultScore) {
        let mut scores = self.scores.lock().unwrap_or_else(PoisonError::into_inner);
        make_room(&mut scores, id);
        scores.insert(id, (Instant::now(), score));
    }

    /// Returns the faults of a job that starts again on this node, and forgets them.
    pub(crate) fn take_score(&self, id: JobId) -> FaultScore {
        let mut scores = self.scores.lock().unwrap_or_else(PoisonError::into_inner);
        match scores.remove(&id) {
            Some((at, score)) if at.elapsed() < KEPT => score,
            _ => FaultScore::default(),
        }
    }
}

fn make_room<T>(counts: &mut HashMap<JobId, T>, id: JobId) {
    if counts.len() >= MOST && !counts.contains_key(&id) {
        counts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_third_error_of_a_stopped_job_counts_as_a_failure() {
        let counts = StopCounts::default();
        let (stopped, other) = (JobId::generate(), JobId::generate());
        let now = Instant::now();
        let told: Vec<bool> = (0..4).map(|_| counts.releases(stopped, now)).collect();
        assert_eq!(told, [true, true, false, true]);
        assert!(counts.releases(other, now));
    }

    #[tokio::test(start_paused = true)]
    async fn errors_of_a_stopped_job_that_lie_far_apart_are_never_a_failure() {
        let counts = StopCounts::default();
        let job = JobId::generate();
        for _ in 0..5 {
            assert!(counts.releases(job, Instant::now()));
            tokio::time::advance(KEPT).await;
        }
        // Long runs lie next to each other.
        let mut began = Instant::now();
        for releases in [true, true, false] {
            tokio::time::advance(KEPT).await;
            assert_eq!(counts.releases(job, began), releases);
            began = Instant::now();
        }
    }

    #[test]
    fn the_faults_of_a_job_are_kept_until_it_starts_again() {
        let counts = StopCounts::default();
        let job = JobId::generate();
        let mut score = FaultScore::default();
        score.has_fault();
        counts.keep_score(job, score);
        assert_eq!(counts.take_score(job), score);
        assert!(counts.take_score(job).is_clean());
    }
}

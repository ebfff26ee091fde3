//! Jobs that may have lost their hint.
//!
//! Over the endpoint nothing shows since when a job is ready. So a job is an orphan when two
//! searches have seen it unlocked, and the first one was at the moment before which every hint has
//! been decided.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use jobwire_core::JobId;

/// Maximum number of remembered jobs. Jobs beyond are judged by their age.
const MOST: usize = 100_000;
/// A job that was created so long before counts as seen.
const OLD: chrono::Duration = chrono::Duration::minutes(10);

/// The jobs that were seen unlocked, and when first, by the database's clock.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    seen: HashMap<JobId, DateTime<Utc>>,
    /// The jobs of the pass that is under way.
    passing: HashMap<JobId, DateTime<Utc>>,
}

impl Suspects {
    /// Begins a pass. Jobs that the last one did not see are forgotten.
    pub(super) fn begin(&mut self) {
        self.seen = std::mem::take(&mut self.passing);
    }

    /// Records an unlocked job, and returns whether it was seen before `ready_before`.
    pub(super) fn is_orphan(
        &mut self,
        id: JobId,
        created: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
        ready_before: DateTime<Utc>,
    ) -> bool {
        let known = self.seen.get(&id).copied();
        let first = known.unwrap_or(now);
        let is_old = created.is_some_and(|created| created <= ready_before - OLD);
        let is_orphan = known.is_some_and(|first| first <= ready_before) || is_old;
        if self.passing.len() < MOST {
            // One that is hinted now is not suspected again before the next moment.
            self.passing.insert(id, if is_orphan { now } else { first });
        }
        is_orphan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(10_000 + seconds, 0).unwrap_or_default()
    }

    #[test]
    fn a_job_is_an_orphan_when_it_was_seen_before_the_moment_and_still_is() {
        let (mut suspects, id) = (Suspects::default(), JobId::generate());
        suspects.begin();
        assert!(!suspects.is_orphan(id, Some(at(0)), at(1), at(0)));
        suspects.begin();
        assert!(!suspects.is_orphan(id, Some(at(0)), at(2), at(0)));
        suspects.begin();
        assert!(suspects.is_orphan(id, Some(at(0)), at(3), at(1)));
        suspects.begin();
        assert!(
            !suspects.is_orphan(id, Some(at(0)), at(4), at(2)),
            "hinted at 3"
        );
        suspects.begin();
        assert!(suspects.is_orphan(id, Some(at(0)), at(5), at(3)));
    }

    #[test]
    fn a_job_that_a_pass_did_not_see_is_forgotten_and_an_old_one_needs_no_second_look() {
        let (mut suspects, id) = (Suspects::default(), JobId::generate());
        suspects.begin();
        assert!(!suspects.is_orphan(id, None, at(1), at(0)));
        suspects.begin();
        suspects.begin();
        assert!(!suspects.is_orphan(id, None, at(9), at(8)));
        let other = JobId::generate();
        assert!(suspects.is_orphan(other, Some(at(-1_000)), at(9), at(8)));
    }
}

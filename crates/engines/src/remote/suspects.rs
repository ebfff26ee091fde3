//! Jobs that may have lost their hint.
//!
//! Every hint before a moment has been decided. A job that was ready before that moment and still
//! is has lost its hint. One that was never locked is ready since its creation. Nothing shows since
//! when another one is ready: two searches must have seen it unlocked, the first one before the
//! moment.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use jobwire_core::JobId;

/// Maximum number of remembered jobs. Jobs beyond are judged by their age.
const MOST: usize = 100_000;
/// A job that was created so long before counts as seen.
const OLD: chrono::Duration = chrono::Duration::minutes(10);

/// An unlocked job, as a search sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) created: Option<DateTime<Utc>>,
    pub(super) was_locked: bool,
    /// The database's clock.
    pub(super) now: DateTime<Utc>,
}

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
        Seen {
            created,
            was_locked,
            now,
        }: Seen,
        ready_before: DateTime<Utc>,
    ) -> bool {
        let known = self.seen.get(&id).copied();
        let first = known.unwrap_or(now);
        let before = |moment| created.is_some_and(|created| created <= moment);
        let is_orphan = match known {
            Some(first) => first <= ready_before,
            None if was_locked => before(ready_before - OLD),
            None => before(ready_before),
        };
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

    fn seen(created: Option<i64>, was_locked: bool, now: i64) -> Seen {
        Seen {
            created: created.map(at),
            was_locked,
            now: at(now),
        }
    }

    #[test]
    fn a_job_is_an_orphan_when_it_was_seen_before_the_moment_and_still_is() {
        let (mut suspects, id) = (Suspects::default(), JobId::generate());
        let mut pass = |now, ready_before| {
            suspects.begin();
            suspects.is_orphan(id, seen(Some(0), true, now), at(ready_before))
        };
        assert!(!pass(1, 0) && !pass(2, 0));
        assert!(pass(3, 1));
        assert!(!pass(4, 2), "hinted at 3");
        assert!(pass(5, 3));
    }

    #[test]
    fn a_job_that_was_never_locked_is_ready_since_its_creation() {
        let (mut suspects, id) = (Suspects::default(), JobId::generate());
        suspects.begin();
        assert!(suspects.is_orphan(id, seen(Some(0), false, 2), at(1)));
        suspects.begin();
        assert!(!suspects.is_orphan(id, seen(Some(0), false, 3), at(1)));
        let younger = seen(Some(2), false, 3);
        assert!(!suspects.is_orphan(JobId::generate(), younger, at(1)));
    }

    #[test]
    fn a_job_that_a_pass_did_not_see_is_forgotten_and_an_old_one_needs_no_second_look() {
        let (mut suspects, id) = (Suspects::default(), JobId::generate());
        suspects.begin();
        assert!(!suspects.is_orphan(id, seen(None, true, 1), at(0)));
        suspects.begin();
        suspects.begin();
        assert!(!suspects.is_orphan(id, seen(None, true, 9), at(8)));
        let old = seen(Some(-1_000), true, 9);
        assert!(suspects.is_orphan(JobId::generate(), old, at(8)));
    }
}

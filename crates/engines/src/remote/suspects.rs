//! Finds jobs that may have lost their hint.
//!
//! Every hint before a moment has been decided. A job that was ready before that moment and is
//! still ready has lost its hint. A job that was never locked is ready since its creation. The row
//! of any other job does not show since when the job is ready. Two searches must have found it
//! unlocked, the first one before the moment.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use jobwire_core::JobId;

/// Maximum number of remembered jobs. Jobs beyond this number are judged by their age.
const MOST: usize = 100_000;
/// The age from which a new job counts as found before.
const OLD: chrono::Duration = chrono::Duration::minutes(10);
/// The time after which a job that no search found is forgotten.
const FORGOTTEN: chrono::Duration = chrono::Duration::minutes(2);

/// An unlocked job, as a search found it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) created: Option<DateTime<Utc>>,
    pub(super) was_locked: bool,
    /// The time of the database.
    pub(super) now: DateTime<Utc>,
}

/// The first known and the last moment at which a job was unlocked.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    since: DateTime<Utc>,
    last: DateTime<Utc>,
}

/// The jobs that searches have found unlocked, by the database's clock.
#[derive(Debug, Default)]
pub(super) struct Suspects(HashMap<JobId, Suspect>);

impl Suspects {
    /// Begins a search: forgets jobs that the last searches did not find.
    pub(super) fn begin(&mut self, now: DateTime<Utc>) {
        self.0.retain(|_, suspect| suspect.last > now - FORGOTTEN);
    }

    /// Records an unlocked job, and returns whether it was ready before `ready_before`. With
    /// `mark`, the job is hinted now and is not suspected again before the next moment.
    pub(super) fn is_orphan(
        &mut self,
        id: JobId,
        seen: Seen,
        ready_before: DateTime<Utc>,
        mark: bool,
    ) -> bool {
        let now = seen.now;
        let known = self.0.get(&id).map(|suspect| suspect.since);
        let since = known.unwrap_or_else(|| match seen.created {
            Some(created) if !seen.was_locked || created <= ready_before - OLD => created,
            _ => now,
        });
        let is_orphan = since <= ready_before;
        if known.is_some() || self.0.len() < MOST {
            let since = if is_orphan && mark { now } else { since };
            self.0.insert(id, Suspect { since, last: now });
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
        let mut look =
            |now, before, mark| suspects.is_orphan(id, seen(Some(0), true, now), at(before), mark);
        assert!(!look(1, 0, true) && !look(2, 0, true));
        assert!(
            look(3, 1, false) && look(3, 1, true),
            "a look, and the hint"
        );
        assert!(!look(4, 2, true), "hinted at 3");
        assert!(look(5, 3, true));
    }

    #[test]
    fn a_job_that_was_never_locked_is_ready_since_its_creation() {
        let (mut suspects, id) = (Suspects::default(), JobId::generate());
        let first = seen(Some(0), false, 2);
        assert!(suspects.is_orphan(id, first, at(1), false));
        assert!(suspects.is_orphan(id, first, at(1), true));
        assert!(!suspects.is_orphan(id, seen(Some(0), false, 3), at(1), true));
        let younger = seen(Some(2), false, 3);
        assert!(!suspects.is_orphan(JobId::generate(), younger, at(1), true));
    }

    #[test]
    fn a_job_that_searches_do_not_see_is_forgotten_and_an_old_one_needs_no_second_look() {
        let (mut suspects, id) = (Suspects::default(), JobId::generate());
        assert!(!suspects.is_orphan(id, seen(None, true, 1), at(0), true));
        suspects.begin(at(200));
        assert!(!suspects.is_orphan(id, seen(None, true, 200), at(190), true));
        let old = seen(Some(-1_000), true, 9);
        assert!(suspects.is_orphan(JobId::generate(), old, at(8), true));
    }
}

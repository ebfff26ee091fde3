//! Row versions: the changes to tables per job.

use serde::Serialize;

/// The counters of all tables of Jobwire's schema, at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rows {
    pub(super) inserted: i64,
    pub(super) updated: i64,
    /// The number of updates that changed no index (heap-only).
    pub(super) hot: i64,
    pub(super) deleted: i64,
    /// The number of dead rows in the tables.
    pub(super) dead: i64,
    /// Whether no other session was connected, so that the counters are complete.
    pub(super) alone: bool,
}

/// Row versions over a whole run, from before its nodes started until after they ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct RowVersions {
    pub(super) inserted_per_job: f64,
    pub(super) updated_per_job: f64,
    pub(super) hot_updated_per_job: f64,
    pub(super) deleted_per_job: f64,
    /// Dead versions: each update and each delete leaves one.
    pub(super) dead_per_job: f64,
    /// Dead rows that vacuum had not removed at the end.
    pub(super) dead_at_the_end: i64,
}

impl Rows {
    /// Returns the differences to `later` per job; `None` if the counters were reset meanwhile.
    pub(super) fn until(&self, later: &Self, jobs: u32) -> Option<RowVersions> {
        let per_job = |from: i64, to: i64| {
            let amount = u64::try_from(to.checked_sub(from)?).ok()?;
            (jobs > 0).then(|| amount as f64 / f64::from(jobs))
        };
        let updated_per_job = per_job(self.updated, later.updated)?;
        let deleted_per_job = per_job(self.deleted, later.deleted)?;
        Some(RowVersions {
            inserted_per_job: per_job(self.inserted, later.inserted)?,
            updated_per_job,
            hot_updated_per_job: per_job(self.hot, later.hot)?,
            deleted_per_job,
            dead_per_job: updated_per_job + deleted_per_job,
            dead_at_the_end: later.dead,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_counted_for_each_job_and_not_over_a_reset() {
        let rows = |inserted, updated, hot, deleted, dead| Rows {
            inserted,
            updated,
            hot,
            deleted,
            dead,
            alone: true,
        };
        let before = rows(100, 10, 5, 50, 3);
        let after = rows(120, 15, 9, 70, 40);
        let versions = RowVersions {
            inserted_per_job: 2.0,
            updated_per_job: 0.5,
            hot_updated_per_job: 0.4,
            deleted_per_job: 2.0,
            dead_per_job: 2.5,
            dead_at_the_end: 40,
        };
        assert_eq!(before.until(&after, 10), Some(versions));
        assert_eq!(after.until(&before, 10), None);
        assert_eq!(before.until(&after, 0), None);
    }
}

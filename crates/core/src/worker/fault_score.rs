//! The score of a job's faults: when they count as a failure of the job.
//!
//! - A fault during which the database answers other statements is likely to be the job's own. The third one
//!   is a failure.
//! - A statement that crashes its process of the server restarts the server and ends all transactions. The job
//!   that causes it can't be told from one beside it. But the other one also waits through some of these
//!   crashes, and the cause does not: a crash of which only the wait was a witness takes one fault back. The
//!   tenth fault that is left is a failure, and so is the thirtieth in all.
//! - The pause doubles with each fault, so that a job beside the cause ends between two crashes, or waits
//!   through them.

use std::time::Duration;

/// The number of faults during which the database answered that count as a failure.
const OWN: u32 = 3;
/// The number of faults of any kind that count as one, less those that others caused.
const LEFT: u32 = 10;
/// The number of all faults that count as one.
const ALL: u32 = 30;

/// The score of the faults of a job. See the [module](self).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FaultScore {
    all: u32,
    own: u32,
    others: u32,
}

impl FaultScore {
    /// The pause before the first fault. It doubles with each fault.
    pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(200);
    /// The longest pause after a fault.
    const LONGEST_PAUSE: Duration = Duration::from_secs(16);

    /// Records a fault after the handler had run.
    pub(crate) fn has_fault(&mut self) {
        self.all += 1;
    }

    /// Records that the database answered other statements during the last fault.
    pub(crate) fn was_own(&mut self) {
        self.own += 1;
    }

    /// Records crashes of the server while the job waited.
    pub(crate) fn waited_through_crashes(&mut self, crashes: u64) {
        let crashes = u32::try_from(crashes).unwrap_or(u32::MAX);
        self.others = self.others.saturating_add(crashes).min(self.all);
    }

    /// Returns whether the job has had no fault.
    pub(crate) fn is_clean(&self) -> bool {
        self.all == 0
    }

    /// Returns whether the faults count as a failure of the job.
    pub(crate) fn is_failure(&self) -> bool {
        self.is_the_jobs_alone() || self.all - self.others >= LEFT || self.all >= ALL
    }

    /// Returns whether the database answered other statements each time.
    pub(crate) fn is_the_jobs_alone(&self) -> bool {
        self.own >= OWN
    }

    /// Returns the number of all faults.
    pub(crate) fn all(&self) -> u32 {
        self.all
    }

    /// Returns the number of faults during which the database answered.
    pub(crate) fn own(&self) -> u32 {
        self.own
    }

    /// Returns the longest pause before the job runs again.
    pub(crate) fn pause(&self) -> Duration {
        let factor = 1_u32 << self.all.min(16);
        (Self::FIRST_PAUSE * factor).min(Self::LONGEST_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of crashes until the failure of a job that is in a transaction in `open` of
    /// `of` crashes, and waits in the others.
    fn crashes_until_failure(open: u32, of: u32) -> u32 {
        let mut score = FaultScore::default();
        for crash in 0.. {
            if score.is_failure() {
                return crash;
            }
            if crash % of < open {
                score.has_fault();
            } else {
                score.waited_through_crashes(1);
            }
        }
        unreachable!()
    }

    #[test]
    fn a_job_that_crashes_the_server_fails_long_before_one_beside_it() {
        assert_eq!(crashes_until_failure(1, 1), LEFT);
        // Two that crash it by turns are there in half of the crashes.
        assert_eq!(crashes_until_failure(1, 2), 2 * ALL - 1);
        assert!(crashes_until_failure(2, 3) > 2 * LEFT);
    }

    #[test]
    fn faults_while_the_database_answers_count_more() {
        let mut score = FaultScore::default();
        assert!(score.is_clean());
        for _ in 0..OWN - 1 {
            score.has_fault();
            score.was_own();
            score.has_fault();
            assert!(!score.is_failure() && !score.is_clean());
        }
        score.has_fault();
        score.was_own();
        assert!(score.is_failure() && score.is_the_jobs_alone());
    }

    #[test]
    fn the_pause_doubles_up_to_its_limit() {
        let mut score = FaultScore::default();
        let mut before = FaultScore::FIRST_PAUSE;
        assert_eq!(score.pause(), before);
        for _ in 0..ALL {
            score.has_fault();
            assert_eq!(score.pause(), (before * 2).min(FaultScore::LONGEST_PAUSE));
            before = score.pause();
        }
    }
}

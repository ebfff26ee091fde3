//! The numbers of an engine's jobs.

use chrono::{DateTime, Utc};
use jobwire_core::job::query::{LaneBacklog, LaneView};
use jobwire_core::store::CycleReport;
use jobwire_core::{Lane, StoreError};
use serde::Deserialize;
use std::sync::{Mutex, PoisonError};

/// The numbers of jobs, each exact up to [`COUNT_LIMIT`](jobwire_core::store::COUNT_LIMIT). The
/// endpoint answers with them, too.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub(crate) struct Backlog {
    #[serde(rename = "locked")]
    pub(crate) leased: i64,
    pub(crate) executable: i64,
    pub(crate) timers: i64,
    pub(crate) dead_letters: i64,
    #[serde(default, with = "chrono::serde::ts_milliseconds_option")]
    pub(crate) oldest: Option<DateTime<Utc>>,
    #[serde(default, with = "chrono::serde::ts_milliseconds_option")]
    pub(crate) next_due: Option<DateTime<Utc>>,
}

/// The last numbers that a leader cycle of this process has read.
#[derive(Debug, Default)]
pub(crate) struct Numbers(Mutex<Backlog>);

impl Numbers {
    /// Enters the numbers into the report of a leader cycle, and returns them. If they could not be
    /// read, a report with hints keeps the last ones: its hints must not be lost, and the gauges
    /// must not fall to zero.
    ///
    /// # Errors
    /// The error of the read, if the report has no hints.
    pub(crate) fn enter(
        &self,
        read: Result<Backlog, StoreError>,
        report: &mut CycleReport,
    ) -> Result<Backlog, StoreError> {
        // A poisoned lock means that a thread panicked; the numbers are still whole.
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(backlog) => *last = backlog,
            Err(error) if report.rescued.is_empty() && report.unhinted.is_empty() => {
                return Err(error);
            }
            Err(error) => {
                tracing::debug!(%error, "the jobs could not be counted; the last numbers stay");
            }
        }
        last.enter(report);
        Ok(*last)
    }
}

impl Backlog {
    /// Enters the numbers into the report of a leader cycle.
    pub(crate) fn enter(&self, report: &mut CycleReport) {
        report.next_due = self.next_due;
        report.leased = self.leased;
        report.executable = self.executable;
        report.timers = self.timers;
        report.dead_letters = self.dead_letters;
        report.oldest_ready_at = self.oldest;
    }

    /// Returns the engine's only lane.
    pub(crate) fn lane(&self, lane: &Lane) -> LaneView {
        LaneView {
            lane: lane.clone(),
            ready: (self.executable - self.leased).max(0),
            running: self.leased,
            timers: self.timers,
            suspended: 0,
            dead_letters: self.dead_letters,
            oldest_ready_at: self.oldest,
            nodes: 0,
        }
    }

    /// Returns the jobs in the engine's only lane.
    pub(crate) fn jobs_in(&self, lane: &Lane) -> LaneBacklog {
        LaneBacklog {
            lane: lane.clone(),
            jobs: self.executable,
        }
    }
}

#[cfg(test)]
mod tests {
    use jobwire_core::hint::Ready;
    use jobwire_core::{Hint, JobId};

    use super::*;

    fn away() -> Result<Backlog, StoreError> {
        Err(StoreError::Config("away".to_owned()))
    }

    #[test]
    fn a_report_with_hints_keeps_the_last_numbers_if_the_count_fails() {
        let numbers = Numbers::default();
        let mut report = CycleReport::default();
        let read = Backlog {
            executable: 7,
            timers: 3,
            ..Backlog::default()
        };
        assert!(numbers.enter(Ok(read), &mut report).is_ok());
        let mut without_hints = CycleReport::default();
        assert!(numbers.enter(away(), &mut without_hints).is_err());
        let mut with_hints = CycleReport {
            unhinted: vec![Ready {
                lane: Lane::default(),
                hint: Hint::new(JobId::generate()),
            }],
            ..CycleReport::default()
        };
        assert!(numbers.enter(away(), &mut with_hints).is_ok());
        assert_eq!((with_hints.executable, with_hints.timers), (7, 3));
    }
}

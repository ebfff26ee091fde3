//! The numbers of an engine's jobs.

use chrono::{DateTime, Utc};
use jobwire_core::Lane;
use jobwire_core::job::query::{LaneBacklog, LaneView};
use jobwire_core::store::CycleReport;
use serde::Deserialize;

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

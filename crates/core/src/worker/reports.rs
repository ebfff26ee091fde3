//! The reports of a node's parts to its operator: problems, throttled log lines, the lanes whose
//! jobs are claimed, and the types that no node serves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::job::Lane;
use crate::job::query::UnservedType;
use crate::telemetry::gauges::Gauges;
use crate::telemetry::log_throttle::ThrottledLines;
use crate::telemetry::metrics as m;

/// The reports of a node's parts.
pub(crate) struct Reports {
    problems: Mutex<BTreeMap<&'static str, String>>,
    /// Log lines about jobs, throttled because any creator may create many jobs.
    pub(crate) throttled_lines: ThrottledLines,
    claimed: Mutex<BTreeSet<Lane>>,
    /// The types that no living node takes, as the leader found them.
    unserved: Mutex<Vec<UnservedType>>,
    gauges: Gauges,
}

impl Reports {
    /// Returns the reports of a node with these gauges.
    pub(crate) fn new(gauges: Gauges) -> Self {
        Self {
            problems: Mutex::default(),
            throttled_lines: ThrottledLines::default(),
            claimed: Mutex::default(),
            unserved: Mutex::default(),
            gauges,
        }
    }

    /// Records the problem of a part; `None` if it has none.
    pub(crate) fn part(&self, part: &'static str, problem: Option<String>) {
        let mut problems = self.problems();
        match problem {
            Some(problem) => problems.insert(part, problem),
            None => problems.remove(part),
        };
    }

    /// Returns the problem that a part has reported last.
    pub(crate) fn problem_of(&self, part: &'static str) -> Option<String> {
        self.problems().get(part).cloned()
    }

    /// Returns the problems by part.
    pub(crate) fn problems(&self) -> MutexGuard<'_, BTreeMap<&'static str, String>> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the lanes whose jobs are claimed, because no hints arrive.
    pub(crate) fn claimed(&self) -> MutexGuard<'_, BTreeSet<Lane>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the types whose jobs wait because no living node takes them.
    pub(crate) fn set_unserved(&self, found: Vec<UnservedType>) {
        *self.lock_unserved() = found;
    }

    /// Returns the types whose jobs wait because no living node takes them.
    pub(crate) fn unserved(&self) -> Vec<UnservedType> {
        self.lock_unserved().clone()
    }

    fn lock_unserved(&self) -> MutexGuard<'_, Vec<UnservedType>> {
        self.unserved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records whether a lane's jobs are claimed or come by hints.
    pub(crate) fn claiming(&self, lane: &Lane, claims: bool) {
        let mut claimed = self.claimed();
        if claims {
            claimed.insert(lane.clone());
        } else {
            claimed.remove(lane);
        }
        drop(claimed);
        let gauge = self.gauges.of_lane(m::CLAIMING, lane.0.clone());
        gauge.set(f64::from(u8::from(claims)));
    }
}

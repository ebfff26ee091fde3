//! The reports of a node's parts to its operator: problems, throttled log lines, the lanes whose
//! jobs are claimed, and the types that no node serves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::job::Lane;
use crate::job::query::UnservedType;
use crate::telemetry::gauges::Gauges;
use crate::telemetry::log_throttle::ThrottledLines;
use crate::telemetry::metrics as m;
use crate::telemetry::plain;

/// Maximum number of periodic jobs that are named.
const PERIODIC_NAMED: usize = 20;
/// The time for which a periodic job is named that could not be created. It is tried again within a
/// minute, unless its row is gone.
const PERIODIC_KEPT: Duration = Duration::from_secs(300);

/// The reports of a node's parts.
pub(crate) struct Reports {
    problems: Mutex<BTreeMap<&'static str, String>>,
    /// Log lines about jobs, throttled because any creator may create many jobs.
    pub(crate) throttled_lines: ThrottledLines,
    claimed: Mutex<BTreeSet<Lane>>,
    /// The types that no living node takes, as the leader found them.
    unserved: Mutex<Vec<UnservedType>>,
    /// The periodic jobs that the leader could not create, with the reason.
    periodic: Mutex<BTreeMap<String, (Instant, String)>>,
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
            periodic: Mutex::default(),
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

    /// Records why a periodic job can't be created. Some are named, to bound them.
    pub(crate) fn periodic_fails(&self, name: &str, why: &str) {
        let mut failing = self.lock_periodic();
        if failing.len() < PERIODIC_NAMED || failing.contains_key(name) {
            let why = plain::one_line(why, 1_000);
            failing.insert(name.to_owned(), (Instant::now(), why));
        }
    }

    /// Records that the jobs of a periodic job are created.
    pub(crate) fn periodic_runs(&self, name: &str) {
        self.lock_periodic().remove(name);
    }

    /// Returns the periodic jobs that could not be created, with the reason.
    pub(crate) fn periodic(&self) -> BTreeMap<String, String> {
        let failing = self.lock_periodic();
        let failing = failing.iter();
        let named = failing.map(|(name, (_, why))| (name.clone(), why.clone()));
        named.collect()
    }

    /// Returns the periodic jobs that could not be created lately.
    fn lock_periodic(&self) -> MutexGuard<'_, BTreeMap<String, (Instant, String)>> {
        let periodic = self.periodic.lock();
        let mut periodic = periodic.unwrap_or_else(PoisonError::into_inner);
        periodic.retain(|_, (at, _)| at.elapsed() < PERIODIC_KEPT);
        periodic
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

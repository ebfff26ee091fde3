//! CachedMetrics: handles of the metrics that every job moves.
//!
//! Naming a metric together with its labels costs a lookup and several allocations each time, which for a dozen
//! metrics was a sixth of what a node spends on a job. So they are named once for each lane and each type, and
//! kept. A recorder has to be installed before the node starts; one that comes later sees none of these.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};

use crate::hint::Body;
use crate::job::Lane;
use crate::telemetry::label;
use crate::telemetry::metrics as m;
use crate::transport::Delivery;

/// The metrics of a node.
pub(crate) struct CachedMetrics {
    lanes: Kept<LaneMetrics>,
    types: Kept<TypeMetrics>,
    pub(crate) finish_to_complete: Histogram,
    pub(crate) lock_batch: Histogram,
    pub(crate) locked_by_hint: Counter,
}

/// What is measured of each lane.
pub(crate) struct LaneMetrics {
    pub(crate) publish_to_receive: Histogram,
    pub(crate) receive_to_lock: Histogram,
    pub(crate) lock_to_start: Histogram,
    pub(crate) commit_to_start: Histogram,
    pub(crate) received: Counter,
    pub(crate) redelivered: Counter,
    pub(crate) decided: Counter,
}

/// What is measured of each type. Of the outcomes the common one is kept; the others are rare, and named when they
/// come.
pub(crate) struct TypeMetrics {
    job_type: String,
    pub(crate) queue_wait: Histogram,
    execution_done: Histogram,
    finished_done: Counter,
}

impl LaneMetrics {
    /// A message came.
    pub(crate) fn received(&self, delivery: &Delivery) {
        if let Body::Hints(hints) = &delivery.body {
            let count = hints.len() as u64;
            self.received.increment(count);
            if delivery.redelivered {
                self.redelivered.increment(count);
            }
        }
        if let Some(published) = delivery.published_at {
            let (stage, received) = ("publish_to_receive", delivery.received_at);
            m::latency(&self.publish_to_receive, stage, published, received);
        }
    }
}

/// The common outcome.
const DONE: &str = "done";

impl TypeMetrics {
    /// A handler ran for so long.
    pub(crate) fn executed(&self, outcome: &'static str, took: Duration) {
        let seconds = took.as_secs_f64();
        if outcome == DONE {
            self.execution_done.record(seconds);
        } else {
            histogram!(m::EXECUTION, "type" => self.job_type.clone(), "outcome" => outcome)
                .record(seconds);
        }
    }

    /// An attempt came to this end.
    pub(crate) fn finished(&self, outcome: &'static str) {
        if outcome == DONE {
            self.finished_done.increment(1);
        } else {
            counter!(m::JOBS_FINISHED, "type" => self.job_type.clone(), "outcome" => outcome)
                .increment(1);
        }
    }
}

impl CachedMetrics {
    pub(crate) fn new() -> Self {
        Self {
            lanes: Kept::default(),
            types: Kept::default(),
            finish_to_complete: histogram!(m::FINISH_TO_COMPLETE),
            lock_batch: histogram!(m::LOCK_BATCH),
            locked_by_hint: counter!(m::JOBS_LOCKED, "source" => "hint"),
        }
    }

    pub(crate) fn lane(&self, lane: &Lane) -> Arc<LaneMetrics> {
        self.lanes.get(&label::lane(lane), |name| LaneMetrics {
            publish_to_receive: histogram!(m::PUBLISH_TO_RECEIVE, "lane" => name.to_owned()),
            receive_to_lock: histogram!(m::RECEIVE_TO_LOCK, "lane" => name.to_owned()),
            lock_to_start: histogram!(m::LOCK_TO_START, "lane" => name.to_owned()),
            commit_to_start: histogram!(m::COMMIT_TO_START, "lane" => name.to_owned()),
            received: counter!(m::HINTS_RECEIVED, "lane" => name.to_owned()),
            redelivered: counter!(m::HINTS_REDELIVERED, "lane" => name.to_owned()),
            decided: counter!(m::HINTS_DECIDED, "lane" => name.to_owned()),
        })
    }

    pub(crate) fn job_type(&self, job_type: &str) -> Arc<TypeMetrics> {
        self.types.get(job_type, |name| TypeMetrics {
            job_type: name.to_owned(),
            queue_wait: histogram!(m::QUEUE_WAIT, "type" => name.to_owned()),
            execution_done: histogram!(m::EXECUTION, "type" => name.to_owned(), "outcome" => DONE),
            finished_done: counter!(m::JOBS_FINISHED, "type" => name.to_owned(), "outcome" => DONE),
        })
    }
}

/// Grows by the labels of lanes, which are bounded, and the types that a node serves, which are few.
struct Kept<V>(RwLock<HashMap<String, Arc<V>>>);

impl<V> Default for Kept<V> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<V> Kept<V> {
    fn get(&self, name: &str, make: impl FnOnce(&str) -> V) -> Arc<V> {
        // A poisoned lock means that a thread panicked between whole operations; the map is still right.
        let kept = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = kept.get(name) {
            return found.clone();
        }
        drop(kept);
        let mut kept = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let made = kept.entry(name.to_owned());
        made.or_insert_with(|| Arc::new(make(name))).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_a_name_is_made_once() {
        let kept = Kept::default();
        let first = kept.get("one", str::len);
        assert_eq!(*first, 3);
        assert!(Arc::ptr_eq(&first, &kept.get("one", |_| unreachable!())));
        assert_eq!(*kept.get("three", str::len), 5);
    }
}

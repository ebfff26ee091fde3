//! Cached handles of the metrics that every job updates.
//!
//! Each lookup of a metric by its name and labels costs a hash and several allocations. For a dozen
//! metrics this took a sixth of the node's time for a job. So the handles are created once for each
//! lane and each type, and kept. The recorder must be installed before the node starts; a recorder
//! that is installed later receives none of these metrics.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};

use crate::hint::Body;
use crate::job::Lane;
use crate::runtime::fast_map::FastMap;
use crate::telemetry::label;
use crate::telemetry::metrics as m;
use crate::transport::Delivery;

/// The cached metrics of a node.
pub(crate) struct CachedMetrics {
    lanes: Kept<LaneMetrics>,
    types: Kept<TypeMetrics>,
    pub(crate) finish_to_complete: Histogram,
    pub(crate) lock_batch: Histogram,
    pub(crate) locked_by_hint: Counter,
}

/// The metrics of one lane.
pub(crate) struct LaneMetrics {
    pub(crate) publish_to_receive: Histogram,
    pub(crate) receive_to_lock: Histogram,
    pub(crate) lock_to_start: Histogram,
    pub(crate) commit_to_start: Histogram,
    pub(crate) received: Counter,
    pub(crate) redelivered: Counter,
    pub(crate) decided: Counter,
}

/// The metrics of one type. Only the handles of the most frequent outcome are cached; those of the
/// other outcomes are looked up at each use.
pub(crate) struct TypeMetrics {
    job_type: String,
    pub(crate) queue_wait: Histogram,
    execution_done: Histogram,
    finished_done: Counter,
}

impl LaneMetrics {
    /// Records that a message was received.
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

/// The most frequent outcome.
const DONE: &str = "done";

impl TypeMetrics {
    /// Records the duration of a handler's run.
    pub(crate) fn executed(&self, outcome: &'static str, took: Duration) {
        let seconds = took.as_secs_f64();
        if outcome == DONE {
            self.execution_done.record(seconds);
        } else {
            histogram!(m::EXECUTION, "type" => self.job_type.clone(), "outcome" => outcome)
                .record(seconds);
        }
    }

    /// Counts the outcome of an attempt.
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
        // A lane whose name is known has it as its label.
        if let Some(found) = self.lanes.find(&lane.0) {
            return found;
        }
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

/// A map of handles. Its size is bounded by the number of lane labels and of types that the node
/// serves.
struct Kept<V>(RwLock<FastMap<String, Arc<V>>>);

impl<V> Default for Kept<V> {
    fn default() -> Self {
        Self(RwLock::default())
    }
}

impl<V> Kept<V> {
    fn find(&self, name: &str) -> Option<Arc<V>> {
        // A poisoned lock means that a thread panicked between whole operations; the map is still
        // right.
        let kept = self.0.read().unwrap_or_else(PoisonError::into_inner);
        kept.get(name).cloned()
    }

    fn get(&self, name: &str, make: impl FnOnce(&str) -> V) -> Arc<V> {
        if let Some(found) = self.find(name) {
            return found;
        }
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

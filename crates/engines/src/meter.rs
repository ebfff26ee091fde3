//! The metrics of the bridge, for one engine.
//!
//! The table `telemetry::metrics` of the core has the names and their meanings. The label `engine`
//! is [`EngineOptions::name`](crate::EngineOptions::name).

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use jobwire_core::telemetry::metrics as m;
use metrics::{Counter, Gauge, Histogram, SharedString, counter, gauge, histogram};

use crate::fate::{Ended, Fate};
use crate::http::Answer;

/// Counts for one engine. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    engine: SharedString,
    kept: Arc<Kept>,
}

/// The handles of the metrics that every job updates: a lookup of each would cost a hash and several
/// allocations. Each is made at its first use, when the recorder is installed.
#[derive(Debug, Default)]
struct Kept {
    executions: OnceLock<Gauge>,
    executed: OnceLock<Histogram>,
    done: OnceLock<Counter>,
}

/// The class of a lock that the leader has cleared.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rescue {
    /// The lock of a job that a node of Jobwire held.
    JobOfJobwire,
    /// The lock of a job that a node of the engine held.
    JobOfEngine,
    /// The lock of a timer that a node of the engine held.
    TimerOfEngine,
    /// The lock of an instance without a locked job.
    Instance,
}

impl Rescue {
    const fn as_str(self) -> &'static str {
        match self {
            Self::JobOfJobwire => "job-of-jobwire",
            Self::JobOfEngine => "job-of-engine",
            Self::TimerOfEngine => "timer-of-engine",
            Self::Instance => "instance",
        }
    }
}

/// The reason why no node can send a job to the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unrun {
    /// No address has its deployment or category.
    Reach,
    /// It belongs to another scope, such as cases.
    Scope,
}

impl Unrun {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Reach => "reach",
            Self::Scope => "scope",
        }
    }
}

impl Meter {
    /// Returns the meter of the engine with this name. Its gauges are visible from now on.
    pub(crate) fn new(engine: &str) -> Self {
        let meter = Self {
            engine: engine.to_owned().into(),
            kept: Arc::default(),
        };
        for name in [m::ENGINE_EXECUTIONS, m::ENGINE_UNANSWERED] {
            gauge!(name, "engine" => meter.engine.clone()).increment(0.0);
        }
        meter
    }

    /// Counts the fate of an executed job.
    pub(crate) fn outcome(&self, fate: Fate) {
        let counter = || {
            let engine = self.engine.clone();
            counter!(m::ENGINE_OUTCOMES, "engine" => engine, "outcome" => fate.as_str())
        };
        match fate {
            Fate::Done => self.kept.done.get_or_init(counter).increment(1),
            _ => counter().increment(1),
        }
    }

    /// Begins an execution, which is under way until [`Execution::answered`] or a drop.
    pub(crate) fn execution(&self) -> Execution<'_> {
        let gauge = || gauge!(m::ENGINE_EXECUTIONS, "engine" => self.engine.clone());
        Execution {
            sent: Instant::now(),
            _shown: Shown::new(self.kept.executions.get_or_init(gauge).clone()),
            meter: self,
        }
    }

    /// Shows an execution without an answer until the result is dropped.
    pub(crate) fn unanswered(&self) -> Shown {
        Shown::new(gauge!(m::ENGINE_UNANSWERED, "engine" => self.engine.clone()))
    }

    /// Counts an execution that the engine ended with an error. `None`: the rows were unreadable.
    pub(crate) fn failed(&self, ended: Option<Ended>) {
        let class = match ended {
            Some(Ended::Counted) => "counted",
            Some(Ended::Conflict) => "conflict",
            Some(Ended::Suspended) => "suspended",
            Some(Ended::Gone) => "gone",
            None => "unseen",
        };
        let engine = self.engine.clone();
        counter!(m::ENGINE_FAILURES, "engine" => engine, "class" => class).increment(1);
    }

    /// Sets the number of the engine's addresses that are away.
    pub(crate) fn away(&self, away: usize, addresses: usize) {
        let open = gauge!(m::ENGINE_BREAKER, "engine" => self.engine.clone());
        open.set(if away >= addresses { 1.0 } else { 0.0 });
        gauge!(m::ENGINE_ADDRESSES_AWAY, "engine" => self.engine.clone()).set(away as f64);
    }

    /// Shows whether the configured zone differs from the engine's.
    pub(crate) fn zone_wrong(&self, is_wrong: bool) {
        let wrong = gauge!(m::ENGINE_ZONE, "engine" => self.engine.clone());
        wrong.set(f64::from(u8::from(is_wrong)));
    }

    /// Sets the number of jobs that no node can send to the engine.
    pub(crate) fn unrun(&self, why: Unrun, jobs: i64) {
        let engine = self.engine.clone();
        gauge!(m::ENGINE_UNSERVED, "engine" => engine, "why" => why.as_str()).set(jobs as f64);
    }

    /// Counts locks that the leader has cleared.
    pub(crate) fn rescued(&self, class: Rescue, locks: u64) {
        if locks == 0 {
            return;
        }
        let engine = self.engine.clone();
        counter!(m::ENGINE_RESCUED, "engine" => engine, "class" => class.as_str()).increment(locks);
    }

    /// Counts statements that the watchdog has cancelled.
    pub(crate) fn cancelled(&self, statements: u64) {
        counter!(m::ENGINE_CANCELLED, "engine" => self.engine.clone()).increment(statements);
    }
}

/// Counts a row whose id is unreadable. `kind` is the kind of engine.
pub(crate) fn unknown_id(kind: &'static str) {
    counter!(m::ENGINE_UNKNOWN_IDS, "kind" => kind).increment(1);
}

/// An execution under way.
#[derive(Debug)]
pub(crate) struct Execution<'a> {
    sent: Instant,
    meter: &'a Meter,
    _shown: Shown,
}

impl Execution<'_> {
    /// Records its answer. It took this time, without its wait within the engine; `None` for the
    /// time since its request.
    pub(crate) fn answered(self, answer: &Answer, took: Option<Duration>) {
        let Meter { engine, kept } = self.meter;
        let histogram = || {
            let engine = engine.clone();
            histogram!(m::ENGINE_EXECUTION, "engine" => engine, "answer" => answer.as_str())
        };
        let seconds = took.unwrap_or_else(|| self.sent.elapsed()).as_secs_f64();
        match answer {
            Answer::Executed => kept.executed.get_or_init(histogram).record(seconds),
            _ => histogram().record(seconds),
        }
    }
}

/// Adds one to a gauge until it is dropped.
#[derive(Debug)]
pub(crate) struct Shown(Gauge);

impl Shown {
    fn new(gauge: Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

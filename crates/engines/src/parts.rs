//! The parts of the bridge that both stores of engines hold.

use std::sync::Arc;

use jobwire_core::StoreError;

use crate::backlog::Numbers;
use crate::calls::Calls;
use crate::gate::Gate;
use crate::meter::Meter;
use crate::options::EngineOptions;
use crate::pace::Pace;
use crate::routing::Routes;
use crate::routing::question::Question;
use crate::settling::Turns;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) options: EngineOptions,
    /// The executions that are under way.
    pub(crate) calls: Calls,
    /// The counters of the bridge.
    pub(crate) meter: Meter,
    /// The pace of the executions.
    pub(crate) pace: Pace,
    /// The gate before the engine.
    pub(crate) gate: Arc<Gate>,
    /// The addresses of the engine.
    pub(crate) routes: Arc<Routes>,
    /// The turns of statements that settle.
    pub(crate) turns: Turns,
    /// The last numbers of jobs.
    pub(crate) numbers: Numbers,
}

impl Parts {
    /// Returns the parts for an engine. `question` is the query for the jobs that an address takes,
    /// `about` the path that answers with the engine's version.
    ///
    /// # Errors
    /// If the engine has no address, or a URL or a path can't be used.
    pub(crate) fn new(
        options: EngineOptions,
        question: Option<Question>,
        about: String,
    ) -> Result<Self, StoreError> {
        let meter = Meter::new(&options.name);
        Ok(Self {
            calls: Calls::default(),
            pace: Pace::new(options.concurrency),
            gate: Gate::new(options.concurrency),
            routes: Arc::new(Routes::new(&options, question, about, &meter)?),
            meter,
            turns: Turns::default(),
            numbers: Numbers::default(),
            options,
        })
    }

    /// Waits for the outcomes of executed jobs to gather, while the engine has as many jobs as it
    /// takes.
    pub(crate) async fn gather(&self) {
        if self.gate.is_full() {
            self.turns.take().await;
        }
    }
}

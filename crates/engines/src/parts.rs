//! The parts of the bridge that both stores of engines hold.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::{JobId, StoreError};

use crate::backlog::Numbers;
use crate::calls::Calls;
use crate::fate::Fate;
use crate::gate::{Gate, Pass};
use crate::http::Answer;
use crate::lists::{ListRequest, Said};
use crate::meter::Meter;
use crate::options::EngineOptions;
use crate::pace::Pace;
use crate::routing::question::Question;
use crate::routing::{Route, Routes};
use crate::settling::{COMPLETE, GATHER};
use crate::traceless::Traceless;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) options: EngineOptions,
    /// The executions that are under way.
    pub(crate) calls: Calls,
    /// The jobs whose last executions ended without a trace.
    pub(crate) traceless: Traceless,
    /// The counters of the bridge.
    pub(crate) meter: Meter,
    /// The pace of the executions.
    pub(crate) pace: Pace,
    /// The gate before the engine.
    pub(crate) gate: Arc<Gate>,
    /// The addresses of the engine.
    pub(crate) routes: Arc<Routes>,
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
            calls: Calls::new(options.unknown_for.max(options.lock_for)),
            traceless: Traceless::default(),
            pace: Pace::new(options.concurrency),
            gate: Gate::new(options.concurrency),
            routes: Arc::new(Routes::new(&options, question, about, &meter)?),
            meter,
            numbers: Numbers::default(),
            options,
        })
    }

    /// Returns whether every address takes lists of jobs now.
    pub(crate) fn takes_lists(&self) -> bool {
        let mut routes = self.routes.all().iter();
        routes.all(|route| route.lists().are_taken())
    }

    /// Runs a job with others, if it came in with a group and the address takes lists. Returns
    /// `None` if it is to run alone.
    pub(crate) async fn run_in_list(
        &self,
        route: &Route,
        request: ListRequest,
        job_and_owner: (&str, &str),
        pass: &Pass,
    ) -> Option<Said> {
        let (at_once, lists) = (pass.at_once()?, route.lists());
        if !lists.are_taken() {
            return None;
        }
        // The addresses share the executions of this node.
        let at_once = at_once.div_ceil(self.routes.all().len().max(1));
        let run = lists.run(route.rest(), request, job_and_owner, at_once);
        // The address has just refused a list. More jobs have come in with a group than may run one by
        // one, so they come back.
        Some(run.await.unwrap_or_else(|| Answer::NotBegun.into()))
    }

    /// Records the fate of a job whose lock a statement has released. `statement` is its name.
    pub(crate) fn settled(&self, statement: &str, id: JobId, fate: Fate) {
        self.meter.outcome(fate);
        if statement != COMPLETE {
            return;
        }
        match fate {
            // The engine answered that it has executed the job, and the row is as before.
            Fate::Released => self.traceless.returned(id),
            Fate::Busy | Fate::Unknown => {}
            _ => self.traceless.moved(id),
        }
    }

    /// Returns the time for which outcomes gather now. While the engine has as many jobs as it
    /// takes, the next job of an instance could not start. Otherwise outcomes are settled at once.
    pub(crate) fn gathers_for(&self) -> Duration {
        match self.gate.is_full() {
            true => GATHER,
            false => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn outcomes_gather_only_while_the_engine_has_as_many_jobs_as_it_takes() {
        let options = EngineOptions::new("http://127.0.0.1:1/process-api").concurrency(2);
        let parts = Parts::new(options, None, String::new()).expect("usable");
        let enter = || parts.gate.enter(2).now_or_never().expect("room");
        assert_eq!(parts.gathers_for(), Duration::ZERO);
        let first = enter();
        assert_eq!(parts.gathers_for(), Duration::ZERO);
        let second = enter();
        assert_eq!(parts.gathers_for(), GATHER);
        // The answer of a job lets a waiting one in: the engine stays full.
        let mut waits = Box::pin(parts.gate.enter(2));
        assert!(waits.as_mut().now_or_never().is_none());
        drop(first);
        assert_eq!(parts.gathers_for(), GATHER);
        drop((second, waits));
        assert_eq!(parts.gathers_for(), Duration::ZERO);
    }
}

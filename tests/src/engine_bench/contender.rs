//! What runs the jobs of an engine.

use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::engine_bench::options::BenchedEngine;
use crate::{EngineSettings, JobExecutor};

/// One of the executors that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// `jobwire engine run` with the commit tap; hints stay in its process.
    Jobwire,
    /// The same over the execution endpoint.
    JobwireEndpoint,
    /// As the first, with hints over RabbitMQ.
    JobwireRabbitMq,
    /// The executor of another engine node, with the engine's defaults.
    Own,
    /// The same with the best settings that are known for it.
    OwnTuned,
    /// The bench, which executes each job over REST as soon as its instance is started: no search,
    /// no lock. The least that an execution over REST takes.
    Rest,
    /// The same over the execution endpoint.
    Endpoint,
}

impl Contender {
    /// All of them.
    pub const ALL: [Contender; 7] = [
        Contender::Jobwire,
        Contender::JobwireEndpoint,
        Contender::JobwireRabbitMq,
        Contender::Own,
        Contender::OwnTuned,
        Contender::Rest,
        Contender::Endpoint,
    ];

    /// Returns its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Contender::Jobwire => "jobwire",
            Contender::JobwireEndpoint => "jobwire-endpoint",
            Contender::JobwireRabbitMq => "jobwire-rabbitmq",
            Contender::Own => "own",
            Contender::OwnTuned => "own-tuned",
            Contender::Rest => "rest",
            Contender::Endpoint => "endpoint",
        }
    }

    pub(super) fn named(name: &str) -> Option<Contender> {
        Contender::ALL.into_iter().find(|it| it.name() == name)
    }

    /// Returns whether it runs in a node of the engine.
    pub(super) const fn is_own(self) -> bool {
        matches!(self, Contender::Own | Contender::OwnTuned)
    }

    /// Returns whether the jobs are executed over the execution endpoint.
    pub(super) const fn has_endpoint(self) -> bool {
        matches!(self, Contender::JobwireEndpoint | Contender::Endpoint)
    }

    /// Returns whether the bench executes the jobs itself.
    pub(super) const fn is_bare(self) -> bool {
        matches!(self, Contender::Rest | Contender::Endpoint)
    }

    /// Returns whether it can run the jobs of this engine: the endpoint of Camunda runs only jobs that a
    /// node has locked, and Activiti has no REST.
    pub(super) fn runs(self, engine: BenchedEngine) -> bool {
        match engine {
            BenchedEngine::Flowable => true,
            BenchedEngine::Camunda => self != Contender::Endpoint,
            BenchedEngine::Activiti => self.is_own() || self.has_endpoint(),
        }
    }

    /// Returns the settings of the engine node that runs the jobs, whose acquisition waits
    /// `acquire_wait` milliseconds at most if it is tuned.
    pub(super) fn node(
        self,
        engine: BenchedEngine,
        database: &str,
        acquire_wait: u32,
    ) -> EngineSettings {
        let settings = engine.settings(database).executor(JobExecutor::On);
        if self != Contender::OwnTuned {
            return settings;
        }
        if engine == BenchedEngine::Activiti {
            // By default one job an acquisition, two threads, and ten seconds between them.
            return settings.activiti_acquisition(Duration::from_millis(acquire_wait.into()));
        }
        let wait = acquire_wait.to_string();
        let tuned: &[(&str, String)] = match engine {
            BenchedEngine::Activiti => &[],
            // By default 512 jobs an acquisition, eight threads, and a queue without a bound.
            BenchedEngine::Flowable => &[
                (
                    "flowable.process.async.executor.default-async-job-acquire-wait-time",
                    format!("{wait}ms"),
                ),
                (
                    "flowable.process.async.executor.default-queue-size-full-wait-time",
                    format!("{wait}ms"),
                ),
            ],
            // By default three jobs an acquisition, three threads, and a queue of three.
            BenchedEngine::Camunda => &[
                (
                    "camunda.bpm.job-execution.wait-time-in-millis",
                    wait.clone(),
                ),
                ("camunda.bpm.job-execution.max-wait", wait),
                ("camunda.bpm.job-execution.core-pool-size", "8".to_owned()),
                ("camunda.bpm.job-execution.max-pool-size", "8".to_owned()),
                ("camunda.bpm.job-execution.queue-capacity", "100".to_owned()),
                (
                    "camunda.bpm.job-execution.max-jobs-per-acquisition",
                    "50".to_owned(),
                ),
            ],
        };
        tuned.iter().fold(settings, |settings, (name, value)| {
            settings.property(name, value)
        })
    }
}

impl Serialize for Contender {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

//! The programs of `tests/engines`.

use std::path::PathBuf;

use crate::kafka_jars;

/// An engine and its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineProgram {
    /// Flowable 7, with REST on Spring Boot, and the execution endpoint.
    Flowable7,
    /// Flowable 6.8, with REST on Spring Boot 2.
    Flowable6,
    /// Flowable 8, with the execution endpoint alone.
    Flowable8,
    /// Camunda 7, with REST on Spring Boot.
    Camunda7,
    /// Activiti 6, with the execution endpoint alone.
    Activiti6,
    /// Activiti 7, with the execution endpoint alone.
    Activiti7,
}

impl EngineProgram {
    /// Returns the name of its folder.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EngineProgram::Flowable6 => "flowable6",
            EngineProgram::Flowable7 => "flowable7",
            EngineProgram::Flowable8 => "flowable8",
            EngineProgram::Camunda7 => "camunda7",
            EngineProgram::Activiti6 => "activiti6",
            EngineProgram::Activiti7 => "activiti7",
        }
    }

    /// Returns the path below which its REST stands; `None` without REST.
    pub(crate) fn rest(self) -> Option<&'static str> {
        match self {
            EngineProgram::Flowable6 | EngineProgram::Flowable7 => Some("/process-api"),
            EngineProgram::Camunda7 => Some("/engine-rest"),
            EngineProgram::Flowable8 | EngineProgram::Activiti6 | EngineProgram::Activiti7 => None,
        }
    }

    pub(crate) fn main_class(self) -> String {
        // An older version has the sources of the newer one.
        let sources = match self {
            EngineProgram::Flowable6 => EngineProgram::Flowable7,
            EngineProgram::Activiti6 => EngineProgram::Activiti7,
            other => other,
        };
        format!("jobwire.engines.{}.Main", sources.name())
    }

    /// Returns its class path. The first call builds it.
    pub(crate) async fn class_path(self) -> PathBuf {
        let build = move || kafka_jars::fetch(&["engine", self.name()]);
        let built = tokio::task::spawn_blocking(build).await;
        let jars = built.expect("its failure is a panic, reported above");
        jars.join("*")
    }
}

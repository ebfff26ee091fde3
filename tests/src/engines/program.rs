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
    /// Flowable 7.0, like 7.
    Flowable70,
    /// Camunda 7.20, like 7.
    Camunda720,
    /// Operaton, a fork of Camunda 7, with the execution endpoint alone.
    Operaton,
    /// CIB seven, a fork of Camunda 7, with the execution endpoint alone.
    CibSeven,
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
            EngineProgram::Flowable70 => "flowable70",
            EngineProgram::Camunda720 => "camunda720",
            EngineProgram::Operaton => "operaton",
            EngineProgram::CibSeven => "cibseven",
            EngineProgram::Activiti6 => "activiti6",
            EngineProgram::Activiti7 => "activiti7",
        }
    }

    /// Returns whether it has the tables of Camunda 7.
    #[must_use]
    pub fn is_camunda(self) -> bool {
        self.sources() == EngineProgram::Camunda7
    }

    /// Returns whether it has the tables of Activiti.
    #[must_use]
    pub fn is_activiti(self) -> bool {
        self.sources() == EngineProgram::Activiti7
    }

    /// Returns whether its REST can execute jobs.
    #[must_use]
    pub fn has_rest(self) -> bool {
        self.rest().is_some()
    }

    /// Returns the path below which its REST stands; `None` without REST.
    pub(crate) fn rest(self) -> Option<&'static str> {
        match self {
            EngineProgram::Flowable6 | EngineProgram::Flowable7 | EngineProgram::Flowable70 => {
                Some("/process-api")
            }
            EngineProgram::Camunda7 | EngineProgram::Camunda720 => Some("/engine-rest"),
            EngineProgram::Flowable8
            | EngineProgram::Activiti6
            | EngineProgram::Activiti7
            | EngineProgram::Operaton
            | EngineProgram::CibSeven => None,
        }
    }

    /// Returns the engine whose sources it has. An older version and a fork have those of the newer one.
    fn sources(self) -> EngineProgram {
        match self {
            EngineProgram::Flowable6 | EngineProgram::Flowable70 => EngineProgram::Flowable7,
            EngineProgram::Camunda720 | EngineProgram::Operaton | EngineProgram::CibSeven => {
                EngineProgram::Camunda7
            }
            EngineProgram::Activiti6 => EngineProgram::Activiti7,
            other => other,
        }
    }

    pub(crate) fn main_class(self) -> String {
        format!("jobwire.engines.{}.Main", self.sources().name())
    }

    /// Returns its class path. The first call builds it.
    pub(crate) async fn class_path(self) -> PathBuf {
        let build = move || kafka_jars::fetch(&["engine", self.name()]);
        let built = tokio::task::spawn_blocking(build).await;
        let jars = built.expect("its failure is a panic, reported above");
        jars.join("*")
    }
}

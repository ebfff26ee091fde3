//! The programs of `tests/engines`.

use std::path::Path;

use crate::kafka_jars;

/// An engine and its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineProgram {
    /// Flowable 7, with REST on Spring Boot.
    Flowable7,
}

impl EngineProgram {
    /// Returns the name of its folder.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EngineProgram::Flowable7 => "flowable7",
        }
    }

    /// Returns the path below which its REST stands.
    pub(crate) fn rest(self) -> &'static str {
        match self {
            EngineProgram::Flowable7 => "/process-api",
        }
    }

    pub(crate) fn main_class(self) -> String {
        format!("jobwire.engines.{}.Main", self.name())
    }

    /// Returns its class path. The first call builds it.
    pub(crate) async fn class_path(self) -> String {
        let build = move || kafka_jars::fetch(&["engine", self.name()]);
        let built = tokio::task::spawn_blocking(build).await;
        let jars = built.expect("its failure is a panic, reported above");
        Path::new(&jars).join("*").display().to_string()
    }
}

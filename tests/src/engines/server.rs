//! A running engine.

use std::process::Command;
use std::time::Duration;

use crate::engines::{EngineProgram, EngineSettings};
use crate::{Scratch, Server, Signal, eventually, http, kafka_jars};

/// Spring and a new schema take ten seconds on two cores, and much longer on a busy machine.
const START: Duration = Duration::from_secs(120);
const STOP: Duration = Duration::from_secs(60);

/// An engine with a loopback port of its own, which stays the same after [`EngineServer::stop`],
/// [`EngineServer::kill`] and [`EngineServer::start_again`].
#[derive(Debug)]
pub struct EngineServer {
    // Before the directory: fields drop in this order.
    node: Option<Server>,
    settings: EngineSettings,
    scratch: Scratch,
}

impl EngineServer {
    /// Starts an engine and returns when it has deployed its processes.
    ///
    /// # Panics
    /// If Java or Maven is missing and cannot be installed, or the engine does not start.
    pub async fn start(settings: EngineSettings) -> EngineServer {
        let mut engine = EngineServer {
            node: None,
            settings,
            scratch: Scratch::new(),
        };
        engine.start_again().await;
        engine
    }

    /// Starts it again on the same port and database.
    ///
    /// # Panics
    /// If it runs, or does not start.
    pub async fn start_again(&mut self) {
        assert!(self.node.is_none(), "the engine runs already");
        let (settings, scratch) = (&self.settings, &self.scratch);
        let program = settings.program;
        let mut java = Command::new(kafka_jars::java("java", "default-jdk-headless"));
        java.current_dir(scratch.path())
            // Java would apply these options, meant for other programs, and print them.
            .env_remove("JAVA_TOOL_OPTIONS")
            .env_remove("JDK_JAVA_OPTIONS")
            // Small and quick to start.
            .args(["-Xms64m", "-Xmx384m", "-XX:+UseSerialGC"])
            .args(["-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"])
            .arg("-XX:+ExitOnOutOfMemoryError")
            .arg(format!("-Djava.io.tmpdir={}", scratch.path().display()))
            .args(settings.java())
            .arg("-cp")
            .arg(program.class_path().await)
            .arg(program.main_class())
            .args(settings.arguments())
            .envs(settings.environment());
        let mut node = Server::start(program.name(), java);
        let address = self.address();
        let what = format!("{} to be ready", program.name());
        eventually(&what, START, || {
            node.assert_running();
            let health = http::get(&address, "/test/health");
            async { (health.await.ok()?.status == 200).then_some(()) }
        })
        .await;
        self.node = Some(node);
    }

    /// Returns the URL below which its REST stands, such as `http://127.0.0.1:15000/process-api`.
    ///
    /// # Panics
    /// If the engine has no REST.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}{}", self.address(), self.rest_path())
    }

    /// Returns the URL of the execution endpoint: a job runs by `POST /jobs/ID/execute` below it.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}/jobwire", self.address())
    }

    /// Returns its address: host and port.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.settings.port)
    }

    /// Returns the name of its rows in `jobwire_effect`.
    #[must_use]
    pub fn node(&self) -> String {
        self.settings.port.to_string()
    }

    /// Returns the id of its process, while it runs.
    #[must_use]
    pub fn id(&self) -> Option<u32> {
        self.node.as_ref().map(Server::id)
    }

    /// Returns which engine it is.
    #[must_use]
    pub fn program(&self) -> EngineProgram {
        self.settings.program
    }

    /// Returns the path below which its REST stands.
    pub(crate) fn rest_path(&self) -> &'static str {
        let program = self.settings.program;
        let rest = program.rest();
        rest.unwrap_or_else(|| panic!("{} has no REST", program.name()))
    }

    /// Sends a signal to its process: `SIGSTOP` to freeze, `SIGCONT` to thaw.
    pub fn signal(&self, signal: Signal) {
        if let Some(node) = &self.node {
            node.signal(signal);
        }
    }

    /// Stops it in an orderly way.
    pub async fn stop(&mut self) {
        if let Some(mut node) = self.node.take() {
            node.signal(Signal::SIGTERM);
            node.exit(STOP).await;
        }
    }

    /// Kills it, as a crash of the process would. Committed rows stay.
    pub fn kill(&mut self) {
        self.node = None;
    }
}

impl Drop for EngineServer {
    /// Prints the end of its output if the test failed.
    fn drop(&mut self) {
        if let Some(node) = &self.node
            && std::thread::panicking()
        {
            let name = self.settings.program.name();
            eprintln!("output of {name}:\n{}", node.output().tail());
        }
    }
}

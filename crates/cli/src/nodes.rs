//! Nodes that a command starts for itself: one in this process, or processes of this program.

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use jobwire_core::{CommitHook, Handlers, Node, Transport};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::connect::{self, Database};
use crate::error::Error;
use crate::settings::Settings;

/// A node in this process.
pub(crate) struct NodeHere {
    node: Node,
    transport: Arc<dyn Transport>,
}

impl NodeHere {
    pub(crate) async fn start(
        settings: &Settings,
        database: &Database,
        handlers: Handlers,
    ) -> Result<Self, Error> {
        let transport = connect::transport(settings).await?;
        Self::on(transport, settings, database, handlers).await
    }

    /// Starts a node on an existing transport.
    pub(crate) async fn on(
        transport: Arc<dyn Transport>,
        settings: &Settings,
        database: &Database,
        handlers: Handlers,
    ) -> Result<Self, Error> {
        let node = Node::on(database.store(), transport.clone())
            .handlers(handlers)
            .options(settings.node_options())
            .start()
            .await?;
        Ok(Self { node, transport })
    }

    pub(crate) fn hook(&self) -> CommitHook {
        self.node.hook()
    }

    pub(crate) async fn stop(self) {
        self.node.stop().await;
        self.transport.close(Duration::from_secs(5)).await;
    }
}

/// Maximum time until a node is ready.
const READY: Duration = Duration::from_secs(120);

/// Nodes in their own processes, which are killed on drop.
pub(crate) struct Processes {
    running: Vec<(usize, Child)>,
    count: usize,
}

impl Processes {
    /// Starts `count` nodes with these arguments and waits until all are ready.
    pub(crate) async fn start(
        settings: &Settings,
        count: u16,
        arguments: &[&str],
    ) -> Result<Self, Error> {
        let mut started = Self::hold(settings, count, arguments).await?;
        started.go();
        Ok(started)
    }

    /// Starts nodes with arguments that make them wait until [`go`](Self::go) ends their input.
    pub(crate) async fn hold(
        settings: &Settings,
        count: u16,
        arguments: &[&str],
    ) -> Result<Self, Error> {
        let program = std::env::current_exe()
            .map_err(Error::io("can't find this program to start nodes of it"))?;
        let mut started = Self {
            running: Vec::new(),
            count: usize::from(count),
        };
        let mut outputs = Vec::new();
        for number in 1..=started.count {
            let mut command = Command::new(&program);
            command
                .args(arguments)
                .envs(environment(settings))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .kill_on_drop(true);
            let mut child = command
                .spawn()
                .map_err(Error::io(format!("can't start node {number}")))?;
            if let Some(output) = child.stdout.take() {
                outputs.push((number, BufReader::new(output).lines()));
            }
            started.running.push((number, child));
        }
        for (number, output) in outputs {
            let ready = tokio::time::timeout(READY, until_ready(output)).await;
            if !matches!(ready, Ok(true)) {
                return Err(Error::Failed(format!(
                    "node {number} was not ready within {READY:?}; see its output above"
                )));
            }
        }
        Ok(started)
    }

    /// Ends the input of the held nodes, so that they start to work.
    pub(crate) fn go(&mut self) {
        for (_, child) in &mut self.running {
            drop(child.stdin.take());
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns the ids of the processes.
    pub(crate) fn ids(&self) -> Vec<u32> {
        self.running
            .iter()
            .filter_map(|(_, child)| child.id())
            .collect()
    }

    /// Returns the nodes that ended since the last call, with their exit status.
    pub(crate) fn lost(&mut self) -> Result<Vec<String>, Error> {
        let mut lost = Vec::new();
        let mut running = Vec::new();
        for (number, mut child) in self.running.drain(..) {
            match child
                .try_wait()
                .map_err(Error::io("can't read the state of a node"))?
            {
                Some(status) => lost.push(format!("node {number} ended: {status}")),
                None => running.push((number, child)),
            }
        }
        self.running = running;
        if self.running.is_empty() {
            return Err(Error::Failed(format!(
                "no node is left; {}",
                lost.join(", ")
            )));
        }
        Ok(lost)
    }

    /// Asks all nodes to stop and waits; a node that takes too long is killed.
    pub(crate) async fn stop(self, shutdown: Duration) -> Result<(), Error> {
        for (_, child) in &self.running {
            ask_to_stop(child);
        }
        let mut late = Vec::new();
        let deadline = tokio::time::Instant::now() + shutdown + Duration::from_secs(30);
        for (number, mut child) in self.running {
            if tokio::time::timeout_at(deadline, child.wait())
                .await
                .is_err()
            {
                late.push(number.to_string());
                let _ = child.kill().await;
            }
        }
        if late.is_empty() {
            return Ok(());
        }
        Err(Error::Failed(format!(
            "node {} was killed: it did not stop within its `shutdown_timeout`",
            late.join(", ")
        )))
    }
}

/// Returns true when the node is ready. Later output is read and dropped, so that the node never
/// blocks on it.
async fn until_ready(mut output: Lines<BufReader<ChildStdout>>) -> bool {
    while let Ok(Some(line)) = output.next_line().await {
        if line.contains("is ready") {
            tokio::spawn(async move { while let Ok(Some(_)) = output.next_line().await {} });
            return true;
        }
    }
    false
}

/// Returns all settings in effect as environment variables, so that the node's own sources can't
/// change them. Passwords are not passed on the command line, where all users of the machine would
/// see them.
fn environment(settings: &Settings) -> Vec<(String, String)> {
    let shown = settings.shown().into_iter().map(|(setting, value)| {
        let value = match setting.key {
            "database_url" => settings.database_url.expose().to_owned(),
            "broker_url" => settings.broker_url.expose().to_owned(),
            "second_broker_url" => settings.second_broker_url.expose().to_owned(),
            "former_broker_url" => settings.former_broker_url.expose().to_owned(),
            "http" => "127.0.0.1:0".to_owned(),
            "log" if !settings.is_given("log") => "warn".to_owned(),
            _ => value,
        };
        (setting.variable(), value)
    });
    shown.collect()
}

#[cfg(unix)]
fn ask_to_stop(child: &Child) {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    // The process may have ended already. Its id is not reused before `wait`.
    if let Some(id) = child.id().and_then(|id| i32::try_from(id).ok()) {
        let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
    }
}

#[cfg(not(unix))]
fn ask_to_stop(_: &Child) {}

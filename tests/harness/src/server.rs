//! A supervised child process with its own process group.

use crate::lines::Lines;
use crate::{reaper, wait};
use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// The time after the farewell signal after which the server is killed.
const FAREWELL: Duration = Duration::from_secs(10);

/// A process that ends with its whole group when it is dropped, or when the test process dies
/// without dropping it.
#[derive(Debug)]
pub struct Server {
    name: String,
    child: Child,
    output: Lines,
    farewell: Signal,
}

impl Server {
    /// Starts `command` without input. Failures use `name`.
    ///
    /// # Panics
    /// If the program cannot be started.
    #[must_use]
    pub fn start(name: &str, command: Command) -> Server {
        Server::start_with_input(name, command, Stdio::null())
    }

    /// Starts `command` with an input.
    pub fn start_with_input(name: &str, mut command: Command, input: Stdio) -> Server {
        reaper::adopt(&mut command);
        command
            .stdin(input)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name} ({command:?}): {error}"));
        let mut streams: Vec<Box<dyn Read + Send>> = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            streams.push(Box::new(stdout));
        }
        if let Some(stderr) = child.stderr.take() {
            streams.push(Box::new(stderr));
        }
        Server {
            name: name.to_owned(),
            child,
            output: Lines::follow(streams),
            farewell: Signal::SIGKILL,
        }
    }

    /// Sets the signal that is sent when the server is dropped, instead of killing it.
    #[must_use]
    pub fn farewell(mut self, signal: Signal) -> Server {
        self.farewell = signal;
        self
    }

    /// Returns its output.
    #[must_use]
    pub fn output(&self) -> &Lines {
        &self.output
    }

    /// Returns its process id, which is also the id of its group.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Sends a signal to the process alone. Does nothing if it has ended.
    pub fn signal(&self, signal: Signal) {
        let _ = signal::kill(self.pid(), signal);
    }

    /// Returns its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Checks that it runs.
    ///
    /// # Panics
    /// With the end of its output, if it has ended.
    pub fn assert_running(&mut self) {
        if let Some(status) = self.ended() {
            panic!(
                "{} ended by itself ({status}):\n{}",
                self.name,
                self.output.tail()
            );
        }
    }

    /// Returns whether it has ended because another process listens on its port. A port that was
    /// free when it was chosen, or before a restart, may be taken by then.
    pub fn lost_its_port(&mut self) -> bool {
        let in_use = |line: &String| line.contains("Address already in use");
        self.ended().is_some() && self.output.all().iter().any(in_use)
    }

    /// Waits for it to end by itself or by a signal sent before.
    ///
    /// # Panics
    /// With the end of its output, if it still runs after `deadline`.
    pub async fn exit(&mut self, deadline: Duration) -> ExitStatus {
        let deadline = wait::patience(deadline);
        let ended = wait::within(deadline, || std::future::ready(self.ended())).await;
        ended.unwrap_or_else(|| {
            let (name, tail) = (&self.name, self.output.tail());
            panic!("{name} still runs after {deadline:?}:\n{tail}")
        })
    }

    /// Kills the process and its group, as a crash would, and waits until it is gone.
    pub fn kill(&mut self) {
        // The group first: its id is the process id, which is not reused until it is waited for.
        let _ = signal::killpg(self.pid(), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.farewell != Signal::SIGKILL {
            self.signal(self.farewell);
            wait::within_blocking(FAREWELL, || self.ended());
        }
        self.kill();
        reaper::forget(self.id());
    }
}

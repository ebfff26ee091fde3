//! The `jobwire` program, run as by its users.

use crate::wait::patience;
use crate::{Server, Signal, cargo, lines::Lines};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// A program that is about to start.
///
/// ```no_run
/// # use std::time::Duration;
/// # use jobwire_tests::{Program, Signal};
/// # async fn example(database: &str) {
/// let mut node = Program::jobwire().args(["--database", database, "run"]).start();
/// node.wait_for_line("listening", Duration::from_secs(10)).await;
/// node.signal(Signal::SIGTERM);
/// assert!(node.exit(Duration::from_secs(10)).await.success());
/// # }
/// ```
#[derive(Debug)]
pub struct Program {
    name: String,
    command: Command,
    input: Stdio,
}

impl Program {
    /// The `jobwire` of this workspace, built by the first call. Its environment holds no
    /// `JOBWIRE_…` setting but those of the test.
    #[must_use]
    pub fn jobwire() -> Program {
        static PATH: OnceLock<PathBuf> = OnceLock::new();
        Program::at(PATH.get_or_init(|| cargo::build("jobwire")))
    }

    /// Any other program.
    #[must_use]
    pub fn at(path: &Path) -> Program {
        let name = path.file_name().unwrap_or(path.as_os_str());
        let name = name.to_string_lossy().into_owned();
        let mut command = Command::new(path);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("JOBWIRE_") {
                command.env_remove(name);
            }
        }
        Program {
            name,
            command,
            input: Stdio::null(),
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Program {
        self.command.args(arguments);
        self
    }

    /// Sets a variable of its environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Program {
        self.command.env(name, value);
        self
    }

    /// Sets its working directory, where the default database is created.
    #[must_use]
    pub fn in_directory(mut self, directory: impl AsRef<Path>) -> Program {
        self.command.current_dir(directory);
        self
    }

    /// Sets its standard input, which is empty by default.
    #[must_use]
    pub fn input(mut self, file: std::fs::File) -> Program {
        self.input = file.into();
        self
    }

    /// Starts it.
    #[must_use]
    pub fn start(self) -> Running {
        Running(Server::start_with_input(
            &self.name,
            self.command,
            self.input,
        ))
    }

    /// Runs it to its end, and returns its status and its output.
    pub async fn run(self, deadline: Duration) -> (ExitStatus, Vec<String>) {
        let mut running = self.start();
        let status = running.exit(deadline).await;
        (status, running.lines().all())
    }
}

/// A program that is killed when this is dropped.
#[derive(Debug)]
pub struct Running(Server);

impl Drop for Running {
    /// Prints the end of its output if the test failed.
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("output of process {}:\n{}", self.id(), self.lines().tail());
        }
    }
}

impl Running {
    /// Returns its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Returns its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.ended()
    }

    /// Returns its output, on either stream.
    #[must_use]
    pub fn lines(&self) -> &Lines {
        self.0.output()
    }

    /// Returns the first line, printed already or to come, that contains `pattern`.
    ///
    /// # Panics
    /// With the end of its output, if the deadline passes or the program ends first.
    pub async fn wait_for_line(&self, pattern: &str, deadline: Duration) -> String {
        let deadline = patience(deadline);
        let line = self.lines().find(pattern, deadline).await;
        line.unwrap_or_else(|| {
            let tail = self.lines().tail();
            panic!("waited {deadline:?} for a line with {pattern:?} without success; its output:\n{tail}")
        })
    }

    /// Sends it a signal: `SIGTERM` to shut down, `SIGKILL` to crash, `SIGSTOP` to
    /// freeze, `SIGCONT` to thaw.
    pub fn signal(&self, signal: Signal) {
        self.0.signal(signal);
    }

    /// Waits for its end. All its output is then in [`Running::lines`].
    ///
    /// # Panics
    /// With the end of its output, if it still runs after `deadline`.
    pub async fn exit(&mut self, deadline: Duration) -> ExitStatus {
        let status = self.0.exit(deadline).await;
        // A grandchild may hold the streams open; this must not fail the test.
        self.lines().end(patience(Duration::from_secs(5))).await;
        status
    }
}

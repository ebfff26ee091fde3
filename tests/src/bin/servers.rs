//! Runs a command beside a private PostgreSQL, RabbitMQ and Kafka:
//!
//! ```text
//! cargo run -p jobwire-tests --bin servers -- COMMAND ARGUMENTS…
//! ```
//!
//! The command, and every test that it runs, finds them through `JOBWIRE_TEST_POSTGRES_URL`,
//! `JOBWIRE_TEST_AMQP_URL` and `JOBWIRE_TEST_KAFKA_URL`. It has no standard input. When it ends,
//! the servers are stopped and its exit code is passed on.
//!
//! A command that prints nothing for fifteen minutes hangs: it is stopped. When it fails, the tests
//! that have begun and have not ended are named, and what the failed ones said comes last.
#![allow(
    clippy::panic,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a program of the tests"
)]

use jobwire_tests::{Kafka, Postgres, RabbitMq, Signal, cargo, reaper, shared};
use nix::unistd::Pid;
use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader, Split};
use tokio::process::{Child, ChildStdout};
use tokio::signal::unix::{SignalKind, signal};

/// The number of a server's last lines that are shown when the command fails.
const LINES: usize = 40;

/// The number of lines that are repeated of what a failed test printed: the panic and its message.
const LINES_OF_A_FAILURE: usize = 8;

/// The number of lines that are repeated of all failed tests.
const LINES_OF_FAILURES: usize = 200;

/// The silence after which the command is stopped. The longest test takes minutes, and three run at
/// once.
const SILENCE: Duration = Duration::from_mins(15);

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let Some(program) = arguments.next() else {
        eprintln!("usage: servers COMMAND ARGUMENTS…");
        return ExitCode::from(2);
    };
    let mut interrupted = signal(SignalKind::interrupt()).expect("SIGINT can be caught");
    let mut terminated = signal(SignalKind::terminate()).expect("SIGTERM can be caught");
    let servers = async { tokio::join!(Postgres::start(), RabbitMq::start(), Kafka::start()) };
    let (postgres, rabbitmq, kafka) = tokio::select! {
        servers = servers => servers,
        _ = interrupted.recv() => return code_of_signal(Signal::SIGINT),
        _ = terminated.recv() => return code_of_signal(Signal::SIGTERM),
    };

    let mut command = Command::new(&program);
    cargo::forget_package(&mut command);
    // Its own group ends with this process, even if this process is killed. A terminal's Ctrl-C
    // does not reach that group, so this program passes it on.
    reaper::adopt(&mut command);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .env(shared::POSTGRES_URL, postgres.url("postgres"))
        .env(shared::AMQP_URL, rabbitmq.url())
        .env(shared::RABBITMQCTL, rabbitmq.ctl().address())
        .env(shared::KAFKA_URL, kafka.url());
    let mut child = match tokio::process::Command::from(command).spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("cannot start {}: {error}", program.display());
            return ExitCode::from(127);
        }
    };
    let mut output = Output::of(child.stdout.take().expect("it is piped"));
    let status = loop {
        tokio::select! {
            line = tokio::time::timeout(SILENCE, output.pass_on_line()) => if line.is_err() {
                eprintln!("== it printed nothing for {SILENCE:?}, so it is stopped");
                pass_on(Signal::SIGKILL, &child);
            },
            status = child.wait() => break status.expect("the command can be waited for"),
            _ = interrupted.recv() => pass_on(Signal::SIGINT, &child),
            _ = terminated.recv() => pass_on(Signal::SIGTERM, &child),
        }
    };
    output.pass_on_rest().await;
    if !status.success() {
        for test in &output.running {
            eprintln!("== did not end: {test}");
        }
        for (server, log) in [("RabbitMQ", rabbitmq.log()), ("Kafka", kafka.log())] {
            eprintln!("== last lines of {server}:");
            for line in log.iter().skip(log.len().saturating_sub(LINES)) {
                eprintln!("{line}");
            }
        }
        for line in &output.failures {
            eprintln!("{line}");
        }
    }
    code(status)
}

/// What the command prints. It goes on to the standard output of this program.
struct Output {
    lines: Split<BufReader<ChildStdout>>,
    /// The tests that have run for a minute, as libtest prints it, and have not ended.
    running: BTreeSet<String>,
    /// The first lines that each failed test printed, as libtest repeats them at the end.
    failures: Vec<String>,
    /// How many lines of the test that is being repeated are still kept.
    kept: usize,
}

impl Output {
    fn of(printed: ChildStdout) -> Output {
        Output {
            lines: BufReader::new(printed).split(b'\n'),
            running: BTreeSet::new(),
            failures: Vec::new(),
            kept: 0,
        }
    }

    /// Waits for the next line. Never returns after the last one.
    async fn pass_on_line(&mut self) {
        let Ok(Some(mut line)) = self.lines.next_segment().await else {
            return std::future::pending().await;
        };
        self.note(&String::from_utf8_lossy(&line));
        line.push(b'\n');
        // The command runs to its end even if nothing reads this.
        let _ = std::io::stdout().write_all(&line);
    }

    /// What the command printed last. A process that it left may keep the stream open.
    async fn pass_on_rest(&mut self) {
        let rest = async {
            loop {
                self.pass_on_line().await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), rest).await;
    }

    fn note(&mut self, line: &str) {
        if line.starts_with("---- ") && line.ends_with(" stdout ----") {
            self.kept = LINES_OF_A_FAILURE;
        } else if line == "failures:" || line.starts_with("test result:") {
            self.kept = 0;
        }
        if self.kept > 0 && !line.is_empty() && self.failures.len() < LINES_OF_FAILURES {
            self.failures.push(line.to_owned());
            self.kept -= 1;
        }
        let Some((name, state)) = line.strip_prefix("test ").and_then(|it| it.split_once(' '))
        else {
            return;
        };
        if state.starts_with("has been running for over") {
            self.running.insert(name.to_owned());
        } else if state.starts_with("... ") {
            self.running.remove(name);
        }
    }
}

fn pass_on(signal: Signal, child: &Child) {
    if let Some(id) = child.id() {
        let _ = nix::sys::signal::killpg(Pid::from_raw(id.cast_signed()), signal);
    }
}

/// Returns the exit code as a shell would: 128 plus the signal's number for a command that a signal
/// ended.
fn code(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

fn code_of_signal(signal: Signal) -> ExitCode {
    code(ExitStatus::from_raw(signal as i32))
}

//! Runs a command beside a private PostgreSQL, RabbitMQ and Kafka:
//!
//! ```text
//! cargo run -p jobwire-tests --bin servers -- COMMAND ARGUMENTS…
//! ```
//!
//! The command, and every test that it runs, finds them through `JOBWIRE_TEST_POSTGRES_URL`,
//! `JOBWIRE_TEST_AMQP_URL` and `JOBWIRE_TEST_KAFKA_URL`. It has no standard input. When it ends,
//! the servers are stopped and its exit code is passed on.
#![allow(
    clippy::panic,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a program of the tests"
)]

use jobwire_tests::{Kafka, Postgres, RabbitMq, Signal, cargo, reaper, shared};
use nix::unistd::Pid;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};

/// The number of a server's last lines that are shown when the command fails.
const LINES: usize = 40;

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
    let status = loop {
        tokio::select! {
            status = child.wait() => break status.expect("the command can be waited for"),
            _ = interrupted.recv() => pass_on(Signal::SIGINT, &child),
            _ = terminated.recv() => pass_on(Signal::SIGTERM, &child),
        }
    };
    if !status.success() {
        for (server, log) in [("RabbitMQ", rabbitmq.log()), ("Kafka", kafka.log())] {
            eprintln!("== last lines of {server}:");
            for line in log.iter().skip(log.len().saturating_sub(LINES)) {
                eprintln!("{line}");
            }
        }
    }
    code(status)
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

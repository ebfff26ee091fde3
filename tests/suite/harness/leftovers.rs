//! No server outlives the process that started it. `servers` stands for any test: this test can
//! kill it without ending itself.

use jobwire_tests::{Program, Running, Scratch, Signal, eventually};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

const START: Duration = Duration::from_secs(120);
const SOON: Duration = Duration::from_secs(30);

/// Returns the program `servers`, with all its files in a directory of its own.
fn servers(temporary: &Scratch, script: &str) -> Program {
    // PostgreSQL runs as another user and needs access.
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(temporary.path(), open).expect("the directory is ours");
    Program::at(Path::new(env!("CARGO_BIN_EXE_servers")))
        .env("TMPDIR", temporary.path())
        .args(["sh", "-c", script])
}

/// Starts `servers` and waits until its servers are up; returns all ports.
async fn started(temporary: &Scratch) -> (Running, Vec<u16>) {
    let script = "echo $JOBWIRE_TEST_POSTGRES_URL; echo $JOBWIRE_TEST_AMQP_URL
        echo $JOBWIRE_TEST_KAFKA_URL; exec sleep 1000";
    let running = servers(temporary, script).start();
    let mut ports = Vec::new();
    for scheme in ["postgres://", "amqp://", "kafka://"] {
        let url = url::Url::parse(&running.wait_for_line(scheme, START).await);
        ports.push(
            url.ok()
                .and_then(|url| url.port())
                .expect("a URL with a port"),
        );
    }
    (running, ports)
}

async fn assert_nothing_is_left(temporary: &Scratch, ports: &[u16]) {
    eventually("the servers and their files to be gone", SOON, async || {
        // When no process is left, another test may have the port.
        let open = ports
            .iter()
            .any(|&port| TcpStream::connect(("127.0.0.1", port)).is_ok())
            && !processes_in(temporary.path()).is_empty();
        let files = std::fs::read_dir(temporary.path())
            .expect("the directory")
            .count();
        (!open && files == 0).then_some(())
    })
    .await;
    // Every process that was started there names the directory in its arguments, works in it, or
    // has it as its home.
    eventually("the processes to be gone", SOON, async || {
        processes_in(temporary.path()).is_empty().then_some(())
    })
    .await;
}

fn processes_in(directory: &Path) -> Vec<String> {
    let directory = directory.to_string_lossy();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let contents = processes.filter_map(|process| {
        let arguments = std::fs::read(process.path().join("cmdline")).ok()?;
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        Some(String::from_utf8_lossy(&[arguments, environment].concat()).into_owned())
    });
    contents
        .filter(|content| content.contains(&*directory))
        .collect()
}

#[tokio::test]
async fn a_command_gets_its_servers_and_gives_its_code() {
    let temporary = Scratch::new();
    let (status, _) = servers(&temporary, "exit 7").run(START).await;
    assert_eq!(status.code(), Some(7));
    assert_nothing_is_left(&temporary, &[]).await;
}

#[tokio::test]
async fn nothing_is_left_after_sigterm() {
    let temporary = Scratch::new();
    let (mut running, ports) = started(&temporary).await;
    running.signal(Signal::SIGTERM);
    assert_eq!(running.exit(SOON).await.code(), Some(128 + 15));
    assert_nothing_is_left(&temporary, &ports).await;
}

#[tokio::test]
async fn nothing_is_left_after_kill_9() {
    let temporary = Scratch::new();
    let (running, ports) = started(&temporary).await;
    running.signal(Signal::SIGKILL);
    assert_nothing_is_left(&temporary, &ports).await;
}

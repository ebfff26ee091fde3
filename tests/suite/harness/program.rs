use jobwire_tests::{Program, Scratch, Signal, cargo};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

fn shell(script: &str) -> Program {
    Program::at(Path::new("/bin/sh")).args(["-c", script])
}

#[tokio::test]
async fn a_program_gives_its_lines_and_its_status() {
    let (status, mut lines) = shell("echo out; echo err >&2; exit 3").run(SOON).await;
    lines.sort();
    assert_eq!(lines, ["err", "out"]);
    assert_eq!(status.code(), Some(3));
}

#[tokio::test]
async fn a_program_reads_what_it_is_given_and_nothing_else() {
    let scratch = Scratch::new();
    let file = std::fs::File::open(scratch.write("input", "one\n")).expect("the file");
    let (_, lines) = shell("cat").input(file).run(SOON).await;
    assert_eq!(lines, ["one"]);
    let (_, lines) = shell("cat").run(SOON).await;
    assert!(lines.is_empty());
}

#[tokio::test]
async fn a_line_is_found_before_and_after_it_is_printed() {
    let running = shell("echo ready now; exec sleep 1000").start();
    for _ in 0..2 {
        assert_eq!(running.wait_for_line("ready", SOON).await, "ready now");
    }
}

#[tokio::test]
async fn signals_reach_the_program() {
    let mut running =
        shell("trap 'echo asked; exit 0' TERM; echo ready; while :; do sleep 0.01; done").start();
    running.wait_for_line("ready", SOON).await;
    running.signal(Signal::SIGSTOP);
    running.signal(Signal::SIGTERM);
    running.signal(Signal::SIGCONT);
    assert!(running.exit(SOON).await.success());
    running.wait_for_line("asked", SOON).await;

    let mut running = shell("echo ready; exec sleep 1000").start();
    running.wait_for_line("ready", SOON).await;
    running.signal(Signal::SIGKILL);
    assert_eq!(running.exit(SOON).await.signal(), Some(9));
}

#[tokio::test]
async fn a_program_of_the_workspace_is_built_and_found() {
    let path = cargo::build("servers");
    let (status, lines) = Program::at(&path).run(SOON).await;
    assert_eq!(status.code(), Some(2));
    assert!(lines[0].starts_with("usage:"), "{lines:?}");
}

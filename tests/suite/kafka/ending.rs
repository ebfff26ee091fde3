//! Transports that end while their brokers are away: they end in time and leave no thread behind.

use std::time::{Duration, Instant};

use jobwire_core::transport::{Publisher, Transport};
use jobwire_core::{Hint, JobId, Lane};
use jobwire_tests::{Kafka, Program, eventually, port};

use super::fleet::*;

const WITHIN: Duration = Duration::from_secs(1);
/// More than `WITHIN`, for a busy machine, and less than the ten seconds after which the clients
/// give up on a silent broker.
const IN_TIME: Duration = Duration::from_secs(8);

/// Asserts that one of the ends was in time. The machine may stall during one, but not during all.
fn assert_in_time(took: &[Duration]) {
    assert!(took.iter().any(|took| *took < IN_TIME), "{took:?}");
}
const BROKER: &str = "ENDING_TEST_BROKER";

/// Returns the names of this process's threads.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| {
        let name = task.ok()?.path().join("comm");
        Some(std::fs::read_to_string(name).ok()?.trim().to_owned())
    });
    names.collect()
}

/// Runs in a process of its own, because the other tests of this process have threads too.
#[tokio::test]
async fn transports_end_in_time_and_leave_no_thread_behind() {
    let broker = Kafka::start().await;
    let program = std::env::current_exe().unwrap();
    let child = Program::at(&program)
        .args(["--exact", "kafka::ending::many_transports_in_a_row"])
        .args(["--ignored", "--nocapture", "--test-threads", "1"])
        .env(BROKER, broker.url())
        .start();
    child.wait_for_line("the broker may go", HEALED).await;
    broker.freeze();
    std::fs::write(signal_file(&broker.url()), "gone").unwrap();
    child.wait_for_line("all have ended", HEALED).await;
    // The client library waits for a broker that hangs on threads of its own.
    broker.thaw();
    child.wait_for_line("no thread is left", HEALED).await;
}

/// Returns the file that the parent writes when the broker is away.
fn signal_file(url: &str) -> std::path::PathBuf {
    let name = url.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    std::env::temp_dir().join(format!("jobwire-ending-{name}"))
}

#[tokio::test]
#[ignore = "runs in a process that transports_end_in_time_and_leave_no_thread_behind starts"]
async fn many_transports_in_a_row() {
    let Ok(broker) = std::env::var(BROKER) else {
        panic!("no broker is named");
    };
    let signal = signal_file(&broker);
    let _ = std::fs::remove_file(&signal);
    let before = threads().len();
    let lane = Lane::default();
    let hint = || vec![Hint::new(JobId::generate())];
    // These transports are connected, in a group, and hold an undecided hint.
    let mut living = Vec::new();
    for n in 0..4 {
        let transport = connect(&format!("{broker}/ending-{n}")).await;
        let mut receiver = subscribe(&transport, 8).await;
        eventually("a hint to be taken", HEALED, || {
            let publisher = transport.publisher();
            let lane = lane.clone();
            async move { publisher.publish(&lane, hint()).await.ok() }
        })
        .await;
        let held = take(&mut receiver, 1).await;
        living.push((transport, receiver, held));
    }
    println!("the broker may go");
    eventually("the broker to be away", HEALED, || async {
        signal.exists().then_some(())
    })
    .await;
    let _ = std::fs::remove_file(&signal);
    let (mut closed, mut dropped) = (Vec::new(), Vec::new());
    for (n, (transport, mut receiver, held)) in living.into_iter().enumerate() {
        receiver.settle(&tickets(&held)).await;
        let _ = tokio::time::timeout(
            Duration::from_millis(100),
            Publisher::publish(&transport, &lane, hint()),
        )
        .await;
        let since = Instant::now();
        if n % 2 == 0 {
            transport.close(WITHIN).await;
            drop(receiver);
            closed.push(since.elapsed());
        } else {
            drop((receiver, transport));
            dropped.push(since.elapsed());
        }
    }
    assert_in_time(&closed);
    assert_in_time(&dropped);
    // These transports never reach a broker.
    let (mut closed, mut dropped) = (Vec::new(), Vec::new());
    let nobody = format!("kafka://127.0.0.1:{}/ending", port::free());
    for n in 0..4 {
        let transport = connect(&nobody).await;
        let receiver = subscribe(&transport, 8).await;
        let since = Instant::now();
        if n % 2 == 0 {
            drop(receiver);
            transport.close(WITHIN).await;
            closed.push(since.elapsed());
        } else {
            drop((transport, receiver));
            dropped.push(since.elapsed());
        }
    }
    assert_in_time(&closed);
    assert_in_time(&dropped);
    // The runtime keeps threads for blocking work for ten seconds.
    println!("all have ended");
    let mut told = 0;
    eventually("all threads to end", HEALED, || {
        let threads = threads();
        let ended = threads.len() <= before + 2;
        if threads.len() != told {
            told = threads.len();
            println!("threads: {threads:?}");
        }
        async move { ended.then_some(()) }
    })
    .await;
    println!("no thread is left");
}

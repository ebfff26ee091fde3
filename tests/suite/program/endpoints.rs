//! The HTTP endpoints, and connections that never finish.

use std::net::SocketAddr;
use std::time::Duration;

use jobwire_tests::{Scratch, Signal, eventually, http};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{SOON, all, execute, jobwire, lines, start, store, succeeds, until_empty};

/// More connections than the program keeps open at once.
const SLOW: usize = 600;
/// The connections that the program keeps, and the descriptors that it needs itself.
const DESCRIPTORS: usize = 128 + 100;

fn descriptors(process: u32) -> usize {
    std::fs::read_dir(format!("/proc/{process}/fd")).map_or(0, Iterator::count)
}

/// Opens a connection and sends the beginning of a request head.
async fn unfinished(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let _ = stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n")
        .await;
    stream
}

#[tokio::test]
async fn many_connections_that_never_finish_keep_no_probe_out_and_few_descriptors() {
    let home = Scratch::new();
    let (mut node, url) = start(jobwire(&home, &["run", "--http", "127.0.0.1:0"])).await;
    let address: SocketAddr = url.parse().unwrap();
    let mut slow = Vec::new();
    for _ in 0..SLOW {
        slow.push(unfinished(address).await);
        if slow.len() % 100 == 0 {
            let answer = http::get(&url, "/healthz").await.unwrap();
            assert_eq!(answer.status, 200, "behind {} slow ones", slow.len());
        }
    }
    eventually("few descriptors to be open", SOON, || async {
        (descriptors(node.id()) < DESCRIPTORS).then_some(())
    })
    .await;
    // The program closes the remaining connections when their time is over.
    for stream in &mut slow {
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(SOON * 2, stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "a connection stays open");
    }
    let said = node.lines().all().join("\n");
    assert!(said.contains("too many connections"), "{said}");
    node.signal(Signal::SIGTERM);
    node.exit(SOON).await;
}

#[tokio::test]
async fn a_connection_is_not_kept_for_another_request() {
    let home = Scratch::new();
    let (mut node, url) = start(jobwire(&home, &["run", "--http", "127.0.0.1:0"])).await;
    let address: SocketAddr = url.parse().unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut said = String::new();
    let reading = stream.read_to_string(&mut said);
    let read = tokio::time::timeout(SOON + Duration::from_secs(30), reading).await;
    read.expect("the connection ends").unwrap();
    assert!(
        said.starts_with("HTTP/1.1 200") && said.contains("alive"),
        "{said}"
    );
    node.signal(Signal::SIGTERM);
    node.exit(SOON).await;
}

/// The database refuses an outcome and also the move to the dead letters. A restart would not help,
/// so both probes pass.
#[tokio::test]
async fn a_batch_that_does_not_get_through_is_named_and_fails_no_probe() {
    let home = Scratch::new();
    let file = lines(&home, r#"{"type":"noop"}"#, 1);
    succeeds(jobwire(&home, &["enqueue", &file])).await;
    let store = store(&home).await;
    let refuse = "CREATE TRIGGER refuse BEFORE DELETE ON job
                  BEGIN SELECT RAISE(ABORT, 'still referenced'); END";
    execute(&store, refuse).await;
    let id = all(&store).await[0].id.to_string();
    let (_node, url) = start(jobwire(&home, &["run", "--http", "127.0.0.1:0"])).await;
    let told = eventually("the batch to be named", SOON, || async {
        let alive = http::get(&url, "/healthz").await.ok()?;
        assert_eq!(alive.status, 200, "{}", alive.body);
        alive.body.contains("batch").then_some(alive.body)
    })
    .await;
    assert!(told.starts_with("alive\n"), "{told}");
    let batch = "batch complete does not get through";
    for part in [batch, &format!("job {id}"), "still referenced"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let ready = http::get(&url, "/readyz").await.unwrap();
    assert_eq!(ready.status, 200, "{}", ready.body);
    let health: serde_json::Value = serde_json::from_str(&ready.body).unwrap();
    assert_eq!(health["stuck"][0]["operation"], "complete", "{health}");
    assert_eq!(health["stuck"][0]["job"], id.as_str(), "{health}");
    execute(&store, "DROP TRIGGER refuse").await;
    until_empty(&store, SOON).await;
    eventually("no batch to be named", SOON, || async {
        let alive = http::get(&url, "/healthz").await.ok()?;
        (alive.body == "alive\n").then_some(())
    })
    .await;
}

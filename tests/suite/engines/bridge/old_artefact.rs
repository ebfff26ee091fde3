//! An execution endpoint of an artefact that is older than the nodes.

use jobwire_engines::{EngineOptions, EngineStore, Execution};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::store::shared_world;

/// Serves an endpoint whose scope names no lock of the instance. Returns its URL.
async fn old_endpoint() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/jobwire", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                if stream.read_buf(&mut request).await.unwrap_or(0) == 0 {
                    break;
                }
            }
            let (status, body) = match request.starts_with(b"GET /jobwire/scope ") {
                true => ("200 OK", "{\"categories\":null}"),
                false => ("405 Method Not Allowed", ""),
            };
            let answer = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    url
}

/// A job would be run without the lock of its instance, or be given back for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_probe_and_the_doctor_refuse_it_and_name_the_version_that_is_needed() {
    let world = shared_world().await;
    let options = EngineOptions::new(old_endpoint().await).execution(Execution::Endpoint);
    let store = EngineStore::flowable(&world.database, options)
        .await
        .unwrap();
    let refused = store.probe().await.expect_err("refused").to_string();
    let found = jobwire_engines::examine::examine(&store).await.unwrap();
    let told = found.iter().map(|finding| format!("{finding:?}"));
    let told: Vec<String> = told.filter(|told| told.contains("artefact")).collect();
    assert_eq!(told.len(), 1, "{found:?}");
    for said in [&refused, &told[0]] {
        let version = format!("version {} or later", env!("CARGO_PKG_VERSION"));
        assert!(said.contains(&version), "{said}");
    }
}

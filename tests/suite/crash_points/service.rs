//! A service that `http` jobs call: the effects of a job outside of the database.

use std::sync::{Arc, Mutex};

use jobwire_tests::http;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Answers `/paid` with 200 and any other path with 500, and records the calls.
pub(super) struct Service {
    pub(super) address: String,
    calls: Arc<Mutex<Vec<Call>>>,
    task: JoinHandle<()>,
}

#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) path: String,
    /// The header `Idempotency-Key`.
    pub(super) key: String,
}

impl Service {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let calls = Arc::new(Mutex::default());
        let remembered = Arc::clone(&calls);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, Arc::clone(&remembered)));
            }
        });
        Self {
            address,
            calls,
            task,
        }
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(super) fn calls(&self, path: &str) -> Vec<Call> {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|c| c.path == path).cloned().collect()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(mut stream: TcpStream, calls: Arc<Mutex<Vec<Call>>>) {
    let Some(request) = http::read_head(&mut stream).await else {
        return;
    };
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let key = request
        .lines()
        .filter_map(|line| line.split_once(": "))
        .find(|(name, _)| name.eq_ignore_ascii_case("idempotency-key"))
        .map(|(_, key)| key.to_owned())
        .unwrap_or_default();
    let status = if path == "/paid" { "200 OK" } else { "500 No" };
    calls.lock().unwrap().push(Call { path, key });
    http::answer(stream, status).await;
}

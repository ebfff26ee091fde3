//! A service that jobs of the type `http` call. It counts the calls, and keeps them until a test
//! lets them go.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobwire_tests::{eventually, http};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How many calls run now, ran at once at most, and began.
#[derive(Clone, Default)]
pub(super) struct Calls {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    paths: Arc<Mutex<Vec<String>>>,
    are_kept: watch::Sender<bool>,
}

/// The time that a call takes.
const CALL: Duration = Duration::from_millis(30);

impl Calls {
    fn begin(&self, path: &str) {
        self.paths.lock().unwrap().push(path.to_owned());
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    fn end(&self) {
        self.now.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }

    pub(super) fn begun(&self) -> usize {
        self.paths.lock().unwrap().len()
    }

    /// Returns the paths of all calls that began, in order.
    pub(super) fn paths(&self) -> Vec<String> {
        self.paths.lock().unwrap().clone()
    }

    /// Keeps each call until it is let go.
    pub(super) fn keep(&self) {
        self.are_kept.send_replace(true);
    }

    pub(super) fn let_go(&self) {
        self.are_kept.send_replace(false);
    }

    /// Waits until this number of calls has begun.
    pub(super) async fn until_begun(&self, number: usize, within: Duration) {
        eventually(&format!("{number} calls"), within, async || {
            (self.begun() >= number).then_some(())
        })
        .await;
    }
}

/// Starts a service that answers each call after a moment. A call ends before its answer is sent.
/// The call of a node that has died ends with its connection: long before another node may begin one
/// under its permit.
pub(super) async fn service(calls: &Calls) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let calls = calls.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer(stream, calls.clone()));
        }
    });
    address
}

async fn answer(mut stream: TcpStream, calls: Calls) {
    let Some(head) = http::read_head(&mut stream).await else {
        return;
    };
    calls.begin(head.split(' ').nth(1).unwrap_or_default());
    let mut kept = calls.are_kept.subscribe();
    let over = async {
        tokio::time::sleep(CALL).await;
        kept.wait_for(|is_kept| !is_kept).await.map(drop)
    };
    let is_over = tokio::select! {
        over = over => over.is_ok(),
        () = end_of(&mut stream) => false,
    };
    calls.end();
    if is_over {
        http::answer(stream, "200 OK").await;
    }
}

/// Waits until the caller has closed the connection.
async fn end_of(stream: &mut TcpStream) {
    let mut rest = [0; 1024];
    while matches!(stream.read(&mut rest).await, Ok(1..)) {}
}

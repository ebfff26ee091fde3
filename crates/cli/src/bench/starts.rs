//! Receives the reports of a run's nodes and keeps them ([`super::seen`]).

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::BufReader;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use super::seen::Seen;
use super::wire::Told;
use crate::error::Error;

/// The time without a start after which a run fails.
const SILENCE: Duration = Duration::from_secs(60);
/// Maximum time for reading the last reports of nodes that have ended.
const LAST_WORDS: Duration = Duration::from_secs(10);

/// Collects starts until it is dropped.
pub(super) struct Starts {
    address: SocketAddr,
    record: Arc<Record>,
    listening: JoinHandle<()>,
}

/// The reports, and the number of connected nodes.
pub(super) struct Record {
    seen: Mutex<Seen>,
    connected: AtomicUsize,
}

impl Record {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of jobs that have started.
    pub(super) fn started(&self) -> u32 {
        self.lock().jobs
    }
}

impl Starts {
    /// Listens for the starts of at most `most` jobs.
    pub(super) async fn listen(most: u32) -> Result<Self, Error> {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .map_err(Error::io("can't listen for the bench's nodes"))?;
        let address = listener
            .local_addr()
            .map_err(Error::io("can't listen for the bench's nodes"))?;
        let seen = Seen {
            most,
            ..Seen::default()
        };
        let record = Arc::new(Record {
            seen: Mutex::new(seen),
            connected: AtomicUsize::new(0),
        });
        let noting = record.clone();
        let listening = tokio::spawn(async move {
            let mut nodes = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                noting.connected.fetch_add(1, Ordering::SeqCst);
                nodes.spawn(read(stream, noting.clone()));
                while nodes.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            address,
            record,
            listening,
        })
    }

    pub(super) fn address(&self) -> String {
        self.address.to_string()
    }

    pub(super) fn record(&self) -> Arc<Record> {
        self.record.clone()
    }

    /// Waits until `jobs` jobs have started. Fails when none starts for a long time.
    pub(super) async fn until(&self, jobs: u32) -> Result<(), Error> {
        let mut last = (self.record.started(), Instant::now());
        loop {
            let started = self.record.started();
            if started >= jobs {
                return Ok(());
            }
            if started > last.0 {
                last = (started, Instant::now());
            } else if last.1.elapsed() > SILENCE {
                return Err(Error::Failed(format!(
                    "{started} of {jobs} jobs started, and no other within {SILENCE:?}; see the \
                     nodes' output above"
                )));
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits for the nodes to end and returns all reports.
    pub(super) async fn close(self) -> Seen {
        let deadline = Instant::now() + LAST_WORDS;
        while self.record.connected.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        std::mem::take(&mut *self.record.lock())
    }
}

impl Drop for Starts {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn read(stream: TcpStream, record: Arc<Record>) {
    let mut stream = BufReader::new(stream);
    loop {
        match Told::read(&mut stream).await {
            Ok(Some(told)) => record.lock().note(told),
            Ok(None) => break,
            // A node was killed within a report; the checks show whether a job is missing.
            Err(error) if error.kind() != std::io::ErrorKind::InvalidData => break,
            Err(_) => {
                record.lock().strange += 1;
                break;
            }
        }
    }
    record.connected.fetch_sub(1, Ordering::SeqCst);
}

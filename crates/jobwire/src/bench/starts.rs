//! When each job of a run started, as its nodes tell.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::error::Error;

/// No job has this number: a node that ends tells how many jobs its sweeper hinted.
pub(super) const SWEPT: u32 = u32::MAX;

/// Collects starts. Dropped, it stops listening.
pub(super) struct Starts {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
    listening: JoinHandle<()>,
}

/// What was told so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// By number: when the job started first, in microseconds; 0 for not at all.
    pub(super) first: Vec<i64>,
    /// Jobs that were started, each counted once.
    pub(super) jobs: usize,
    /// Starts beyond the first of a job.
    pub(super) again: usize,
    /// Numbers that no job of the run has.
    pub(super) strange: usize,
    /// Jobs that the nodes' sweepers hinted.
    pub(super) swept: u64,
}

impl Seen {
    fn note(&mut self, n: u32, at: i64) {
        if n == SWEPT {
            self.swept += u64::try_from(at).unwrap_or(0);
            return;
        }
        match usize::try_from(n).ok().and_then(|n| self.first.get_mut(n)) {
            Some(first) if *first == 0 => {
                *first = at;
                self.jobs += 1;
            }
            Some(_) => self.again += 1,
            None => self.strange += 1,
        }
    }
}

impl Starts {
    /// Listen for the starts of so many jobs.
    pub(super) async fn listen(jobs: usize) -> Result<Self, Error> {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .map_err(Error::io("can't listen for the bench's nodes"))?;
        let address = listener
            .local_addr()
            .map_err(Error::io("can't listen for the bench's nodes"))?;
        let seen = Arc::new(Mutex::new(Seen {
            first: vec![0; jobs],
            ..Seen::default()
        }));
        let noting = seen.clone();
        let listening = tokio::spawn(async move {
            let mut nodes = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                nodes.spawn(read(stream, noting.clone()));
            }
        });
        Ok(Self {
            address,
            seen,
            listening,
        })
    }

    pub(super) fn address(&self) -> String {
        self.address.to_string()
    }

    pub(super) fn seen(&self) -> Seen {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wait until so many jobs have started; fails when none starts for a long time.
    pub(super) async fn until(&self, jobs: usize) -> Result<(), Error> {
        const SILENCE: Duration = Duration::from_secs(60);
        let mut last = (self.lock().jobs, tokio::time::Instant::now());
        loop {
            let started = self.lock().jobs;
            if started >= jobs {
                return Ok(());
            }
            if started > last.0 {
                last = (started, tokio::time::Instant::now());
            } else if last.1.elapsed() > SILENCE {
                return Err(Error::Failed(format!(
                    "{started} of {jobs} jobs started, and none more for {SILENCE:?}; see what the nodes said above"
                )));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Starts {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn read(stream: TcpStream, seen: Arc<Mutex<Seen>>) {
    let mut stream = BufReader::new(stream);
    while let (Ok(n), Ok(at)) = (stream.read_u32().await, stream.read_i64().await) {
        seen.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .note(n, at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_counts_once_and_what_is_wrong_is_counted_apart() {
        let mut seen = Seen {
            first: vec![0; 2],
            ..Seen::default()
        };
        for (n, at) in [(1, 10), (1, 20), (7, 30), (SWEPT, 4), (SWEPT, 5)] {
            seen.note(n, at);
        }
        assert_eq!((seen.jobs, seen.again, seen.strange), (1, 1, 1));
        assert_eq!((seen.first.as_slice(), seen.swept), ([0, 10].as_slice(), 9));
    }
}

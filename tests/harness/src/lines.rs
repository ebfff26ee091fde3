//! The output of a process, kept in memory line by line.

use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The lines of one process, both streams in the order of arrival.
#[derive(Clone, Debug)]
pub struct Lines {
    seen: watch::Receiver<Vec<String>>,
}

impl Lines {
    /// Reads the streams on their own threads until the process closes them.
    pub(crate) fn follow(streams: Vec<Box<dyn Read + Send>>) -> Lines {
        let (sender, seen) = watch::channel(Vec::new());
        let sender = Arc::new(sender);
        for stream in streams {
            let sender = Arc::clone(&sender);
            std::thread::spawn(move || {
                let mut stream = BufReader::new(stream);
                let mut line = Vec::new();
                // Not `lines()`: output may not be UTF-8.
                while matches!(stream.read_until(b'\n', &mut line), Ok(1..)) {
                    let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                    sender.send_modify(|lines| lines.push(text));
                    line.clear();
                }
            });
        }
        Lines { seen }
    }

    /// Returns all lines so far.
    #[must_use]
    pub fn all(&self) -> Vec<String> {
        self.seen.borrow().clone()
    }

    /// Returns the last 100 lines, for a failure's message.
    #[must_use]
    pub fn tail(&self) -> String {
        let lines = self.seen.borrow();
        lines[lines.len().saturating_sub(100)..].join("\n")
    }

    /// Returns the first line, printed already or to come, that contains `pattern`. `None` if the
    /// deadline passes or the streams close without it.
    pub async fn find(&self, pattern: &str, deadline: Duration) -> Option<String> {
        let find = |lines: &Vec<String>| lines.iter().find(|line| line.contains(pattern)).cloned();
        let mut seen = self.seen.clone();
        let waited = seen.wait_for(|lines| find(lines).is_some());
        let lines = tokio::time::timeout(deadline, waited).await.ok()?.ok()?;
        find(&lines)
    }

    /// Waits until the process has closed its streams, so that [`Lines::all`] is complete.
    pub async fn end(&self, deadline: Duration) {
        let mut seen = self.seen.clone();
        let _ = tokio::time::timeout(deadline, seen.wait_for(|_| false)).await;
    }
}

//! The rows of the nodes: this one's own, and those of the others.
//!
//! A node writes its row when what it takes changes, and once a minute, so that a row that was removed is there again. It
//! reads the rows when it hears an id or a revision that it does not know, ten times a second at most, and once a minute. The
//! leader removes rows that were not written for five minutes and whose node it does not hear.

use std::time::Duration;

use tokio::time::Instant;

use crate::telemetry::log_throttle::LogThrottle;
use crate::worker::context::NodeContext;

/// A row is written this often.
const EVERY: Duration = Duration::from_secs(60);
/// After a failure it is tried again so soon.
const AGAIN: Duration = Duration::from_secs(2);
/// The rows are read this often at most: anybody who may publish can name unknown ids.
const BETWEEN_READS: Duration = Duration::from_millis(100);
/// A node that has not written its row for so long, and is not heard, has died.
const SILENT: Duration = Duration::from_secs(300);

pub(super) struct Members {
    write_at: Instant,
    read_at: Instant,
    /// The rows were read, or tried to be, not before this.
    last_read: Instant,
    failed: LogThrottle,
}

impl Members {
    /// The node has written its row.
    pub(super) fn begin() -> Self {
        let now = Instant::now();
        Self {
            write_at: now + EVERY,
            read_at: now,
            last_read: now,
            failed: LogThrottle::default(),
        }
    }

    /// When there is something to do.
    pub(super) fn next(&self) -> Instant {
        self.write_at.min(self.read_at)
    }

    /// What the node takes has changed.
    pub(super) fn write_now(&mut self) {
        self.write_at = Instant::now();
    }

    /// An unknown id or revision was heard.
    pub(super) fn read_soon(&mut self) {
        let soon = (self.last_read + BETWEEN_READS).max(Instant::now());
        self.read_at = self.read_at.min(soon);
    }

    /// Write and read what is due. True where the own row was written.
    pub(super) async fn go_on(&mut self, node: &NodeContext, leads: bool) -> bool {
        let now = Instant::now();
        let mut written = false;
        if self.write_at <= now {
            written = self.write(node).await;
            if written && leads {
                self.remove_silent(node).await;
            }
        }
        if self.read_at <= now {
            self.read(node).await;
        }
        written
    }

    async fn write(&mut self, node: &NodeContext) -> bool {
        let membership = node.membership();
        node.fleet.enlist(membership.clone(), node.beat());
        let written = node.store.write_node(&membership).await;
        self.write_at = Instant::now() + if written.is_ok() { EVERY } else { AGAIN };
        if let Err(error) = &written
            && let Some(more) = self.failed.now()
        {
            tracing::warn!(
                %error, more,
                "this node's row could not be written; other nodes know an older one, or none; it is tried again"
            );
        }
        written.is_ok()
    }

    async fn read(&mut self, node: &NodeContext) {
        self.last_read = Instant::now();
        self.read_at = self.last_read + EVERY;
        match node.store.nodes().await {
            Ok(rows) => {
                let rows = rows.into_iter().map(|row| row.membership);
                node.fleet.read(rows.collect(), node.id);
            }
            Err(error) => {
                self.read_at = self.last_read + AGAIN;
                if let Some(more) = self.failed.now() {
                    tracing::warn!(
                        %error, more,
                        "the rows of the nodes could not be read; nodes that joined since are not known yet"
                    );
                }
            }
        }
    }

    async fn remove_silent(&mut self, node: &NodeContext) {
        let heard = node.fleet.living();
        match node.store.remove_silent_nodes(SILENT, &heard).await {
            Ok(0) => {}
            Ok(rows) => tracing::info!(rows, "rows of nodes that died were removed"),
            Err(error) => tracing::warn!(%error, "rows of nodes that died could not be removed"),
        }
    }
}

//! The rows of the nodes: this node's own row, and those of the others.
//!
//! A node writes its row when the jobs that it takes change, and once a minute, so that a removed
//! row comes back. It reads the rows when it receives an id or a revision that it does not know, or a hint of a
//! job that no node serves by the rows read before, at most ten times a second, and once a minute. The leader removes rows that were not written for
//! five minutes and whose nodes send no beats.

use std::time::Duration;

use tokio::time::Instant;

use crate::telemetry::log_throttle::LogThrottle;
use crate::worker::context::NodeContext;

/// The interval at which the row is written and the rows are read.
const EVERY: Duration = Duration::from_secs(60);
/// The pause after a failure.
const AGAIN: Duration = Duration::from_secs(2);
/// The minimum time between two reads. Any client that may publish can send unknown ids.
const BETWEEN_READS: Duration = Duration::from_millis(100);
/// The age of a row from which its node counts as dead, if it sends no beats.
const SILENT: Duration = Duration::from_secs(300);
/// The minimum time between two warnings about nodes of another database.
const BETWEEN_WARNINGS: Duration = Duration::from_secs(60);

pub(super) struct Members {
    write_at: Instant,
    read_at: Instant,
    /// The earliest time of the next read, whatever is received.
    not_before: Instant,
    failed: LogThrottle,
    /// The time of the last warning about nodes of another database.
    warned: Option<Instant>,
    /// Whether a living node uses a broker other than this node's.
    has_broker: bool,
}

impl Members {
    /// Creates the state of a node that has written its row.
    pub(super) fn begin() -> Self {
        let now = Instant::now();
        Self {
            write_at: now + EVERY,
            read_at: now,
            not_before: now,
            failed: LogThrottle::default(),
            warned: None,
            has_broker: false,
        }
    }

    /// Returns whether another transport with a broker is used by a living node, as of the last
    /// read.
    pub(super) fn has_broker(&self) -> bool {
        self.has_broker
    }

    /// Returns the time of the next write or read.
    pub(super) fn next(&self) -> Instant {
        self.write_at.min(self.read_at)
    }

    /// Makes the write due, because the jobs that the node takes have changed.
    pub(super) fn write_now(&mut self) {
        self.write_at = Instant::now();
    }

    /// Makes a read due soon, because an unknown id or revision was received.
    pub(super) fn read_soon(&mut self) {
        let soon = self.not_before.max(Instant::now());
        self.read_at = self.read_at.min(soon);
    }

    /// Writes this node's row and reads all rows, if due. Returns whether the row was written.
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
                "could not write this node's row; other nodes see an older row or none; trying \
                 again"
            );
        }
        written.is_ok()
    }

    async fn read(&mut self, node: &NodeContext) {
        let asked = Instant::now();
        self.read_at = asked + EVERY;
        let read = node.store.nodes().await;
        // The pause begins with the answer: it may have taken long, and the leader's cycle comes after a read
        // that is due.
        let ended = Instant::now();
        self.not_before = ended + if read.is_ok() { BETWEEN_READS } else { AGAIN };
        match read {
            Ok(rows) => {
                let own = node.transport.name();
                self.has_broker = rows.iter().any(|row| {
                    let transport = &*row.membership.transport;
                    row.lives() && transport != own && transport != "in-process"
                });
                let rows = rows.into_iter().map(|row| row.membership);
                node.fleet.read(rows.collect(), node.id, asked);
                self.warn_of_strangers(node);
            }
            Err(error) => {
                self.read_at = self.not_before;
                if let Some(more) = self.failed.now() {
                    tracing::warn!(
                        %error, more,
                        "could not read the rows of the nodes; nodes that joined since are \
                         unknown; trying again"
                    );
                }
            }
        }
    }

    fn warn_of_strangers(&mut self, node: &NodeContext) {
        let is_early = |warned: Instant| warned.elapsed() < BETWEEN_WARNINGS;
        if self.warned.is_some_and(is_early) {
            return;
        }
        if let Some((stranger, nodes)) = node.fleet.strangers() {
            self.warned = Some(Instant::now());
            tracing::warn!(
                %stranger, nodes,
                "nodes that use another database receive hints of this node's lanes, so its jobs \
                 start late; give each database a prefix of its own on the broker (RabbitMQ: \
                 amqp_prefix; Kafka: the path of the URL), or set the same database on all nodes"
            );
        }
    }

    async fn remove_silent(&mut self, node: &NodeContext) {
        let heard = node.fleet.living();
        match node.store.remove_silent_nodes(SILENT, &heard).await {
            Ok(0) => {}
            Ok(rows) => tracing::info!(rows, "removed the rows of nodes that died"),
            Err(error) => tracing::warn!(%error, "could not remove the rows of nodes that died"),
        }
    }
}

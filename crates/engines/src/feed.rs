//! The feed: hints new jobs of the engine while a node of this process leads.
//!
//! An engine commits a job without telling anybody. A tap, if there is one, reports the rows as
//! they are committed. While there is none, the feed looks for them once a second, and less often
//! if a look takes long. The feed also runs the watchdog, if it is allowed.
//!
//! ```text
//!   tap ── inserted rows ──► feed ──► commit hook ──► lane
//!   no tap: every second ────┘  rows that became visible since the last look
//! ```

use std::time::Duration;

use jobwire_core::producer::commit_hook::Cause;
use jobwire_core::runtime::supervisor::survived;
use jobwire_core::telemetry::log_throttle::LogThrottle;
use jobwire_core::{CancellationToken, CommitHook};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::EngineStore;

/// A look may take this part of the time.
const SHARE: u32 = 20;
/// How often hung statements are looked for.
const WATCH: Duration = Duration::from_secs(2);
/// The pause after a panic.
const PAUSE: Duration = Duration::from_secs(1);

/// The task that hints new jobs. Ends when it is stopped or dropped.
#[derive(Debug)]
pub struct Feed {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Feed {
    /// Starts the task. Hints go through `hook`, which the node shares
    /// ([`NodeBuilder::hook`](jobwire_core::node::NodeBuilder::hook)).
    #[must_use]
    pub fn start(store: EngineStore, hook: CommitHook) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(keep_feeding(store, hook, stop.clone()));
        Self { stop, task }
    }

    /// Stops the task.
    pub async fn stop(mut self) {
        self.stop.cancel();
        let _ = (&mut self.task).await;
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn keep_feeding(store: EngineStore, hook: CommitHook, stop: CancellationToken) {
    while survived("feed", feed(&store, &hook, &stop)).await.is_none() {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

async fn feed(store: &EngineStore, hook: &CommitHook, stop: &CancellationToken) {
    let options = store.options();
    let mut throttle = LogThrottle::default();
    let mut pause = options.look_every;
    let mut watched = Instant::now();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = options.look_every;
        let Some(leader) = store.leading() else {
            continue;
        };
        if !store.is_tapped() {
            let began = Instant::now();
            match store.look(leader).await {
                Ok(news) => {
                    hook.publish(Cause::Sweep, news.ready);
                    if news.due.is_some() {
                        hook.timer_set(news.due);
                    }
                }
                Err(error) => {
                    if let Some(more) = throttle.now() {
                        tracing::warn!(%error, more, "could not look for new jobs of the engine");
                    }
                }
            }
            pause = pause.max(began.elapsed() * SHARE);
        }
        if options.watchdog && watched.elapsed() >= WATCH {
            watched = Instant::now();
            match store.cancel_hung().await {
                Ok(0) => {}
                Ok(statements) => tracing::warn!(
                    statements,
                    "cancelled statements of the engine that waited for its own idle transactions; set `lock_timeout` \
                     for the engine's connections"
                ),
                Err(error) => {
                    tracing::debug!(%error, "could not look for hung statements of the engine");
                }
            }
        }
    }
}

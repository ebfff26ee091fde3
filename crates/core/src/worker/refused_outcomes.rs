//! Limits for the outcomes that the database refuses. A task for each of them tries it again.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use crate::worker::served::TypeTurn;

/// The maximum number of outcomes that have not been tried alone.
const UNTRIED: usize = 1_000;
/// The maximum number of outcomes that are tried alone at once, each on its own connection.
const AT_ONCE: usize = 2;

/// The outcomes that the database refuses.
pub(crate) struct RefusedOutcomes {
    /// The tasks that try them, one for each outcome.
    pub(crate) tasks: TaskTracker,
    /// Permits for outcomes that have not been tried alone.
    pub(crate) untried: Arc<Semaphore>,
    /// The turn of these outcomes: one of them is tried at a time.
    pub(crate) untried_turn: TypeTurn,
    /// The permits for attempts to commit an outcome alone.
    pub(crate) attempts: Semaphore,
}

impl Default for RefusedOutcomes {
    fn default() -> Self {
        Self {
            tasks: TaskTracker::new(),
            untried: Arc::new(Semaphore::new(UNTRIED)),
            untried_turn: TypeTurn::default(),
            attempts: Semaphore::new(AT_ONCE),
        }
    }
}

//! The options of the store.

use std::time::Duration;

/// The options of a [`SqliteStore`](crate::SqliteStore).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SqliteOptions {
    /// Number of read-only connections beside the writing one. Default 4.
    pub readers: u32,
    /// The time to wait for a writer of another process. Default 5 s.
    pub busy_timeout: Duration,
    /// Maximum time of a transition, including the wait for the writing connection. Default 15 s.
    pub deadline: Duration,
    /// Whether to create the file if it does not exist. Default true.
    pub create: bool,
}

crate::setters! {
    SqliteOptions {
        readers: u32,
        busy_timeout: Duration,
        deadline: Duration,
        create: bool,
    }
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            readers: 4,
            busy_timeout: Duration::from_secs(5),
            deadline: Duration::from_secs(15),
            create: true,
        }
    }
}

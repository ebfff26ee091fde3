//! The options of the store.

use std::time::Duration;

use crate::transport::Plaintext;

/// Options for the use of the database.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PgOptions {
    /// Maximum number of connections for jobs, at least 3. One more is kept for renewing leases.
    /// Default 8.
    pub max_connections: u32,
    /// The time after which the server ends a statement. The client gives up two seconds later.
    /// Default 15 s.
    pub statement_timeout: Duration,
    /// The time to wait for a free connection. Default 10 s.
    pub acquire_timeout: Duration,
    /// The time after which the server ends an idle transaction in which a handler runs, or that you begin
    /// on [`PgStore::pool`](crate::PgStore::pool). Such a handler must not pause longer between two of its
    /// statements. The node's own transactions, and that of a handler from its completion on, end after
    /// five idle seconds, or after this time if it is shorter: no node could take over the jobs whose rows
    /// a frozen one has locked. Creators' transactions have no limit. Use the length of the nodes' lease.
    /// Default 30 s, the default lease.
    pub idle_in_transaction_timeout: Duration,
    /// Whether a lock waits until it is on disk. If false, a job starts earlier by the time of one
    /// flush, but a crash of the server loses the locks of its last half second and their strikes.
    /// Those jobs run again, and the outcomes of their first runs are refused, as if their leases
    /// had ended. Completions and the locks of exclusive jobs always wait. Default true.
    pub durable_locks: bool,
    /// The servers to which connections without verified TLS are allowed: those on this machine, or
    /// all, for networks that are trusted or encrypted. For another machine, `sslmode` is
    /// `verify-full` if the URL names none, and a weaker mode is refused unless this option allows
    /// it. Default: this machine.
    pub plaintext: Plaintext,
}

crate::setters! {
    PgOptions {
        max_connections: u32,
        statement_timeout: Duration,
        acquire_timeout: Duration,
        idle_in_transaction_timeout: Duration,
        durable_locks: bool,
        plaintext: Plaintext,
    }
}

impl Default for PgOptions {
    fn default() -> Self {
        Self {
            max_connections: 8,
            statement_timeout: Duration::from_secs(15),
            acquire_timeout: Duration::from_secs(10),
            idle_in_transaction_timeout: Duration::from_secs(30),
            durable_locks: true,
            plaintext: Plaintext::Loopback,
        }
    }
}

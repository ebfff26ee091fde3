//! Jobs in PostgreSQL, in the schema `jobwire`.
//!
//! Each transition has its statements in one file. These rules keep concurrent statements apart:
//!
//! * A **plain** job is locked by one statement. It locks the row with SKIP LOCKED, so that it sees
//!   a concurrent completion or move. Then it inserts the lease, or takes one that has no owner.
//! * An **exclusive** job is locked under the row of its instance. The transaction locks the
//!   instance rows in sorted order; then a statement with a fresh snapshot selects the first ready
//!   sibling. The end of a job takes the same steps, so a release and a refusal can't miss each
//!   other.
//! * A guard names lease, owner and fence, and deletes the lease first. The leader cycle that
//!   clears the owner changes the same row, so PostgreSQL checks the guard again and the former
//!   holder changes nothing.
//! * **Lock order**: instance rows, rows of keys of limits, both sorted by key, leases, job rows. For a
//!   job without an owner the job row comes before the lease ([`Store`](crate::Store)). Renewal and the
//!   leader cycle skip locked rows.

mod acting;
pub mod address;
mod aside;
mod attempts;
mod batch_members;
mod batches;
mod begin;
mod change;
mod change_statements;
mod claim;
mod complete;
mod connect;
mod connection_cache;
#[doc(hidden)]
pub mod connection_pool;
mod database;
mod decode;
mod ending;
mod event_position;
mod event_stream;
pub mod examine;
mod exclusive;
mod fail;
mod fences;
mod find;
mod gate;
mod guards;
mod insert;
mod lanes;
mod lately;
mod leader_cycle;
mod lock;
mod membership;
mod migrations;
mod operate;
mod options;
mod orphans;
mod pending;
mod periodic;
mod permits;
mod priorities;
mod progress;
mod purge;
mod ranks;
mod renew;
mod row_locks;
mod session;
mod sql;
mod suspend;
mod tap;
mod timers;
mod transactions;
mod unique;
pub mod wakes;

use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::postgres::PgPool;
use tokio::sync::Semaphore;

use self::connection_cache::ConnectionCache;
use self::connection_pool::ConnectionPool;
use self::event_position::EventPosition;
use self::fences::Fences;
use self::lately::Lately;
pub use self::migrations::migrator;
pub use self::options::PgOptions;
use self::session::Isolation;
use super::poison::Refusals;
use super::presence::Presence;
use crate::job::calendar::Calendars;

pub use jobwire_tap::{About, Finding};
#[doc(hidden)]
pub use tap::address as tap_address;
pub use tap::publication as tap_publication;

/// Jobs in PostgreSQL. Cheap to clone. See the [module](self).
#[derive(Clone)]
pub struct PgStore {
    /// Connections for renewals, which never queue behind jobs.
    renewals: ConnectionPool,
    /// Connections for locks and plain completions: few statements, whose plans are kept.
    cache: ConnectionCache,
    /// Connections for all other statements.
    pool: ConnectionPool,
    /// The time at which a free job was last seen while any suspension existed.
    suspended: Lately,
    /// The time at which a lock statement last timed out on the row of an instance.
    rows_stay_locked: Lately,
    /// The time at which the database last refused to delete rows that were held.
    rows_refused: Lately,
    /// Permits to hold rows on a connection of `cache`. One connection has none: it stays free for
    /// locks and completions.
    row_permits: Option<Arc<Semaphore>>,
    /// Permits for transactions of applications and handlers on `pool`. One connection has none: it
    /// stays free for the node.
    permits: Arc<Semaphore>,
    fences: Arc<Fences>,
    /// The default isolation of creators' transactions, as the newest connection reported it.
    isolation: Arc<Mutex<Isolation>>,
    refusals: Refusals,
    /// Where the next page of the event stream begins.
    events: Arc<Mutex<EventPosition>>,
    presence: Presence,
    calendars: Calendars,
    /// The address for connections that sqlx does not make.
    address: Arc<jobwire_tap::Address>,
}

impl std::fmt::Debug for PgStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PgStore").finish_non_exhaustive()
    }
}

impl PgStore {
    /// Returns a store that knows these [business calendars](crate::calendar), for clients and nodes.
    /// Give all programs of a fleet the same ones.
    #[must_use]
    pub fn with_calendars(mut self, calendars: Calendars) -> Self {
        self.calendars = calendars;
        self
    }

    /// Returns the connection pool, for your own statements. A transaction that you begin on it is
    /// limited by [`PgOptions::idle_in_transaction_timeout`], and is READ COMMITTED unless its
    /// BEGIN names another isolation. A transaction of [`Client::begin`](crate::Client::begin) has
    /// no such limit, and has the default isolation of the database.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.pool.inner
    }

    /// Returns the maximum idle time of a transaction of the node itself.
    fn silence(&self) -> Duration {
        let millis = self.pool.silence.map_or(0, NonZeroU32::get);
        Duration::from_millis(millis.into())
    }

    /// Returns the number of open connections and the number of idle ones.
    #[must_use]
    pub fn connections(&self) -> (u32, usize) {
        let lines = [&self.renewals, self.cache.pool(), &self.pool];
        let open = lines.iter().map(|pool| pool.inner.size()).sum();
        let idle = [&self.renewals, &self.pool].map(|pool| pool.inner.num_idle());
        (open, idle.iter().sum::<usize>() + self.cache.idle())
    }
}

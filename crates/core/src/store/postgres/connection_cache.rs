//! The cache of connections for locks and completions: they stay out of the pool between two
//! statements.
//!
//! The pool pings each connection that is returned. This round trip after every statement delays
//! the start of the job that was just locked, if jobs arrive one by one. So a connection that
//! answered is cached here. It returns to the pool after an error, after a timeout, or when another
//! task waits for a connection.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, Postgres, Transaction};

use super::begin::{begin, begin_durably};
use super::connection_pool::ConnectionPool;
use super::session::Commits;
use crate::store::error::StoreError;

/// The cached connections and their pool; see the [module](self). Cheap to clone.
#[derive(Clone)]
pub(super) struct ConnectionCache {
    pool: ConnectionPool,
    commits: Commits,
    idle_set: Arc<Mutex<IdleSet>>,
}

#[derive(Default)]
struct IdleSet {
    connections: Vec<Taken>,
    /// The number of tasks that wait for a connection of the pool. While any task waits, no
    /// connection is kept.
    waiting: usize,
    closed: bool,
}

/// A connection that is out of the pool.
struct Taken {
    connection: PoolConnection<Postgres>,
    /// The time at which the pool gave it out, and trusted it.
    since: Instant,
    answered: Instant,
}

/// A connection for one statement. It returns to the pool unless it is [kept](Self::keep).
pub(super) struct CachedConnection<'a> {
    cache: &'a ConnectionCache,
    taken: Taken,
}

/// Counts a task that waits for a connection of the pool.
struct Waiting<'a>(&'a ConnectionCache);

impl ConnectionCache {
    /// Creates the cache of a pool whose statements commit in this way.
    pub(super) fn new(pool: ConnectionPool, commits: Commits) -> Self {
        Self {
            pool,
            commits,
            idle_set: Arc::default(),
        }
    }

    pub(super) fn pool(&self) -> &ConnectionPool {
        &self.pool
    }

    /// Returns the number of connections that are not in use.
    pub(super) fn idle(&self) -> usize {
        self.pool.inner.num_idle() + self.idle_set().connections.len()
    }

    fn idle_set(&self) -> MutexGuard<'_, IdleSet> {
        self.idle_set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a cached connection, or one of the pool.
    pub(super) async fn acquire(&self) -> Result<CachedConnection<'_>, StoreError> {
        let waiting = {
            let mut idle = self.idle_set();
            // A connection that is not trusted returns to the pool, which pings or closes it.
            while let Some(taken) = idle.connections.pop() {
                let (age, unused) = (taken.since.elapsed(), taken.answered.elapsed());
                if self.pool.suspicion.trusts(age, unused) {
                    return Ok(CachedConnection { cache: self, taken });
                }
            }
            self.wait(&mut idle)
        };
        let connection = self.pool.inner.acquire().await?;
        drop(waiting);
        let now = Instant::now();
        let taken = Taken {
            connection,
            since: now,
            answered: now,
        };
        Ok(CachedConnection { cache: self, taken })
    }

    /// Returns whether commits return before the flush to disk, so that a statement has to request
    /// the wait.
    pub(super) fn commits_soon(&self) -> bool {
        self.commits == Commits::Soon
    }

    /// Begins a transaction on a connection of the pool, to which a cached connection is returned
    /// first. Its commit waits for the disk.
    pub(super) async fn begin(&self) -> Result<Transaction<'static, Postgres>, StoreError> {
        let _waiting = {
            let mut idle = self.idle_set();
            idle.connections.pop();
            self.wait(&mut idle)
        };
        match self.commits {
            Commits::AsConfigured => begin(&self.pool).await,
            Commits::Soon => begin_durably(&self.pool).await,
        }
    }

    /// Returns all connections to the pool, which is about to be closed.
    pub(super) fn clear(&self) {
        let mut idle = self.idle_set();
        idle.closed = true;
        idle.connections.clear();
    }

    fn wait(&self, idle: &mut IdleSet) -> Waiting<'_> {
        idle.waiting += 1;
        Waiting(self)
    }
}

impl CachedConnection<'_> {
    /// Caches the connection, which has answered, for the next statement.
    pub(super) fn keep(self) {
        let Self { cache, mut taken } = self;
        taken.answered = Instant::now();
        let mut idle = cache.idle_set();
        if idle.waiting == 0 && !idle.closed {
            idle.connections.push(taken);
        }
    }
}

impl Deref for CachedConnection<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.taken.connection
    }
}

impl DerefMut for CachedConnection<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.taken.connection
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.idle_set().waiting -= 1;
    }
}

impl Drop for IdleSet {
    /// Detaches the connections. The runtime may be gone, and without it no connection can return
    /// to a pool.
    fn drop(&mut self) {
        for taken in self.connections.drain(..) {
            drop(taken.connection.detach());
        }
    }
}

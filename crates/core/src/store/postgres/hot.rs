//! The connections for locks and completions, kept at hand between two statements.
//!
//! The pool pings each connection that is returned. That is a round trip after every statement, and
//! where jobs arrive one by one, it delays the start of the job that was just locked. So a
//! connection that answered is kept here. It returns to the pool after an error, after a timeout,
//! or when another task waits for a connection.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, Postgres, Transaction};

use super::begin::{begin, begin_durably};
use super::line::Line;
use super::session::Commits;
use crate::store::error::StoreError;

/// The connections at hand and their pool; see the [module](self). Cheap to clone.
#[derive(Clone)]
pub(super) struct HotLine {
    line: Line,
    commits: Commits,
    shelf: Arc<Mutex<Shelf>>,
}

#[derive(Default)]
struct Shelf {
    at_hand: Vec<Taken>,
    /// The number of tasks that wait for a connection of the pool. While any task waits, no
    /// connection is kept.
    waiting: usize,
    closed: bool,
}

/// A connection that is out of the pool.
struct Taken {
    connection: PoolConnection<Postgres>,
    /// The time at which the pool lent it; the pool trusted it then.
    since: Instant,
    answered: Instant,
}

/// A connection for one statement. It returns to the pool unless it is [kept](Self::keep).
pub(super) struct Lent<'a> {
    line: &'a HotLine,
    taken: Taken,
}

/// Counts a task that waits for a connection of the pool.
struct Waiting<'a>(&'a HotLine);

impl HotLine {
    /// Creates the connections at hand for a line whose statements commit in this way.
    pub(super) fn new(line: Line, commits: Commits) -> Self {
        Self {
            line,
            commits,
            shelf: Arc::default(),
        }
    }

    pub(super) fn line(&self) -> &Line {
        &self.line
    }

    /// Returns the number of connections that are not in use.
    pub(super) fn idle(&self) -> usize {
        self.line.pool.num_idle() + self.shelf().at_hand.len()
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a connection at hand, or one of the pool.
    pub(super) async fn lend(&self) -> Result<Lent<'_>, StoreError> {
        let waiting = {
            let mut shelf = self.shelf();
            // A connection that is not trusted returns to the pool, which pings or closes it.
            while let Some(taken) = shelf.at_hand.pop() {
                let (age, idle) = (taken.since.elapsed(), taken.answered.elapsed());
                if self.line.suspicion.believes_in(age, idle) {
                    return Ok(Lent { line: self, taken });
                }
            }
            self.wait(&mut shelf)
        };
        let connection = self.line.pool.acquire().await?;
        drop(waiting);
        let now = Instant::now();
        let taken = Taken {
            connection,
            since: now,
            answered: now,
        };
        Ok(Lent { line: self, taken })
    }

    /// Returns whether a statement that must wait for the disk has to request that.
    pub(super) fn commits_soon(&self) -> bool {
        self.commits == Commits::Soon
    }

    /// Begins a transaction on a connection of the pool, to which a connection at hand is returned
    /// first. Its commit waits for the disk.
    pub(super) async fn begin(&self) -> Result<Transaction<'static, Postgres>, StoreError> {
        let _waiting = {
            let mut shelf = self.shelf();
            shelf.at_hand.pop();
            self.wait(&mut shelf)
        };
        match self.commits {
            Commits::AsConfigured => begin(&self.line).await,
            Commits::Soon => begin_durably(&self.line).await,
        }
    }

    /// Returns all connections to the pool, which is about to be closed.
    pub(super) fn clear(&self) {
        let mut shelf = self.shelf();
        shelf.closed = true;
        shelf.at_hand.clear();
    }

    fn wait(&self, shelf: &mut Shelf) -> Waiting<'_> {
        shelf.waiting += 1;
        Waiting(self)
    }
}

impl Lent<'_> {
    /// Keeps the connection, which has answered, at hand for the next statement.
    pub(super) fn keep(self) {
        let Self { line, mut taken } = self;
        taken.answered = Instant::now();
        let mut shelf = line.shelf();
        if shelf.waiting == 0 && !shelf.closed {
            shelf.at_hand.push(taken);
        }
    }
}

impl Deref for Lent<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.taken.connection
    }
}

impl DerefMut for Lent<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.taken.connection
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.shelf().waiting -= 1;
    }
}

impl Drop for Shelf {
    /// Detaches the connections. The store is gone, and perhaps the runtime, without which no
    /// connection can return to a pool.
    fn drop(&mut self) {
        for taken in self.at_hand.drain(..) {
            drop(taken.connection.detach());
        }
    }
}

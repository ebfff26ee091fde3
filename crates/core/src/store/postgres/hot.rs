//! The connections that lock and complete, kept at hand between two statements.
//!
//! The pool asks a connection that comes back whether it lives. That is a round trip after every statement, and where
//! jobs come one by one it is under way while the job that was locked should start. So what answered is believed in
//! here. It goes back to the pool where its answer was an error or did not come, and where somebody waits for a
//! connection of the pool.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sqlx::pool::PoolConnection;
use sqlx::{PgConnection, Postgres, Transaction};

use super::begin::{begin, begin_durably};
use super::line::Line;
use super::session::Commits;
use crate::store::error::StoreError;

/// See the [module](self). Cheap to clone.
#[derive(Clone)]
pub(super) struct HotLine {
    line: Line,
    commits: Commits,
    shelf: Arc<Mutex<Shelf>>,
}

#[derive(Default)]
struct Shelf {
    at_hand: Vec<Taken>,
    /// How many wait for a connection of the pool. As long as somebody does, none is kept.
    waiting: usize,
    closed: bool,
}

/// A connection that is out of the pool.
struct Taken {
    connection: PoolConnection<Postgres>,
    /// The pool believed in it then.
    since: Instant,
    answered: Instant,
}

/// A connection for one statement. It goes back to the pool unless it is [kept](Self::keep).
pub(super) struct Lent<'a> {
    line: &'a HotLine,
    taken: Taken,
}

/// Somebody waits for a connection of the pool.
struct Waiting<'a>(&'a HotLine);

impl HotLine {
    /// Of connections whose statements commit so.
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

    /// Connections that nobody uses now.
    pub(super) fn idle(&self) -> usize {
        self.line.pool.num_idle() + self.shelf().at_hand.len()
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection at hand, or one of the pool.
    pub(super) async fn lend(&self) -> Result<Lent<'_>, StoreError> {
        let waiting = {
            let mut shelf = self.shelf();
            // What is not believed in is asked or closed by the pool.
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

    /// Whether what has to wait for the disk has to say so.
    pub(super) fn commits_soon(&self) -> bool {
        self.commits == Commits::Soon
    }

    /// A transaction on a connection of the pool, which is given one that was at hand. Its commit waits for the disk.
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

    /// Give all back to the pool, which is to be closed.
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
    /// It has answered, and is at hand for the next statement.
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
    /// The store is gone, and perhaps the runtime, too, without which nothing goes back to a pool.
    fn drop(&mut self) {
        for taken in self.at_hand.drain(..) {
            drop(taken.connection.detach());
        }
    }
}

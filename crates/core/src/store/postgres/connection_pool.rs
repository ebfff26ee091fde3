//! A pool of connections to the server, and which of them are still trusted.
//!
//! A connection whose other end has vanished (a pulled cable, a firewall that dropped it, a frozen
//! machine) returns neither an answer nor an error for a quarter of an hour. So every statement has
//! a deadline here. When a deadline passes, every connection that is open is **suspected**. It is
//! closed when it is returned or before its next use, and a new one replaces it. Without this, the
//! pool would ping a returned connection, wait for the answer as long as the kernel does, and have
//! one connection less meanwhile.
//!
//! Connections to a server that has become a standby are suspected, too, since the address may lead
//! to another server by now. A wrong suspicion costs a few new connections.
//!
//! After a lost connection, or another transient error, the idle connections are only **doubted**:
//! each is pinged before its next use. Otherwise a restart of the server would fail a statement on
//! every one of them.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlx::Connection;
use sqlx::pool::PoolOptions;
use sqlx::postgres::{PgPool, Postgres};
use tokio::sync::watch;

use crate::store::error::StoreError;

/// The times from which connections are trusted. Cheap to clone.
#[derive(Clone, Default)]
pub struct Suspicion {
    /// Connections that were open at this time are closed.
    raised: Moment,
    /// Connections that were idle at this time are pinged.
    doubted: Moment,
}

/// The time of the last event of its kind, if there was one.
#[derive(Clone)]
struct Moment(Arc<watch::Sender<Option<Instant>>>);

impl Default for Moment {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl Moment {
    fn is_now(&self) {
        self.0.send_replace(Some(Instant::now()));
    }

    /// Returns whether a connection of this age existed at that time.
    fn has_met(&self, age: Duration) -> bool {
        let moment = *self.0.borrow();
        moment.is_some_and(|moment| age >= moment.elapsed())
    }
}

impl Suspicion {
    /// Returns whether a connection of this age and idle time may be used without a ping.
    pub fn trusts(&self, age: Duration, idle: Duration) -> bool {
        !self.raised.has_met(age) && !self.doubted.has_met(idle)
    }

    /// Makes the pool close suspected connections and ping doubted ones.
    pub fn watch(&self, pool: PoolOptions<Postgres>) -> PoolOptions<Postgres> {
        let (taken, given_back) = (self.clone(), self.clone());
        pool.before_acquire(move |connection, known| {
            let suspected = taken.raised.has_met(known.age);
            let doubted = taken.doubted.has_met(known.idle_for);
            Box::pin(async move { Ok(!suspected && (!doubted || connection.ping().await.is_ok())) })
        })
        .after_release(move |_, known| {
            let suspected = given_back.raised.has_met(known.age);
            Box::pin(async move { Ok(!suspected) })
        })
    }
}

/// A pool of connections for one purpose, and the deadline of their statements. Cheap to clone.
#[derive(Clone)]
pub struct ConnectionPool {
    pub inner: PgPool,
    pub suspicion: Suspicion,
    pub within: Duration,
    /// The time after which the server ends an idle transaction of a node, in milliseconds. `None`: that of
    /// the connection.
    pub silence: Option<NonZeroU32>,
}

impl ConnectionPool {
    /// Suspects all connections that are open now.
    pub fn suspect(&self) {
        self.suspicion.raised.is_now();
    }

    /// Doubts all connections that are idle now: they may have met the same error.
    fn doubt(&self) {
        self.suspicion.doubted.is_now();
    }

    /// Completes when the connections that are open now have been suspected, and the longest time
    /// for an answer has passed since.
    pub fn ends(&self) -> impl Future<Output = ()> + Send + 'static {
        let (mut raised, within) = (self.suspicion.raised.0.subscribe(), self.within);
        async move {
            if raised.changed().await.is_err() {
                // The store is gone, and its transactions with it.
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(within).await;
        }
    }

    /// Waits for an answer until the deadline. The connections are suspected before this one is
    /// returned.
    pub async fn answer<T>(
        &self,
        question: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let answer = crate::store::answer_within(self.within, || self.suspect(), question).await;
        if let Err(error) = &answer
            && error.is_transient()
            && !error.is_conflict()
            && !error.is_read_only()
        {
            self.doubt();
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn trusted(pool: &ConnectionPool, age: Duration) -> bool {
        pool.suspicion.trusts(age, Duration::ZERO)
    }

    fn pool(within: Duration) -> ConnectionPool {
        let nowhere = sqlx::postgres::PgConnectOptions::new_without_pgpass();
        ConnectionPool {
            inner: PgPool::connect_lazy_with(nowhere),
            suspicion: Suspicion::default(),
            within,
            silence: None,
        }
    }

    #[tokio::test]
    async fn what_was_open_when_a_deadline_passed_is_suspected_and_what_came_later_is_not() {
        let pool = pool(Duration::from_millis(10));
        assert!(trusted(&pool, HOUR));
        let silence = pool.answer(std::future::pending::<Result<(), _>>()).await;
        assert!(matches!(silence, Err(StoreError::Timeout(_))));
        assert!(!trusted(&pool, HOUR));
        assert!(trusted(&pool, Duration::ZERO));
    }

    #[tokio::test]
    async fn what_was_idle_at_a_doubt_is_asked_and_what_answered_later_is_not() {
        let pool = pool(HOUR);
        pool.doubt();
        assert!(!pool.suspicion.trusts(HOUR, HOUR));
        assert!(pool.suspicion.trusts(HOUR, Duration::ZERO));
    }

    #[tokio::test]
    async fn a_lost_connection_is_a_doubt_and_no_suspicion() {
        let pool = pool(HOUR);
        let lost = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let lost = StoreError::from(sqlx::Error::Io(lost));
        let answer = pool.answer(std::future::ready(Err::<(), _>(lost))).await;
        assert!(answer.is_err());
        assert!(trusted(&pool, HOUR));
        assert!(!pool.suspicion.trusts(HOUR, HOUR));
    }

    #[tokio::test]
    async fn an_answer_in_time_raises_no_suspicion() {
        let pool = pool(Duration::from_secs(60));
        let answer = pool.answer(std::future::ready(Ok(7))).await;
        assert_eq!(answer.ok(), Some(7));
        assert!(trusted(&pool, HOUR));
    }
}

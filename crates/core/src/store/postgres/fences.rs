//! Fences never repeat (protocol rule 1).
//!
//! A crash of the server sets a sequence back if the commits that drew its last values were not on
//! disk: row locks hold without a commit, and `synchronous_commit` may be off. A promoted standby
//! has only the values that it received. So each store makes a *leap* before its first lock, and
//! again for each server that its connections meet later: another start, a recovery from a crash,
//! another timeline. ADR 0027 has the reasons.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sqlx::{Executor, PgConnection, Row};
use tokio::sync::{Mutex, OnceCell};

use super::connection_pool::ConnectionPool;
use super::session::{self, Server};
use crate::store::error::StoreError;

/// The length of a leap: more fences than are drawn between two flushes of the log.
const LEAP: i64 = 1 << 32;
/// A leap reaches at least this number times the timeline. So it passes all fences of the former
/// timeline, even on a promoted standby that never received the former leaps.
const OF_A_TIMELINE: i64 = 1 << 48;
/// The largest factor of [`OF_A_TIMELINE`], so that the product fits.
const TIMELINES: i64 = 32_000;
/// The key of the advisory lock for leaps: the letters of `jobwire`. Two leaps at once would set
/// the sequence back.
const LOCK: i64 = 0x006a_6f62_7769_7265;

const READ_ONLY: &str = "SET default_transaction_read_only = on";

/// The leaps of a store: before the first lock, and after each change of the server.
#[derive(Debug, Default)]
pub(super) struct Fences {
    /// Whether new connections leap when they meet an unknown server.
    locks: AtomicBool,
    /// Set when the leap before the first lock is done.
    begun: OnceCell<()>,
    /// The server of the last leap. Other connections wait here while a leap is under way.
    known: Mutex<Option<Server>>,
    /// The number of changes of the server since.
    changes: AtomicU64,
}

impl Fences {
    /// Makes the leap before the first lock. It is called before each lock; later calls cost
    /// nothing.
    pub(super) async fn begin(&self, pool: &ConnectionPool) -> Result<(), StoreError> {
        let begin = || async {
            let mut connection = pool.inner.acquire().await?;
            // From now on each new connection leaps by itself.
            self.locks.store(true, Ordering::SeqCst);
            let leapt = self.first_leap(&mut connection).await;
            if leapt.is_err() {
                self.locks.store(false, Ordering::SeqCst);
            }
            leapt
        };
        self.begun.get_or_try_init(begin).await.map(drop)
    }

    async fn first_leap(&self, connection: &mut PgConnection) -> Result<(), StoreError> {
        let server = session::server(connection).await?;
        if server.timeline.is_none() {
            return Err(StoreError::Config(
                "the server is a standby, where no job can be locked; use the primary's address"
                    .to_owned(),
            ));
        }
        match self.leap_on(connection, server).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(StoreError::Schema(
                "the sequence jobwire.fence_seq is missing; run `jobwire migrate up`".to_owned(),
            )),
            Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("42501") => {
                Err(StoreError::Config(format!(
                    "the node's role may not set the sequence of fences ({}); GRANT USAGE, UPDATE ON SEQUENCE jobwire.fence_seq TO it",
                    error.message()
                )))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the number of changes of the server that new connections have found.
    pub(super) fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Leaps on a new connection once the store locks. Without the schema, nothing is locked and no
    /// leap is needed.
    pub(super) async fn connected(
        &self,
        connection: &mut PgConnection,
        server: Server,
    ) -> Result<(), sqlx::Error> {
        if self.locks.load(Ordering::SeqCst) {
            self.leap_on(connection, server).await?;
        }
        Ok(())
    }

    /// Makes a leap, unless this store has made one on this server. Returns false if the sequence
    /// is missing.
    async fn leap_on(
        &self,
        connection: &mut PgConnection,
        server: Server,
    ) -> Result<bool, sqlx::Error> {
        let Some(timeline) = server.timeline else {
            // The session would not notice a promotion of the standby. So it stays read-only after
            // one: its first write fails, and all connections are replaced by new ones, which leap.
            connection.execute(sqlx::raw_sql(READ_ONLY)).await?;
            return Ok(true);
        };
        let mut known = self.known.lock().await;
        if known.as_ref() == Some(&server) {
            return Ok(true);
        }
        // The text holds only numbers. It is one message and so one transaction.
        let leap = sqlx::raw_sql(sqlx::AssertSqlSafe(leap(timeline)));
        let rows = connection.fetch_all(leap).await?;
        let Some(fence) = rows.iter().find_map(|row| row.try_get("fence").ok()) else {
            return Ok(false);
        };
        let fence: i64 = fence;
        tracing::info!(timeline, fence, "fences were set forward for this server");
        if known.replace(server).is_some() {
            self.changes.fetch_add(1, Ordering::SeqCst);
        }
        Ok(true)
    }
}

/// Returns the statements of a leap. Their commit waits for the disk, and for a standby if the
/// server's other commits wait for one.
///
/// The lock of the table keeps two leaps apart, and needs a right. Nodes of older versions know only the
/// advisory lock, which any role may hold. So the wait for it ends after two seconds.
fn leap(timeline: i64) -> String {
    let floor = timeline.clamp(0, TIMELINES) * OF_A_TIMELINE;
    format!(
        "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
SELECT set_config('lock_timeout', '2s', true);
LOCK TABLE jobwire.leader IN SHARE UPDATE EXCLUSIVE MODE;
DO $$ BEGIN PERFORM pg_advisory_xact_lock({LOCK}); EXCEPTION WHEN lock_not_available THEN NULL; END $$;
SELECT setval(s, greatest(nextval(s) + {LEAP}, {floor})) AS fence
FROM (SELECT to_regclass('jobwire.fence_seq') AS s OFFSET 0) AS sequence WHERE s IS NOT NULL"
    )
}

//! Fences never repeat (protocol rule 1).
//!
//! A sequence forgets: where the commits that drew its last values had not reached the disk (row locks hold
//! without a commit, `synchronous_commit` may be off), a crash of the server sets it back, and a standby that
//! is promoted knows only what it received. So each store that locks makes a *leap* before it locks anything,
//! and again for each server that its connections meet later: another start, a recovery from a crash, another
//! timeline. ADR 0027 has the reasons.

use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::{Executor, PgConnection, Row};
use tokio::sync::{Mutex, OnceCell};

use super::line::Line;
use super::session::{self, Server};
use crate::store::error::StoreError;

/// More fences than are drawn between two flushes of the log.
const LEAP: i64 = 1 << 32;
/// A leap on a timeline leads at least so far for each timeline: beyond all that the former one handed out, also where
/// a standby was promoted that never received the former leaps.
const OF_A_TIMELINE: i64 = 1 << 48;
/// The factor of the last timelines, so that the product fits.
const TIMELINES: i64 = 32_000;
/// Two leaps at once would set the sequence back. The letters of `jobwire`.
const LOCK: i64 = 0x006a_6f62_7769_7265;

const READ_ONLY: &str = "SET default_transaction_read_only = on";

/// Before the first lock, and after each change of the server.
#[derive(Debug, Default)]
pub(super) struct Fences {
    /// New connections leap where they meet a server that is not known.
    locks: AtomicBool,
    /// The leap before the first lock was made.
    begun: OnceCell<()>,
    /// The server of the last leap. Other connections wait for a leap that is under way.
    known: Mutex<Option<Server>>,
}

impl Fences {
    /// Before each lock. After the first one it costs nothing.
    pub(super) async fn begin(&self, line: &Line) -> Result<(), StoreError> {
        let begin = || async {
            let mut connection = line.pool.acquire().await?;
            // From here on each new connection leaps by itself.
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
                "the server is a standby: nothing can be locked there; give the primary's address"
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
                    "a node may not set its fences ({}); GRANT USAGE, UPDATE ON SEQUENCE jobwire.fence_seq TO its role",
                    error.message()
                )))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// A connection was opened. Without the schema nothing is locked, and nothing has to be done.
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

    /// Leap unless that was done on this server. False where the sequence is missing.
    async fn leap_on(
        &self,
        connection: &mut PgConnection,
        server: Server,
    ) -> Result<bool, sqlx::Error> {
        let Some(timeline) = server.timeline else {
            // It would not notice its promotion. So it writes nothing then either: its first attempt fails, and all
            // connections are replaced by new ones, which leap.
            connection.execute(sqlx::raw_sql(READ_ONLY)).await?;
            return Ok(true);
        };
        let mut known = self.known.lock().await;
        if known.as_ref() == Some(&server) {
            return Ok(true);
        }
        // Numbers only. One message, and so one transaction.
        let leap = sqlx::raw_sql(sqlx::AssertSqlSafe(leap(timeline)));
        let rows = connection.fetch_all(leap).await?;
        let Some(fence) = rows.iter().find_map(|row| row.try_get("fence").ok()) else {
            return Ok(false);
        };
        let fence: i64 = fence;
        tracing::info!(timeline, fence, "fences begin anew");
        *known = Some(server);
        Ok(true)
    }
}

/// The commit waits for the disk; where it waits for a standby, too, it goes on doing so.
fn leap(timeline: i64) -> String {
    let floor = timeline.clamp(0, TIMELINES) * OF_A_TIMELINE;
    format!(
        "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off';
SELECT pg_advisory_xact_lock({LOCK});
SELECT setval(s, greatest(nextval(s) + {LEAP}, {floor})) AS fence
FROM (SELECT to_regclass('jobwire.fence_seq') AS s OFFSET 0) AS sequence WHERE s IS NOT NULL"
    )
}

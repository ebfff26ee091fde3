//! The row of the leader.

use std::time::Duration;

use chrono::{DateTime, Utc};
use jobwire_core::store::{Horizon, LeaderCycle};
use jobwire_core::{NodeId, StoreError};
use sqlx::{PgPool, Row};
use uuid::Uuid;

/// Takes the lead if no other node leads. Waits for no row: while another transaction has the
/// leader's row locked, the answer names the leader in it.
///
/// A leader's lease that ends more than ten lease lengths from now counts as expired: no leader of
/// this fleet wrote it, or the clock was set back.
///
/// `$5` to `$7` decide whether expired locks may be cleared: the database's clock lies in the
/// window, and the server has been up for the grace period.
const TAKE: &str = "
WITH unlocked AS MATERIALIZED (
    SELECT engine FROM jobwire_engine.leader WHERE engine = $1 FOR UPDATE SKIP LOCKED
), lead AS (
    INSERT INTO jobwire_engine.leader AS l (engine, node, term, transport, expires_at)
    SELECT $1, $2, 1, $4, clock_timestamp() + $3
    WHERE EXISTS (SELECT FROM unlocked) OR NOT EXISTS (SELECT FROM jobwire_engine.leader WHERE engine = $1)
    ON CONFLICT (engine) DO UPDATE
        SET node = $2, transport = $4, expires_at = clock_timestamp() + $3,
            term = least(l.term, 9223372036854775806) + CASE WHEN l.node = $2 THEN 0 ELSE 1 END
        WHERE l.node = $2 OR l.expires_at NOT BETWEEN clock_timestamp() AND clock_timestamp() + greatest(10 * $3, interval '1 minute')
    RETURNING l.term
)
SELECT (SELECT term FROM lead), statement_timestamp(), pg_snapshot_xmin(pg_current_snapshot())::text::bigint,
    ($5::timestamptz IS NULL OR clock_timestamp() BETWEEN $5 AND $6)
        AND clock_timestamp() - pg_postmaster_start_time() NOT BETWEEN interval '0' AND $7,
    l.node, l.transport,
    (extract(epoch FROM CASE WHEN isfinite(l.expires_at) THEN l.expires_at - clock_timestamp() END) * 1000)::bigint,
    $5::timestamptz IS NOT NULL AND clock_timestamp() NOT BETWEEN $5 AND $6
FROM (SELECT) AS one LEFT JOIN jobwire_engine.leader l ON l.engine = $1";

/// The answer of the statement: the leader.
pub(crate) enum Lead {
    /// The asking node leads.
    Ours {
        term: i64,
        now: DateTime<Utc>,
        horizon: Option<Horizon>,
        /// Whether expired locks may be cleared.
        may_rescue: bool,
        /// Whether the clock was outside of the window of the cycle.
        clock_outside: bool,
    },
    /// Another node leads.
    Theirs {
        leader: NodeId,
        transport: String,
        remaining: Duration,
        now: DateTime<Utc>,
    },
}

pub(crate) async fn take(
    pool: &PgPool,
    engine: &str,
    cycle: &LeaderCycle,
) -> Result<Lead, StoreError> {
    let row = sqlx::query(TAKE)
        .bind(engine)
        .bind(cycle.node.uuid())
        .bind(cycle.lease)
        .bind(cycle.transport)
        .bind(cycle.clock.map(|clock| clock.from))
        .bind(cycle.clock.map(|clock| clock.until))
        .bind(cycle.grace)
        .fetch_one(pool)
        .await?;
    let Some(term) = row.try_get(0)? else {
        let leader: Option<Uuid> = row.try_get(4)?;
        let millis: Option<i64> = row.try_get(6)?;
        return Ok(Lead::Theirs {
            leader: NodeId::from_uuid(leader.unwrap_or_default()),
            transport: row.try_get::<Option<String>, _>(5)?.unwrap_or_default(),
            remaining: Duration::from_millis(
                millis.and_then(|m| u64::try_from(m).ok()).unwrap_or(0),
            ),
            now: row.try_get(1)?,
        });
    };
    Ok(Lead::Ours {
        term,
        now: row.try_get(1)?,
        horizon: row.try_get::<Option<i64>, _>(2)?.map(Horizon),
        may_rescue: row.try_get::<Option<bool>, _>(3)?.unwrap_or(false),
        clock_outside: row.try_get::<Option<bool>, _>(7)?.unwrap_or(false),
    })
}

/// Ends the leader's lease. Keeps the row, so that terms keep growing.
const RESIGN: &str = "
UPDATE jobwire_engine.leader SET expires_at = clock_timestamp() - interval '1 second'
WHERE engine = $1 AND node = $2 AND expires_at > clock_timestamp()";

pub(crate) async fn resign(pool: &PgPool, engine: &str, node: NodeId) -> Result<(), StoreError> {
    sqlx::query(RESIGN)
        .bind(engine)
        .bind(node.uuid())
        .execute(pool)
        .await?;
    Ok(())
}

//! The leader's turn: one transaction (protocol rule 24).

use std::time::Duration;

use sqlx::{Row, SqliteConnection};

use super::sql::{ready_columns, strikes};
use super::{SqliteStore, row};
use crate::error::StoreError;
use crate::hint::Ready;
use crate::job::{JobId, NodeId};
use crate::store::{COUNT_LIMIT, Turn, TurnOutcome, TurnReport};

/// Lead if nobody else does.
const LEAD: &str = "
INSERT INTO leader AS l (role, node, term, transport, expires_at) VALUES ('leader', ?1, 1, ?2, ?3)
ON CONFLICT (role) DO UPDATE
    SET node = excluded.node, transport = excluded.transport, expires_at = excluded.expires_at,
        term = l.term + (l.node <> excluded.node)
    WHERE l.node = excluded.node OR l.expires_at <= ?4
RETURNING term";

const LEADER: &str = "SELECT node, transport, expires_at FROM leader WHERE role = 'leader'";

/// Take locks off holders whose lease ran out.
const RESET: &str = concat!(
    "UPDATE job_lease AS l SET owner = NULL, alone_since = NULL, strikes = ",
    strikes!("l"),
    "
WHERE job_id IN (SELECT job_id FROM job_lease WHERE owner IS NOT NULL AND expires_at <= ?1 ORDER BY job_id LIMIT ?2)
RETURNING job_id"
);

const UNHINTED: &str = "SELECT id FROM job WHERE hints = 0 ORDER BY seq LIMIT ?1";

const HINT: &str = concat!(
    "UPDATE job SET ready_at = ?2, hints = hints + 1 WHERE id IN (SELECT value FROM json_each(?1)) RETURNING ",
    ready_columns!(),
    ", seq"
);

const FACTS: &str = "
SELECT
    (SELECT min(due_at) FROM timer_job),
    (SELECT count(*) FROM job_lease WHERE owner IS NOT NULL AND expires_at > ?1),
    (SELECT count(*) FROM (SELECT 1 FROM job LIMIT ?2)),
    (SELECT count(*) FROM (SELECT 1 FROM timer_job LIMIT ?2)),
    (SELECT count(*) FROM (SELECT 1 FROM dead_letter_job LIMIT ?2)),
    (SELECT ready_at FROM job ORDER BY id LIMIT 1)";

/// The row stays, so that the term goes on growing.
const RESIGN: &str = "
UPDATE leader SET expires_at = ?2 - 1000000 WHERE role = 'leader' AND node = ?1 AND expires_at > ?2";

/// Count a hint for each of these, now.
async fn hint(
    connection: &mut SqliteConnection,
    now: i64,
    ids: &[JobId],
) -> Result<Vec<Ready>, StoreError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let rows = sqlx::query(HINT)
        .bind(row::array(ids)?)
        .bind(now)
        .fetch_all(connection)
        .await?;
    row::ready_in_order(&rows)
}

/// Mark jobs that nobody hinted (created by plain SQL), oldest first.
async fn hint_unhinted(
    connection: &mut SqliteConnection,
    now: i64,
    at_most: i64,
) -> Result<Vec<Ready>, StoreError> {
    let rows = sqlx::query(UNHINTED)
        .bind(at_most)
        .fetch_all(&mut *connection)
        .await?;
    hint(connection, now, &row::job_ids(&rows)?).await
}

impl SqliteStore {
    pub(super) async fn turn(&self, turn: &Turn) -> Result<TurnOutcome, StoreError> {
        let mut tx = self.write().await?;
        let now = row::now_micros();
        let term: Option<i64> = sqlx::query_scalar(LEAD)
            .bind(turn.node.to_string())
            .bind(turn.transport)
            .bind(row::later(now, turn.lease))
            .bind(now)
            .fetch_optional(&mut *tx)
            .await?;
        let outcome = match term {
            Some(term) => TurnOutcome::Leads(Box::new(lead(&mut tx, turn, now, term).await?)),
            None => follow(&mut tx, now).await?,
        };
        tx.commit().await?;
        Ok(outcome)
    }

    pub(super) async fn resign_leading(&self, node: NodeId) -> Result<(), StoreError> {
        let mut tx = self.write().await?;
        sqlx::query(RESIGN)
            .bind(node.to_string())
            .bind(row::now_micros())
            .execute(&mut *tx)
            .await?;
        Ok(tx.commit().await?)
    }

    pub(super) async fn hint_unhinted(&self, at_most: i64) -> Result<Vec<Ready>, StoreError> {
        let mut tx = self.write().await?;
        let ready = hint_unhinted(&mut tx, row::now_micros(), at_most).await?;
        tx.commit().await?;
        Ok(ready)
    }
}

async fn lead(
    connection: &mut SqliteConnection,
    turn: &Turn,
    now: i64,
    term: i64,
) -> Result<TurnReport, StoreError> {
    let shown = row::moment(now)?;
    let believed = turn
        .clock
        .is_none_or(|clock| (clock.from..=clock.until).contains(&shown));
    let reset = sqlx::query(RESET)
        .bind(now)
        .bind(if believed { turn.reset_at_most } else { 0 })
        .fetch_all(&mut *connection)
        .await?;
    // Expired ones first: what they count as hinted is not unhinted any more.
    let expired = hint(connection, now, &row::job_ids(&reset)?).await?;
    let unhinted = hint_unhinted(connection, now, turn.hint_at_most).await?;
    let facts = sqlx::query(FACTS)
        .bind(now)
        .bind(COUNT_LIMIT + 1)
        .fetch_one(connection)
        .await?;
    Ok(TurnReport {
        term,
        now: row::moment(now)?,
        expired,
        unhinted,
        next_due: row::maybe_moment(facts.try_get(0)?)?,
        leased: facts.try_get(1)?,
        executable: facts.try_get(2)?,
        timers: facts.try_get(3)?,
        dead_letters: facts.try_get(4)?,
        oldest_ready_at: row::maybe_moment(facts.try_get(5)?)?,
    })
}

async fn follow(connection: &mut SqliteConnection, now: i64) -> Result<TurnOutcome, StoreError> {
    let leader = sqlx::query(LEADER).fetch_one(connection).await?;
    let expires_at: i64 = leader.try_get(2)?;
    Ok(TurnOutcome::Follows {
        leader: NodeId(row::uuid(&leader, 0)?),
        transport: leader.try_get(1)?,
        remaining: Duration::from_micros(u64::try_from(expires_at - now).unwrap_or(0)),
    })
}

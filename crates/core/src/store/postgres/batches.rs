//! Batches: creating, ending, listing and cancelling them.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::postgres::{PgPool, PgRow};
use sqlx::{PgConnection, Row as _};
use uuid::Uuid;

use super::begin::begin_impatiently;
use super::{PgStore, batch_members, insert};
use crate::job::batch::{BatchEnd, BatchState, BatchView};
use crate::job::{BatchId, JobId};
use crate::store::batches::{
    AT_END, BatchMembers, EndedBatch, MOST_MEMBERS, NewBatch, OpenBatches, callback, fault,
    refusal, refused_by, taken,
};
use crate::store::statements::Batching;
use crate::store::{Origin, Result};

const CREATE: &str = "
INSERT INTO jobwire.batch (id, name, callback_id, callback, or_dead_letters) VALUES ($1, $2, $3, $4::json, $5)";

/// Locks an open batch alone.
const ENTER: &str = "
SELECT name, callback_id, callback::text, or_dead_letters, departed, dead_letters FROM jobwire.batch
WHERE id = $1 AND ended_at IS NULL FOR NO KEY UPDATE";

/// Locks an open batch alone that dead letters do not keep open.
const ENTER_WITH_DEAD: &str = "SELECT FROM jobwire.batch WHERE id = $1 AND ended_at IS NULL AND or_dead_letters FOR NO KEY UPDATE";

/// Locks a batch alone, also one that has ended.
const HOLD: &str = "SELECT FROM jobwire.batch WHERE id = $1 FOR NO KEY UPDATE";

/// Forgets those of these members that are no longer present. Dead letters are.
const DEPART: &str = "
WITH gone AS (
    DELETE FROM jobwire.batch_member m
    WHERE m.batch_id = $1 AND m.job_id = ANY($2) AND NOT jobwire.is_present(m.job_id, true)
    RETURNING m.job_id
)
UPDATE jobwire.batch SET departed = least(departed + (SELECT count(*) FROM gone), 4611686018427387903) WHERE id = $1 RETURNING departed";

/// Returns whether one of these members keeps the batch open.
const KEEPS_OPEN: &str = "
SELECT EXISTS (
    SELECT FROM jobwire.batch b JOIN jobwire.batch_member m ON m.batch_id = b.id
    WHERE b.id = $1 AND m.job_id = ANY($2) AND jobwire.is_present(m.job_id, NOT b.or_dead_letters))";

/// Forgets these members, and counts the dead letters among them. One that an operator has just retried
/// stays.
const FORGET_DEAD: &str = "
WITH gone AS (
    DELETE FROM jobwire.batch_member m
    WHERE m.batch_id = $1 AND m.job_id = ANY($2) AND NOT jobwire.is_present(m.job_id, false) RETURNING m.job_id
)
UPDATE jobwire.batch SET departed = least(departed + (SELECT count(*) FROM gone), 4611686018427387903),
    dead_letters = least(
        dead_letters + (SELECT count(*) FROM gone g JOIN jobwire.dead_letter_job d ON d.id = g.job_id), 4611686018427387903)
WHERE id = $1";

/// Returns whether one of the latest members is present: most members that are gone are old.
const HAS_MEMBERS: &str = "
SELECT EXISTS (
    SELECT FROM (
        SELECT m.job_id FROM jobwire.batch_member m WHERE m.batch_id = $1 ORDER BY m.job_id DESC LIMIT $3) m
    WHERE jobwire.is_present(m.job_id, NOT $2))";

/// Counts the members, up to a limit, and the dead letters among them. Tells whether a job has the id of
/// the job at the end.
const COUNT: &str = "
SELECT count(*), count(d.id),
    EXISTS (SELECT FROM jobwire.job WHERE id = $3) OR EXISTS (SELECT FROM jobwire.timer_job WHERE id = $3)
    OR EXISTS (SELECT FROM jobwire.suspended_job WHERE id = $3) OR EXISTS (SELECT FROM jobwire.dead_letter_job WHERE id = $3)
FROM (SELECT job_id FROM jobwire.batch_member WHERE batch_id = $1 LIMIT $2) m
LEFT JOIN jobwire.dead_letter_job d ON d.id = m.job_id";

const END: &str = "
UPDATE jobwire.batch SET ended_at = clock_timestamp(), departed = $2, dead_letters = $3, callback = $4::json WHERE id = $1";

const FORGET: &str = "DELETE FROM jobwire.batch_member WHERE batch_id = $1";

/// Tells of each batch of a page whether none of its latest members is present.
const OPEN: &str = "
WITH page AS MATERIALIZED (
    SELECT id, or_dead_letters FROM jobwire.batch
    WHERE ended_at IS NULL AND id > coalesce($1, '00000000-0000-0000-0000-000000000000'::uuid) ORDER BY id LIMIT $2
)
SELECT p.id, NOT EXISTS (
    SELECT FROM (
        SELECT m.job_id FROM jobwire.batch_member m WHERE m.batch_id = p.id ORDER BY m.job_id DESC LIMIT 100) m
    WHERE jobwire.is_present(m.job_id, NOT p.or_dead_letters))
FROM page p ORDER BY p.id";

/// Reads no more than the beginning of the row's text of a batch that has ended.
macro_rules! list {
    ($where:literal, $with_template:literal) => {
        concat!(
            "
SELECT b.id, b.name, b.callback_id, b.or_dead_letters, b.created_at, b.ended_at, b.cancelled,
    CASE WHEN b.ended_at IS NOT NULL THEN left(b.callback::text, 8000) END AS refused,
    CASE WHEN b.ended_at IS NULL AND ",
            $with_template,
            " THEN b.callback::text END AS template,
    b.departed + c.members AS members,
    b.departed + c.gone - CASE WHEN b.ended_at IS NULL THEN b.dead_letters ELSE 0 END AS ended,
    b.dead_letters + CASE WHEN b.ended_at IS NULL THEN c.dead ELSE 0 END AS dead_letters
FROM (SELECT * FROM jobwire.batch WHERE ",
            $where,
            " ORDER BY id DESC LIMIT $2) b,
LATERAL (
    SELECT count(*) AS members, count(*) FILTER (WHERE x.dead) AS dead, count(*) FILTER (WHERE NOT x.present) AS gone
    FROM (
        SELECT EXISTS (SELECT FROM jobwire.dead_letter_job d WHERE d.id = m.job_id) AS dead,
            EXISTS (SELECT FROM jobwire.job j WHERE j.id = m.job_id)
            OR EXISTS (SELECT FROM jobwire.timer_job t WHERE t.id = m.job_id)
            OR EXISTS (SELECT FROM jobwire.suspended_job s WHERE s.id = m.job_id)
            OR EXISTS (SELECT FROM jobwire.dead_letter_job d WHERE d.id = m.job_id)
            OR EXISTS (SELECT FROM jobwire.batch i WHERE i.callback_id = m.job_id AND i.ended_at IS NULL) AS present
        FROM jobwire.batch_member m WHERE m.batch_id = b.id) x) c
ORDER BY b.id DESC"
        )
    };
}

const LIST: &str = list!(
    "($1 OR ended_at IS NULL)",
    "octet_length(b.callback::text) <= 20000"
);
const SHOW: &str = list!("id = $1", "true");

const CANCEL: &str = "
UPDATE jobwire.batch SET ended_at = clock_timestamp(), cancelled = true, callback = NULL
WHERE id = $1 AND ended_at IS NULL";

const MEMBERS: &str = "
SELECT job_id FROM jobwire.batch_member
WHERE batch_id = $1 AND job_id > coalesce($2, '00000000-0000-0000-0000-000000000000'::uuid) ORDER BY job_id LIMIT $3";

const INNER: &str =
    "SELECT id FROM jobwire.batch WHERE callback_id = ANY($1) AND (ended_at IS NULL OR cancelled)";

/// Forgets the members of cancelled batches whose jobs have ended since, and batches that ended
/// before this time.
const PRUNE: [&str; 2] = [
    "
DELETE FROM jobwire.batch_member WHERE (batch_id, job_id) IN (
    SELECT m.batch_id, m.job_id FROM jobwire.batch b JOIN jobwire.batch_member m ON m.batch_id = b.id
    WHERE b.ended_at < clock_timestamp() - $2 AND NOT jobwire.is_present(m.job_id, true)
    LIMIT $1 FOR UPDATE OF m SKIP LOCKED)",
    "
DELETE FROM jobwire.batch WHERE id IN (
    SELECT b.id FROM jobwire.batch b
    WHERE b.ended_at < clock_timestamp() - $2 AND NOT EXISTS (SELECT FROM jobwire.batch_member m WHERE m.batch_id = b.id)
    ORDER BY b.ended_at LIMIT $1 FOR UPDATE SKIP LOCKED)",
];

/// Writes a batch in the caller's transaction.
pub(super) async fn create(connection: &mut PgConnection, batch: &NewBatch) -> Result<()> {
    if let Some(outer) = batch.outer {
        batch_members::join_these(connection, &[outer], &[(outer, batch.callback_id)]).await?;
    }
    sqlx::query(CREATE)
        .bind(batch.id.0)
        .bind(&batch.name)
        .bind(batch.callback_id.0)
        .bind(&batch.callback)
        .bind(batch.or_dead_letters)
        .execute(connection)
        .await?;
    Ok(())
}

/// Forgets batches that ended before this time.
pub(super) async fn prune(pool: &PgPool, kept: Duration, at_most: i64) -> Result<u64> {
    let mut most = 0;
    for statement in PRUNE {
        let pruned = sqlx::query(statement).bind(at_most).bind(kept);
        most = most.max(pruned.execute(pool).await?.rows_affected());
    }
    Ok(most)
}

/// Returns whether one of these members keeps the batch open.
async fn keep_open(
    connection: &mut PgConnection,
    batch: BatchId,
    members: &[Uuid],
) -> Result<bool> {
    let keep = sqlx::query_scalar(KEEPS_OPEN).bind(batch.0).bind(members);
    Ok(keep.fetch_one(connection).await?)
}

/// Returns whether one of the latest members keeps the batch open.
async fn has_members(
    connection: &mut PgConnection,
    batch: BatchId,
    or_dead_letters: bool,
) -> Result<bool> {
    let has = sqlx::query_scalar(HAS_MEMBERS).bind(batch.0);
    let has = has.bind(or_dead_letters).bind(AT_END);
    Ok(has.fetch_one(connection).await?)
}

fn view(row: &PgRow) -> Result<BatchView> {
    let number = |column: &str| -> Result<u64> {
        let number: i64 = row.try_get(column)?;
        Ok(number.max(0).unsigned_abs())
    };
    let ended_at: Option<DateTime<Utc>> = row.try_get("ended_at")?;
    let callback = JobId(row.try_get("callback_id")?);
    let end = BatchEnd {
        batch: BatchId(row.try_get("id")?),
        name: row.try_get("name")?,
        members: 0,
        dead_letters: 0,
    };
    Ok(BatchView {
        fault: fault(callback, row.try_get("template")?, &end),
        id: end.batch,
        name: end.name,
        state: BatchState::of(ended_at.is_some(), row.try_get("cancelled")?),
        members: number("members")?,
        ended: number("ended")?,
        dead_letters: number("dead_letters")?,
        or_dead_letters: row.try_get("or_dead_letters")?,
        callback,
        created_at: row.try_get("created_at")?,
        refused: refused_by(row.try_get("refused")?),
        ended_at,
    })
}

impl Batching for PgStore {
    async fn end_if_over(&self, batch: BatchId, left: &[JobId]) -> Result<Option<EndedBatch>> {
        let mut tx = begin_impatiently(&self.pool).await?;
        let entered = sqlx::query(ENTER).bind(batch.0);
        let Some(row) = entered.fetch_optional(&mut *tx).await? else {
            return Ok(None);
        };
        let (name, job): (String, Uuid) = (row.try_get(0)?, row.try_get(1)?);
        let template: Option<String> = row.try_get(2)?;
        let or_dead_letters: bool = row.try_get(3)?;
        let mut departed: i64 = row.try_get(4)?;
        let settled: i64 = row.try_get(5)?;
        if !left.is_empty() {
            departed = sqlx::query_scalar(DEPART)
                .bind(batch.0)
                .bind(left.iter().map(|id| id.0).collect::<Vec<_>>())
                .fetch_one(&mut *tx)
                .await?;
        }
        if has_members(&mut tx, batch, or_dead_letters).await? {
            tx.commit().await?;
            return Ok(None);
        }
        let (others, dead_letters, is_taken): (i64, i64, bool) = sqlx::query_as(COUNT)
            .bind(batch.0)
            .bind(AT_END + 1)
            .bind(job)
            .fetch_one(&mut *tx)
            .await?;
        if others > AT_END {
            tx.commit().await?;
            return Ok(None);
        }
        let dead_letters = dead_letters.saturating_add(settled).min(MOST_MEMBERS);
        let members = departed.saturating_add(others).min(MOST_MEMBERS);
        let end = BatchEnd {
            batch,
            name,
            members: members.unsigned_abs(),
            dead_letters: dead_letters.unsigned_abs(),
        };
        let (mut ready, mut created, mut refused, mut kept) = (Vec::new(), None, None, None);
        match template {
            None => {}
            Some(template) if is_taken => {
                let why = taken(JobId(job));
                kept = Some(refusal(&why, &template)?);
                refused = Some(why);
            }
            Some(template) => {
                let new = callback(JobId(job), &template, &end)?;
                ready = insert::insert(&mut tx, vec![new], Origin::Hook)
                    .await?
                    .ready;
                created = Some(JobId(job));
            }
        }
        sqlx::query(END)
            .bind(batch.0)
            .bind(members)
            .bind(dead_letters)
            .bind(kept)
            .execute(&mut *tx)
            .await?;
        sqlx::query(FORGET).bind(batch.0).execute(&mut *tx).await?;
        crash_point!("batch-end-uncommitted");
        tx.commit().await?;
        crash_point!("batch-end-committed");
        Ok(Some(EndedBatch {
            end,
            ready,
            job: created,
            refused,
        }))
    }

    async fn page_of_open(&self, after: Option<BatchId>, at_most: i64) -> Result<OpenBatches> {
        let rows = sqlx::query(OPEN)
            .bind(after.map(|id| id.0))
            .bind(at_most)
            .fetch_all(&self.pool.inner)
            .await?;
        let page = rows
            .iter()
            .map(|row| Ok((BatchId(row.try_get(0)?), row.try_get(1)?)));
        Ok(OpenBatches::of(&page.collect::<Result<Vec<_>>>()?, at_most))
    }

    async fn list_batches(&self, ended: bool, at_most: i64) -> Result<Vec<BatchView>> {
        let rows = sqlx::query(LIST).bind(ended).bind(at_most);
        let rows = rows.fetch_all(&self.pool.inner).await?;
        rows.iter().map(view).collect()
    }

    async fn read_batch(&self, batch: BatchId) -> Result<Option<BatchView>> {
        let row = sqlx::query(SHOW).bind(batch.0).bind(1_i64);
        let row = row.fetch_optional(&self.pool.inner).await?;
        row.as_ref().map(view).transpose()
    }

    async fn mark_batch_cancelled(&self, batch: BatchId) -> Result<bool> {
        let mut tx = begin_impatiently(&self.pool).await?;
        let cancelled = sqlx::query(CANCEL).bind(batch.0).execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(cancelled.rows_affected() > 0)
    }

    async fn page_of_members(
        &self,
        batch: BatchId,
        after: Option<JobId>,
        at_most: i64,
    ) -> Result<BatchMembers> {
        let jobs: Vec<Uuid> = sqlx::query_scalar(MEMBERS)
            .bind(batch.0)
            .bind(after.map(|id| id.0))
            .bind(at_most)
            .fetch_all(&self.pool.inner)
            .await?;
        let inner: Vec<Uuid> = sqlx::query_scalar(INNER)
            .bind(&jobs)
            .fetch_all(&self.pool.inner)
            .await?;
        Ok(BatchMembers {
            jobs: jobs.into_iter().map(JobId).collect(),
            inner: inner.into_iter().map(BatchId).collect(),
        })
    }

    async fn forget_members(&self, batch: BatchId, left: &[JobId]) -> Result<bool> {
        let left: Vec<Uuid> = left.iter().map(|id| id.0).collect();
        let mut tx = begin_impatiently(&self.pool).await?;
        sqlx::query(HOLD).bind(batch.0).execute(&mut *tx).await?;
        sqlx::query(DEPART)
            .bind(batch.0)
            .bind(&left)
            .fetch_optional(&mut *tx)
            .await?;
        let keep_open = keep_open(&mut tx, batch, &left).await?;
        tx.commit().await?;
        Ok(keep_open)
    }

    async fn forget_dead(&self, batch: BatchId, members: &[JobId]) -> Result<bool> {
        let members: Vec<Uuid> = members.iter().map(|id| id.0).collect();
        let mut tx = begin_impatiently(&self.pool).await?;
        let entered = sqlx::query(ENTER_WITH_DEAD).bind(batch.0);
        let entered = entered.fetch_optional(&mut *tx).await?;
        if entered.is_none() || keep_open(&mut tx, batch, &members).await? {
            return Ok(false);
        }
        // A member that was created meanwhile is among the latest.
        if has_members(&mut tx, batch, true).await? {
            return Ok(false);
        }
        let forget = sqlx::query(FORGET_DEAD).bind(batch.0).bind(&members);
        forget.execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(true)
    }
}

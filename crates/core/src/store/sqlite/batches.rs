//! Batches: creating, ending, listing and cancelling them.
//!
//! SQLite has one writer, so a transaction that writes sees all that others have committed.

use std::time::Duration;

use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::{SqliteStore, batch_members, decode, insert};
use crate::job::batch::{BatchEnd, BatchState, BatchView};
use crate::job::{BatchId, JobId};
use crate::store::batches::{
    AT_END, BatchMembers, EndedBatch, MOST_MEMBERS, NewBatch, OpenBatches, callback, fault,
    refusal, refused_by, taken,
};
use crate::store::statements::Batching;
use crate::store::{Origin, Result};

/// True if member `m` is present. A dead letter is only with the condition.
macro_rules! is_present {
    ($dead_letters:literal) => {
        concat!(
            "(EXISTS (SELECT 1 FROM job j WHERE j.id = m.job_id) OR EXISTS (SELECT 1 FROM timer_job t WHERE t.id = m.job_id)
    OR EXISTS (SELECT 1 FROM suspended_job s WHERE s.id = m.job_id)
    OR ",
            $dead_letters,
            " AND EXISTS (SELECT 1 FROM dead_letter_job d WHERE d.id = m.job_id)
    OR EXISTS (SELECT 1 FROM batch i WHERE i.callback_id = m.job_id AND i.ended_at IS NULL))"
        )
    };
}

const CREATE: &str = "
INSERT INTO batch (id, name, callback_id, callback, or_dead_letters, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

const ENTER: &str = "
SELECT name, callback_id, callback, or_dead_letters, departed, dead_letters FROM batch WHERE id = ?1 AND ended_at IS NULL";

/// Forgets those of these members that are no longer present. Dead letters are.
const DEPART: &str = concat!(
    "DELETE FROM batch_member AS m WHERE m.batch_id = ?1 AND m.job_id IN (SELECT value FROM json_each(?2)) AND NOT ",
    is_present!("true")
);

const COUNT_DEPARTED: &str =
    "UPDATE batch SET departed = min(departed + ?2, 4611686018427387903) WHERE id = ?1";

/// Selects an open batch that dead letters do not keep open.
const ENTER_WITH_DEAD: &str =
    "SELECT 1 FROM batch WHERE id = ?1 AND ended_at IS NULL AND or_dead_letters";

/// Returns whether one of these members keeps the batch open.
const KEEPS_OPEN: &str = concat!(
    "
SELECT EXISTS (
    SELECT 1 FROM batch b JOIN batch_member m ON m.batch_id = b.id
    WHERE b.id = ?1 AND m.job_id IN (SELECT value FROM json_each(?2)) AND ",
    is_present!("NOT b.or_dead_letters"),
    ")"
);

/// Counts these members, and the dead letters among them.
const COUNT_DEAD: &str = "
UPDATE batch SET departed = min(departed + c.members, 4611686018427387903),
    dead_letters = min(dead_letters + c.dead, 4611686018427387903)
FROM (
    SELECT count(*) AS members, count(d.id) AS dead
    FROM batch_member m LEFT JOIN dead_letter_job d ON d.id = m.job_id
    WHERE m.batch_id = ?1 AND m.job_id IN (SELECT value FROM json_each(?2))) c
WHERE batch.id = ?1";

const FORGET_THESE: &str = "
DELETE FROM batch_member WHERE batch_id = ?1 AND job_id IN (SELECT value FROM json_each(?2))";

/// Returns whether one of the latest members is present: most members that are gone are old.
const HAS_MEMBERS: &str = concat!(
    "
SELECT EXISTS (
    SELECT 1 FROM (SELECT m.job_id FROM batch_member m WHERE m.batch_id = ?1 ORDER BY m.job_id DESC LIMIT ?3) m
    WHERE ",
    is_present!("NOT ?2"),
    ")"
);

/// Counts the members, up to a limit, and the dead letters among them. Tells whether a job has the id of
/// the job at the end.
const COUNT: &str = "
SELECT count(*), count(d.id),
    EXISTS (SELECT 1 FROM job WHERE id = ?3) OR EXISTS (SELECT 1 FROM timer_job WHERE id = ?3)
    OR EXISTS (SELECT 1 FROM suspended_job WHERE id = ?3) OR EXISTS (SELECT 1 FROM dead_letter_job WHERE id = ?3)
FROM (SELECT job_id FROM batch_member WHERE batch_id = ?1 LIMIT ?2) m LEFT JOIN dead_letter_job d ON d.id = m.job_id";

const END: &str =
    "UPDATE batch SET ended_at = ?2, departed = ?3, dead_letters = ?4, callback = ?5 WHERE id = ?1";

const FORGET: &str = "DELETE FROM batch_member WHERE batch_id = ?1";

/// Tells of each batch of a page whether none of its latest members is present.
const OPEN: &str = concat!(
    "
SELECT p.id, NOT EXISTS (
    SELECT 1 FROM (SELECT m.job_id FROM batch_member m WHERE m.batch_id = p.id ORDER BY m.job_id DESC LIMIT 100) m
    WHERE ",
    is_present!("NOT p.or_dead_letters"),
    ")
FROM (SELECT id, or_dead_letters FROM batch WHERE ended_at IS NULL AND octet_length(id) = 36 AND id > coalesce(?1, '') ORDER BY id LIMIT ?2) p
ORDER BY p.id"
);

/// Reads no more than the beginning of the row's text of a batch that has ended.
macro_rules! list {
    ($where:literal, $with_template:literal) => {
        concat!(
            "
SELECT b.id, b.name, b.callback_id, b.or_dead_letters, b.created_at, b.ended_at, b.cancelled, b.departed, b.dead_letters,
    CASE WHEN b.ended_at IS NOT NULL THEN substr(b.callback, 1, 8000) END AS refused,
    CASE WHEN b.ended_at IS NULL AND ",
            $with_template,
            " THEN b.callback END AS template,
    (SELECT count(*) FROM batch_member m WHERE m.batch_id = b.id) AS members,
    (SELECT count(*) FROM batch_member m WHERE m.batch_id = b.id AND NOT ",
            is_present!("true"),
            ") AS gone,
    (SELECT count(*) FROM batch_member m JOIN dead_letter_job d ON d.id = m.job_id WHERE m.batch_id = b.id) AS dead
FROM batch b WHERE ",
            $where,
            " ORDER BY b.id DESC LIMIT ?2"
        )
    };
}

const LIST: &str = list!(
    "(?1 OR b.ended_at IS NULL)",
    "length(CAST(b.callback AS BLOB)) <= 20000"
);
const SHOW: &str = list!("b.id = ?1", "true");

const CANCEL: &str = "UPDATE batch SET ended_at = ?2, cancelled = 1, callback = NULL WHERE id = ?1 AND ended_at IS NULL";

const MEMBERS: &str = "
SELECT job_id FROM batch_member WHERE batch_id = ?1 AND job_id > coalesce(?2, '') ORDER BY job_id LIMIT ?3";

const INNER: &str = "
SELECT id FROM batch WHERE callback_id IN (SELECT value FROM json_each(?1)) AND (ended_at IS NULL OR cancelled)";

/// Forgets the members of cancelled batches whose jobs have ended since, and batches that ended
/// before this time.
const PRUNE: [&str; 2] = [
    concat!(
        "DELETE FROM batch_member WHERE (batch_id, job_id) IN (
    SELECT m.batch_id, m.job_id FROM batch b JOIN batch_member m ON m.batch_id = b.id
    WHERE b.ended_at < ?2 AND NOT ",
        is_present!("true"),
        " LIMIT ?1)"
    ),
    "DELETE FROM batch WHERE id IN (
    SELECT b.id FROM batch b
    WHERE b.ended_at < ?2 AND NOT EXISTS (SELECT 1 FROM batch_member m WHERE m.batch_id = b.id)
    ORDER BY b.ended_at LIMIT ?1)",
];

/// Writes a batch in the caller's transaction.
pub(super) async fn create(connection: &mut SqliteConnection, batch: &NewBatch) -> Result<()> {
    if let Some(outer) = batch.outer {
        batch_members::join_these(connection, &[outer], &[(outer, batch.callback_id)]).await?;
    }
    sqlx::query(CREATE)
        .bind(batch.id.to_string())
        .bind(&batch.name)
        .bind(batch.callback_id.to_string())
        .bind(&batch.callback)
        .bind(batch.or_dead_letters)
        .bind(decode::now_micros())
        .execute(connection)
        .await?;
    Ok(())
}

/// Forgets batches that ended before this time.
pub(super) async fn prune(
    connection: &mut SqliteConnection,
    kept: Duration,
    at_most: i64,
) -> Result<u64> {
    let kept = i64::try_from(kept.as_micros()).unwrap_or(i64::MAX);
    let before = decode::now_micros().saturating_sub(kept);
    let mut most = 0;
    for statement in PRUNE {
        let pruned = sqlx::query(statement).bind(at_most).bind(before);
        most = most.max(pruned.execute(&mut *connection).await?.rows_affected());
    }
    Ok(most)
}

/// Forgets those of these members that are no longer present, and returns their number.
async fn depart(connection: &mut SqliteConnection, batch: BatchId, left: &[JobId]) -> Result<i64> {
    let gone = sqlx::query(DEPART)
        .bind(batch.to_string())
        .bind(decode::array(left)?)
        .execute(&mut *connection)
        .await?;
    let gone = i64::try_from(gone.rows_affected()).unwrap_or(i64::MAX);
    if gone > 0 {
        sqlx::query(COUNT_DEPARTED)
            .bind(batch.to_string())
            .bind(gone)
            .execute(connection)
            .await?;
    }
    Ok(gone)
}

/// Returns whether one of these members keeps the batch open.
async fn keep_open(
    connection: &mut SqliteConnection,
    batch: BatchId,
    members: &[JobId],
) -> Result<bool> {
    let keep = sqlx::query_scalar(KEEPS_OPEN)
        .bind(batch.to_string())
        .bind(decode::array(members)?);
    Ok(keep.fetch_one(connection).await?)
}

/// Returns whether one of the latest members keeps the batch open.
async fn has_members(
    connection: &mut SqliteConnection,
    batch: BatchId,
    or_dead_letters: bool,
) -> Result<bool> {
    let has = sqlx::query_scalar(HAS_MEMBERS).bind(batch.to_string());
    let has = has.bind(or_dead_letters).bind(AT_END);
    Ok(has.fetch_one(connection).await?)
}

fn view(row: &SqliteRow) -> Result<BatchView> {
    let number = |column: &str| -> Result<i64> { Ok(row.try_get(column)?) };
    let ended_at = decode::maybe_moment(row.try_get("ended_at")?)?;
    let departed = number("departed")?;
    let settled = number("dead_letters")?;
    let (ended, dead_letters) = match ended_at {
        None => (departed - settled, settled.saturating_add(number("dead")?)),
        Some(_) => (departed, settled),
    };
    let positive = |number: i64| number.max(0).unsigned_abs();
    let callback = JobId(decode::shown_id(row, "callback_id")?);
    let end = BatchEnd {
        batch: BatchId(decode::shown_id(row, 0)?),
        name: decode::text(row, "name")?,
        members: 0,
        dead_letters: 0,
    };
    Ok(BatchView {
        fault: fault(
            callback,
            decode::maybe_text(row, "template")?.as_deref(),
            &end,
        ),
        id: end.batch,
        name: end.name,
        state: BatchState::of(ended_at.is_some(), row.try_get("cancelled")?),
        members: positive(departed.saturating_add(number("members")?)),
        ended: positive(ended.saturating_add(number("gone")?)),
        dead_letters: positive(dead_letters),
        or_dead_letters: row.try_get("or_dead_letters")?,
        callback,
        created_at: decode::moment(row.try_get("created_at")?)?,
        refused: refused_by(decode::maybe_text(row, "refused")?.as_deref()),
        ended_at,
    })
}

impl Batching for SqliteStore {
    async fn end_if_over(&self, batch: BatchId, left: &[JobId]) -> Result<Option<EndedBatch>> {
        let mut tx = self.write().await?;
        let entered = sqlx::query(ENTER).bind(batch.to_string());
        let Some(row) = entered.fetch_optional(&mut *tx).await? else {
            return Ok(None);
        };
        let name = decode::text(&row, 0)?;
        let job = JobId(decode::uuid(&row, 1)?);
        let template = decode::maybe_text(&row, 2)?;
        let or_dead_letters: bool = row.try_get(3)?;
        let mut departed: i64 = row.try_get(4)?;
        let settled: i64 = row.try_get(5)?;
        if !left.is_empty() {
            departed = departed.saturating_add(depart(&mut tx, batch, left).await?);
        }
        if has_members(&mut tx, batch, or_dead_letters).await? {
            tx.commit().await?;
            return Ok(None);
        }
        let (others, dead_letters, is_taken): (i64, i64, bool) = sqlx::query_as(COUNT)
            .bind(batch.to_string())
            .bind(AT_END + 1)
            .bind(job.to_string())
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
                let why = taken(job);
                kept = Some(refusal(&why, &template)?);
                refused = Some(why);
            }
            Some(template) => {
                let new = callback(job, &template, &end)?;
                ready = insert::insert(&mut tx, vec![new], Origin::Hook)
                    .await?
                    .ready;
                created = Some(job);
            }
        }
        sqlx::query(END)
            .bind(batch.to_string())
            .bind(decode::now_micros())
            .bind(members)
            .bind(dead_letters)
            .bind(kept)
            .execute(&mut *tx)
            .await?;
        sqlx::query(FORGET)
            .bind(batch.to_string())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(Some(EndedBatch {
            end,
            ready,
            job: created,
            refused,
        }))
    }

    async fn page_of_open(&self, after: Option<BatchId>, at_most: i64) -> Result<OpenBatches> {
        let rows = sqlx::query(OPEN)
            .bind(after.map(|id| id.to_string()))
            .bind(at_most)
            .fetch_all(&self.readers)
            .await?;
        let page = rows
            .iter()
            .map(|row| Ok((BatchId(decode::uuid(row, 0)?), row.try_get(1)?)));
        Ok(OpenBatches::of(&page.collect::<Result<Vec<_>>>()?, at_most))
    }

    async fn list_batches(&self, ended: bool, at_most: i64) -> Result<Vec<BatchView>> {
        let rows = sqlx::query(LIST).bind(ended).bind(at_most);
        let rows = rows.fetch_all(&self.readers).await?;
        rows.iter().map(view).collect()
    }

    async fn read_batch(&self, batch: BatchId) -> Result<Option<BatchView>> {
        let row = sqlx::query(SHOW).bind(batch.to_string()).bind(1_i64);
        let row = row.fetch_optional(&self.readers).await?;
        row.as_ref().map(view).transpose()
    }

    async fn mark_batch_cancelled(&self, batch: BatchId) -> Result<bool> {
        let mut tx = self.write().await?;
        let cancelled = sqlx::query(CANCEL)
            .bind(batch.to_string())
            .bind(decode::now_micros())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(cancelled.rows_affected() > 0)
    }

    async fn page_of_members(
        &self,
        batch: BatchId,
        after: Option<JobId>,
        at_most: i64,
    ) -> Result<BatchMembers> {
        let jobs = sqlx::query(MEMBERS)
            .bind(batch.to_string())
            .bind(after.map(|id| id.to_string()))
            .bind(at_most)
            .fetch_all(&self.readers)
            .await?;
        let jobs = decode::texts(&jobs)?;
        let inner = sqlx::query(INNER).bind(decode::array(&jobs)?);
        let inner = decode::texts(&inner.fetch_all(&self.readers).await?)?;
        Ok(BatchMembers {
            jobs: jobs.iter().filter_map(|id| id.parse().ok()).collect(),
            inner: inner.iter().filter_map(|id| id.parse().ok()).collect(),
        })
    }

    async fn forget_members(&self, batch: BatchId, left: &[JobId]) -> Result<bool> {
        let mut tx = self.write().await?;
        depart(&mut tx, batch, left).await?;
        let keep_open = keep_open(&mut tx, batch, left).await?;
        tx.commit().await?;
        Ok(keep_open)
    }

    async fn forget_dead(&self, batch: BatchId, members: &[JobId]) -> Result<bool> {
        let mut tx = self.write().await?;
        let entered = sqlx::query(ENTER_WITH_DEAD).bind(batch.to_string());
        let entered = entered.fetch_optional(&mut *tx).await?;
        if entered.is_none() || keep_open(&mut tx, batch, members).await? {
            return Ok(false);
        }
        // A member that was created meanwhile is among the latest.
        if has_members(&mut tx, batch, true).await? {
            return Ok(false);
        }
        let members = decode::array(members)?;
        for statement in [COUNT_DEAD, FORGET_THESE] {
            sqlx::query(statement)
                .bind(batch.to_string())
                .bind(&members)
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        Ok(true)
    }
}

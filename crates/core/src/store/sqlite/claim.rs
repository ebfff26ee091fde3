//! Claims of ready jobs without a hint, while the broker is away (protocol rule 28).

use sqlx::{Row, SqliteConnection};

use super::lock::lock_in;
use super::sql::{has_id, in_turn, served, suspended, waits};
use super::{SqliteStore, decode};
use crate::hint::Hint;
use crate::store::error::StoreError;
use crate::store::statements::Claiming;
use crate::store::{ClaimOf, ClaimPage, Claimable, Claimed, LockTerms};

/// Selects the last row that one claim reads, if there are more.
const SLICE: &str = concat!(
    "SELECT id FROM job WHERE id > ?1 AND ",
    has_id!("id"),
    " ORDER BY id LIMIT 1 OFFSET ?2"
);

/// Finds jobs in the order of the primary key. There is one writer, so no other node locks a job
/// between this read and the lock. Jobs with strikes have their own share of the slots and are
/// excluded. Of a process instance only the first ready sibling counts, and only while the instance
/// is free.
const FIND: &str = concat!(
    "
SELECT j.id, j.exclusive, j.process_instance
FROM job j
WHERE j.id > ?1 AND (?2 IS NULL OR j.id <= ?2) AND j.lane = ?3 AND ",
    has_id!("j.id"),
    " AND ",
    served!("j", "?4", "?6"),
    "
  AND NOT EXISTS (SELECT 1 FROM job_lease l WHERE l.job_id = j.id AND (l.owner IS NOT NULL OR l.strikes > 0))
  AND NOT ",
    suspended!("j"),
    " AND NOT ",
    waits!("j"),
    "
  AND ",
    in_turn!("j"),
    "
ORDER BY j.id LIMIT ?5"
);

/// Finds jobs whose lease has lost its owner.
const FIND_STRUCK: &str = concat!(
    "
SELECT j.id, j.exclusive, j.process_instance
FROM job_lease l CROSS JOIN job j ON j.id = l.job_id
WHERE l.owner IS NULL AND (l.strikes >= 2) = ?4 AND j.id > ?5 AND j.lane = ?1 AND ",
    has_id!("j.id"),
    " AND ",
    served!("j", "?2", "?6"),
    " AND NOT ",
    suspended!("j"),
    " AND NOT ",
    waits!("j"),
    "
  AND ",
    in_turn!("j"),
    "
ORDER BY j.id LIMIT ?3"
);

impl Claiming for SqliteStore {
    async fn claim_page(&self, terms: &LockTerms, page: &ClaimPage) -> Result<Claimed, StoreError> {
        let mut tx = self.write().await?;
        let Claimable { hints, after } = claimable(&mut tx, terms, page).await?;
        let mut jobs = lock_in(&mut tx, terms, &hints).await?.jobs;
        tx.commit().await?;
        jobs.sort_by_key(|locked| locked.job.id);
        Ok(Claimed {
            jobs,
            after,
            ..Claimed::default()
        })
    }

    /// Returns the jobs that the page would lock.
    async fn claimable_page(
        &self,
        terms: &LockTerms,
        page: &ClaimPage,
    ) -> Result<Claimable, StoreError> {
        // A reading transaction: both statements see the same jobs.
        let mut tx = self.readers.begin().await?;
        let found = claimable(&mut tx, terms, page).await;
        tx.rollback().await?;
        found
    }
}

async fn claimable(
    connection: &mut SqliteConnection,
    terms: &LockTerms,
    page: &ClaimPage,
) -> Result<Claimable, StoreError> {
    let types = decode::array(&terms.types[..])?;
    let (rows, slice_end) = match page.of {
        ClaimOf::Rescued { after } | ClaimOf::Suspects { after } => {
            let rows = sqlx::query(FIND_STRUCK)
                .bind(&page.lane.0)
                .bind(types)
                .bind(page.at_most)
                .bind(matches!(page.of, ClaimOf::Suspects { .. }))
                .bind(after.map(|id| id.to_string()).unwrap_or_default())
                .bind(terms.scope.bound())
                .fetch_all(&mut *connection)
                .await?;
            (rows, None)
        }
        ClaimOf::Next { after, look_at } => {
            let after = after.map(|id| id.to_string()).unwrap_or_default();
            let slice_end = sqlx::query(SLICE)
                .bind(&after)
                .bind(look_at.max(1) - 1)
                .fetch_optional(&mut *connection)
                .await?;
            let slice_end = slice_end.as_ref().map(decode::job_id).transpose()?;
            let rows = sqlx::query(FIND)
                .bind(after)
                .bind(slice_end.map(|id| id.to_string()))
                .bind(&page.lane.0)
                .bind(types)
                .bind(page.at_most)
                .bind(terms.scope.bound())
                .fetch_all(&mut *connection)
                .await?;
            (rows, slice_end)
        }
    };
    let mut hints = Vec::with_capacity(rows.len());
    for (row, id) in rows.iter().zip(decode::job_ids(&rows)?) {
        let exclusive: bool = row.try_get(1)?;
        let instance = decode::instance(row, 2);
        hints.push(Hint {
            instance: instance.filter(|_| exclusive),
            ..Hint::new(id)
        });
    }
    Ok(Claimable::of(hints, slice_end, page))
}

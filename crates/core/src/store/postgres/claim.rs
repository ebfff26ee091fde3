//! Taking ready jobs without a hint, while the broker is away (protocol rule 28).

use sqlx::Row;
use uuid::Uuid;

use super::PgStore;
use super::begin::begin_by_key;
use super::lock::lock_plain;
use super::sql::{in_turn, not_suspended};
use crate::error::StoreError;
use crate::hint::Hint;
use crate::job::JobId;
use crate::store::{ClaimOf, ClaimPage, Claimed, LockTerms};

/// The primary key is the order, so no other index is needed. `slice` bounds what one statement reads where
/// few of the rows can be taken. Rows that another node claims at the same moment are locked, and passed over. So are jobs
/// with strikes, which have a share of the slots of their own. Of an instance only the first ready sibling counts, and
/// only while nobody holds the instance.
const FIND: &str = concat!(
    "
WITH slice AS MATERIALIZED (
    SELECT id FROM jobwire.job WHERE id > $1 ORDER BY id OFFSET $5 LIMIT 1
), found AS MATERIALIZED (
    SELECT j.id, j.exclusive, j.process_instance FROM jobwire.job j
    WHERE j.id > $1 AND j.id <= coalesce((SELECT id FROM slice), 'ffffffff-ffff-ffff-ffff-ffffffffffff')
      AND j.lane = $2 AND j.type = ANY($3)
      AND NOT EXISTS (
          SELECT FROM jobwire.job_lease l WHERE l.job_id = j.id AND (l.owner IS NOT NULL OR l.strikes > 0))
      AND ",
    not_suspended!("j"),
    "
      AND ",
    in_turn!("j"),
    "
    ORDER BY j.id LIMIT $4
    FOR UPDATE OF j SKIP LOCKED
)
SELECT (SELECT id FROM slice), f.id, f.exclusive, f.process_instance
FROM (VALUES (1)) AS always LEFT JOIN found f ON true
ORDER BY f.id"
);

/// Every lease is looked at; few have no owner.
const FIND_STRUCK: &str = concat!(
    "
SELECT NULL::uuid, j.id, j.exclusive, j.process_instance
FROM jobwire.job_lease l JOIN jobwire.job j ON j.id = l.job_id
WHERE l.owner IS NULL AND (l.strikes >= 2) = $4 AND j.lane = $1 AND j.type = ANY($2) AND ",
    not_suspended!("j"),
    "
  AND ",
    in_turn!("j"),
    "
ORDER BY j.id LIMIT $3
FOR UPDATE OF j SKIP LOCKED"
);

impl PgStore {
    pub(super) async fn claim_page(
        &self,
        terms: &LockTerms,
        page: &ClaimPage,
    ) -> Result<Claimed, StoreError> {
        self.fences.begin(&self.line).await?;
        let mut tx = begin_by_key(&self.line).await?;
        let find = match page.of {
            ClaimOf::Rescued | ClaimOf::Suspects => sqlx::query(FIND_STRUCK)
                .bind(&page.lane.0)
                .bind(&terms.types[..])
                .bind(page.at_most)
                .bind(page.of == ClaimOf::Suspects),
            ClaimOf::Next { after, look_at } => sqlx::query(FIND)
                .bind(after.map_or(Uuid::nil(), |id| id.0))
                .bind(&page.lane.0)
                .bind(&terms.types[..])
                .bind(page.at_most)
                .bind(look_at.max(1) - 1),
        };
        let rows = find.fetch_all(&mut *tx).await?;
        let mut plain: Vec<Uuid> = Vec::with_capacity(rows.len());
        let mut exclusive: Vec<Hint> = Vec::new();
        let (mut slice_end, mut last) = (None, None);
        for row in &rows {
            slice_end = row.try_get::<Option<Uuid>, _>(0)?;
            let Some(id) = row.try_get::<Option<Uuid>, _>(1)? else {
                break;
            };
            last = Some(id);
            if row.try_get(2)? {
                exclusive.push(Hint {
                    instance: row.try_get(3)?,
                    ..Hint::new(JobId(id))
                });
            } else {
                plain.push(id);
            }
        }
        let full = i64::try_from(plain.len() + exclusive.len()).is_ok_and(|n| n >= page.at_most);
        let mut claimed = Claimed {
            jobs: Vec::new(),
            after: if full { last } else { slice_end }.map(JobId),
        };
        if !plain.is_empty() {
            claimed.jobs = lock_plain(&mut *tx, terms, &plain).await?;
        }
        tx.commit().await?;
        if !exclusive.is_empty() {
            // Apart: instances' rows come before jobs' rows (rule 9). Who came first through the door of an
            // instance meanwhile keeps it.
            match self.lock_batch(terms, &exclusive).await {
                Ok(locked) => claimed.jobs.extend(locked.jobs),
                // The plain ones are ours already; these come with a later page.
                Err(error) if !claimed.jobs.is_empty() => {
                    tracing::warn!(%error, "exclusive jobs could not be claimed; trying again");
                }
                Err(error) => return Err(error),
            }
        }
        claimed.jobs.sort_by_key(|locked| locked.job.id);
        Ok(claimed)
    }
}

//! Claiming: taking ready jobs without a hint while the broker is away (protocol rule 28).

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Postgres, Row};
use uuid::Uuid;

use super::PgStore;
use super::begin::{begin_by_key, begin_by_key_impatiently, begin_to_claim};
use super::lock::lock_plain;
use super::sql::{in_turn, not_suspended, not_waiting_by_key, served};
use crate::hint::Hint;
use crate::job::JobId;
use crate::store::error::StoreError;
use crate::store::statements::{Claiming, Locking};
use crate::store::{ClaimOf, ClaimPage, Claimable, Claimed, LockTerms};

/// Selects jobs in the order of the primary key, so no other index is needed. `slice` limits the
/// number of rows that one statement reads if few of them can be taken. Skips rows that another
/// node has locked. Skips jobs with strikes, which have their own share of the slots. Of an
/// instance, selects only the first ready sibling, and only while no job holds the instance.
macro_rules! find {
    ($lock:literal) => {
        concat!(
    "
WITH slice AS MATERIALIZED (
    SELECT id FROM jobwire.job WHERE id > $1 ORDER BY id OFFSET $5 LIMIT 1
), found AS MATERIALIZED (
    SELECT j.id, j.exclusive, j.process_instance FROM jobwire.job j
    WHERE j.id > $1 AND j.id <= coalesce((SELECT id FROM slice), 'ffffffff-ffff-ffff-ffff-ffffffffffff')
      AND j.lane = $2 AND ",
    served!("j", "$3", "$6::jsonb"),
    "
      AND (SELECT l.owner IS NOT NULL OR l.strikes > 0 FROM jobwire.job_lease l WHERE l.job_id = j.id) IS NOT TRUE
      AND ",
    not_suspended!("j"),
    " AND ",
    not_waiting_by_key!("j"),
    "
      AND ",
    in_turn!("j"),
    "
    ORDER BY j.id LIMIT $4",
            $lock,
            "
)
SELECT (SELECT id FROM slice), f.id, f.exclusive, f.process_instance
FROM (VALUES (1)) AS always LEFT JOIN found f ON true
ORDER BY f.id"
        )
    };
}

/// Selects rescued jobs or suspects. Reads every lease; few have no owner.
macro_rules! find_struck {
    ($lock:literal) => {
        concat!(
            "
SELECT NULL::uuid, j.id, j.exclusive, j.process_instance
FROM jobwire.job_lease l CROSS JOIN LATERAL (
    SELECT j.id, j.exclusive, j.process_instance FROM jobwire.job j WHERE j.id = l.job_id AND j.lane = $1 AND ",
            served!("j", "$2", "$6::jsonb"),
            " AND ",
            not_suspended!("j"),
            " AND ",
            not_waiting_by_key!("j"),
            "
  AND ",
            in_turn!("j"),
            $lock,
            "
) j
WHERE l.owner IS NULL AND (l.strikes >= 2) = $4 AND l.job_id > $5
ORDER BY l.job_id LIMIT $3"
        )
    };
}

const FIND: &str = find!(" FOR UPDATE OF j SKIP LOCKED");
const FIND_STRUCK: &str = find_struck!(" FOR UPDATE SKIP LOCKED");
const LOOK: &str = find!("");
const LOOK_FOR_STRUCK: &str = find_struck!("");

/// The number of types up to which a claim keeps its plans.
const TYPES_OF_KEPT_PLANS: usize = 64;

fn ask<'q>(
    [next, struck]: [&'static str; 2],
    terms: &'q LockTerms,
    page: &'q ClaimPage,
) -> Query<'q, Postgres, PgArguments> {
    match page.of {
        ClaimOf::Rescued { after } | ClaimOf::Suspects { after } => sqlx::query(struck)
            .bind(&page.lane.0)
            .bind(&terms.types[..])
            .bind(page.at_most)
            .bind(matches!(page.of, ClaimOf::Suspects { .. }))
            .bind(after.map_or(Uuid::nil(), |id| id.0))
            .bind(terms.scope.bound()),
        ClaimOf::Next { after, look_at } => sqlx::query(next)
            .bind(after.map_or(Uuid::nil(), |id| id.0))
            .bind(&page.lane.0)
            .bind(&terms.types[..])
            .bind(page.at_most)
            .bind(look_at.max(1) - 1)
            .bind(terms.scope.bound()),
    }
}

/// Reads a page of claimable jobs, in the order of their ids.
fn read(rows: &[PgRow], page: &ClaimPage) -> Result<Claimable, StoreError> {
    let mut hints = Vec::with_capacity(rows.len());
    let mut slice_end = None;
    for row in rows {
        slice_end = row.try_get::<Option<Uuid>, _>(0)?;
        let Some(id) = row.try_get::<Option<Uuid>, _>(1)? else {
            break;
        };
        let exclusive: bool = row.try_get(2)?;
        let instance: Option<String> = row.try_get(3)?;
        hints.push(Hint {
            instance: instance.filter(|_| exclusive),
            ..Hint::new(JobId(id))
        });
    }
    Ok(Claimable::of(hints, slice_end.map(JobId), page))
}

impl Claiming for PgStore {
    async fn claim_page(&self, terms: &LockTerms, page: &ClaimPage) -> Result<Claimed, StoreError> {
        self.fences.begin(&self.pool).await?;
        // A search by leases must not walk through the jobs. A kept plan compares many types one by one,
        // and a fresh one hashes them.
        let keeps_plans =
            matches!(page.of, ClaimOf::Next { .. }) && terms.types.len() <= TYPES_OF_KEPT_PLANS;
        let mut tx = if keeps_plans {
            begin_to_claim(&self.pool).await?
        } else {
            begin_by_key_impatiently(&self.pool).await?
        };
        let rows = ask([FIND, FIND_STRUCK], terms, page)
            .fetch_all(&mut *tx)
            .await?;
        let Claimable { hints, after } = read(&rows, page)?;
        let (exclusive, plain): (Vec<Hint>, Vec<Hint>) =
            hints.into_iter().partition(|hint| hint.instance.is_some());
        let plain: Vec<Uuid> = plain.iter().map(|hint| hint.id.0).collect();
        let mut claimed = Claimed {
            after,
            ..Claimed::default()
        };
        if !plain.is_empty() {
            claimed.jobs = lock_plain(&mut *tx, terms, &plain).await?;
        }
        tx.commit().await?;
        if !exclusive.is_empty() {
            // A separate transaction, since instance rows are locked before job rows (rule 9). A
            // node that has locked the instance's row meanwhile keeps the instance.
            match self.lock_batch(terms, &exclusive).await {
                Ok(locked) => {
                    claimed.jobs.extend(locked.jobs);
                    if locked.is_cut {
                        claimed.undecided = exclusive;
                    }
                }
                // The plain jobs are already locked.
                Err(error) if error.changed_nothing() && !claimed.jobs.is_empty() => {
                    tracing::debug!(
                        %error,
                        "exclusive jobs could not be claimed; they will be tried in parts"
                    );
                    claimed.undecided = exclusive;
                }
                Err(error) => return Err(error),
            }
        }
        claimed.jobs.sort_by_key(|locked| locked.job.id);
        Ok(claimed)
    }

    /// Returns the page that a claim would take.
    async fn claimable_page(
        &self,
        terms: &LockTerms,
        page: &ClaimPage,
    ) -> Result<Claimable, StoreError> {
        let mut tx = begin_by_key(&self.pool).await?;
        let rows = ask([LOOK, LOOK_FOR_STRUCK], terms, page)
            .fetch_all(&mut *tx)
            .await?;
        tx.commit().await?;
        read(&rows, page)
    }
}

//! Holding short jobs by row locks, in a transaction that stays open while they run (protocol rule
//! 35).

use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use sqlx::{Executor, PgConnection, Postgres, Transaction};
use tokio::sync::OwnedSemaphorePermit;
use uuid::Uuid;

use super::connection_pool::ConnectionPool;
use super::guards::guards;
use super::lately::Lately;
use super::sql::{job_columns, not_suspended, served, unleased};
use super::{PgStore, decode, lock};
use crate::job::LockToken;
use crate::store::answer::timed;
use crate::store::error::StoreError;
use crate::store::{HeldRows, LockTerms, RowHold, RowsCommitted};

/// The time to wait for a connection. After that, the jobs get leases.
const PATIENCE: Duration = Duration::from_millis(20);
/// The time after which the server ends an idle transaction, because its node is frozen or cut off.
/// A node that works needs at most a tenth of a second.
pub(super) const SILENCE: Duration = Duration::from_secs(5);

/// Locks rows. Skips jobs that were hinted again, have failed, repeat, or have a lease. Such jobs
/// get a lease, which counts the deaths of holders, records failures, and lets the next occurrence
/// be created. The subquery for the lease is a value, which can't be planned as a join that reads
/// all leases.
const HOLD: &str = concat!(
    "
SELECT nextval('jobwire.fence_seq'), 0, clock_timestamp(), ",
    job_columns!("j"),
    "
FROM jobwire.job j
WHERE j.id = ANY($1) AND NOT j.exclusive AND ",
    served!("j", "$2", "$3::jsonb"),
    " AND j.hints <= 1 AND j.failures = 0
    AND j.repeat IS NULL AND ",
    not_suspended!("j"),
    "
    AND ",
    unleased!("j"),
    "
FOR UPDATE OF j SKIP LOCKED"
);

/// Selects the leases that were written between the start of [`HOLD`] and its row locks, which
/// [`HOLD`] does not see. From then on no other transaction can write one.
const LEASED_MEANWHILE: &str = "SELECT job_id FROM jobwire.job_lease WHERE job_id = ANY($1)";

const DELETE: &str = "/* jobwire: completed */ DELETE FROM jobwire.job WHERE id = ANY($1)";

/// One row that a foreign key or a trigger keeps would end the transaction, and with it the row locks of the
/// others. The savepoint costs a round trip and two transaction ids, and index scans can't mark the rows that
/// were deleted behind it as dead. So it is set only for the time of [`GUARDED`] after a refusal.
const BEFORE: &str = "SAVEPOINT held";
const BACK: &str = "ROLLBACK TO SAVEPOINT held";
/// The time for which batches are guarded by a savepoint, after the database has refused one.
const GUARDED: Duration = Duration::from_secs(3_600);

const LEASE: &str = "
INSERT INTO jobwire.job_lease (job_id, owner, fence, locked_at, expires_at)
SELECT id, $3, fence, clock_timestamp(), clock_timestamp() + $4 FROM unnest($1::uuid[], $2::bigint[]) AS held(id, fence)";

struct PgRowHold {
    pool: ConnectionPool,
    transaction: Transaction<'static, Postgres>,
    terms: LockTerms,
    /// The time at which the database last refused to delete rows.
    refused: Lately,
    /// The permit. Not every connection of the pool may be held.
    _permit: OwnedSemaphorePermit,
}

impl PgStore {
    /// Holds the jobs among these that may be held by row locks. The caller has checked that their
    /// number [is admitted](crate::store::RowTerms::admit). Returns `None` if no job is held.
    pub(super) async fn hold_rows(
        &self,
        terms: &LockTerms,
        ids: &[Uuid],
    ) -> Result<Option<HeldRows>, StoreError> {
        let Some(permits) = self.row_permits.clone() else {
            return Ok(None);
        };
        let permit = tokio::time::timeout(PATIENCE, permits.acquire_owned());
        let Ok(Ok(permit)) = permit.await else {
            return Ok(None);
        };
        let mut transaction = self.cache.begin().await?;
        let rows = sqlx::query(HOLD)
            .bind(ids)
            .bind(&terms.rows.types[..])
            .bind(terms.scope.bound())
            .fetch_all(&mut *transaction)
            .await?;
        let locked = |row: &PgRow| decode::locked(row, 0);
        let mut jobs = rows.iter().map(locked).collect::<Result<Vec<_>, _>>()?;
        let ids: Vec<Uuid> = jobs.iter().map(|locked| locked.job.id.0).collect();
        if !ids.is_empty() {
            let leased: Vec<Uuid> = sqlx::query_scalar(LEASED_MEANWHILE)
                .bind(ids)
                .fetch_all(&mut *transaction)
                .await?;
            if !leased.is_empty() {
                // The holders of these leases wait for the rows when they complete, so no row may
                // stay locked here. This is rare: two hints for a job must meet within a statement.
                jobs.clear();
            }
        }
        if jobs.is_empty() {
            transaction.rollback().await?;
            return Ok(None);
        }
        lock::in_order(&mut jobs);
        Ok(Some(HeldRows {
            jobs,
            at_most: self.silence(),
            hold: Box::new(PgRowHold {
                pool: self.cache.pool().clone(),
                transaction,
                terms: terms.clone(),
                refused: self.rows_refused.clone(),
                _permit: permit,
            }),
        }))
    }
}

/// Deletes the rows. Returns the error if the database refuses one of them: the transaction is then as it was
/// before, with its row locks.
///
/// # Errors
/// The first refusal in a while ends the transaction.
async fn delete(
    connection: &mut PgConnection,
    done: &[LockToken],
    refused: &Lately,
) -> Result<Option<StoreError>, StoreError> {
    let ids: Vec<Uuid> = done.iter().map(|held| held.id.0).collect();
    if ids.is_empty() {
        return Ok(None);
    }
    let guarded = refused.within(GUARDED);
    if guarded {
        connection.execute(sqlx::raw_sql(BEFORE)).await?;
    }
    let deleted = sqlx::query(DELETE).bind(ids).execute(&mut *connection);
    let refusal = match deleted.await.map_err(StoreError::from) {
        // After a slow statement the time of the row locks is over.
        Err(error) if error.is_answer() && !error.is_slow() && !error.is_unanswered() => error,
        deleted => return deleted.map(|_| None),
    };
    refused.note();
    if !guarded {
        return Err(refusal);
    }
    connection.execute(sqlx::raw_sql(BACK)).await?;
    Ok(Some(refusal))
}

async fn lease(
    connection: &mut PgConnection,
    terms: &LockTerms,
    held: impl Iterator<Item = &LockToken>,
) -> Result<(), StoreError> {
    let (ids, fences) = guards(held);
    if !ids.is_empty() {
        sqlx::query(LEASE)
            .bind(ids)
            .bind(fences)
            .bind(terms.owner.0)
            .bind(terms.lease)
            .execute(connection)
            .await?;
    }
    Ok(())
}

#[async_trait]
impl RowHold for PgRowHold {
    async fn commit(
        self: Box<Self>,
        done: &[LockToken],
        leased: &[LockToken],
    ) -> Result<RowsCommitted, StoreError> {
        let Self {
            pool,
            mut transaction,
            terms,
            refused,
            _permit,
        } = *self;
        let answer = pool.answer(async {
            let refusal = delete(&mut transaction, done, &refused).await?;
            let kept: &[LockToken] = refusal.as_ref().map_or(&[], |_| done);
            lease(&mut transaction, &terms, leased.iter().chain(kept)).await?;
            if !done.is_empty() {
                crash_point!("rows-uncommitted");
            }
            transaction.commit().await?;
            Ok(RowsCommitted { refusal })
        });
        timed("complete_rows", answer).await
    }
}

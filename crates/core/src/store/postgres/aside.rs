//! Setting a row aside: it becomes a dead letter, regardless of its content (`jobwire.set_aside`,
//! migration 0002).

use async_trait::async_trait;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Connection, PgConnection, Postgres};
use uuid::Uuid;

use super::begin::begin;
use super::sql::unexpired;
use super::{PgStore, complete, exclusive};
use crate::job::{JobId, JobState, LockToken, NodeId};
use crate::store::error::StoreError;
use crate::store::poison::{Aside, Refusals, SetsAside};
use crate::store::statements::Database;

const IS_HELD: &str = "
SELECT j.id FROM jobwire.job j JOIN jobwire.job_lease l ON l.job_id = j.id
WHERE j.id = $1 AND l.owner = $2 AND l.fence = $3
FOR UPDATE OF j, l";

const LOCKED_ROWS: &str = "
WITH free AS MATERIALIZED (
    SELECT l.job_id FROM jobwire.job_lease l JOIN jobwire.job j ON j.id = l.job_id
    WHERE l.job_id = ANY($1) FOR UPDATE OF l, j SKIP LOCKED
)
SELECT l.job_id FROM jobwire.job_lease l
WHERE l.job_id = ANY($1) AND NOT EXISTS (SELECT FROM free WHERE free.job_id = l.job_id)
    AND EXISTS (SELECT FROM jobwire.job j WHERE j.id = l.job_id)";

const INSTANCE: &str =
    "SELECT CASE WHEN exclusive THEN process_instance END FROM jobwire.job WHERE id = $1";

/// Locks the row. A later statement checks the lease, so that it sees a lock that was taken at the
/// same time.
const ENTER: &str = "SELECT id FROM jobwire.job WHERE id = $1 FOR UPDATE SKIP LOCKED";
/// An expired lease does not protect the job. A search gets to a job with such a lease only in the
/// leader cycle, in place of the change by which the cycle clears the owner.
const IS_UNLOCKED: &str = concat!(
    "
SELECT NOT EXISTS (SELECT FROM jobwire.job_lease l
                   WHERE job_id = $1 AND owner IS NOT NULL AND ",
    unexpired!("l"),
    ")"
);

/// Returns the rows of a statement. The server reports an error before it releases the rows that
/// the statement locked, and other statements would skip those rows. So after an error of the
/// server, this function waits until they are released.
pub(super) async fn rows(
    connection: &mut PgConnection,
    query: Query<'_, Postgres, PgArguments>,
) -> Result<Vec<PgRow>, StoreError> {
    let refused = match query.fetch_all(&mut *connection).await {
        Ok(rows) => return Ok(rows),
        Err(error) => StoreError::from(error),
    };
    if refused.sqlstate().is_some() {
        // If the ping fails, the connection is broken and its locks end with it.
        let _ = connection.ping().await;
    }
    Err(refused)
}

/// The comment is for the event stream (`event_cause` in migration 0012).
const SET_ASIDE: &str =
    "/* jobwire: aside */ SELECT dead_letter_id FROM jobwire.set_aside($1, ARRAY[$2::uuid], $3)";

const fn table(state: JobState) -> &'static str {
    match state {
        JobState::Executable => "job",
        JobState::Timer => "timer_job",
        JobState::Suspended => "suspended_job",
        JobState::DeadLetter => "dead_letter_job",
    }
}

async fn set_aside(
    connection: &mut PgConnection,
    state: JobState,
    id: JobId,
    reason: &str,
) -> Result<Option<JobId>, StoreError> {
    let letter: Option<Uuid> = sqlx::query_scalar(SET_ASIDE)
        .bind(table(state))
        .bind(id.0)
        .bind(reason)
        .fetch_optional(connection)
        .await?;
    Ok(letter.map(JobId))
}

impl PgStore {
    async fn bury_held(
        &self,
        owner: NodeId,
        held: &LockToken,
        reason: &str,
    ) -> Result<Option<Aside>, StoreError> {
        let names: Vec<String> = held.instance.iter().cloned().collect();
        let mut tx = begin(&self.pool).await?;
        complete::enter_held(&mut tx, &names).await?;
        let is_held = sqlx::query(IS_HELD)
            .bind(held.id.0)
            .bind(owner.0)
            .bind(held.fence.0)
            .fetch_optional(&mut *tx)
            .await?;
        if is_held.is_none() {
            return Ok(None);
        }
        let Some(letter) = set_aside(&mut tx, JobState::Executable, held.id, reason).await? else {
            return Ok(None);
        };
        let ready = exclusive::leave(&mut tx, &names).await?;
        tx.commit().await?;
        Ok(Some(Aside { letter, ready }))
    }

    async fn bury(
        &self,
        state: JobState,
        id: JobId,
        reason: &str,
    ) -> Result<Option<Aside>, StoreError> {
        let mut tx = begin(&self.pool).await?;
        let mut names = Vec::new();
        if state == JobState::Executable {
            let instance: Option<Option<String>> = sqlx::query_scalar(INSTANCE)
                .bind(id.0)
                .fetch_optional(&mut *tx)
                .await?;
            names.extend(instance.flatten());
            complete::enter_held(&mut tx, &names).await?;
            let entered = sqlx::query(ENTER).bind(id.0).fetch_optional(&mut *tx);
            if entered.await?.is_none() {
                return Ok(None);
            }
            let is_unlocked = sqlx::query_scalar(IS_UNLOCKED).bind(id.0);
            if !is_unlocked.fetch_one(&mut *tx).await? {
                return Ok(None);
            }
        }
        let Some(letter) = set_aside(&mut tx, state, id, reason).await? else {
            return Ok(None);
        };
        let ready = exclusive::leave(&mut tx, &names).await?;
        tx.commit().await?;
        Ok(Some(Aside { letter, ready }))
    }
}

#[async_trait]
impl SetsAside for PgStore {
    fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    async fn locked_rows(&self, jobs: &[JobId]) -> Result<Vec<JobId>, StoreError> {
        let ids: Vec<Uuid> = jobs.iter().map(|id| id.0).collect();
        let locked: Vec<Uuid> = sqlx::query_scalar(LOCKED_ROWS)
            .bind(ids)
            .fetch_all(&self.pool.inner)
            .await?;
        Ok(locked.into_iter().map(JobId).collect())
    }

    async fn set_held_aside(
        &self,
        owner: NodeId,
        held: &LockToken,
        reason: &str,
    ) -> Result<Option<Aside>, StoreError> {
        self.run("set_aside", || self.bury_held(owner, held, reason))
            .await
    }

    async fn set_row_aside(
        &self,
        state: JobState,
        id: JobId,
        reason: &str,
    ) -> Result<Option<Aside>, StoreError> {
        self.run("set_aside", || self.bury(state, id, reason)).await
    }
}

//! Setting a row aside: it becomes a dead letter, regardless of its content (the triggers of
//! `set_aside`, migration 0002).

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::event_stream::{self, Cause};
use super::sql::unexpired;
use super::{SqliteStore, decode, exclusive};
use crate::job::{JobId, JobState, LockToken, NodeId};
use crate::store::Handoff;
use crate::store::error::StoreError;
use crate::store::poison::{Aside, Refusals, SetsAside};
use crate::store::statements::Database;

const IS_HELD: &str = "
SELECT EXISTS (SELECT 1 FROM job_lease WHERE job_id = ?1 AND owner = ?2 AND fence = ?3)";

/// An expired lease does not protect its job. A search gets to a job with such a lease only in the
/// leader cycle, in place of the change by which the cycle clears the owner.
const IS_UNLOCKED: &str = concat!(
    "
SELECT NOT EXISTS (SELECT 1 FROM job_lease AS l WHERE job_id = ?1 AND owner IS NOT NULL AND ",
    unexpired!("l", "?2"),
    ")"
);

const INSTANCE: &str =
    "SELECT CASE WHEN exclusive THEN process_instance END FROM job WHERE id = ?1";

const SET_ASIDE: &str =
    "INSERT INTO set_aside (source, id, reason, new_id) VALUES (?1, ?2, ?3, ?4)";

const IS_LETTER: &str = "SELECT EXISTS (SELECT 1 FROM dead_letter_job WHERE id = ?1)";

/// Returns the table of a state, and the query that tests whether it has a row with an id.
const fn table(state: JobState) -> (&'static str, &'static str) {
    macro_rules! table {
        ($name:literal) => {
            (
                $name,
                concat!("SELECT EXISTS (SELECT 1 FROM ", $name, " WHERE id = ?1)"),
            )
        };
    }
    match state {
        JobState::Executable => table!("job"),
        JobState::Timer => table!("timer_job"),
        JobState::Suspended => table!("suspended_job"),
        JobState::DeadLetter => table!("dead_letter_job"),
    }
}

async fn set_aside(
    connection: &mut SqliteConnection,
    state: JobState,
    id: JobId,
    reason: &str,
) -> Result<Option<JobId>, StoreError> {
    let (name, exists) = table(state);
    let query = sqlx::query_scalar(exists).bind(id.to_string());
    if !query.fetch_one(&mut *connection).await? {
        return Ok(None);
    }
    let new_id = JobId::generate();
    event_stream::begin_cause(connection, Cause::SetAside).await?;
    sqlx::query(SET_ASIDE)
        .bind(name)
        .bind(id.to_string())
        .bind(reason)
        .bind(new_id.to_string())
        .execute(&mut *connection)
        .await?;
    event_stream::end_cause(connection).await?;
    let query = sqlx::query_scalar(IS_LETTER).bind(new_id.to_string());
    let is_new: bool = query.fetch_one(connection).await?;
    Ok(Some(if is_new { new_id } else { id }))
}

impl SqliteStore {
    async fn bury_held(
        &self,
        owner: NodeId,
        held: &LockToken,
        reason: &str,
    ) -> Result<Option<Aside>, StoreError> {
        let names: Vec<String> = held.instance.iter().cloned().collect();
        let mut tx = self.write().await?;
        let is_held = sqlx::query_scalar(IS_HELD)
            .bind(held.id.to_string())
            .bind(owner.to_string())
            .bind(held.fence.0);
        if !is_held.fetch_one(&mut *tx).await? {
            return Ok(None);
        }
        self.bury_in(tx, JobState::Executable, held.id, names, reason)
            .await
    }

    async fn bury(
        &self,
        state: JobState,
        id: JobId,
        reason: &str,
    ) -> Result<Option<Aside>, StoreError> {
        let mut tx = self.write().await?;
        let mut names = Vec::new();
        if state == JobState::Executable {
            let is_unlocked = sqlx::query_scalar(IS_UNLOCKED)
                .bind(id.to_string())
                .bind(decode::now_micros());
            if !is_unlocked.fetch_one(&mut *tx).await? {
                return Ok(None);
            }
            let instance = sqlx::query(INSTANCE)
                .bind(id.to_string())
                .fetch_optional(&mut *tx)
                .await?;
            names.extend(instance.and_then(|row| decode::instance(&row, 0)));
        }
        self.bury_in(tx, state, id, names, reason).await
    }

    async fn bury_in(
        &self,
        mut tx: sqlx::Transaction<'static, sqlx::Sqlite>,
        state: JobState,
        id: JobId,
        names: Vec<String>,
        reason: &str,
    ) -> Result<Option<Aside>, StoreError> {
        let Some(letter) = set_aside(&mut tx, state, id, reason).await? else {
            return Ok(None);
        };
        let now = decode::now_micros();
        let (_, ready) = exclusive::handoff(&mut tx, now, &names, &Handoff::Hint).await?;
        tx.commit().await?;
        Ok(Some(Aside { letter, ready }))
    }
}

#[async_trait]
impl SetsAside for SqliteStore {
    fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// Returns no rows: SQLite has no row locks.
    async fn locked_rows(&self, _: &[JobId]) -> Result<Vec<JobId>, StoreError> {
        Ok(Vec::new())
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

//! Changes of jobs by an operator.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use tokio::time::Instant;
use uuid::Uuid;

use super::begin::begin;
use super::change_statements::{
    ACTIVATE, ENTER, MAKE_DEAD_LETTER, MAKE_EXECUTABLE, RESCHEDULE, SET_PRIORITY, SET_RETRIES,
    SUSPEND,
};
use super::connection_pool::ConnectionPool;
use super::operate::{ROWS_WITHIN, after_round, sorted, still};
use super::{PgStore, decode, exclusive};
use crate::job::{JobId, JobState};
use crate::store::change::Change;
use crate::store::created::earliest;
use crate::store::error::StoreError;
use crate::store::statements::Changing;
use crate::store::{Operated, OperatedJobs};

/// Changes the jobs whose rows are free, and tries the others again for [`ROWS_WITHIN`].
async fn change(
    pool: &ConnectionPool,
    ids: &[JobId],
    change: &Change,
) -> Result<OperatedJobs, StoreError> {
    let (mut asked, mut changed) = (sorted(ids), OperatedJobs::default());
    let until = Instant::now() + ROWS_WITHIN;
    while !asked.is_empty() {
        let round = change_round(pool, &mut asked, change, &mut changed).await;
        after_round(round, until, &mut asked, &mut changed).await?;
    }
    Ok(changed)
}

/// Changes those of the jobs whose rows are free in one transaction, and leaves the others in
/// `asked`.
async fn change_round(
    pool: &ConnectionPool,
    asked: &mut Vec<Uuid>,
    change: &Change,
    changed: &mut OperatedJobs,
) -> Result<(), StoreError> {
    let (mut rest, mut round, mut left) = (asked.clone(), OperatedJobs::default(), Vec::new());
    let mut tx = begin(pool).await?;
    change_free(&mut tx, &mut rest, change, &mut round, &mut left).await?;
    tx.commit().await?;
    left.sort_unstable();
    left.dedup();
    round.ready.extend(exclusive::next_since(pool, &left).await);
    changed.operated.extend(round.operated);
    changed.ready.extend(round.ready);
    changed.timer = earliest(changed.timer, round.timer);
    *asked = rest;
    Ok(())
}

/// Changes those of the jobs whose rows are free, and leaves the others in `asked`. Adds the
/// instances that the jobs have left.
pub(super) async fn change_free(
    connection: &mut PgConnection,
    asked: &mut Vec<Uuid>,
    change: &Change,
    changed: &mut OperatedJobs,
    left: &mut Vec<String>,
) -> Result<(), StoreError> {
    let entered: Vec<Uuid> = sqlx::query_scalar(ENTER)
        .bind(&*asked)
        .fetch_all(&mut *connection)
        .await?;
    let statement = match change {
        Change::MakeExecutable => MAKE_EXECUTABLE,
        Change::Reschedule(_) => RESCHEDULE,
        Change::Suspend => SUSPEND,
        Change::Activate => ACTIVATE,
        Change::MakeDeadLetter(_) => MAKE_DEAD_LETTER,
        Change::SetRetries(_) => SET_RETRIES,
        Change::SetPriority(_) => SET_PRIORITY,
    };
    let query = sqlx::query(statement).bind(&*asked).bind(&entered);
    let query = match change {
        Change::Reschedule(due) => query.bind(*due),
        Change::MakeDeadLetter(reason) => query.bind(Change::reason(reason)),
        Change::SetRetries(retries) => query.bind(*retries),
        Change::SetPriority(priority) => query.bind(*priority),
        Change::MakeExecutable | Change::Suspend | Change::Activate => query,
    };
    let rows = query.fetch_all(&mut *connection).await?;
    let mut done = HashSet::with_capacity(rows.len());
    for row in &rows {
        left.extend(note(row, changed)?);
        done.insert(row.try_get::<Uuid, _>(0)?);
    }
    asked.retain(|id| !done.contains(id));
    if asked.is_empty() {
        return Ok(());
    }
    let still = still(connection, asked).await?;
    asked.retain(|id| {
        let why = match still.get(id) {
            None => Operated::NotFound,
            Some((state, _)) if !change.applies_to(*state) => Operated::OtherState,
            Some((JobState::Executable, true)) => Operated::Running,
            Some((_, true)) if *change == Change::Activate => Operated::OtherState,
            Some(_) => return true,
        };
        changed.operated.push((JobId(*id), why));
        false
    });
    Ok(())
}

/// Adds a changed job to the result, and returns the instance that it has left.
fn note(row: &PgRow, changed: &mut OperatedJobs) -> Result<Option<String>, StoreError> {
    changed
        .operated
        .push((JobId(row.try_get(0)?), Operated::Done));
    if row.try_get(6)? {
        changed.ready.push(decode::ready(row)?);
    }
    let due: Option<DateTime<Utc>> = row.try_get(8)?;
    changed.timer = earliest(changed.timer, due);
    Ok(row.try_get(7)?)
}

impl Changing for PgStore {
    async fn change_jobs(&self, ids: &[JobId], asked: &Change) -> Result<OperatedJobs, StoreError> {
        change(&self.pool, ids, asked).await
    }
}

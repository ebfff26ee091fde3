//! Locking of the jobs that a batch of hints names.

use std::collections::{HashMap, HashSet};

use sqlx::{Row, SqliteConnection};

use super::lease::lease;
use super::sql::{job_columns, served, strikes, suspended};
use super::{SqliteStore, decode, exclusive};
use crate::hint::Hint;
use crate::job::JobId;
use crate::store::error::StoreError;
use crate::store::statements::Locking;
use crate::store::{LockTerms, Locked, Refusal};

/// Reads all data that decides about a lock, in one statement. Nothing can change before the lease
/// is written.
const LOOK: &str = concat!(
    "
SELECT ",
    served!("j", "?2", "?3"),
    ",
    l.owner IS NOT NULL,
    ",
    suspended!("j"),
    ", ",
    strikes!("l"),
    ", ",
    job_columns!("j"),
    "
FROM job j LEFT JOIN job_lease l ON l.job_id = j.id
WHERE j.id IN (SELECT value FROM json_each(?1))
ORDER BY j.seq"
);

impl Locking for SqliteStore {
    async fn lock_batch(&self, terms: &LockTerms, hints: &[Hint]) -> Result<Locked, StoreError> {
        let mut tx = self.write().await?;
        let locked = lock_in(&mut tx, terms, hints).await?;
        tx.commit().await?;
        Ok(locked)
    }
}

/// Locks the jobs that a batch of hints names, inside a transaction that may write.
pub(super) async fn lock_in(
    connection: &mut SqliteConnection,
    terms: &LockTerms,
    hints: &[Hint],
) -> Result<Locked, StoreError> {
    let mut locked = Locked::default();
    let mut instances: HashMap<String, Vec<JobId>> = HashMap::new();
    let mut plain: Vec<JobId> = Vec::with_capacity(hints.len());
    for hint in hints {
        match &hint.instance {
            Some(instance) => instances.entry(instance.clone()).or_default().push(hint.id),
            None => plain.push(hint.id),
        }
    }
    plain.sort_unstable();
    plain.dedup();
    let now = decode::now_micros();
    if !plain.is_empty() {
        lock_plain(connection, terms, now, &plain, &mut locked, &mut instances).await?;
    }
    if !instances.is_empty() {
        let mut names: Vec<String> = instances.keys().cloned().collect();
        names.sort_unstable();
        for tried in exclusive::take_first(connection, terms, now, &names).await? {
            let hinted = instances.remove(&tried.instance).unwrap_or_default();
            locked.note_instance(hinted, tried);
        }
    }
    Ok(locked)
}

async fn lock_plain(
    connection: &mut SqliteConnection,
    terms: &LockTerms,
    now: i64,
    ids: &[JobId],
    locked: &mut Locked,
    instances: &mut HashMap<String, Vec<JobId>>,
) -> Result<(), StoreError> {
    let rows = sqlx::query(LOOK)
        .bind(decode::array(ids)?)
        .bind(decode::array(&terms.types[..])?)
        .bind(terms.scope.bound())
        .fetch_all(&mut *connection)
        .await?;
    let mut found = HashSet::with_capacity(rows.len());
    let mut free = Vec::with_capacity(rows.len());
    for row in &rows {
        let (served, held, suspended): (bool, bool, bool) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let job = decode::job(row, 4)?;
        let id = job.id;
        found.insert(id);
        let why = if held {
            Refusal::Locked
        } else if suspended {
            Refusal::Suspended
        } else if let Some(instance) = job.exclusive_instance() {
            // The producer of the hint did not name the instance. Try it anyway.
            instances
                .entry(instance.to_owned())
                .or_default()
                .push(job.id);
            continue;
        } else if served {
            free.push((job, row.try_get(3)?));
            continue;
        } else {
            locked.unserved.push((job.id, job.needs()));
            Refusal::Unserved
        };
        locked.refused.push((id, why));
    }
    let gone = ids.iter().filter(|id| !found.contains(id));
    locked.refused.extend(gone.map(|id| (*id, Refusal::Gone)));
    locked.jobs = lease(connection, terms, now, free).await?;
    Ok(())
}

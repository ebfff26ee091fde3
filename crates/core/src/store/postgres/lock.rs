//! Locking what a batch of hints names.

use std::collections::{HashMap, HashSet};

use sqlx::{PgExecutor, Row};
use uuid::Uuid;

use super::begin::begin;
use super::sql::{job_columns, not_suspended, strikes, unlocked};
use super::{PgStore, exclusive, row};
use crate::error::StoreError;
use crate::hint::Hint;
use crate::job::{Fence, JobId, LockedJob};
use crate::store::{LockTerms, Locked, Refusal};

/// Row locks first, with SKIP LOCKED: a job that is being completed or moved is seen as such, and the
/// statement never waits. Then the lease: new, or taken over from a holder that died (one strike).
/// Each lease has its ready row, so the full join finds what an inner one would; but it can't be planned
/// as a nested loop over two CTEs, which for 256 jobs is 65,536 comparisons (ADR 0001 has the times).
macro_rules! lock {
    ($commits:literal) => {
        concat!(
            "
WITH ready AS MATERIALIZED (
    SELECT j.* FROM jobwire.job j
    WHERE j.id = ANY($1) AND NOT j.exclusive AND j.type = ANY($2) AND ",
            not_suspended!("j"),
            " AND ",
            unlocked!("j"),
            "
    ORDER BY j.id
    FOR UPDATE OF j SKIP LOCKED
), leased AS (
    INSERT INTO jobwire.job_lease AS l (job_id, owner, fence, locked_at, expires_at)
    SELECT id, $3, nextval('jobwire.fence_seq'), clock_timestamp(), clock_timestamp() + $4
    FROM ready",
            $commits,
            "
    ON CONFLICT (job_id) DO UPDATE
        SET owner = excluded.owner, fence = excluded.fence, locked_at = excluded.locked_at,
            expires_at = excluded.expires_at, alone_since = NULL, strikes = ",
            strikes!("l"),
            "
        WHERE l.owner IS NULL OR l.expires_at <= clock_timestamp()
    RETURNING l.job_id, l.fence, l.strikes
)
SELECT leased.fence, leased.strikes, ",
            job_columns!("ready"),
            "
FROM ready FULL JOIN leased ON leased.job_id = ready.id
WHERE coalesce(leased.fence, 0) > 0
ORDER BY ready.seq"
        )
    };
}

const LOCK: &str = lock!("");

/// The same, its commit not waiting for the disk ([`PgOptions::durable_locks`](super::PgOptions::durable_locks)).
/// Set for this transaction only, which is this statement.
const LOCK_SOON_DURABLE: &str = lock!(
    "
    WHERE (SELECT set_config('synchronous_commit', 'off', true)) = 'off'"
);

/// Why were these not locked? Asked only for ids that the lock statement did not return.
const CLASSIFY: &str = concat!(
    "
SELECT j.id, j.exclusive, j.process_instance, j.type = ANY($2), NOT ",
    unlocked!("j"),
    ", NOT ",
    not_suspended!("j"),
    "
FROM jobwire.job j WHERE j.id = ANY($1)"
);

/// Lock those of these plain jobs that are free.
pub(super) async fn lock_plain(
    connection: impl PgExecutor<'_>,
    terms: &LockTerms,
    ids: &[Uuid],
) -> Result<Vec<LockedJob>, StoreError> {
    lock_by(LOCK, connection, terms, ids).await
}

async fn lock_by(
    statement: &'static str,
    connection: impl PgExecutor<'_>,
    terms: &LockTerms,
    ids: &[Uuid],
) -> Result<Vec<LockedJob>, StoreError> {
    sqlx::query(statement)
        .bind(ids)
        .bind(&terms.types[..])
        .bind(terms.owner.0)
        .bind(terms.lease)
        .fetch_all(connection)
        .await?
        .iter()
        .map(|r| {
            Ok(LockedJob {
                fence: Fence(r.try_get(0)?),
                strikes: r.try_get(1)?,
                job: row::job(r, 2)?,
            })
        })
        .collect()
}

impl PgStore {
    pub(super) async fn lock_batch(
        &self,
        terms: &LockTerms,
        hints: &[Hint],
    ) -> Result<Locked, StoreError> {
        let mut locked = Locked::default();
        let mut instances: HashMap<String, Vec<JobId>> = HashMap::new();
        let mut plain: Vec<Uuid> = Vec::with_capacity(hints.len());
        for hint in hints {
            match &hint.instance {
                Some(instance) => instances.entry(instance.clone()).or_default().push(hint.id),
                None => plain.push(hint.id.0),
            }
        }
        plain.sort_unstable();
        plain.dedup();
        locked.rows = self.hold_rows(terms, &plain).await?;
        if let Some(rows) = &locked.rows {
            let held: HashSet<Uuid> = rows.jobs.iter().map(|locked| locked.job.id.0).collect();
            plain.retain(|id| !held.contains(id));
        }
        if !plain.is_empty() {
            let statement = if self.durable_locks {
                LOCK
            } else {
                LOCK_SOON_DURABLE
            };
            locked.jobs = lock_by(statement, &self.hot.pool, terms, &plain).await?;
            if locked.jobs.len() < plain.len() {
                let got: HashSet<Uuid> = locked.jobs.iter().map(|l| l.job.id.0).collect();
                plain.retain(|id| !got.contains(id));
                self.classify(terms, &plain, &mut locked, &mut instances)
                    .await?;
            }
        }
        if !instances.is_empty() {
            let mut tx = begin(&self.line).await?;
            let mut names: Vec<String> = instances.keys().cloned().collect();
            names.sort_unstable();
            exclusive::enter(&mut tx, &names).await?;
            let tries = exclusive::take_first(&mut tx, terms, &names).await?;
            tx.commit().await?;
            for tried in tries {
                let hinted = instances.remove(&tried.instance).unwrap_or_default();
                match tried.result {
                    Ok(job) => {
                        // Of several hints for one instance only one is served; the others' jobs
                        // are taken in turn when this one finishes.
                        let others = hinted.into_iter().filter(|id| *id != job.job.id);
                        locked
                            .refused
                            .extend(others.map(|id| (id, Refusal::InstanceHeld)));
                        locked.jobs.push(*job);
                    }
                    Err(why) => locked
                        .refused
                        .extend(hinted.into_iter().map(|id| (id, why))),
                }
            }
        }
        Ok(locked)
    }

    async fn classify(
        &self,
        terms: &LockTerms,
        ids: &[Uuid],
        locked: &mut Locked,
        instances: &mut HashMap<String, Vec<JobId>>,
    ) -> Result<(), StoreError> {
        let rows = sqlx::query(CLASSIFY)
            .bind(ids)
            .bind(&terms.types[..])
            .fetch_all(&self.hot.pool)
            .await?;
        let mut found = HashSet::with_capacity(rows.len());
        for row in rows {
            let id: Uuid = row.try_get(0)?;
            found.insert(id);
            let (exclusive, served, held, suspended): (bool, bool, bool, bool) = (
                row.try_get(1)?,
                row.try_get(3)?,
                row.try_get(4)?,
                row.try_get(5)?,
            );
            let why = if held {
                Refusal::Locked
            } else if suspended {
                Refusal::Suspended
            } else if exclusive {
                // A hint from a producer that does not know: try the instance all the same.
                let instance: Option<String> = row.try_get(2)?;
                instances
                    .entry(instance.unwrap_or_default())
                    .or_default()
                    .push(JobId(id));
                continue;
            } else if served {
                Refusal::Busy
            } else {
                Refusal::Unserved
            };
            locked.refused.push((JobId(id), why));
        }
        let gone = ids.iter().filter(|id| !found.contains(id));
        locked
            .refused
            .extend(gone.map(|id| (JobId(*id), Refusal::Gone)));
        Ok(())
    }
}

//! Locking the jobs of a batch of hints.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures_util::FutureExt;
use sqlx::{PgExecutor, Row};
use uuid::Uuid;

use super::begin::begin_first_in_order;
use super::exclusive::Enter;
use super::lately::Lately;
use super::sql::{
    job_columns, not_suspended, nothing_suspended, or_take_ownerless, served, unleased, unlocked,
};
use super::{PgStore, decode, exclusive};
use crate::hint::Hint;
use crate::job::scope::Scope;
use crate::job::{JobId, LockedJob};
use crate::store::error::StoreError;
use crate::store::statements::Locking;
use crate::store::{LockTerms, Locked, Refusal, Tried};

/// The SQLSTATE of a duplicate key.
const DUPLICATE: &str = "23505";

/// Locks the rows first, with SKIP LOCKED: it sees a job that is being completed or moved, and
/// waits for no row. Then it inserts the leases. A job nearly always has none yet, and only a
/// transaction that has locked its row writes one. So the insert is plain: a look at the index
/// before each row (`ON CONFLICT`) and a join with the result took a quarter of the time. A lease
/// that was written between the start of the statement and its row lock fails the whole statement;
/// then [`LOCK`] runs.
macro_rules! lock_new {
    ($served:expr, $unsuspended:expr) => {
        concat!(
            "
WITH ready AS MATERIALIZED (
    SELECT nextval('jobwire.fence_seq') AS next_fence, j.* FROM jobwire.job j
    WHERE j.id = ANY($1) AND NOT j.exclusive AND ",
            $served,
            " AND ",
            $unsuspended,
            "
        AND ",
            unleased!("j"),
            "
    FOR UPDATE OF j SKIP LOCKED
), leased AS (
    INSERT INTO jobwire.job_lease (job_id, owner, fence, locked_at, expires_at)
    SELECT id, $3, next_fence, clock_timestamp(), clock_timestamp() + $4
    FROM ready
)
SELECT next_fence, 0, clock_timestamp(), ",
            job_columns!("ready"),
            "
FROM ready"
        )
    };
}

const LOCK_NEW: &str = lock_new!(served!("j", "$2", "$5::jsonb"), not_suspended!("j"));

/// Like [`LOCK_NEW`] while nothing is suspended; otherwise selects no jobs. For a single job it
/// saves a tenth of the server's time.
const LOCK_NEW_UNSUSPENDED: &str = lock_new!(served!("j", "$2", "$5::jsonb"), nothing_suspended!());

/// Like [`LOCK_NEW_UNSUSPENDED`], for a scope that takes all (`$5` is not read). The conditions of a
/// scope cost a statement 3 to 5 µs, even without a scope.
const LOCK_NEW_UNSCOPED: &str = lock_new!("j.type = ANY($2)", nothing_suspended!());

/// The time for which a suspension is expected after one was seen.
const REMEMBERED: Duration = Duration::from_secs(10);

/// Returns the statement that locks jobs without a lease, given when a suspension was last seen
/// beside free jobs, and the scope.
fn lock_new_statement(suspended: &Lately, scope: &Scope) -> &'static str {
    if suspended.within(REMEMBERED) {
        LOCK_NEW
    } else if scope.takes_all() {
        LOCK_NEW_UNSCOPED
    } else {
        LOCK_NEW_UNSUSPENDED
    }
}

/// The time for which lock statements wait for no row, after an instance's row stayed locked for
/// longer than [`begin_first_in_order`] waits. So a transaction that hangs delays at most one lock
/// statement a second.
const UNWAITED: Duration = Duration::from_secs(1);

/// Like [`LOCK_NEW`], for jobs that may have leases: takes a lease without an owner. Each lease has
/// its ready row, so the full join finds the same rows as an inner join. But it can't be planned as
/// a nested loop over two CTEs, which takes 65,536 comparisons for 256 jobs (ADR 0001 has the
/// times).
const LOCK: &str = concat!(
    "
WITH ready AS MATERIALIZED (
    SELECT j.* FROM jobwire.job j
    WHERE j.id = ANY($1) AND NOT j.exclusive AND ",
    served!("j", "$2", "$5::jsonb"),
    " AND ",
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
    or_take_ownerless!(),
    "
)
SELECT leased.fence, leased.strikes, clock_timestamp(), ",
    job_columns!("ready"),
    "
FROM ready FULL JOIN leased ON leased.job_id = ready.id
WHERE coalesce(leased.fence, 0) > 0
ORDER BY ready.seq"
);

/// Selects the reasons why jobs were not locked. Runs only for ids that the first lock statement
/// did not return.
const CLASSIFY: &str = concat!(
    "
SELECT j.id, j.exclusive, j.process_instance, ",
    served!("j", "$2", "$3::jsonb"),
    ", NOT ",
    unlocked!("j"),
    ", NOT ",
    not_suspended!("j"),
    ", NOT ",
    nothing_suspended!(),
    ", j.type, j.deployment, j.category, j.tenant, j.priority
FROM jobwire.job j WHERE j.id = ANY($1)"
);

/// Locks these plain jobs if they are free. A job whose lease has no owner is free.
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
        .bind(terms.scope.bound())
        .fetch_all(connection)
        .await?
        .iter()
        .map(|row| decode::locked(row, 0))
        .collect()
}

/// Sorts jobs in creation order. Ids are time-ordered, so the jobs are sorted already unless the
/// clocks of their creators differ.
pub(super) fn in_order(jobs: &mut [LockedJob]) {
    if !jobs.is_sorted_by_key(|locked| locked.job.seq) {
        jobs.sort_unstable_by_key(|locked| locked.job.seq);
    }
}

/// Removes the ids of these jobs.
fn leave_out(ids: &mut Vec<Uuid>, jobs: &[LockedJob]) {
    let known: HashSet<Uuid> = jobs.iter().map(|locked| locked.job.id.0).collect();
    ids.retain(|id| !known.contains(id));
}

/// Refuses the undecided hints as busy, so that they are tried again.
fn call_busy(hints: &[Hint], locked: &mut Locked) {
    let rows = locked.rows.iter().flat_map(|rows| &rows.jobs);
    let jobs = rows.chain(&locked.jobs).map(|locked| locked.job.id);
    let decided = jobs.chain(locked.refused.iter().map(|(id, _)| *id));
    let decided: HashSet<JobId> = decided.collect();
    let open = hints.iter().filter(|hint| !decided.contains(&hint.id));
    let busy = open.map(|hint| (hint.id, Refusal::Busy));
    locked.refused.extend(busy);
}

impl PgStore {
    /// Locks jobs without a lease. Returns none if a lease was written meanwhile.
    async fn lock_new(
        &self,
        terms: &LockTerms,
        ids: &[Uuid],
    ) -> Result<Vec<LockedJob>, StoreError> {
        let mut connection = self.cache.acquire().await?;
        match lock_by(
            lock_new_statement(&self.suspended, &terms.scope),
            &mut *connection,
            terms,
            ids,
        )
        .await
        {
            Ok(mut jobs) => {
                connection.keep();
                in_order(&mut jobs);
                Ok(jobs)
            }
            Err(error) if error.sqlstate().as_deref() == Some(DUPLICATE) => {
                tracing::debug!(
                    hints = ids.len(),
                    "a job of this batch was locked meanwhile; the batch is tried again"
                );
                Ok(Vec::new())
            }
            Err(error) => Err(error),
        }
    }

    /// Locks jobs that may have a lease, and exclusive jobs.
    async fn lock_others(
        &self,
        terms: &LockTerms,
        plain: &[Uuid],
        mut instances: HashMap<String, Vec<JobId>>,
        locked: &mut Locked,
    ) -> Result<(), StoreError> {
        if !plain.is_empty() {
            self.classify(terms, plain, locked, &mut instances).await?;
        }
        if !instances.is_empty() {
            self.lock_instances(terms, instances, locked).await?;
        }
        Ok(())
    }

    /// Locks the first ready job of each of these instances. An instance whose row stays locked is
    /// busy.
    async fn lock_instances(
        &self,
        terms: &LockTerms,
        mut instances: HashMap<String, Vec<JobId>>,
        locked: &mut Locked,
    ) -> Result<(), StoreError> {
        let mut names: Vec<String> = instances.keys().cloned().collect();
        names.sort_unstable();
        let tried = self.try_instances(terms, &names).await?;
        locked.is_cut |= tried.is_none();
        for tried in tried.into_iter().flatten() {
            let hinted = instances.remove(&tried.instance).unwrap_or_default();
            locked.note_instance(hinted, tried);
        }
        let busy = instances.into_values().flatten();
        let busy = busy.map(|id| (id, Refusal::Busy));
        locked.refused.extend(busy);
        Ok(())
    }

    /// Tries these instances, and leaves out those whose rows stay locked. Returns `None` if the
    /// statement still waited in vain: the row of an instance is not committed yet, or the lease of
    /// its first job stays locked.
    async fn try_instances(
        &self,
        terms: &LockTerms,
        names: &[String],
    ) -> Result<Option<Vec<Tried>>, StoreError> {
        if !self.rows_stay_locked.within(UNWAITED) {
            match self.enter_and_take(terms, names, Enter::Waiting).await {
                Err(error) if error.is_lock_timeout() => self.rows_stay_locked.note(),
                tried => return Ok(Some(tried?)),
            }
        }
        match self.enter_and_take(terms, names, Enter::Passing).await {
            Err(error) if error.is_lock_timeout() => Ok(None),
            tried => Ok(Some(tried?)),
        }
    }

    async fn enter_and_take(
        &self,
        terms: &LockTerms,
        names: &[String],
        how: Enter,
    ) -> Result<Vec<Tried>, StoreError> {
        let mut tx = begin_first_in_order(&self.pool).await?;
        let entered = exclusive::enter(&mut tx, names, how).await?;
        let tried = exclusive::take_first(&mut tx, terms, &entered).await?;
        tx.commit().await?;
        Ok(tried)
    }

    /// Finds the reasons why these jobs were not locked as new ones. Tries the jobs that may be
    /// free once more.
    async fn classify(
        &self,
        terms: &LockTerms,
        ids: &[Uuid],
        locked: &mut Locked,
        instances: &mut HashMap<String, Vec<JobId>>,
    ) -> Result<(), StoreError> {
        let mut connection = self.cache.acquire().await?;
        let rows = sqlx::query(CLASSIFY)
            .bind(ids)
            .bind(&terms.types[..])
            .bind(terms.scope.bound())
            .fetch_all(&mut *connection)
            .await?;
        let mut found = HashSet::with_capacity(rows.len());
        let mut free = Vec::new();
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
                // The hint does not name the instance, though the job is exclusive: try the
                // instance.
                let instance: Option<String> = row.try_get(2)?;
                instances
                    .entry(instance.unwrap_or_default())
                    .or_default()
                    .push(JobId(id));
                continue;
            } else if served {
                free.push(id);
                if row.try_get(6)? {
                    self.suspended.note();
                }
                continue;
            } else {
                locked.unserved.push((JobId(id), decode::needs(&row)?));
                Refusal::Unserved
            };
            locked.refused.push((JobId(id), why));
        }
        let gone = ids.iter().filter(|id| !found.contains(id));
        locked
            .refused
            .extend(gone.map(|id| (JobId(*id), Refusal::Gone)));
        if !free.is_empty() {
            let taken = lock_plain(&mut *connection, terms, &free).await?;
            leave_out(&mut free, &taken);
            locked.jobs.extend(taken);
            let busy = free.into_iter().map(|id| (JobId(id), Refusal::Busy));
            locked.refused.extend(busy);
        }
        connection.keep();
        Ok(())
    }
}

impl Locking for PgStore {
    async fn lock_batch(&self, terms: &LockTerms, hints: &[Hint]) -> Result<Locked, StoreError> {
        self.fences.begin(&self.pool).await?;
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
        // Rare futures are boxed: otherwise every lock would make room for their kilobytes.
        if terms.rows.admit(plain.len()) {
            locked.rows = self.hold_rows(terms, &plain).boxed().await?;
        }
        if let Some(rows) = &locked.rows {
            leave_out(&mut plain, &rows.jobs);
        }
        if !plain.is_empty() {
            locked.jobs = self.lock_new(terms, &plain).await?;
            leave_out(&mut plain, &locked.jobs);
        }
        if plain.is_empty() && instances.is_empty() {
            return Ok(locked);
        }
        let others = self.lock_others(terms, &plain, instances, &mut locked);
        match others.boxed().await {
            // The jobs that are already locked must start; otherwise they wait until their leases
            // expire.
            Err(error)
                if error.changed_nothing()
                    && (locked.rows.is_some() || !locked.jobs.is_empty()) =>
            {
                tracing::warn!(
                    %error,
                    "some hints of a batch could not be decided; they will be tried again"
                );
                call_busy(hints, &mut locked);
                locked.is_cut = true;
            }
            decided => decided?,
        }
        Ok(locked)
    }
}

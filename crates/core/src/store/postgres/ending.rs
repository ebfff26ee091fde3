//! The end of an instance, an execution or a definition, in the caller's transaction.
//!
//! That transaction may last long, so it does not keep the row of a job that runs. It marks the lease of
//! such a job as cancelled, and so keeps the lease: the node can neither renew nor end it before the commit.
//! A lease that another transaction has locked is not waited for, but tried again.
//!
//! A transaction that is isolated more strictly than READ COMMITTED has one snapshot. It does not show a
//! lease that was committed later, and the lock of a job leaves no other trace. So before the deletion
//! such a transaction inserts a lease without an owner for each job. If the job has a lease that the
//! snapshot does not show, PostgreSQL refuses the insert as a conflict between transactions, and the caller
//! repeats its transaction, as it must under these levels. The rows of the jobs are locked by then, so no
//! other transaction writes a lease. The deletion removes the inserted leases with the jobs.

use std::collections::HashSet;
use std::time::Duration;

use sqlx::PgConnection;
use tokio::time::Instant;
use uuid::Uuid;

use super::acting::{mark_free, that_run};
use super::change_statements::ENTER;
use super::sql::{definition_key_of, unlocked};
use crate::job::JobId;
use crate::store::error::StoreError;
use crate::store::{Ended, EndedScope};

/// Deletes the other jobs of a scope whose rows are free.
macro_rules! gone {
    ($name:literal, $table:literal, $scope:expr) => {
        concat!(
            $name,
            " AS (DELETE FROM jobwire.",
            $table,
            " WHERE id IN (SELECT j.id FROM jobwire.",
            $table,
            " j WHERE ",
            $scope,
            " FOR UPDATE SKIP LOCKED) RETURNING id, exclusive, process_instance)"
        )
    };
}

/// The statements of a scope.
struct Statements {
    /// Selects the executable jobs that no node runs, and whether a later statement sees the leases that
    /// are committed meanwhile.
    free: &'static str,
    /// Deletes the entered rows that still have no lock, and the free rows of the other tables.
    delete: &'static str,
    /// Selects the rows that are left, and whether a node runs them.
    left: &'static str,
}

macro_rules! statements {
    ($scope:expr) => {
        Statements {
            free: concat!(
                "SELECT j.id, current_setting('transaction_isolation') LIKE 'read %' FROM jobwire.job j WHERE ",
                $scope, " AND ", unlocked!("j"), " ORDER BY j.id"
            ),
            delete: concat!(
                "WITH executable AS (DELETE FROM jobwire.job j WHERE j.id = ANY($2) AND ", unlocked!("j"),
                " RETURNING j.id, j.exclusive, j.process_instance), ",
                gone!("timer", "timer_job", $scope), ", ",
                gone!("suspended", "suspended_job", $scope), ", ",
                gone!("letter", "dead_letter_job", $scope), ",
gone AS (SELECT * FROM executable UNION ALL SELECT * FROM timer UNION ALL SELECT * FROM suspended
         UNION ALL SELECT * FROM letter),
lease AS (DELETE FROM jobwire.job_lease l USING gone WHERE l.job_id = gone.id),
stack AS (DELETE FROM jobwire.job_exception x USING gone WHERE x.job_id = gone.id),
progress AS (DELETE FROM jobwire.job_progress p USING gone WHERE p.job_id = gone.id)
SELECT id, CASE WHEN exclusive THEN process_instance END, id IN (SELECT id FROM letter) FROM gone"
            ),
            left: concat!(
                "SELECT j.id, NOT ", unlocked!("j"), " FROM jobwire.job j WHERE ", $scope,
                " UNION ALL SELECT j.id, false FROM jobwire.timer_job j WHERE ", $scope,
                " UNION ALL SELECT j.id, false FROM jobwire.suspended_job j WHERE ", $scope,
                " UNION ALL SELECT j.id, false FROM jobwire.dead_letter_job j WHERE ", $scope
            ),
        }
    };
}

/// Two conditions, because an index of its own finds the exclusive jobs of an instance.
const PROCESS_INSTANCE: Statements = statements!(
    "(j.exclusive AND j.process_instance = $1 OR NOT j.exclusive AND j.process_instance = $1)"
);
const EXECUTION: Statements = statements!("j.execution = $1");
const PROCESS_DEFINITION: Statements = statements!("j.process_definition = $1");
const DEFINITION_KEY: Statements = statements!(concat!(definition_key_of!("j"), " = $1"));
const START_TIMERS: Statements =
    statements!("j.process_definition = $1 AND j.process_instance IS NULL AND j.kind = 'timer'");
const START_TIMERS_OF_KEY: Statements = statements!(concat!(
    definition_key_of!("j"),
    " = $1 AND j.process_instance IS NULL AND j.kind = 'timer'"
));

/// Fails with a serialization failure if one of the jobs has a lease that the snapshot of the transaction
/// does not show. A lease that it shows has no owner, and the deletion fails if it was taken since.
const CONFLICT: &str = "
INSERT INTO jobwire.job_lease (job_id, fence, locked_at, expires_at)
SELECT id, 0, clock_timestamp(), clock_timestamp() FROM unnest($1::uuid[]) AS id
ON CONFLICT (job_id) DO NOTHING";

/// The time for which the call waits for locked rows, and the pause between two attempts.
const ROWS_WITHIN: Duration = Duration::from_secs(2);
const ROWS_AGAIN: Duration = Duration::from_millis(50);

/// Deletes the jobs of a scope that no node runs, and marks the others as cancelled, except `own`. Rows
/// that other transactions lock are tried again for [`ROWS_WITHIN`].
pub(super) async fn end(
    connection: &mut PgConnection,
    scope: &EndedScope,
    own: Option<JobId>,
) -> Result<Ended, StoreError> {
    let statements = match scope {
        EndedScope::ProcessInstance(_) => PROCESS_INSTANCE,
        EndedScope::Execution(_) => EXECUTION,
        EndedScope::ProcessDefinition(_) => PROCESS_DEFINITION,
        EndedScope::DefinitionKey(_) => DEFINITION_KEY,
        EndedScope::StartTimers(_) => START_TIMERS,
        EndedScope::StartTimersOfKey(_) => START_TIMERS_OF_KEY,
    };
    let value = scope.value();
    let mut ended = Ended::default();
    let mut instances = Vec::new();
    let until = Instant::now() + ROWS_WITHIN;
    loop {
        let free: Vec<(Uuid, bool)> = sqlx::query_as(statements.free)
            .bind(&*value)
            .fetch_all(&mut *connection)
            .await?;
        let sees_latest = free.iter().all(|(_, sees_latest)| *sees_latest);
        let free = free.into_iter().map(|(id, _)| id).collect();
        let entered = enter(connection, free).await?;
        if !sees_latest {
            let conflict = sqlx::query(CONFLICT).bind(&entered);
            conflict.execute(&mut *connection).await?;
        }
        let gone: Vec<(Uuid, Option<String>, bool)> = sqlx::query_as(statements.delete)
            .bind(&*value)
            .bind(entered)
            .fetch_all(&mut *connection)
            .await?;
        for (id, instance, was_dead) in gone {
            ended.deleted.push(JobId(id));
            ended.dead_letters.extend(was_dead.then_some(JobId(id)));
            instances.extend(instance);
        }
        let left: Vec<(Uuid, bool)> = sqlx::query_as(statements.left)
            .bind(&*value)
            .fetch_all(&mut *connection)
            .await?;
        let locked = match left.iter().find(|(_, runs)| !runs) {
            Some((id, _)) => Some(*id),
            None => {
                let running = left.iter().map(|(id, _)| *id);
                first_unmarked(connection, running, own).await?
            }
        };
        let Some(locked) = locked else {
            ended.running = left.into_iter().map(|(id, _)| JobId(id)).collect();
            break;
        };
        if Instant::now() >= until {
            return Err(StoreError::RowLocked(JobId(locked)));
        }
        tokio::time::sleep(ROWS_AGAIN).await;
    }
    instances.sort_unstable();
    instances.dedup();
    ended.left = instances;
    Ok(ended)
}

/// Marks the jobs that run as cancelled, except `own`. Returns one that could not be marked, because its
/// lease is locked or it has ended since.
async fn first_unmarked(
    connection: &mut PgConnection,
    running: impl Iterator<Item = Uuid>,
    own: Option<JobId>,
) -> Result<Option<Uuid>, StoreError> {
    let others: Vec<Uuid> = running.filter(|id| own != Some(JobId(*id))).collect();
    let marked: HashSet<Uuid> = HashSet::from_iter(mark_free(connection, &others).await?);
    Ok(others.into_iter().find(|id| !marked.contains(id)))
}

const SAVEPOINT: &str = "SAVEPOINT jobwire_end";
const KEEP: &str = "RELEASE SAVEPOINT jobwire_end";
const FREE: &str = "ROLLBACK TO SAVEPOINT jobwire_end; RELEASE SAVEPOINT jobwire_end";

/// The number of parts in which jobs are tried again.
const PARTS: usize = 16;

/// Locks the rows of those of the jobs that no node runs and no other transaction has locked.
///
/// A node may lock a job after the statement has looked at the leases and before it has locked the row.
/// Then the savepoint frees the rows. The statement for a part of the jobs is shorter, so that few parts
/// meet a node, however many jobs the nodes lock meanwhile. A single job that meets one is left out.
async fn enter(connection: &mut PgConnection, free: Vec<Uuid>) -> Result<Vec<Uuid>, StoreError> {
    let (mut entered, mut parts) = (Vec::new(), vec![free]);
    while let Some(part) = parts.pop() {
        if part.is_empty() {
            continue;
        }
        sqlx::raw_sql(SAVEPOINT).execute(&mut *connection).await?;
        let locked: Vec<Uuid> = sqlx::query_scalar(ENTER)
            .bind(&part)
            .fetch_all(&mut *connection)
            .await?;
        // From now on no node can lock a job whose row is locked here.
        if that_run(connection, &locked).await?.is_empty() {
            sqlx::raw_sql(KEEP).execute(&mut *connection).await?;
            entered.extend(locked);
            continue;
        }
        sqlx::raw_sql(FREE).execute(&mut *connection).await?;
        if part.len() > 1 {
            let smaller = part.chunks(part.len().div_ceil(PARTS));
            parts.extend(smaller.map(<[Uuid]>::to_vec));
        }
    }
    Ok(entered)
}

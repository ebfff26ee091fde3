//! Exclusive jobs: one at a time in a process instance.
//!
//! Transactions on an instance take turns by its row. [`enter`] locks the rows of a batch of
//! instances in sorted order. [`take_first`] runs in a later statement of the same transaction, so
//! its snapshot includes the commit of the transaction that held the row before. A job holds its
//! instance only while its lease has an owner (protocol rules 10 to 12).

use std::time::Duration;

use sqlx::{PgConnection, Row};

use super::connection_pool::ConnectionPool;
use super::decode;
use super::sql::{
    in_strict_order, job_columns, not_paused, not_put_aside, nothing_strict, nothing_suspended,
    or_take_ownerless, ready_columns, served, unleased, unlocked,
};
use crate::hint::Ready;
use crate::job::LockedJob;
use crate::store::error::StoreError;
use crate::store::{LockTerms, Refusal, Tried};

/// Inserts missing rows and locks existing ones. The condition never holds, so that an existing row
/// is locked without a new version of it.
const ENTER: &str = "
INSERT INTO jobwire.instance_lock AS i (process_instance)
SELECT name FROM unnest($1::text[]) AS name ORDER BY name
ON CONFLICT (process_instance) DO UPDATE SET fence = i.fence WHERE false";

/// Like [`ENTER`], but skips rows that another transaction has locked. It waits for a row that
/// another transaction has inserted and not yet committed.
const ENTER_UNLOCKED: &str = "
WITH there AS MATERIALIZED (
    SELECT process_instance FROM jobwire.instance_lock WHERE process_instance = ANY($1)
), unlocked AS MATERIALIZED (
    SELECT process_instance FROM jobwire.instance_lock WHERE process_instance = ANY($1)
    ORDER BY process_instance
    FOR UPDATE SKIP LOCKED
), made AS (
    INSERT INTO jobwire.instance_lock (process_instance)
    SELECT name FROM unnest($1::text[]) AS name
    WHERE name NOT IN (SELECT process_instance FROM there)
    ORDER BY name
    ON CONFLICT DO NOTHING
    RETURNING process_instance
)
SELECT process_instance FROM unlocked UNION ALL SELECT process_instance FROM made";

/// The treatment of instances whose rows another transaction has locked, in [`enter`].
#[derive(Clone, Copy)]
pub(super) enum Enter {
    /// Wait for the rows.
    Waiting,
    /// Skip the rows.
    Passing,
}

/// Locks the rows of these instances in sorted order and inserts missing ones. Returns the
/// instances that are locked now.
pub(super) async fn enter(
    connection: &mut PgConnection,
    instances: &[String],
    how: Enter,
) -> Result<Vec<String>, StoreError> {
    match how {
        Enter::Waiting => {
            let enter = sqlx::query(ENTER).bind(instances);
            enter.execute(connection).await?;
            Ok(instances.to_vec())
        }
        Enter::Passing => {
            let enter = sqlx::query_scalar(ENTER_UNLOCKED).bind(instances);
            Ok(enter.fetch_all(connection).await?)
        }
    }
}

/// Two forms of a statement that takes the first siblings of instances.
///
/// Most databases have no suspension, no pause and no strict order. PostgreSQL prepares the subqueries
/// that ask for them at each execution, although none of them runs, and this took a tenth of the time
/// of exclusive jobs.
struct Take {
    /// The form for a database without them. Where there is one, it takes nothing and returns a row
    /// without an instance.
    unrestricted: &'static str,
    /// The form that follows them.
    restricted: &'static str,
}

/// Expands a statement in both [forms](Take). The macro `$statement` gets whether the database is
/// unrestricted, as a subquery, and the conditions for a job that is not put aside and for a candidate
/// that may be taken.
macro_rules! take {
    ($statement:ident $(, $more:expr)?) => {
        Take {
            unrestricted: $statement!(
                concat!(
                    "SELECT ",
                    nothing_suspended!(),
                    " AND ",
                    nothing_strict!(),
                    " AS holds"
                ),
                "(SELECT holds FROM unrestricted)",
                "true"
                $(, $more)?
            ),
            restricted: $statement!(
                "SELECT true AS holds",
                not_put_aside!("j"),
                concat!(not_paused!("c"), " AND ", in_strict_order!("c"))
                $(, $more)?
            ),
        }
    };
}

/// Takes the first ready job, by creation order, of each free instance. That job may be
/// unavailable, because of its type or a pause, or because its row is locked at this moment; no
/// younger sibling overtakes it. An instance is held while the lease that its row names has an owner; no time is
/// compared. The row of a free instance is deleted: otherwise the sweeper would treat it as left
/// over and hint the instance repeatedly. The candidate's row is found again by its ctid. A row
/// that was changed since has another ctid and counts as busy.
macro_rules! take_first {
    ($unrestricted:expr, $not_put_aside:expr, $may_be_taken:expr) => {
        concat!(
    "
WITH unrestricted AS MATERIALIZED (",
    $unrestricted,
    "
), asked AS MATERIALIZED (
    SELECT process_instance, job_id, fence FROM jobwire.instance_lock WHERE process_instance = ANY($1)
), free AS MATERIALIZED (
    SELECT a.process_instance FROM asked a
    WHERE a.job_id IS NULL
       OR NOT EXISTS (SELECT FROM jobwire.job_lease l
                      WHERE l.job_id = a.job_id AND l.fence = a.fence AND l.owner IS NOT NULL)
), candidate AS MATERIALIZED (
    SELECT f.process_instance, c.id, c.place FROM free f CROSS JOIN LATERAL (
        SELECT j.id, j.ctid AS place, j.process_instance, j.seq, j.type, j.category, j.lane FROM jobwire.job j
        WHERE j.exclusive AND j.process_instance = f.process_instance AND ",
    $not_put_aside,
    " AND ",
    unlocked!("j"),
    "
        ORDER BY j.seq LIMIT 1
    ) c WHERE ",
    $may_be_taken,
    "
), first AS MATERIALIZED (
    SELECT j.* FROM candidate c JOIN jobwire.job j ON j.ctid = c.place
    ORDER BY j.id
    FOR UPDATE OF j SKIP LOCKED
), leased AS (
    INSERT INTO jobwire.job_lease AS l (job_id, owner, fence, locked_at, expires_at)
    SELECT id, $3, nextval('jobwire.fence_seq'), clock_timestamp(), clock_timestamp() + $4
    FROM first WHERE ",
    served!("first", "$2", "$5::jsonb"),
    or_take_ownerless!(),
    "
), taken AS (
    UPDATE jobwire.instance_lock i SET job_id = l.job_id, owner = $3, fence = l.fence
    FROM first f JOIN leased l ON l.job_id = f.id
    WHERE i.process_instance = f.process_instance
), idle AS (
    DELETE FROM jobwire.instance_lock WHERE (SELECT holds FROM unrestricted) AND process_instance = ANY(ARRAY(
        SELECT process_instance FROM free
        EXCEPT
        SELECT x.process_instance FROM first x JOIN leased l ON l.job_id = x.id))
)
SELECT CASE WHEN (SELECT holds FROM unrestricted) THEN a.process_instance END, f.process_instance IS NOT NULL, c.id IS NOT NULL, first.id IS NOT NULL, leased.fence,
    leased.strikes, clock_timestamp(), ",
    job_columns!("first"),
    "
FROM asked a
LEFT JOIN free f ON f.process_instance = a.process_instance
LEFT JOIN candidate c ON c.process_instance = a.process_instance
LEFT JOIN first ON first.process_instance = a.process_instance
LEFT JOIN leased ON leased.job_id = first.id
ORDER BY first.seq"
)
    };
}

const TAKE_FIRST: Take = take!(take_first);

/// Like [`TAKE_FIRST`], for instances whose last job this transaction has just ended. No other job
/// holds them, so no lease is looked up before the first sibling is known. No other transaction can
/// write a lease while the instance's row is locked, so the insert has no ON CONFLICT. A sibling
/// that has a lease, because its holder died, counts as busy and is hinted. The plan is kept, so no
/// tables are joined, and hashed sets find the jobs that were not taken. The instance's row exists,
/// and the conflict of an insert changes it. An update from `first` would be a join; planned for a
/// table of one row, it took three seconds for ten thousand.
macro_rules! take_next {
    ($unrestricted:expr, $not_put_aside:expr, $may_be_taken:expr, $served:expr) => {
        concat!(
    "
WITH unrestricted AS MATERIALIZED (",
    $unrestricted,
    "
), candidate AS MATERIALIZED (
    SELECT asked.instance, c.id, c.place FROM unnest($1::text[]) AS asked(instance) CROSS JOIN LATERAL (
        SELECT j.id, j.ctid AS place, j.process_instance, j.seq, j.type, j.category, j.lane FROM jobwire.job j
        WHERE j.exclusive AND j.process_instance = asked.instance AND ",
    $not_put_aside,
    "
        ORDER BY j.seq LIMIT 1
    ) c WHERE ",
    $may_be_taken,
    "
), first AS MATERIALIZED (
    SELECT nextval('jobwire.fence_seq') AS next_fence, ",
    $served,
    " AS served, j.* FROM jobwire.job j
    WHERE j.ctid = ANY(ARRAY(SELECT place FROM candidate))
        AND ",
    unleased!("j"),
    "
    FOR UPDATE OF j SKIP LOCKED
), leased AS (
    INSERT INTO jobwire.job_lease (job_id, owner, fence, locked_at, expires_at)
    SELECT id, $3, next_fence, clock_timestamp(), clock_timestamp() + $4
    FROM first WHERE served
), taken AS (
    INSERT INTO jobwire.instance_lock AS i (process_instance, job_id, owner, fence)
    SELECT process_instance, id, $3, next_fence FROM first WHERE served
    ON CONFLICT (process_instance) DO UPDATE
        SET job_id = excluded.job_id, owner = excluded.owner, fence = excluded.fence
), idle AS (
    DELETE FROM jobwire.instance_lock WHERE (SELECT holds FROM unrestricted) AND process_instance = ANY(ARRAY(
        SELECT name FROM unnest($1::text[]) AS name WHERE name NOT IN (SELECT process_instance FROM first WHERE served)))
)
SELECT process_instance, true, true, true, CASE WHEN served THEN next_fence END, 0, clock_timestamp(), ",
    job_columns!("first"),
    "
FROM first
UNION ALL
SELECT instance, true, true, false, NULL, 0, clock_timestamp(), ",
    job_columns!("(NULL::jobwire.job)"),
    "
FROM candidate WHERE id NOT IN (SELECT id FROM first)
UNION ALL
SELECT NULL, false, false, false, NULL, 0, clock_timestamp(), ",
    job_columns!("(NULL::jobwire.job)"),
    "
WHERE NOT (SELECT holds FROM unrestricted)"
        )
    };
}

const TAKE_NEXT: Take = take!(take_next, served!("j", "$2", "$5::jsonb"));

/// Like [`TAKE_NEXT`], for a scope that takes all (`$5` is not read).
const TAKE_NEXT_UNSCOPED: Take = take!(take_next, "j.type = ANY($2)");

/// Locks the first ready job of each free instance. The instances' rows must be locked.
pub(super) async fn take_first(
    connection: &mut PgConnection,
    terms: &LockTerms,
    instances: &[String],
) -> Result<Vec<Tried>, StoreError> {
    take(&TAKE_FIRST, connection, terms, instances).await
}

async fn take(
    statement: &Take,
    connection: &mut PgConnection,
    terms: &LockTerms,
    instances: &[String],
) -> Result<Vec<Tried>, StoreError> {
    if instances.is_empty() {
        return Ok(Vec::new());
    }
    if let Some(tried) = try_by(statement.unrestricted, connection, terms, instances).await? {
        return Ok(tried);
    }
    let tried = try_by(statement.restricted, connection, terms, instances).await?;
    Ok(tried.unwrap_or_default())
}

/// Returns `None` if the statement has returned a row without an instance.
async fn try_by(
    statement: &'static str,
    connection: &mut PgConnection,
    terms: &LockTerms,
    instances: &[String],
) -> Result<Option<Vec<Tried>>, StoreError> {
    let lease: Duration = terms.lease;
    sqlx::query(statement)
        .bind(instances)
        .bind(&terms.types[..])
        .bind(terms.owner.0)
        .bind(lease)
        .bind(terms.scope.bound())
        .fetch_all(connection)
        .await?
        .iter()
        .map(|r| {
            let Some(instance) = r.try_get(0)? else {
                return Ok(None);
            };
            let (free, found, entered): (bool, bool, bool) =
                (r.try_get(1)?, r.try_get(2)?, r.try_get(3)?);
            let fence: Option<i64> = r.try_get(4)?;
            let mut unserved = None;
            let result = match fence {
                Some(_) => Ok(Box::new(decode::locked(r, 4)?)),
                None if !free => Err(Refusal::InstanceHeld),
                None if entered => {
                    unserved = Some(decode::needs(r)?);
                    Err(Refusal::Unserved)
                }
                None if found => Err(Refusal::Busy),
                None => Err(Refusal::Gone),
            };
            Ok(Some(Tried {
                instance,
                result,
                unserved,
            }))
        })
        .collect()
}

/// Keeps the row of an instance that another job holds by now.
const LEAVE: &str = "
DELETE FROM jobwire.instance_lock i
WHERE i.process_instance = ANY($1)
  AND NOT EXISTS (SELECT FROM jobwire.job_lease l
                  WHERE l.job_id = i.job_id AND l.fence = i.fence AND l.owner IS NOT NULL)";

/// Selects the next job of each free instance. An instance's row may name a holder that has died,
/// so the lease is looked up. The subquery for the lease is a value, which can't be planned as a
/// join.
const NEXT: &str = concat!(
    "
SELECT ",
    ready_columns!("j"),
    "
FROM unnest($1::text[]) AS name CROSS JOIN LATERAL (
    SELECT * FROM jobwire.job j
    WHERE j.exclusive AND j.process_instance = name AND ",
    not_put_aside!("j"),
    " AND ",
    unlocked!("j"),
    "
    ORDER BY j.seq LIMIT 1
) j
WHERE (SELECT l.job_id FROM jobwire.instance_lock i
    JOIN jobwire.job_lease l ON l.job_id = i.job_id AND l.fence = i.fence
    WHERE i.process_instance = name AND l.owner IS NOT NULL) IS NULL AND ",
    not_paused!("j"),
    " AND ",
    in_strict_order!("j")
);

/// Takes the next sibling of each of these instances. Their rows must be locked and name jobs that
/// this transaction has ended in an earlier statement. If the sibling can't be taken here, returns
/// its hint.
pub(super) async fn take_next(
    connection: &mut PgConnection,
    terms: &LockTerms,
    vacated: &[String],
) -> Result<(Vec<LockedJob>, Vec<Ready>), StoreError> {
    let (mut taken, mut left) = (Vec::new(), Vec::new());
    let statement = if terms.scope.takes_all() {
        TAKE_NEXT_UNSCOPED
    } else {
        TAKE_NEXT
    };
    for tried in take(&statement, connection, terms, vacated).await? {
        match tried.result {
            Ok(job) => taken.push(*job),
            Err(Refusal::Unserved | Refusal::Busy) => left.push(tried.instance),
            Err(_) => {}
        }
    }
    Ok((taken, next(connection, &left).await?))
}

/// Frees these instances unless another job holds them, and returns the next job of each. Their
/// rows must be locked.
pub(super) async fn leave(
    connection: &mut PgConnection,
    instances: &[String],
) -> Result<Vec<Ready>, StoreError> {
    vacate(&mut *connection, instances).await?;
    next(connection, instances).await
}

/// Like [`leave`], but does not look up the next jobs.
pub(super) async fn vacate(
    connection: &mut PgConnection,
    instances: &[String],
) -> Result<(), StoreError> {
    if !instances.is_empty() {
        sqlx::query(LEAVE)
            .bind(instances)
            .execute(connection)
            .await?;
    }
    Ok(())
}

/// Returns the next job of each of these instances that is free.
pub(super) async fn next(
    connection: &mut PgConnection,
    instances: &[String],
) -> Result<Vec<Ready>, StoreError> {
    if instances.is_empty() {
        return Ok(Vec::new());
    }
    let rows = sqlx::query(NEXT)
        .bind(instances)
        .fetch_all(connection)
        .await?;
    decode::all_ready(&rows)
}

/// Like [`next`], after the commit of the transaction that freed the instances. A query before that
/// commit would miss a job that commits in between and is refused. If the query fails, the sweeper
/// finds the jobs.
pub(super) async fn next_since(pool: &ConnectionPool, instances: &[String]) -> Vec<Ready> {
    if instances.is_empty() {
        return Vec::new();
    }
    let asked = async {
        let mut connection = pool.inner.acquire().await?;
        next(&mut connection, instances).await
    };
    asked.await.unwrap_or_else(|error| {
        tracing::debug!(
            %error,
            "the next jobs of instances could not be looked up; the sweeper will find them"
        );
        Vec::new()
    })
}

//! Exclusive jobs of a process instance, which run one at a time.
//!
//! The row of the instance names its holder, which counts while its lease has an owner (protocol
//! rules 10 to 12). There is one writer, so nothing changes between a read and a write.

use std::collections::HashMap;

use sqlx::{Row, SqliteConnection};

use super::decode;
use super::lease::lease;
use super::sql::{
    has_id, in_strict_order, is_put_aside, job_columns, paused, ready_columns, served, strikes,
    unlocked,
};
use crate::hint::Ready;
use crate::job::LockedJob;
use crate::store::error::StoreError;
use crate::store::{Handoff, LockTerms, Refusal, Tried};

/// True if no lease with an owner holds the instance `name.value`.
macro_rules! is_free {
    () => {
        "NOT EXISTS (SELECT 1 FROM instance_lock i JOIN job_lease l ON l.job_id = i.job_id AND l.fence = i.fence
    WHERE i.process_instance = name.value AND l.owner IS NOT NULL)"
    };
}

/// Selects the free instances of `?1`.
macro_rules! free_instances {
    () => {
        concat!(
            "SELECT name.value FROM json_each(?1) AS name WHERE ",
            is_free!()
        )
    };
}

/// Selects the first ready job of the instance `name.value`.
macro_rules! first_sibling {
    () => {
        concat!(
            "(SELECT s.id FROM job s WHERE s.exclusive AND s.process_instance = name.value AND ",
            has_id!("s.id"),
            " AND NOT ",
            is_put_aside!("s"),
            " AND ",
            unlocked!("s"),
            " ORDER BY s.seq LIMIT 1)"
        )
    };
}

const FREE: &str = free_instances!();

/// Selects the first ready job by creation order. Whether it can be locked depends on its type, but
/// no younger sibling overtakes it.
const FIRST: &str = concat!(
    "
SELECT ",
    served!("j", "?2", "?3"),
    ", ",
    strikes!("l"),
    ", ",
    job_columns!("j"),
    "
FROM json_each(?1) AS name CROSS JOIN job j ON j.id = ",
    first_sibling!(),
    "
LEFT JOIN job_lease l ON l.job_id = j.id
WHERE NOT ",
    paused!("j"),
    " AND ",
    in_strict_order!("j"),
    "
ORDER BY j.seq"
);

/// Writes the holders of instances. `?1` is an array of `[instance, job, fence]`.
const HOLD: &str = "
INSERT INTO instance_lock (process_instance, job_id, owner, fence)
SELECT value ->> 0, value ->> 1, ?2, value ->> 2 FROM json_each(?1) WHERE true
ON CONFLICT (process_instance) DO UPDATE
    SET job_id = excluded.job_id, owner = excluded.owner, fence = excluded.fence";

const LEAVE: &str = "
DELETE FROM instance_lock WHERE process_instance IN (SELECT value FROM json_each(?1))";

/// Returns the free instances.
async fn free(
    connection: &mut SqliteConnection,
    instances: &[String],
) -> Result<Vec<String>, StoreError> {
    Ok(sqlx::query_scalar(FREE)
        .bind(decode::array(instances)?)
        .fetch_all(connection)
        .await?)
}

/// Locks the first ready job of each free instance.
pub(super) async fn take_first(
    connection: &mut SqliteConnection,
    terms: &LockTerms,
    now: i64,
    instances: &[String],
) -> Result<Vec<Tried>, StoreError> {
    let free = free(connection, instances).await?;
    let rows = sqlx::query(FIRST)
        .bind(decode::array(&free)?)
        .bind(decode::array(&terms.types[..])?)
        .bind(terms.scope.bound())
        .fetch_all(&mut *connection)
        .await?;
    let mut refused: HashMap<&str, Refusal> = instances
        .iter()
        .map(|name| (name.as_str(), Refusal::InstanceHeld))
        .collect();
    refused.extend(free.iter().map(|name| (name.as_str(), Refusal::Gone)));
    let mut firsts = Vec::with_capacity(rows.len());
    let mut unserved = HashMap::new();
    for row in &rows {
        let job = decode::job(row, 2)?;
        let name = job.exclusive_instance().unwrap_or_default();
        if row.try_get(0)? {
            refused.remove(name);
            firsts.push((job, row.try_get(1)?));
        } else if let Some(why) = refused.get_mut(name) {
            *why = Refusal::Unserved;
            unserved.insert(name.to_owned(), job.needs());
        }
    }
    let taken = lease(connection, terms, now, firsts).await?;
    hold(connection, terms, &taken).await?;
    // Removes the rows of the other free instances. Otherwise each search of the sweeper would find
    // them.
    let idle: Vec<&String> = free
        .iter()
        .filter(|name| refused.contains_key(name.as_str()))
        .collect();
    leave(connection, &idle).await?;
    let mut tried: Vec<Tried> = refused
        .into_iter()
        .map(|(name, why)| Tried {
            instance: name.to_owned(),
            result: Err(why),
            unserved: unserved.remove(name),
        })
        .collect();
    tried.extend(taken.into_iter().map(|job| Tried {
        instance: job.job.exclusive_instance().unwrap_or_default().to_owned(),
        result: Ok(Box::new(job)),
        unserved: None,
    }));
    Ok(tried)
}

async fn hold(
    connection: &mut SqliteConnection,
    terms: &LockTerms,
    taken: &[LockedJob],
) -> Result<(), StoreError> {
    if !taken.is_empty() {
        sqlx::query(HOLD)
            .bind(decode::array(
                taken
                    .iter()
                    .map(|l| (l.job.exclusive_instance(), l.job.id, l.fence)),
            )?)
            .bind(terms.owner.to_string())
            .execute(connection)
            .await?;
    }
    Ok(())
}

async fn leave(connection: &mut SqliteConnection, instances: &[&String]) -> Result<(), StoreError> {
    if !instances.is_empty() {
        sqlx::query(LEAVE)
            .bind(decode::array(instances)?)
            .execute(connection)
            .await?;
    }
    Ok(())
}

const NEXT: &str = concat!(
    "
SELECT ",
    ready_columns!("j"),
    " FROM json_each(?1) AS name CROSS JOIN job j ON j.id = ",
    first_sibling!(),
    "
WHERE NOT ",
    paused!("j"),
    " AND ",
    in_strict_order!("j"),
    " AND ",
    is_free!(),
    "
ORDER BY j.seq"
);

/// Hands off the instances that were just released: locks the next sibling of each, or returns it
/// to be hinted. An instance that another job holds by now keeps its row.
pub(super) async fn handoff(
    connection: &mut SqliteConnection,
    now: i64,
    instances: &[String],
    then: &Handoff,
) -> Result<(Vec<LockedJob>, Vec<Ready>), StoreError> {
    let (mut taken, mut left) = (Vec::new(), Vec::new());
    match then {
        Handoff::Take(terms) => {
            for tried in take_first(connection, terms, now, instances).await? {
                match tried.result {
                    Ok(job) => taken.push(*job),
                    Err(Refusal::Unserved) => left.push(tried.instance),
                    Err(_) => {}
                }
            }
        }
        Handoff::Hint => {
            left = free(connection, instances).await?;
            leave(connection, &left.iter().collect::<Vec<_>>()).await?;
        }
    }
    let ready = if left.is_empty() {
        Vec::new()
    } else {
        next(connection, &left).await?
    };
    Ok((taken, ready))
}

/// Returns the first ready sibling of each of these instances that is free.
pub(super) async fn next(
    connection: &mut SqliteConnection,
    instances: &[String],
) -> Result<Vec<Ready>, StoreError> {
    let rows = sqlx::query(NEXT)
        .bind(decode::array(instances)?)
        .fetch_all(connection)
        .await?;
    decode::all_ready(&rows)
}

//! Unique jobs: claiming keys, and deleting the rows of free ones.
//!
//! Whether a key is taken follows from the tables of jobs (migration 0008). A creator locks the row
//! of the key and looks then, in a later statement: only a snapshot that began after the lock has
//! what another creator has committed.

use std::collections::{HashMap, HashSet};

use sqlx::postgres::PgArguments;
use sqlx::{PgConnection, Postgres, Row};

use super::begin::begin;
use super::connection_pool::ConnectionPool;
use crate::job::JobId;
use crate::job::new_job::NewJob;
use crate::store::error::StoreError;
use crate::store::unique::{Claim, Claims};

/// Finds the keys that are taken, and enters the others. The row of a key that another creator has
/// entered is locked; its transaction is waited for. A key that is taken costs no write.
const ENTER: &str = "
WITH given AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::boolean[])
        AS g(id, type, tenant, key, period_us, dead_letters)
), taken AS MATERIALIZED (
    SELECT g.id, u.job_id FROM given g JOIN jobwire.unique_job u USING (type, tenant, key)
    WHERE jobwire.has_key(u.job_id, u.held_until, u.dead_letters)
), entered AS (
    INSERT INTO jobwire.unique_job AS u (type, tenant, key, job_id, held_until, dead_letters)
    SELECT type, tenant, key, id, jobwire.period_end(period_us), dead_letters
    FROM given g WHERE NOT EXISTS (SELECT FROM taken t WHERE t.id = g.id)
    ORDER BY type, tenant, key
    ON CONFLICT (type, tenant, key) DO UPDATE SET job_id = u.job_id
    RETURNING u.type, u.tenant, u.key, u.job_id
)
SELECT g.id, coalesce(t.job_id, e.job_id), t.job_id IS NOT NULL
FROM given g LEFT JOIN taken t USING (id) LEFT JOIN entered e USING (type, tenant, key)";

/// Takes those of these keys that are free by now. Their rows are locked.
const TAKE: &str = "
UPDATE jobwire.unique_job u SET job_id = g.id, held_until = jobwire.period_end(g.period_us), dead_letters = g.dead_letters,
    seen_at = clock_timestamp()
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::boolean[])
    AS g(id, type, tenant, key, period_us, dead_letters)
WHERE u.type = g.type AND u.tenant = g.tenant AND u.key = g.key
    AND NOT jobwire.has_key(u.job_id, u.held_until, u.dead_letters)
RETURNING g.id";

/// Locks the rows that were seen longest ago. Rows that a creator has locked are skipped.
const LONG_UNSEEN: &str = "
SELECT type, tenant, key FROM jobwire.unique_job
WHERE seen_at < clock_timestamp() - interval '1 hour' ORDER BY seen_at LIMIT $1 FOR UPDATE SKIP LOCKED";

/// Deletes the locked rows whose keys are free, and marks the others as seen. A statement of its
/// own: it sees what was committed before the locks. The row of a dead letter stays, for the
/// revival: another job that takes the key finds it.
const PRUNE: &str = "
WITH seen AS MATERIALIZED (
    SELECT u.type, u.tenant, u.key, jobwire.has_key(u.job_id, u.held_until, true) AS is_taken
    FROM jobwire.unique_job u JOIN unnest($1::text[], $2::text[], $3::text[]) AS g(type, tenant, key) USING (type, tenant, key)
), freed AS (
    DELETE FROM jobwire.unique_job u USING seen s
    WHERE NOT s.is_taken AND u.type = s.type AND u.tenant = s.tenant AND u.key = s.key
)
UPDATE jobwire.unique_job u SET seen_at = clock_timestamp()
FROM seen s WHERE s.is_taken AND u.type = s.type AND u.tenant = s.tenant AND u.key = s.key";

/// Deletes the names of dead letters that were deleted while another job took their keys.
const PRUNE_LETTERS: &str = "
DELETE FROM jobwire.unique_dead_letter WHERE job_id IN (
    SELECT f.job_id FROM jobwire.unique_dead_letter f
    WHERE NOT EXISTS (SELECT FROM jobwire.dead_letter_job d WHERE d.id = f.job_id) LIMIT $1 FOR UPDATE OF f SKIP LOCKED)";

type PgQuery = sqlx::query::Query<'static, Postgres, PgArguments>;

fn claiming(statement: &'static str, claims: &[&Claim]) -> PgQuery {
    fn texts(claims: &[&Claim], field: impl Fn(&Claim) -> &String) -> Vec<String> {
        claims.iter().map(|claim| field(claim).clone()).collect()
    }
    sqlx::query(statement)
        .bind(claims.iter().map(|c| c.id.0).collect::<Vec<_>>())
        .bind(texts(claims, |c| &c.r#type))
        .bind(texts(claims, |c| &c.tenant))
        .bind(texts(claims, |c| &c.key))
        .bind(claims.iter().map(|c| c.period_us).collect::<Vec<_>>())
        .bind(claims.iter().map(|c| c.dead_letters).collect::<Vec<_>>())
}

/// Claims the keys of these jobs and removes the jobs whose keys other jobs have. Returns the
/// removed jobs with those. Sends no statement if no job has a key.
pub(super) async fn claim(
    connection: &mut PgConnection,
    jobs: &mut Vec<NewJob>,
) -> Result<Vec<(JobId, JobId)>, StoreError> {
    let Some(claims) = Claims::of(jobs) else {
        return Ok(Vec::new());
    };
    let all: Vec<&Claim> = claims.firsts.iter().collect();
    let rows = claiming(ENTER, &all).fetch_all(&mut *connection).await?;
    let mut holders = HashMap::with_capacity(rows.len());
    let (mut doubted, mut taken) = (HashSet::new(), HashSet::new());
    for row in &rows {
        let (id, holder) = (JobId(row.try_get(0)?), JobId(row.try_get(1)?));
        let is_taken: bool = row.try_get(2)?;
        holders.insert(id, holder);
        if is_taken {
            taken.insert(id);
        } else if id != holder {
            doubted.insert(id);
        }
    }
    if !doubted.is_empty() {
        let free = all.into_iter().filter(|claim| doubted.contains(&claim.id));
        let free: Vec<&Claim> = free.collect();
        for row in &claiming(TAKE, &free).fetch_all(connection).await? {
            let id = JobId(row.try_get(0)?);
            holders.insert(id, id);
        }
    }
    Ok(claims.settle(jobs, &holders, &taken))
}

/// Deletes rows of free keys among up to `at_most` rows that were not seen for an hour. Returns the
/// number of rows that it looked at.
pub(super) async fn prune(pool: &ConnectionPool, at_most: i64) -> Result<u64, StoreError> {
    sqlx::query(PRUNE_LETTERS)
        .bind(at_most)
        .execute(&pool.inner)
        .await?;
    let mut tx = begin(pool).await?;
    let unseen: Vec<(String, String, String)> = sqlx::query_as(LONG_UNSEEN)
        .bind(at_most)
        .fetch_all(&mut *tx)
        .await?;
    let looked = u64::try_from(unseen.len()).unwrap_or(u64::MAX);
    if looked == 0 {
        return Ok(0);
    }
    let (mut types, mut tenants, mut keys) = (Vec::new(), Vec::new(), Vec::new());
    for (job_type, tenant, key) in unseen {
        types.push(job_type);
        tenants.push(tenant);
        keys.push(key);
    }
    sqlx::query(PRUNE)
        .bind(types)
        .bind(tenants)
        .bind(keys)
        .execute(&mut *tx)
        .await?;
    tx.commit().await?;
    Ok(looked)
}

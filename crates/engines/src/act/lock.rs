//! Locking: of jobs that hints name, of the next jobs of instances, and of jobs that a claim finds.
//!
//! A hint of a job with an instance means "try this instance": the first unlocked job of the
//! instance is locked, in the order of creation. The lock of the instance and that of the job are
//! written in one statement, with the same owner.
//!
//! The lock raises `REV_`, as the engine's own does. An engine node that polls reads unlocked rows
//! and locks them by a later statement, `WHERE REV_ =` the value that it has read. Without a new
//! `REV_` that statement would replace a lock that was written in between, and both nodes would
//! execute the job. After its largest number `REV_` begins at 1, so that no row fails the statement.
//!
//! A statement that finds an instance held has locked its row for a moment. The end of the holder
//! locks that row, too, and looks for the next job afterwards. So one of the two sees a new job.
//!
//! If the engine locks the instance, the lock changes nothing on its row. So an earlier statement
//! locks these rows: the lock statement then sees every lock that was committed under them.

use jobwire_core::StoreError;
use jobwire_core::job::LockedJob;
use jobwire_core::store::{ClaimOf, ClaimPage, Claimable, LockTerms};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, PgPool, Row};

use super::Act;
use super::instance_lock::InstanceLock;
use super::sql::{in_scope, job_columns, local_now, of_processes, unlocked};
use crate::columns::{Wanted, names};
use crate::id::engine_id;
use crate::locking;

/// Locks the rows of the instances that no other transaction has locked. `$1`: ids, `$2`: the
/// instance that each hint names.
const HOLD: &str = "
SELECT e.id_ FROM act_ru_execution e
WHERE e.id_ IN (
    SELECT coalesce(j.process_instance_id_, CASE WHEN j.id_ IS NULL THEN h.inst END)
    FROM unnest($1::text[], $2::text[]) AS h(id, inst) LEFT JOIN act_ru_job j ON j.id_ = h.id)
ORDER BY e.id_ FOR NO KEY UPDATE SKIP LOCKED";

/// Locks jobs, or returns the reason why a job is not locked. `$1`: the zone, `$2`: ids, `$3`: the
/// instance that each hint names, `$4`: the owner without its fence, `$5`: the length of the lock,
/// `$6` and `$7`: tenants and categories. If the engine locks instances, `$8`: those whose rows the
/// transaction has locked.
///
/// * `free` are the rows of instances that no other transaction has locked.
/// * `firsts` are the jobs to lock: no other job of their instance is locked, by a Jobwire node or
///   by an engine node that polls.
pub(super) const LOCK: &str = concat!(
    "
WITH hinted AS MATERIALIZED (
    SELECT * FROM unnest($2::text[], $3::text[]) AS h(id, inst)
), named AS MATERIALIZED (
    SELECT h.id, coalesce(j.process_instance_id_, CASE WHEN j.id_ IS NULL THEN h.inst END) AS inst, j.id_ IS NOT NULL AS is_here,
        NOT ",
    unlocked!("j"),
    " AS is_locked, ",
    of_processes!("j"),
    " AND ",
    in_scope!("j", "$6", "$7"),
    " AS is_served, j.handler_type_, j.tenant_id_, {j.category_} AS category_
    FROM hinted h LEFT JOIN act_ru_job j ON j.id_ = h.id
), free AS MATERIALIZED (
    SELECT e.id_, e.lock_time_ IS NOT NULL OR {e.lock_owner_} IS NOT NULL AS is_held, e.suspension_state_ = 2 AS is_suspended
    FROM act_ru_execution e WHERE e.id_ IN (SELECT inst FROM named) {rows held} ORDER BY e.id_ FOR NO KEY UPDATE SKIP LOCKED
), firsts AS MATERIALIZED (
    SELECT f.id_ AS inst, c.id_ FROM free f CROSS JOIN LATERAL (
        SELECT j.id_ FROM act_ru_job j
        WHERE j.process_instance_id_ = f.id_ AND ",
    unlocked!("j"),
    " AND (",
    of_processes!("j"),
    ") AND ",
    in_scope!("j", "$6", "$7"),
    "
        ORDER BY {by_age j} LIMIT 1
    ) c
    WHERE NOT f.is_held AND f.is_suspended IS NOT TRUE
      AND NOT EXISTS (SELECT FROM act_ru_job s WHERE s.process_instance_id_ = f.id_ AND s.lock_exp_time_ IS NOT NULL)
), chosen AS MATERIALIZED (
    SELECT j.id_ FROM act_ru_job j
    WHERE j.id_ IN (SELECT id_ FROM firsts UNION SELECT id FROM named WHERE is_here AND inst IS NULL AND is_served) AND ",
    unlocked!("j"),
    "
    ORDER BY j.id_ FOR NO KEY UPDATE SKIP LOCKED
), fenced AS MATERIALIZED (
    SELECT id_, nextval('jobwire_engine.fence') AS fence FROM chosen
), locked AS (
    UPDATE act_ru_job j SET rev_ = j.rev_ % 2147483647 + 1, lock_owner_ = $4 || f.fence, lock_exp_time_ = ",
    local_now!(),
    " + $5
    FROM fenced f WHERE j.id_ = f.id_
    RETURNING ",
    job_columns!("j"),
    ", f.fence
){write instance lock}
SELECT n.id AS hinted, n.inst AS hinted_instance, n.handler_type_ AS needs_type, n.tenant_id_ AS needs_tenant, n.category_ AS needs_category,
    NULL::text AS needs_deployment,
    CASE WHEN l.id_ IS NOT NULL THEN 'locked-now'
        WHEN NOT n.is_here THEN 'gone'
        WHEN n.is_locked THEN 'locked'
        WHEN n.is_served IS NOT TRUE THEN 'unserved'
        WHEN n.inst IS NULL OR f.id_ IS NULL THEN 'busy'
        WHEN f.is_suspended THEN 'suspended'
        WHEN f.is_held THEN 'instance-held'
        WHEN firsts.id_ = n.id THEN 'busy'
        ELSE 'instance-held' END AS class,
    l.*
FROM named n LEFT JOIN free f ON f.id_ = n.inst LEFT JOIN firsts ON firsts.inst = n.inst
FULL JOIN locked l ON l.id_ = n.id"
);

/// Locks the instance with its job.
pub(super) const WRITE_INSTANCE_LOCK: &str = concat!(
    ", held AS (
    UPDATE act_ru_execution e SET lock_owner_ = $4 || f.fence, lock_time_ = ",
    local_now!(),
    " + $5
    FROM fenced f JOIN firsts ON firsts.id_ = f.id_ WHERE e.id_ = firsts.inst
)"
);

impl Act {
    /// Sends the statement for these jobs and instances.
    pub(super) async fn lock_wanted(
        &self,
        pool: &PgPool,
        terms: &LockTerms,
        wanted: &Wanted,
    ) -> Result<Vec<PgRow>, StoreError> {
        if self.instances_of == InstanceLock::OfNode {
            let mut connection = pool.acquire().await?;
            return self.send(&mut connection, terms, wanted, &[]).await;
        }
        let mut tx = pool.begin().await?;
        let held: Vec<String> = sqlx::query_scalar(HOLD)
            .bind(&wanted.ids)
            .bind(&wanted.instances)
            .fetch_all(&mut *tx)
            .await?;
        let rows = self.send(&mut tx, terms, wanted, &held).await?;
        tx.commit().await?;
        Ok(rows)
    }

    /// Locks the first unlocked job of each of these instances, whose rows the transaction has
    /// locked.
    pub(super) async fn lock_next(
        &self,
        connection: &mut PgConnection,
        terms: &LockTerms,
        instances: Vec<String>,
    ) -> Result<Vec<LockedJob>, StoreError> {
        let wanted = Wanted::of_instances(instances.clone());
        let rows = self.send(connection, terms, &wanted, &instances).await?;
        let mut locked = Vec::new();
        for row in &rows {
            locked.extend(self.locked_job(row)?);
        }
        Ok(locked)
    }

    fn locked_job(&self, row: &PgRow) -> Result<Option<LockedJob>, StoreError> {
        if row.try_get::<Option<String>, _>("id_")?.is_none() {
            return Ok(None);
        }
        self.decoder.locked(row)
    }

    async fn send(
        &self,
        connection: &mut PgConnection,
        terms: &LockTerms,
        wanted: &Wanted,
        held: &[String],
    ) -> Result<Vec<PgRow>, StoreError> {
        let owner = format!("{}{}:", crate::owner::PREFIX, terms.owner);
        let mut lock = sqlx::query(self.sql.lock)
            .bind(self.zone.name())
            .bind(&wanted.ids)
            .bind(&wanted.instances)
            .bind(owner)
            .bind(self.locked_for(terms.lease))
            .bind(names(&terms.scope.tenants))
            .bind(names(&terms.scope.categories));
        if self.instances_of == InstanceLock::OfEngine {
            lock = lock.bind(held);
        }
        Ok(lock.fetch_all(connection).await?)
    }

    /// Returns the jobs of a page of a claim, in the order of their ids.
    pub(super) async fn claimable_page(
        &self,
        pool: &PgPool,
        page: &ClaimPage,
    ) -> Result<Claimable, StoreError> {
        // The leader clears an expired lock and hints the job.
        let ClaimOf::Next { after, look_at } = page.of else {
            return Ok(Claimable::default());
        };
        if page.lane != self.decoder.lane {
            return Ok(Claimable::default());
        }
        let rows = sqlx::query(self.sql.claimable)
            .bind(after.and_then(engine_id))
            .bind(look_at)
            .fetch_all(pool)
            .await?;
        locking::claimable(&self.decoder, &rows, page, look_at)
    }
}

/// Selects a slice of the jobs, in the order of their ids, and whether each could be locked.
pub(super) const CLAIMABLE: &str = concat!(
    "
SELECT j.id_, j.process_instance_id_, ",
    unlocked!("j"),
    " AND NOT EXISTS (
        SELECT FROM act_ru_execution e WHERE e.id_ = j.process_instance_id_ AND e.lock_time_ IS NOT NULL) AS is_free
FROM act_ru_job j
WHERE ($1::text IS NULL OR j.id_ > $1) AND (",
    of_processes!("j"),
    ")
ORDER BY j.id_ LIMIT $2"
);

//! Locking: of jobs that hints name, of the next jobs of instances, and of jobs that a claim finds.
//!
//! A hint of a job with an instance means "try this instance": the first ready job of the instance
//! is locked.
//!
//! The lock raises `REV_`, as the engine's own does. An engine node that polls reads unlocked rows
//! and locks them by a later statement, `WHERE REV_ =` the value that it has read. After its largest
//! number `REV_` begins at 1, so that no row fails the statement.
//!
//! A lock changes nothing on the row of the instance. So the snapshot of a single statement could
//! be older than the lock of a sibling. Two statements of one transaction prevent that: the first
//! locks the rows of the instances, and the second begins afterwards and sees every lock that was
//! committed under them.

use jobwire_core::StoreError;
use jobwire_core::job::LockedJob;
use jobwire_core::store::{ClaimOf, ClaimPage, Claimable, LockTerms};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, PgPool, Row};

use super::Camunda;
use super::sql::{by_age, due, in_scope, job_columns, local_now, runnable, unlocked};
use crate::columns::{Wanted, names};
use crate::dialect::Dialect;
use crate::id::engine_id;
use crate::locking;

/// Locks the rows of the instances that no other transaction has locked. `$1`: ids, `$2`: the
/// instance that each hint names.
const HOLD: &str = "
SELECT e.id_, e.suspension_state_ = 2 AS is_suspended FROM act_ru_execution e
WHERE e.id_ IN (
    SELECT coalesce(j.process_instance_id_, CASE WHEN j.id_ IS NULL THEN h.inst END)
    FROM unnest($1::text[], $2::text[]) AS h(id, inst) LEFT JOIN act_ru_job j ON j.id_ = h.id)
ORDER BY e.id_ FOR NO KEY UPDATE SKIP LOCKED";

/// Locks jobs, or returns the reason why a job is not locked. `$1`: the zone, `$2`: ids, `$3`: the
/// instance that each hint names, `$4`: the owner without its fence, `$5`: the length of the lock,
/// `$6` and `$7`: tenants and deployments, `$8`: the instances whose rows are locked, `$9`: those
/// of them that are suspended, `$10`: the zone of due dates.
///
/// `firsts` are the jobs to lock: no other job of their instance is locked, by a Jobwire node or by
/// an engine node that polls.
const LOCK: &str = concat!(
    "
WITH hinted AS MATERIALIZED (
    SELECT * FROM unnest($2::text[], $3::text[]) AS h(id, inst)
), named AS MATERIALIZED (
    SELECT h.id, coalesce(j.process_instance_id_, CASE WHEN j.id_ IS NULL THEN h.inst END) AS inst, j.id_ IS NOT NULL AS is_here,
        NOT ",
    unlocked!("j"),
    " AS is_locked, ",
    runnable!("j"),
    " AND ",
    due!("j", "$10"),
    " AS is_ready, j.suspension_state_ = 2 AS is_suspended, ",
    in_scope!("j", "$6", "$7"),
    " AS is_served, j.handler_type_, j.tenant_id_, j.deployment_id_
    FROM hinted h LEFT JOIN act_ru_job j ON j.id_ = h.id
), free AS MATERIALIZED (
    SELECT f.id AS id_, f.id = ANY($9::text[]) AS is_suspended FROM unnest($8::text[]) AS f(id)
), firsts AS MATERIALIZED (
    SELECT f.id_ AS inst, c.id_ FROM free f CROSS JOIN LATERAL (
        SELECT j.id_ FROM act_ru_job j
        WHERE j.process_instance_id_ = f.id_ AND ",
    unlocked!("j"),
    " AND ",
    runnable!("j"),
    " AND ",
    due!("j", "$10"),
    " AND ",
    in_scope!("j", "$6", "$7"),
    "
        ORDER BY ",
    by_age!("j"),
    " LIMIT 1
    ) c
    WHERE NOT f.is_suspended
      AND NOT EXISTS (SELECT FROM act_ru_job s WHERE s.process_instance_id_ = f.id_ AND s.lock_exp_time_ IS NOT NULL)
), chosen AS MATERIALIZED (
    SELECT j.id_ FROM act_ru_job j
    WHERE j.id_ IN (SELECT id_ FROM firsts
            UNION SELECT id FROM named WHERE is_here AND inst IS NULL AND is_served AND is_ready)
      AND ",
    unlocked!("j"),
    " AND ",
    runnable!("j"),
    " AND ",
    due!("j", "$10"),
    "
    ORDER BY j.id_ FOR NO KEY UPDATE SKIP LOCKED
), fenced AS MATERIALIZED (
    SELECT id_, nextval('jobwire_engine.fence') AS fence FROM chosen
), locked AS (
    UPDATE act_ru_job j SET rev_ = j.rev_ % 2147483647 + 1, lock_owner_ = $4 || f.fence, lock_exp_time_ = date_trunc('milliseconds', ",
    local_now!(),
    " + $5)
    FROM fenced f WHERE j.id_ = f.id_
    RETURNING ",
    job_columns!("j"),
    ", f.fence
)
SELECT n.id AS hinted, n.inst AS hinted_instance, n.handler_type_ AS needs_type, n.tenant_id_ AS needs_tenant,
    NULL::text AS needs_category, n.deployment_id_ AS needs_deployment,
    CASE WHEN l.id_ IS NOT NULL THEN 'locked-now'
        WHEN NOT n.is_here THEN 'gone'
        WHEN n.is_locked THEN 'locked'
        WHEN n.is_suspended OR f.is_suspended THEN 'suspended'
        WHEN n.is_ready IS NOT TRUE THEN 'not-ready'
        WHEN n.is_served IS NOT TRUE THEN 'unserved'
        WHEN n.inst IS NULL OR f.id_ IS NULL THEN 'busy'
        WHEN firsts.id_ = n.id THEN 'busy'
        ELSE 'instance-held' END AS class,
    l.*
FROM named n LEFT JOIN free f ON f.id_ = n.inst LEFT JOIN firsts ON firsts.inst = n.inst
FULL JOIN locked l ON l.id_ = n.id"
);

/// Selects a slice of the jobs, in the order of their ids, and whether each could be locked. `$1`:
/// the zone of due dates.
const CLAIMABLE: &str = concat!(
    "
SELECT j.id_, j.process_instance_id_, ",
    unlocked!("j"),
    " AND ",
    runnable!("j"),
    " AND ",
    due!("j"),
    " AND NOT EXISTS (
        SELECT FROM act_ru_job s WHERE s.process_instance_id_ = j.process_instance_id_ AND s.lock_exp_time_ IS NOT NULL) AS is_free
FROM act_ru_job j WHERE $2::text IS NULL OR j.id_ > $2
ORDER BY j.id_ LIMIT $3"
);

/// Instances whose rows this transaction has locked.
#[derive(Clone, Debug, Default)]
pub(super) struct Free {
    pub(super) instances: Vec<String>,
    pub(super) suspended: Vec<String>,
}

impl Camunda {
    /// Sends the statement for these jobs and instances.
    pub(super) async fn lock_wanted(
        &self,
        pool: &PgPool,
        terms: &LockTerms,
        wanted: &Wanted,
    ) -> Result<Vec<PgRow>, StoreError> {
        self.zone.learn(self.stamps(), pool).await?;
        let mut tx = pool.begin().await?;
        let rows = sqlx::query(HOLD)
            .bind(&wanted.ids)
            .bind(&wanted.instances)
            .fetch_all(&mut *tx)
            .await?;
        let mut free = Free::default();
        for row in &rows {
            let id: String = row.try_get(0)?;
            if row.try_get::<Option<bool>, _>(1)? == Some(true) {
                free.suspended.push(id.clone());
            }
            free.instances.push(id);
        }
        let rows = self.send(&mut tx, terms, wanted, &free).await?;
        tx.commit().await?;
        Ok(rows)
    }

    /// Locks the first ready job of each of these instances, whose rows the transaction has locked.
    pub(super) async fn lock_next(
        &self,
        connection: &mut PgConnection,
        terms: &LockTerms,
        free: Free,
    ) -> Result<Vec<LockedJob>, StoreError> {
        let wanted = Wanted::of_instances(free.instances.clone());
        let rows = self.send(connection, terms, &wanted, &free).await?;
        let mut locked = Vec::new();
        for row in &rows {
            if row.try_get::<Option<String>, _>("id_")?.is_some() {
                locked.extend(self.decoder.locked(row)?);
            }
        }
        Ok(locked)
    }

    async fn send(
        &self,
        connection: &mut PgConnection,
        terms: &LockTerms,
        wanted: &Wanted,
        free: &Free,
    ) -> Result<Vec<PgRow>, StoreError> {
        let owner = format!("{}{}:", crate::owner::PREFIX, terms.owner);
        let rows = sqlx::query(LOCK)
            .bind(self.zone.name())
            .bind(&wanted.ids)
            .bind(&wanted.instances)
            .bind(owner)
            // The lock is at least as long as the lease, for which the node trusts it.
            .bind(self.lock_for.max(terms.lease))
            .bind(names(&terms.scope.tenants))
            .bind(names(&terms.scope.deployments))
            .bind(&free.instances)
            .bind(&free.suspended)
            .bind(self.zone.judged());
        Ok(rows.fetch_all(connection).await?)
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
        self.zone.learn(self.stamps(), pool).await?;
        let rows = sqlx::query(CLAIMABLE)
            .bind(self.zone.judged())
            .bind(after.and_then(engine_id))
            .bind(look_at)
            .fetch_all(pool)
            .await?;
        locking::claimable(&self.decoder, &rows, page, look_at)
    }
}

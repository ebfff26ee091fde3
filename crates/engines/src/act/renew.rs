//! Renews locks, and finds locks of a node that the node does not know.

use std::time::Duration;

use jobwire_core::job::{LockToken, LockedJob};
use jobwire_core::store::Renewed;
use jobwire_core::{Fence, NodeId, StoreError};
use sqlx::{PgPool, Row};

use super::Act;
use super::sql::{job_columns, local_now};
use crate::columns::columns;
use crate::id::job_id;
use crate::owner::{PREFIX, owner};

/// Extends locks. Waits for no row: the engine deletes the row of a job at the end of its
/// execution, and updates that of the instance. `$1`: the zone, `$2`: ids, `$3`: owners, `$4`:
/// instances, `$5`: the length of the lock from now.
///
/// With REST, Jobwire holds the lock of the instance; with the endpoint, the engine holds it.
///
/// A row that is gone counts as renewed: the engine has ended the job, and its outcome is on the
/// way to the node.
pub(super) const RENEW: &str = concat!(
    "
WITH held AS MATERIALIZED (
    SELECT * FROM unnest($2::text[], $3::text[], $4::text[]) AS h(id, owner, inst)
), insts AS MATERIALIZED (
    SELECT e.id_ FROM act_ru_execution e JOIN held h ON e.id_ = h.inst AND {extended instance}
    ORDER BY e.id_ FOR NO KEY UPDATE OF e SKIP LOCKED
), jobs AS MATERIALIZED (
    SELECT j.id_ FROM act_ru_job j JOIN held h ON j.id_ = h.id AND j.lock_owner_ = h.owner
    ORDER BY j.id_ FOR NO KEY UPDATE OF j SKIP LOCKED
), extended AS (
    UPDATE act_ru_execution e SET lock_time_ = ",
    local_now!(),
    " + $5 FROM insts WHERE e.id_ = insts.id_
), renewed AS (
    UPDATE act_ru_job j SET lock_exp_time_ = ",
    local_now!(),
    " + $5 FROM jobs WHERE j.id_ = jobs.id_
)
SELECT h.id, j.id_ IS NULL OR jobs.id_ IS NOT NULL AS is_renewed, j.lock_owner_ IS NOT DISTINCT FROM h.owner AS is_ours
FROM held h LEFT JOIN act_ru_job j ON j.id_ = h.id LEFT JOIN jobs ON jobs.id_ = h.id"
);

/// True if the lock by which the engine keeps the instance for the execution ends soon.
pub(super) const ENDING_INSTANCE_LOCK: &str = concat!("e.lock_time_ < ", local_now!(), " + $5");

/// Extends and selects unknown locks of a node. Reads every job, since no index names a lock. `$1`:
/// the zone, `$2`: the owner without its fence, `$3`: owners that the node knows, `$4`: the length of
/// the lock from now.
pub(super) const HELD_BY: &str = concat!(
    "
WITH found AS MATERIALIZED (
    SELECT j.id_ FROM act_ru_job j
    WHERE starts_with(j.lock_owner_, $2) AND j.lock_owner_ <> ALL($3)
    ORDER BY j.id_ FOR NO KEY UPDATE SKIP LOCKED
), extended AS (
    UPDATE act_ru_job j SET lock_exp_time_ = ",
    local_now!(),
    " + $4 FROM found WHERE j.id_ = found.id_
    RETURNING ",
    job_columns!("j"),
    ", substr(j.lock_owner_, length($2) + 1)::bigint AS fence
)
SELECT * FROM extended"
);

impl Act {
    /// Extends these locks, and those of their instances.
    pub(super) async fn renew_held(
        &self,
        pool: &PgPool,
        node: NodeId,
        lease: Duration,
        held: &[LockToken],
    ) -> Result<Renewed, StoreError> {
        let (ids, owners, instances) = columns(node, held.iter());
        let rows = sqlx::query(self.sql.renew)
            .bind(self.zone.name())
            .bind(ids)
            .bind(owners)
            .bind(instances)
            .bind(self.locked_for(lease))
            .fetch_all(pool)
            .await?;
        let mut answer = Renewed::default();
        for row in &rows {
            let id: String = row.try_get("id")?;
            let Ok(id) = job_id(&id) else { continue };
            if row.try_get("is_renewed")? {
                answer.renewed.push(id);
            } else if row.try_get("is_ours")? {
                answer.busy.push(id);
            }
        }
        Ok(answer)
    }

    /// Extends and returns the locks of this node that have none of these fences.
    pub(super) async fn held_by_node(
        &self,
        pool: &PgPool,
        node: NodeId,
        lease: Duration,
        known: &[Fence],
    ) -> Result<Vec<LockedJob>, StoreError> {
        let known: Vec<String> = known.iter().map(|fence| owner(node, *fence)).collect();
        let rows = sqlx::query(self.sql.held_by)
            .bind(self.zone.name())
            .bind(format!("{PREFIX}{node}:"))
            .bind(known)
            .bind(self.locked_for(lease))
            .fetch_all(pool)
            .await?;
        let mut found = Vec::new();
        for row in &rows {
            found.extend(self.decoder.locked(row)?);
        }
        Ok(found)
    }
}

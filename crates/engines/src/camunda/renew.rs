//! Checks locks, and finds locks of a node that the node does not know.
//!
//! No lock is extended: see the rules of [`camunda`](super). A lock belongs to the node until its
//! expiry. After that the leader clears it, or an engine node takes the job.

use jobwire_core::job::{LockToken, LockedJob};
use jobwire_core::store::Renewed;
use jobwire_core::{Fence, NodeId, StoreError};
use sqlx::{PgPool, Row};

use super::Camunda;
use super::sql::job_columns;
use crate::columns::columns;
use crate::id::job_id;
use crate::owner::{PREFIX, owner};

/// Selects which locks are held. A row that is gone counts as held: the engine has ended the job,
/// and its outcome is on the way to the node. `$1`: ids, `$2`: owners.
const LOOK: &str = "
SELECT h.id, j.id_ IS NULL OR j.lock_owner_ = h.owner AS is_ours, j.lock_exp_time_ IS NULL AS is_unlocked
FROM unnest($1::text[], $2::text[]) AS h(id, owner) LEFT JOIN act_ru_job j ON j.id_ = h.id";

/// Selects the jobs with unknown locks of a node. Reads every job, since no index names a lock.
/// `$1`: the zone, `$2`: the owner without its fence, `$3`: owners that the node knows.
const HELD_BY: &str = concat!(
    "
SELECT ",
    job_columns!("j"),
    ", substr(j.lock_owner_, length($2) + 1)::bigint AS fence
FROM act_ru_job j WHERE starts_with(j.lock_owner_, $2) AND j.lock_owner_ <> ALL($3) ORDER BY j.id_"
);

/// Returns which of these locks are held. Changes nothing.
pub(super) async fn look(
    pool: &PgPool,
    node: NodeId,
    held: &[LockToken],
) -> Result<Renewed, StoreError> {
    let (ids, owners, _) = columns(node, held.iter());
    let rows = sqlx::query(LOOK).bind(ids).bind(owners).fetch_all(pool);
    let mut answer = Renewed::default();
    for row in &rows.await? {
        let id: String = row.try_get("id")?;
        let Ok(id) = job_id(&id) else { continue };
        if row.try_get::<Option<bool>, _>("is_ours")? == Some(true) {
            answer.renewed.push(id);
        } else if row.try_get("is_unlocked")? {
            // The engine clears the lock when it counts a failure. The answer is on the way.
            answer.busy.push(id);
        }
    }
    Ok(answer)
}

impl Camunda {
    /// Returns the locks of this node that have none of these fences.
    pub(super) async fn held_by_node(
        &self,
        pool: &PgPool,
        node: NodeId,
        known: &[Fence],
    ) -> Result<Vec<LockedJob>, StoreError> {
        let known: Vec<String> = known.iter().map(|fence| owner(node, *fence)).collect();
        let rows = sqlx::query(HELD_BY)
            .bind(self.zone.name())
            .bind(format!("{PREFIX}{node}:"))
            .bind(known)
            .fetch_all(pool)
            .await?;
        let mut found = Vec::new();
        for row in &rows {
            found.extend(self.decoder.locked(row)?);
        }
        Ok(found)
    }
}

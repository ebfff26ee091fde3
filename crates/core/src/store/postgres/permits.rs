//! Permits: granting and giving back under the row lock of the key, parking and waking jobs.
//!
//! Lock order: instance rows, then the rows of keys, then leases, then job rows. Waking waits for no
//! job row.

mod holding;
mod keys;
mod lasting;
mod parking;
mod stalled;
mod waking;

use std::collections::HashSet;
use std::time::Duration;

use sqlx::PgConnection;
use uuid::Uuid;

use super::begin::{begin_by_key_impatiently, begin_to_exchange};
use super::{PgStore, complete};
use crate::job::JobId;
use crate::store::error::StoreError;
use crate::store::instances;
use crate::store::permits::share::{Share, Standing, share};
use crate::store::permits::{
    Asking, KeyAnswer, KeyRequest, LastingPermit, PermitAnswer, PermitKey, PermitRequest,
    StalledKey, WaitingJob, WaitingType,
};
use crate::store::statements::Permitting;

const WOKEN: &str =
    "SELECT job_id FROM jobwire.waiting_job WHERE job_id = ANY($1) AND woken_at IS NOT NULL";

/// Deletes the rows of jobs that have a permit. A request that arrives late may name a job whose lock
/// is lost: its next holder may have parked it, and then it goes on waiting.
const ADMIT: &str = "
DELETE FROM jobwire.waiting_job w
USING unnest($1::uuid[], $2::bigint[]) AS u (id, fence), jobwire.job_lease l
WHERE w.job_id = u.id AND l.job_id = u.id AND l.fence = u.fence AND l.owner = $3";

/// How often rows are deleted before jobs are woken. The next exchange goes on.
const ROUNDS: usize = 50;
/// The number of rows that one of these rounds looks at, after the first one.
const LOOK_AT: usize = 1_000;

/// The names of keys, as arrays.
fn names<'a>(keys: impl Iterator<Item = &'a PermitKey>) -> (Vec<&'a str>, Vec<&'a str>) {
    keys.map(|of| (of.limit.as_str(), of.key.as_str())).unzip()
}

async fn exchange(
    connection: &mut PgConnection,
    request: &PermitRequest,
) -> Result<PermitAnswer, StoreError> {
    let asking: Vec<Uuid> = request.asking().map(|job| job.held.id.0).collect();
    let held = instances(request.asking().map(|job| &job.held));
    let holders = complete::enter_held(connection, &held).await?;
    keys::enter(connection, request).await?;
    let mut states = keys::standings(connection, request, &asking).await?;
    let woken: Vec<Uuid> = if asking.is_empty() {
        Vec::new()
    } else {
        let woken = sqlx::query_scalar(WOKEN).bind(&asking);
        woken.fetch_all(&mut *connection).await?
    };
    let woken: HashSet<JobId> = woken.into_iter().map(JobId).collect();
    let share_all = |states: &[Standing]| -> Vec<(&KeyRequest, Share)> {
        let of_each = request.keys.iter().zip(states);
        of_each
            .map(|(of, standing)| (of, share(of, standing, &woken)))
            .collect()
    };
    let mut shares = share_all(&states);
    let mut answer = PermitAnswer::default();
    if waking::keep_plans(connection, &shares).await? {
        if waking::drop_unlockable(connection, &shares, &asking).await? {
            states = keys::read(connection, request, &asking).await?;
            shares = share_all(&states);
        }
        waking::wake(connection, &shares, &asking, &mut answer).await?;
        waking::plan_again(connection).await?;
    }
    holding::hold(connection, request, &shares).await?;
    let admitted: HashSet<JobId> = shares
        .iter()
        .flat_map(|(_, share)| share.granted.iter().copied())
        .collect();
    if !admitted.is_empty() {
        let held = request.asking().map(|job| &job.held);
        let held = held.filter(|of| admitted.contains(&of.id));
        let (ids, fences): (Vec<Uuid>, Vec<i64>) = held.map(|of| (of.id.0, of.fence.0)).unzip();
        sqlx::query(ADMIT)
            .bind(ids)
            .bind(fences)
            .bind(request.node.0)
            .execute(&mut *connection)
            .await?;
    }
    let refused: Vec<(&PermitKey, &Asking)> = request
        .keys
        .iter()
        .flat_map(|of| of.asking.iter().map(move |job| (&of.key, job)))
        .filter(|(_, job)| !admitted.contains(&job.held.id))
        .collect();
    parking::park(connection, request.node, &refused, &holders, &mut answer).await?;
    let is_unused = |share: &Share| share.number == 0 && !share.contended;
    let unused = shares.iter().filter(|(_, share)| is_unused(share));
    keys::leave(connection, unused.map(|(of, _)| &of.key)).await?;
    answer.keys = shares
        .into_iter()
        .map(|(of, share)| KeyAnswer {
            key: of.key.clone(),
            number: share.number,
            granted: share.granted,
            contended: share.contended,
        })
        .collect();
    Ok(answer)
}

impl Permitting for PgStore {
    async fn exchange_batch(&self, request: &PermitRequest) -> Result<PermitAnswer, StoreError> {
        let mut tx = if request.impatient {
            begin_by_key_impatiently(&self.pool).await?
        } else {
            begin_to_exchange(&self.pool).await?
        };
        let answer = exchange(&mut tx, request).await?;
        tx.commit().await?;
        Ok(answer)
    }

    async fn find_stalled(&self, served: &[String]) -> Result<Vec<StalledKey>, StoreError> {
        stalled::find(&self.pool, served).await
    }

    async fn find_lasting(
        &self,
        limits: &[(String, Duration)],
    ) -> Result<Vec<LastingPermit>, StoreError> {
        lasting::find(&self.pool.inner, limits).await
    }

    async fn end_permits(&self, ended: &[LastingPermit]) -> Result<(), StoreError> {
        lasting::end(&self.pool, ended).await
    }

    async fn count_waiting(&self, limit: i64) -> Result<Vec<WaitingType>, StoreError> {
        stalled::count_waiting(&self.pool, limit).await
    }

    async fn find_waiting(&self, jobs: &[JobId]) -> Result<Vec<WaitingJob>, StoreError> {
        stalled::find_waiting(&self.pool, jobs).await
    }
}

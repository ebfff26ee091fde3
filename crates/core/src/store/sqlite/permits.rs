//! Permits: granting and giving back, parking and waking jobs. There is one writer, so a transaction
//! needs no further lock.

mod keys;
mod lasting;
mod parking;
mod stalled;
mod waking;

use std::collections::HashSet;
use std::time::Duration;

use sqlx::SqliteConnection;

use super::{SqliteStore, decode};
use crate::job::JobId;
use crate::store::error::StoreError;
use crate::store::permits::share::{Share, share};
use crate::store::permits::{
    KeyAnswer, LastingPermit, PermitAnswer, PermitRequest, RESERVED, StalledKey, WaitingJob,
    WaitingType,
};
use crate::store::statements::Permitting;

const WOKEN: &str = "
SELECT job_id FROM waiting_job WHERE job_id IN (SELECT value FROM json_each(?1)) AND woken_at IS NOT NULL";

/// Deletes the rows of jobs that have a permit. A request that arrives late may name a job whose lock
/// is lost: its next holder may have parked it, and then it goes on waiting.
const ADMIT: &str = "
DELETE FROM waiting_job WHERE job_id IN (
    SELECT l.job_id FROM json_each(?1) u CROSS JOIN job_lease l ON l.job_id = u.value ->> 0
    WHERE l.fence = u.value ->> 1 AND l.owner = ?2)";

/// Lets all woken jobs wait again. Their hints were in the memory of a process that has ended.
pub(super) async fn wait_again(connection: &mut SqliteConnection) -> Result<(), StoreError> {
    let all = sqlx::query("UPDATE waiting_job SET woken_at = NULL WHERE woken_at IS NOT NULL");
    all.execute(connection).await?;
    Ok(())
}

/// Returns the time before which a woken job has no reservation any more.
fn reserved_since(now: i64) -> i64 {
    now.saturating_sub(i64::try_from(RESERVED.as_micros()).unwrap_or(i64::MAX))
}

async fn exchange(
    connection: &mut SqliteConnection,
    request: &PermitRequest,
) -> Result<PermitAnswer, StoreError> {
    let now = decode::now_micros();
    let asking = decode::array(request.asking().map(|job| job.held.id))?;
    let woken = sqlx::query(WOKEN).bind(&asking);
    let woken = decode::job_ids(&woken.fetch_all(&mut *connection).await?)?;
    let woken: HashSet<JobId> = woken.into_iter().collect();
    let mut answer = PermitAnswer::default();
    let mut refused = Vec::new();
    let mut admitted = Vec::new();
    for of in &request.keys {
        let mut state = keys::standing(connection, request, of, &asking, now).await?;
        let mut shared = share(of, &state, &woken);
        if waking::drop_unlockable(connection, &of.key, shared.wake, &asking).await? {
            state = keys::standing(connection, request, of, &asking, now).await?;
            shared = share(of, &state, &woken);
        }
        let Share {
            number,
            granted,
            cooling,
            wake: wakes,
            contended,
        } = shared;
        keys::borrow(connection, request, of, number, now).await?;
        keys::cool(connection, of, &cooling, now).await?;
        if wakes > 0 {
            waking::wake(connection, &of.key, wakes, &asking, now, &mut answer).await?;
        }
        let got: HashSet<&JobId> = granted.iter().collect();
        let others = of.asking.iter().filter(|job| !got.contains(&job.held.id));
        refused.extend(others.map(|job| (&of.key, job)));
        let held = of.asking.iter().map(|job| &job.held);
        let held = held.filter(|of| got.contains(&of.id));
        admitted.extend(held.map(|of| (of.id, of.fence.0)));
        answer.keys.push(KeyAnswer {
            key: of.key.clone(),
            number,
            granted,
            contended,
        });
    }
    if !admitted.is_empty() {
        sqlx::query(ADMIT)
            .bind(decode::array(admitted)?)
            .bind(request.node.to_string())
            .execute(&mut *connection)
            .await?;
    }
    parking::park(connection, request, &refused, now, &mut answer).await?;
    let is_unused = |of: &&KeyAnswer| of.number == 0 && !of.contended;
    for of in answer.keys.iter().filter(is_unused) {
        keys::leave(connection, &of.key).await?;
    }
    Ok(answer)
}

impl Permitting for SqliteStore {
    async fn exchange_batch(&self, request: &PermitRequest) -> Result<PermitAnswer, StoreError> {
        let mut tx = self.write().await?;
        let answer = exchange(&mut tx, request).await?;
        tx.commit().await?;
        Ok(answer)
    }

    async fn find_stalled(&self, served: &[String]) -> Result<Vec<StalledKey>, StoreError> {
        let mut tx = self.write().await?;
        let found = stalled::find(&mut tx, served).await?;
        tx.commit().await?;
        Ok(found)
    }

    async fn find_lasting(
        &self,
        limits: &[(String, Duration)],
    ) -> Result<Vec<LastingPermit>, StoreError> {
        lasting::find(&self.readers, limits).await
    }

    async fn end_permits(&self, ended: &[LastingPermit]) -> Result<(), StoreError> {
        let mut tx = self.write().await?;
        lasting::end(&mut tx, ended).await?;
        Ok(tx.commit().await?)
    }

    async fn count_waiting(&self, limit: i64) -> Result<Vec<WaitingType>, StoreError> {
        stalled::count_waiting(&self.readers, limit).await
    }

    async fn find_waiting(&self, jobs: &[JobId]) -> Result<Vec<WaitingJob>, StoreError> {
        stalled::find_waiting(&self.readers, jobs).await
    }
}

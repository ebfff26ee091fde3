//! What the handler asks while the engine executes a job.

use chrono::{DateTime, Utc};
use jobwire_core::{Job, JobId};
use tokio::time::Instant;

use super::{EngineStore, Result};
use crate::breaker::Breaker;
use crate::calls::Calls;
use crate::fate::Ended;
use crate::meter::Meter;
use crate::pace::Pace;
use crate::{activity, columns};

impl EngineStore {
    pub(crate) fn calls(&self) -> &Calls {
        &self.0.calls
    }

    pub(crate) fn meter(&self) -> &Meter {
        &self.0.meter
    }

    pub(crate) fn pace(&self) -> &Pace {
        &self.0.pace
    }

    pub(crate) fn breaker(&self) -> &Breaker {
        &self.0.breaker
    }

    pub(crate) async fn still_ours(&self, id: JobId, owner: &str) -> Result<bool> {
        let pool = &self.0.connections.rest;
        self.run("look_at_job", pool, || {
            columns::still_ours(&pool.inner, id, owner)
        })
        .await
    }

    /// Returns how an execution ended that the engine did not answer with success.
    pub(crate) async fn ended(&self, job: &Job, owner: &str) -> Result<Ended> {
        let (dialect, pool) = (self.dialect(), &self.0.connections.rest);
        self.run("look_at_job", pool, || {
            dialect.ended(&pool.inner, job.id, owner, job.retries)
        })
        .await
    }

    /// Returns what the database's clock showed at `moment`.
    pub(crate) async fn clock_at(&self, moment: Instant) -> Result<DateTime<Utc>> {
        let now = activity::clock(self.pool()).await?;
        let ago = chrono::Duration::from_std(moment.elapsed()).unwrap_or(chrono::Duration::MAX);
        Ok(now.checked_sub_signed(ago).unwrap_or(now))
    }
}

//! Queries of the handler while the engine executes a job.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use jobwire_core::{Job, JobId};
use tokio::time::Instant;

use super::{EngineStore, Result};
use crate::activity::{self, Activity};
use crate::calls::Calls;
use crate::columns;
use crate::executing::Executing;
use crate::fate::Ended;
use crate::http::{Answer, Rest};
use crate::meter::Meter;
use crate::options::EngineOptions;
use crate::pace::Pace;
use crate::routing::Routes;

#[async_trait]
impl Executing for EngineStore {
    fn of_bridge(&self) -> &EngineOptions {
        self.options()
    }

    fn calls(&self) -> &Calls {
        &self.0.calls
    }

    fn meter(&self) -> &Meter {
        &self.0.meter
    }

    fn pace(&self) -> &Pace {
        &self.0.pace
    }

    fn routes(&self) -> &Routes {
        &self.0.routes
    }

    async fn execute(&self, rest: &Rest, id: &str, _: &str) -> Answer {
        rest.execute(id, self.dialect().execution()).await
    }

    fn is_refusal(&self, said: &str) -> bool {
        self.dialect().is_refusal(said)
    }

    fn send_within(&self) -> Option<Duration> {
        self.dialect().send_within()
    }

    async fn still_ours(&self, id: JobId, owner: &str) -> Result<bool> {
        let pool = &self.0.connections.rest;
        self.run("look_at_job", pool, || {
            columns::still_ours(&pool.inner, id, owner)
        })
        .await
    }

    async fn ended(&self, job: &Job, owner: &str) -> Result<Ended> {
        let (dialect, pool) = (self.dialect(), &self.0.connections.rest);
        self.run("look_at_job", pool, || {
            dialect.ended(&pool.inner, job.id, owner, job.retries)
        })
        .await
    }

    async fn clock_at(&self, moment: Instant) -> Result<DateTime<Utc>> {
        let now = activity::clock(self.pool()).await?;
        let ago = chrono::Duration::from_std(moment.elapsed()).unwrap_or(chrono::Duration::MAX);
        Ok(now.checked_sub_signed(ago).unwrap_or(now))
    }

    async fn activity(&self, sent: DateTime<Utc>) -> Result<Activity> {
        activity::around(self.pool(), sent).await
    }
}

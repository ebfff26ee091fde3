//! Queries of the handler while the engine executes a job.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use jobwire_core::{Job, JobId};
use tokio::time::Instant;

use super::{EngineStore, Result};
use crate::activity::{self, Activity};
use crate::columns;
use crate::executing::Executing;
use crate::fate::Ended;
use crate::gate::Pass;
use crate::lists::Said;
use crate::parts::Parts;
use crate::routing::Route;

#[async_trait]
impl Executing for EngineStore {
    fn parts(&self) -> &Parts {
        &self.0.parts
    }

    async fn execute(&self, route: &Route, id: &str, owner: &str, pass: &Pass) -> Said {
        let (request, lists) = (self.dialect().execution(), route.lists());
        if let Some(at_once) = pass.at_once()
            && lists.are_taken()
        {
            // The addresses share the executions of this node.
            let at_once = at_once.div_ceil(self.0.parts.routes.all().len().max(1));
            let run = lists.run(route.rest(), request.query, (id, owner), at_once);
            if let Some(said) = run.await {
                return said;
            }
        }
        route.rest().execute(id, request).await.into()
    }

    fn takes_lists(&self) -> bool {
        let routes = self.0.parts.routes.all();
        routes.iter().all(|route| route.lists().are_taken())
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

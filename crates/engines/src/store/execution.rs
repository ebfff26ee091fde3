//! Queries of the handler while the engine executes a job.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use jobwire_core::{Job, JobId};
use tokio::time::Instant;

use super::{EngineStore, Result};
use crate::activity::{self, Activity};
use crate::call::Request;
use crate::columns;
use crate::executing::Executing;
use crate::fate::Ended;
use crate::gate::Pass;
use crate::lists::{ListRequest, Said};
use crate::options::Execution;
use crate::parts::Parts;
use crate::routing::Route;

#[async_trait]
impl Executing for EngineStore {
    fn parts(&self) -> &Parts {
        &self.0.parts
    }

    async fn execute(&self, route: &Route, id: &str, owner: &str, pass: &Pass) -> Said {
        let (dialect, parts) = (self.dialect(), &self.0.parts);
        let is_held = dialect.holds_instances();
        let request = match parts.options.execution {
            Execution::Endpoint => Request {
                query: if is_held { "?instance=held" } else { "" },
                body: "",
            },
            Execution::Auto | Execution::Rest => Request {
                query: "",
                body: dialect.execution_body(),
            },
        };
        let list = ListRequest {
            path: "/jobs/execute",
            query: request.query,
            lease: None,
        };
        match parts.run_in_list(route, list, (id, owner), pass).await {
            Some(said) => said,
            None => route.rest().execute(id, request, owner).await.into(),
        }
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
        let pool = &self.0.connections.rest;
        let now = self.run("clock", pool, || activity::clock(&pool.inner));
        let now = now.await?;
        let ago = chrono::Duration::from_std(moment.elapsed()).unwrap_or(chrono::Duration::MAX);
        Ok(now.checked_sub_signed(ago).unwrap_or(now))
    }

    async fn activity(&self, sent: DateTime<Utc>, taken: DateTime<Utc>) -> Result<Activity> {
        let pool = &self.0.connections.rest;
        self.run("transactions", pool, || {
            activity::of_request(&pool.inner, sent, taken)
        })
        .await
    }
}

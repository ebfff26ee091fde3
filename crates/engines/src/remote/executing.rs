//! Queries of the handler while the engine executes a job.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use jobwire_core::{Job, JobId};
use tokio::time::Instant;

use super::wire::{Find, Jobs, Run, millis};
use super::{EndpointStore, Result};
use crate::activity::Activity;
use crate::call::operation_path;
use crate::executing::Executing;
use crate::fate::Ended;
use crate::gate::Pass;
use crate::http::Answer;
use crate::id::engine_id;
use crate::lists::{ListRequest, Said};
use crate::parts::Parts;
use crate::routing::Route;
use crate::row::EngineRow;

/// The time for which the engine locks a job for its execution. The engine extends the lock every
/// third of this time. The job of a dead engine waits for the same time.
const RUN_LEASE: Duration = Duration::from_secs(15);

/// The operation that runs a list.
const LIST: ListRequest = ListRequest {
    path: "/v1/run-list",
    query: "",
    lease: Some(RUN_LEASE),
};

impl EndpointStore {
    /// Returns the row of a job from any of the tables.
    pub(super) async fn row(&self, id: JobId) -> Result<Option<EngineRow>> {
        let Some(id) = engine_id(id) else {
            return Ok(None);
        };
        let find = Find {
            ids: Some(vec![id]),
            limit: 1,
            ..Find::default()
        };
        let found: Jobs = self.0.client.ask("look_at_job", "find", &find).await?;
        // The tables are read one after the other. A job that moves meanwhile is in the last one.
        Ok(found.jobs.into_iter().next_back())
    }
}

#[async_trait]
impl Executing for EndpointStore {
    fn parts(&self) -> &Parts {
        &self.0.parts
    }

    async fn execute(&self, route: &Route, id: &str, owner: &str, pass: &Pass) -> Said {
        let parts = &self.0.parts;
        if let Some(said) = parts.run_in_list(route, LIST, (id, owner), pass).await {
            return said;
        }
        let run = Run {
            id,
            owner,
            lease: millis(RUN_LEASE),
        };
        let answer = match serde_json::to_string(&run) {
            Ok(body) => route.rest().run(&operation_path("run"), body).await,
            Err(error) => Answer::Unsent(error.to_string()),
        };
        answer.into()
    }

    fn engine_renews(&self) -> bool {
        true
    }

    async fn still_ours(&self, id: JobId, owner: &str) -> Result<bool> {
        let row = self.row(id).await?;
        Ok(row.is_some_and(|row| row.state == "job" && row.owner.as_deref() == Some(owner)))
    }

    async fn ended(&self, job: &Job, owner: &str) -> Result<Ended> {
        Ok(match self.row(job.id).await? {
            None => Ended::Gone,
            Some(row) if row.state == "suspended" => Ended::Suspended,
            Some(row) if row.state == "job" && row.owner.as_deref() == Some(owner) => {
                Ended::Conflict
            }
            Some(_) => Ended::Counted,
        })
    }

    async fn clock_at(&self, moment: Instant) -> Result<DateTime<Utc>> {
        let now = self.clock().await?;
        let ago = chrono::Duration::from_std(moment.elapsed()).unwrap_or(chrono::Duration::MAX);
        Ok(now.checked_sub_signed(ago).unwrap_or(now))
    }

    async fn activity(&self, _: DateTime<Utc>, _: DateTime<Utc>) -> Result<Activity> {
        // The endpoint does not report transactions.
        Ok(Activity::Hidden)
    }
}

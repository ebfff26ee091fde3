//! Rows as jobs.

use std::sync::Arc;
use std::sync::Mutex;

use jobwire_core::hint::Ready;
use jobwire_core::job::query::JobView;
use jobwire_core::job::scope::Needs;
use jobwire_core::job::{LockedJob, NodeId};
use jobwire_core::serde_json::value::RawValue;
use jobwire_core::telemetry::log_throttle::LogThrottle;
use jobwire_core::{Fence, Hint, Job, JobId, JobKind, Lane, StoreError};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::id;
use crate::meter;
use crate::owner;
use crate::row::EngineRow;

/// The type of jobs whose handler is not one of the engine's own.
pub const OTHER: &str = "other";

static UNKNOWN_IDS: Mutex<Option<LogThrottle>> = Mutex::new(None);

/// Reads the rows of an engine's jobs.
#[derive(Debug)]
pub(crate) struct Decoder {
    /// The kind of engine.
    pub(crate) engine: &'static str,
    /// The types of its jobs, with [`OTHER`].
    pub(crate) types: &'static [&'static str],
    /// The lane of its hints.
    pub(crate) lane: Lane,
}

impl Decoder {
    /// Returns the job id of a row. Counts, logs and hides a row with an id of an unknown form.
    /// This is rare, because the probe found no such row at the start.
    pub(crate) fn job_id(&self, text: &str) -> Option<JobId> {
        match id::job_id(text) {
            Ok(id) => Some(id),
            Err(error) => {
                meter::unknown_id(self.engine);
                let mut throttle = UNKNOWN_IDS
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                if let Some(more) = throttle.get_or_insert_default().now() {
                    tracing::error!(%error, more, "Jobwire does not run a job of the engine");
                }
                None
            }
        }
    }

    /// Returns the type of a handler.
    pub(crate) fn type_of(&self, handler: Option<&str>) -> &'static str {
        let known = self.types.iter().find(|name| Some(**name) == handler);
        known.copied().unwrap_or(OTHER)
    }

    /// Returns the hint of a job, for the lane of this engine. `None` if its id can't be read.
    pub(crate) fn ready(
        &self,
        id: &str,
        instance: Option<String>,
        handler: Option<&str>,
    ) -> Option<Ready> {
        let id = self.job_id(id)?;
        let job_type = handler.map(|name| self.type_of(Some(name)).to_owned());
        Some(Ready {
            lane: self.lane.clone(),
            hint: Hint {
                job_type: job_type.filter(|_| instance.is_none()),
                instance,
                ..Hint::new(id)
            },
        })
    }

    /// Returns the hint of a row with the columns `id_`, `process_instance_id_` and
    /// `handler_type_`.
    pub(crate) fn ready_row(&self, row: &PgRow) -> Result<Option<Ready>, StoreError> {
        let id: String = row.try_get("id_")?;
        let handler: Option<String> = row.try_get("handler_type_")?;
        let instance = row.try_get("process_instance_id_")?;
        Ok(self.ready(&id, instance, handler.as_deref()))
    }

    /// Returns the job of a row. `None` if its id can't be read.
    pub(crate) fn job(&self, row: &EngineRow) -> Option<Job> {
        let id = self.job_id(&row.id)?;
        let created = row.created.unwrap_or_default();
        Some(Job {
            id,
            seq: created.timestamp_micros(),
            revision: row.revision,
            kind: match row.kind.as_deref() {
                Some("timer") => JobKind::Timer,
                _ => JobKind::Message,
            },
            job_type: self.type_of(row.handler.as_deref()).to_owned(),
            payload: RawValue::NULL.to_owned(),
            // Any two jobs of an instance exclude each other.
            exclusive: row.instance.is_some(),
            process_instance: row.instance.clone(),
            execution: row.execution.clone(),
            process_definition: row.definition.clone(),
            element: row.element.clone(),
            tenant: some(row.tenant.clone()),
            category: some(row.category.clone()),
            deployment: some(row.deployment.clone()),
            priority: row.priority,
            retries: row.retries.unwrap_or_default(),
            failures: 0,
            retry_policy: None,
            due_at: row.due,
            repeat: None,
            repeat_until: None,
            correlation_id: id.uuid(),
            created_at: created,
            ready_at: created,
            lane_named: None,
            lane: self.lane.clone(),
            exception_message: row.message.clone(),
            custom_values: None,
            trace_parent: None,
            unreadable: None,
        })
    }

    /// Returns the locked job of a row with the columns of the dialect's `job_columns` and the
    /// column `fence`.
    pub(crate) fn locked(&self, row: &PgRow) -> Result<Option<LockedJob>, StoreError> {
        let fence: i64 = row.try_get("fence")?;
        let job = self.job(&EngineRow::read(row)?);
        Ok(job.map(|job| LockedJob {
            locked_at: job.ready_at,
            job: Arc::new(job),
            fence: Fence::new(fence),
            strikes: 0,
        }))
    }

    /// Returns the view of a row, and the job. `None` if its id can't be read.
    pub(crate) fn view(&self, row: &EngineRow) -> Option<(JobView, Job)> {
        let job = self.job(row)?;
        let ours = row.owner.as_deref().and_then(owner::parse);
        let view = JobView {
            id: job.id,
            state: row.state(),
            seq: job.seq,
            kind: job.kind,
            job_type: job.job_type.clone(),
            process_instance: job.process_instance.clone(),
            execution: job.execution.clone(),
            process_definition: job.process_definition.clone(),
            element: job.element.clone(),
            tenant: job.tenant.clone(),
            lane: job.lane.clone(),
            hints: None,
            priority: job.priority,
            exclusive: job.exclusive,
            retries: job.retries,
            failures: job.failures,
            due_at: job.due_at,
            created_at: job.created_at,
            ready_at: job.ready_at,
            correlation_id: job.correlation_id,
            exception_message: job.exception_message.clone(),
            lock_owner: ours.map(|(node, _): (NodeId, Fence)| node.uuid()),
            lock_expires_at: row.locked_until,
            locked_at: None,
            fence: ours.map(|(_, fence)| fence.number()),
            cancelled_at: None,
            gate: None,
            progress: None,
            checkpoint_at: None,
            tags: Vec::new(),
        };
        Some((view, job))
    }

    /// Returns the needs of the job of a row with the columns `needs_type`, `needs_tenant`,
    /// `needs_category` and `needs_deployment`.
    pub(crate) fn needs(&self, row: &PgRow) -> Result<Needs, StoreError> {
        let handler: Option<String> = row.try_get("needs_type")?;
        Ok(Needs {
            tenant: some(row.try_get("needs_tenant")?),
            category: some(row.try_get("needs_category")?),
            deployment: some(row.try_get("needs_deployment")?),
            ..Needs::of(self.type_of(handler.as_deref()))
        })
    }
}

/// Returns an empty text as `None`: engines write an empty text for no tenant.
fn some(text: Option<String>) -> Option<String> {
    text.filter(|text| !text.is_empty())
}

//! The row of an engine's job, as a statement or the engine's endpoint returns it.

use chrono::{DateTime, Utc};
use jobwire_core::{JobState, StoreError};
use serde::Deserialize;
use sqlx::Row;
use sqlx::postgres::PgRow;

/// A row. The names of the fields are those of the endpoint.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct EngineRow {
    /// The table: of the endpoint, or the name of a [`JobState`].
    pub(crate) state: String,
    pub(crate) id: String,
    pub(crate) revision: i32,
    /// `message` or `timer`.
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) handler: Option<String>,
    pub(crate) instance: Option<String>,
    pub(crate) execution: Option<String>,
    pub(crate) definition: Option<String>,
    pub(crate) element: Option<String>,
    pub(crate) tenant: Option<String>,
    pub(crate) category: Option<String>,
    pub(crate) deployment: Option<String>,
    pub(crate) priority: i64,
    pub(crate) retries: Option<i32>,
    #[serde(with = "chrono::serde::ts_milliseconds_option")]
    pub(crate) due: Option<DateTime<Utc>>,
    #[serde(with = "chrono::serde::ts_milliseconds_option")]
    pub(crate) created: Option<DateTime<Utc>>,
    pub(crate) owner: Option<String>,
    #[serde(with = "chrono::serde::ts_milliseconds_option")]
    pub(crate) locked_until: Option<DateTime<Utc>>,
    pub(crate) message: Option<String>,
}

impl EngineRow {
    /// Reads a row with the columns of a dialect's `job_columns`.
    pub(crate) fn read(row: &PgRow) -> Result<Self, StoreError> {
        Ok(Self {
            id: row.try_get("id_")?,
            revision: row.try_get::<Option<i32>, _>("rev_")?.unwrap_or_default(),
            kind: row.try_get("type_")?,
            handler: row.try_get("handler_type_")?,
            instance: row.try_get("process_instance_id_")?,
            execution: row.try_get("execution_id_")?,
            definition: row.try_get("proc_def_id_")?,
            element: row.try_get("element_id_")?,
            tenant: row.try_get("tenant_id_")?,
            category: row.try_get("category_")?,
            deployment: row.try_get("deployment_id_")?,
            priority: row
                .try_get::<Option<i64>, _>("priority_")?
                .unwrap_or_default(),
            retries: row.try_get("retries_")?,
            due: row.try_get("due_at")?,
            created: row.try_get("created_at")?,
            message: row.try_get("exception_msg_")?,
            ..Self::default()
        })
    }

    /// Reads a row that also has the columns `state`, `lock_owner_` and `locked_until`.
    pub(crate) fn read_with_lock(row: &PgRow) -> Result<Self, StoreError> {
        Ok(Self {
            state: row.try_get("state")?,
            owner: row.try_get("lock_owner_")?,
            locked_until: row.try_get("locked_until")?,
            ..Self::read(row)?
        })
    }

    /// Returns the state of the jobs in this table.
    pub(crate) fn state(&self) -> JobState {
        match &*self.state {
            "job" => JobState::Executable,
            "dead letter" => JobState::DeadLetter,
            other => JobState::parse(other).unwrap_or(JobState::Executable),
        }
    }
}

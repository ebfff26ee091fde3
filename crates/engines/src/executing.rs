//! What the handler of an engine's jobs needs of the store.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use jobwire_core::{Job, JobId, StoreError};
use tokio::time::Instant;

use crate::activity::Activity;
use crate::calls::Calls;
use crate::fate::Ended;
use crate::http::{Answer, Rest};
use crate::meter::Meter;
use crate::options::EngineOptions;
use crate::pace::Pace;
use crate::routing::Routes;

/// A store whose jobs the engine executes.
#[async_trait]
pub(crate) trait Executing: Send + Sync + 'static {
    /// Returns the options of the bridge.
    fn of_bridge(&self) -> &EngineOptions;

    /// Returns the executions that are under way.
    fn calls(&self) -> &Calls;

    /// Returns what counts.
    fn meter(&self) -> &Meter;

    /// Returns the pace of the executions.
    fn pace(&self) -> &Pace;

    /// Returns the addresses of the engine.
    fn routes(&self) -> &Routes;

    /// Lets the engine execute a job under this owner's lock.
    async fn execute(&self, rest: &Rest, id: &str, owner: &str) -> Answer;

    /// Returns whether the text of an answer 404 is the engine's word about an execution.
    fn is_refusal(&self, _said: &str) -> bool {
        false
    }

    /// Returns how long after its lock a job may be sent to the engine; `None` if locks are renewed.
    fn send_within(&self) -> Option<Duration> {
        None
    }

    /// Returns whether the engine itself extends the lock of a job while it executes it. Then the
    /// lock of an execution without an answer is left to the engine.
    fn engine_renews(&self) -> bool {
        false
    }

    /// Returns whether the job is still executable and locked by this owner.
    async fn still_ours(&self, id: JobId, owner: &str) -> Result<bool, StoreError>;

    /// Returns how an execution ended that the engine did not answer with success.
    async fn ended(&self, job: &Job, owner: &str) -> Result<Ended, StoreError>;

    /// Returns what the database's clock showed at `moment`.
    async fn clock_at(&self, moment: Instant) -> Result<DateTime<Utc>, StoreError>;

    /// Returns whether a transaction of the engine is open that began around `sent`.
    async fn activity(&self, sent: DateTime<Utc>) -> Result<Activity, StoreError>;
}

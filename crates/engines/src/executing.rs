//! The part of a store that the handler of an engine's jobs uses.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use jobwire_core::{Job, JobId, StoreError};
use tokio::time::Instant;

use crate::activity::Activity;
use crate::fate::Ended;
use crate::gate::Pass;
use crate::lists::Said;
use crate::parts::Parts;
use crate::routing::Route;

/// A store whose jobs the engine executes.
#[async_trait]
pub(crate) trait Executing: Send + Sync + 'static {
    /// Returns the parts of the bridge.
    fn parts(&self) -> &Parts;

    /// Makes the engine execute a job under this owner's lock, with other jobs if it came in with a
    /// group.
    async fn execute(&self, route: &Route, id: &str, owner: &str, pass: &Pass) -> Said;

    /// Returns whether the text of an answer 404 comes from the engine and is about an execution.
    fn is_refusal(&self, _said: &str) -> bool {
        false
    }

    /// Returns the time after its lock within which a job may be sent to the engine; `None` if
    /// locks are renewed.
    fn send_within(&self) -> Option<Duration> {
        None
    }

    /// Returns whether the engine itself extends the lock of a job during its execution. The lock
    /// of an execution without an answer is then left to the engine.
    fn engine_renews(&self) -> bool {
        false
    }

    /// Returns whether the job is still executable and locked by this owner.
    async fn still_ours(&self, id: JobId, owner: &str) -> Result<bool, StoreError>;

    /// Returns the fate of a job whose execution had no successful answer.
    async fn ended(&self, job: &Job, owner: &str) -> Result<Ended, StoreError>;

    /// Returns the time of the database's clock at `moment`.
    async fn clock_at(&self, moment: Instant) -> Result<DateTime<Utc>, StoreError>;

    /// Returns whether the engine at an address answers a request that is sent now.
    async fn hears(&self, route: &Route) -> bool {
        self.parts().routes.hears(route).await
    }

    /// Returns whether a transaction of the engine is open that may be the execution of a request. It
    /// was sent at `sent`, and the engine had taken it up at `taken`.
    async fn activity(
        &self,
        sent: DateTime<Utc>,
        taken: DateTime<Utc>,
    ) -> Result<Activity, StoreError>;
}

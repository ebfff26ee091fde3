//! The common interface of the two stores of engines: [`EngineStore`] over the engine's database,
//! and [`EndpointStore`] over the engine's endpoint alone.

use std::time::Duration;

use async_trait::async_trait;
use jobwire_core::{Handlers, SlotLimit, Store, StoreError};

use crate::examine::{self, Finding};
use crate::executing::Executing as _;
use crate::options::EngineOptions;
use crate::remote::EndpointStore;
use crate::shadow::{self, ShadowReport};
use crate::store::EngineStore;

/// A store of an engine's jobs. `jobwire engine` works with any such store.
#[async_trait]
pub trait Bridge: Store {
    /// Returns the options.
    fn options(&self) -> &EngineOptions;

    /// Returns the maximum number of slots of a node:
    /// [`NodeOptions::concurrency`](jobwire_core::NodeOptions::concurrency). A job has a slot and
    /// no execution while it is locked or its outcome is committed. So there are more slots than
    /// [executions at once](EngineOptions::concurrency).
    fn most_slots(&self) -> usize;

    /// Returns the number of slots that keep the engine busy. It follows the duration of the
    /// engine's executions: [`NodeOptions::slot_limit`](jobwire_core::NodeOptions::slot_limit).
    fn slot_limit(&self) -> SlotLimit;

    /// Returns the types of the engine's jobs.
    fn types(&self) -> &'static [&'static str];

    /// Returns the handlers of all its types. They make the engine execute a job.
    ///
    /// # Errors
    /// If the engine's URL or path can't be used.
    fn handlers(&self) -> Result<Handlers, StoreError>;

    /// Returns whether its leader can tap the commits of the engine's database.
    fn has_tap(&self) -> bool;

    /// Checks that the tables are those of a supported engine. Changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Config`] with the obstacles, and as the database reports.
    async fn probe(&self) -> Result<(), StoreError>;

    /// Prepares the database for nodes. Returns a remark if something is missing without which new
    /// jobs start later. With `tap`, it prepares the commit tap, too.
    ///
    /// # Errors
    /// As the database reports.
    async fn prepare(&self, tap: bool) -> Result<Option<String>, StoreError>;

    /// Returns all jobs to the engine. Returns the number of locks that were cleared. No node may
    /// run meanwhile.
    ///
    /// # Errors
    /// [`StoreError::Config`] if a node is alive or an execution may still run, and as the database
    /// reports.
    async fn release_engine(&self) -> Result<u64, StoreError>;

    /// Examines the engine. Changes nothing.
    ///
    /// # Errors
    /// As the database reports.
    async fn examine(&self) -> Result<Vec<Finding>, StoreError>;

    /// Watches for how long the engine's jobs wait. Changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Config`] without the engine's database, and as the database reports.
    async fn shadow(&self, watched: Duration) -> Result<ShadowReport, StoreError>;
}

#[async_trait]
impl Bridge for EngineStore {
    fn options(&self) -> &EngineOptions {
        Self::options(self)
    }

    fn most_slots(&self) -> usize {
        Self::most_slots(self)
    }

    fn slot_limit(&self) -> SlotLimit {
        Self::slot_limit(self)
    }

    fn types(&self) -> &'static [&'static str] {
        Self::types(self)
    }

    fn handlers(&self) -> Result<Handlers, StoreError> {
        crate::handlers(self)
    }

    fn has_tap(&self) -> bool {
        true
    }

    async fn probe(&self) -> Result<(), StoreError> {
        Self::probe(self).await
    }

    async fn prepare(&self, tap: bool) -> Result<Option<String>, StoreError> {
        self.init().await?;
        self.check().await?.ready()?;
        if !tap {
            return Ok(None);
        }
        let created = self.create_tap().await;
        Ok(created.err().map(|error| error.to_string()))
    }

    async fn release_engine(&self) -> Result<u64, StoreError> {
        Self::release_engine(self).await
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        examine::examine(self).await
    }

    async fn shadow(&self, watched: Duration) -> Result<ShadowReport, StoreError> {
        shadow::report(self, watched).await
    }
}

#[async_trait]
impl Bridge for EndpointStore {
    fn options(&self) -> &EngineOptions {
        Self::options(self)
    }

    fn most_slots(&self) -> usize {
        self.parts().pace.most()
    }

    fn slot_limit(&self) -> SlotLimit {
        self.parts().pace.limit().clone()
    }

    fn types(&self) -> &'static [&'static str] {
        Self::types(self)
    }

    fn handlers(&self) -> Result<Handlers, StoreError> {
        Self::handlers(self)
    }

    fn has_tap(&self) -> bool {
        false
    }

    async fn probe(&self) -> Result<(), StoreError> {
        Self::probe(self).await
    }

    async fn prepare(&self, _: bool) -> Result<Option<String>, StoreError> {
        // Its rows are in the engine's own table of properties. They are written on use.
        Ok(None)
    }

    async fn release_engine(&self) -> Result<u64, StoreError> {
        Self::release_engine(self).await
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        Self::examine(self).await
    }

    async fn shadow(&self, _: Duration) -> Result<ShadowReport, StoreError> {
        Err(StoreError::Config(
            "the shadow report reads the engine's database; set `engine_database_url`".to_owned(),
        ))
    }
}

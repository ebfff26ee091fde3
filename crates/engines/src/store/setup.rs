//! The setup of an engine and its release: the probe, the schema `jobwire_engine` and the
//! publication of the commit tap.

use jobwire_core::StoreError;

use super::{EngineStore, Result};
use crate::coordination::{nodes, schema};
use crate::tap;

impl EngineStore {
    /// Checks that the tables are those of a supported engine, and that the execution endpoint is not
    /// of an artefact that is too old. Changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Config`] with the problems, or the database's error.
    pub async fn probe(&self) -> Result<()> {
        self.0.dialect.probe(self.pool()).await?;
        self.0.parts.routes.refuse_old().await
    }

    /// Creates the schema `jobwire_engine`, which has the rows of the nodes and of the leader.
    ///
    /// # Errors
    /// The database's error.
    pub async fn init(&self) -> Result<()> {
        schema::migrate(self.pool()).await
    }

    /// Gives all jobs back to the engine: clears the locks of Jobwire whose executions have ended, and
    /// then removes the engine's publication and its rows in the schema `jobwire_engine`. Removes the
    /// schema if no other engine of the database has rows there. Returns the number of jobs that were
    /// locked. No node may run meanwhile.
    ///
    /// # Errors
    /// [`StoreError::Config`] if a node lives, or if a lock has not expired or its execution may still
    /// run: then nothing else was removed, and the message names the time of the next try. Or the
    /// database's error.
    pub async fn release_engine(&self) -> Result<u64> {
        let options = &self.0.parts.options;
        if schema::exists(self.pool()).await? {
            let nodes = nodes::read(self.pool(), &options.name).await?;
            if let Some(node) = nodes.iter().find(|node| node.lives()) {
                return Err(StoreError::Config(format!(
                    "node {} on {} serves the engine; stop it first",
                    node.membership.id, node.membership.host
                )));
            }
        }
        let released = self.0.dialect.release_all(self.pool()).await?;
        let released = released.whole(options.takeover_patience)?;
        let publication = tap::publication(self).await?;
        let dropped = publication.drop(self.address()).await;
        dropped.map_err(|error| StoreError::Config(error.to_string()))?;
        schema::remove(self.pool(), &options.name).await?;
        Ok(released)
    }

    /// Returns the address of the database, for the tap.
    pub(crate) fn address(&self) -> &jobwire_tap::Address {
        &self.0.connections.address
    }

    /// Creates the publication of the commit tap, by which new jobs get their hints within
    /// milliseconds. Needs the right CREATE on the database; the tables must belong to the role.
    ///
    /// # Errors
    /// [`StoreError::Config`] with the statement that a user with the rights can run.
    pub async fn create_tap(&self) -> Result<()> {
        let publication = tap::publication(self).await?;
        publication.create(self.address()).await.map_err(|error| {
            StoreError::Config(format!(
                "the publication of the commit tap cannot be created: {error}; let the owner of \
                 the tables run: {}",
                publication.create_statement()
            ))
        })
    }

    /// Returns the problems of a commit tap, each with the remedy and whether it prevents the tap.
    pub(crate) async fn examine_tap(&self) -> Result<Vec<jobwire_tap::Finding>> {
        let publication = tap::publication(self).await?;
        let found = jobwire_tap::preflight(self.address(), &publication).await;
        found.map_err(|error| StoreError::Config(error.to_string()))
    }
}

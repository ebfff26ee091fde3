//! The store of an engine: implements [`Store`](jobwire_core::Store) over the engine's own tables.
//!
//! With this store, the whole machinery of Jobwire works for the engine's jobs: hints over a
//! broker, batch locks, renewal, lost leases, the sweeper, the fallback and the leader. Only the
//! engine creates, changes and suspends jobs; such methods fail and name the engine's interface.

mod execution;
mod foreign;
mod interface;
mod leader_cycle;
mod operation;
mod settlement;
mod setup;
mod statement;
mod zone_check;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use jobwire_core::{NodeId, SlotLimit, StoreError};
use sqlx::PgPool;
use tokio::time::Instant;

use crate::act::{self, Act};
use crate::activiti;
use crate::camunda::Camunda;
use crate::connection::Connections;
use crate::dialect::Dialect;
use crate::flowable;
use crate::options::{EngineOptions, Execution};
use crate::other_scopes::Searches;
use crate::parts::Parts;
use crate::routing::question::{Question, Requests};

type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Jobs in the tables of an engine. Cheap to clone. See the [module](self).
#[derive(Clone)]
pub struct EngineStore(Arc<Inner>);

struct Inner {
    dialect: Box<dyn Dialect>,
    connections: Connections,
    parts: Parts,
    /// Whether an answer that may contain locks was lost since the last search for lost leases.
    in_doubt: AtomicBool,
    /// The time since which a tap reports new jobs. Leader cycles then only remember their looks.
    tapped: Mutex<Option<Instant>>,
    /// The leader's searches for jobs of other scopes.
    other_scopes: Searches,
    /// The node of this process that leads, and the end of its lead.
    leads: Mutex<Option<(NodeId, Instant)>>,
}

impl std::fmt::Debug for EngineStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineStore")
            .field("engine", &self.0.parts.options.name)
            .finish_non_exhaustive()
    }
}

/// Only jobs of Camunda name their deployment.
fn of_camunda(options: &EngineOptions) -> Result<()> {
    if options.deployment_aware {
        return Err(StoreError::Config(
            "only jobs of Camunda name their deployment; remove `engine_deployment_aware`, and give the jobs of Flowable \
             categories instead"
                .to_owned(),
        ));
    }
    Ok(())
}

impl EngineStore {
    /// Connects to the database of a Flowable engine. Changes nothing.
    ///
    /// # Errors
    /// Fails if the URL or an option can't be used, or the server refuses the connection.
    pub async fn flowable(database: &str, mut options: EngineOptions) -> Result<Self> {
        of_camunda(&options)?;
        let connections = Connections::connect(database, &options).await?;
        if options.execution == Execution::Auto {
            options.execution = act::execution_by_version(&connections.rest.inner).await?;
        }
        let dialect = Box::new(Act::new(
            &flowable::FAMILY,
            flowable::statements(options.execution),
            &options,
        ));
        Self::on(connections, options, dialect)
    }

    /// Connects to the database of an Activiti engine. Changes nothing. The options begin with
    /// [`EngineOptions::activiti`].
    ///
    /// # Errors
    /// Fails like [`flowable`](Self::flowable), and if the options ask for execution over REST,
    /// which Activiti does not have.
    pub async fn activiti(database: &str, mut options: EngineOptions) -> Result<Self> {
        of_camunda(&options)?;
        if options.execution == Execution::Rest {
            return Err(StoreError::Config(
                "Activiti has no REST interface for jobs; set `engine_execute` to `endpoint`"
                    .to_owned(),
            ));
        }
        options.execution = Execution::Endpoint;
        let connections = Connections::connect(database, &options).await?;
        let dialect = Box::new(Act::new(
            &activiti::FAMILY,
            activiti::statements(),
            &options,
        ));
        Self::on(connections, options, dialect)
    }

    /// Connects to the database of a Camunda 7 engine, or of one that shares its schema. Changes
    /// nothing. The options begin with [`EngineOptions::camunda`].
    ///
    /// # Errors
    /// Fails like [`flowable`](Self::flowable), and if the options ask for the deployments of an
    /// endpoint, which does not report them.
    pub async fn camunda(database: &str, mut options: EngineOptions) -> Result<Self> {
        if options.execution == Execution::Auto {
            options.execution = Execution::Rest;
        }
        if options.deployment_aware && options.execution == Execution::Endpoint {
            return Err(StoreError::Config(
                "the endpoint of Camunda does not report the deployments of its node; set \
                 `engine_execute` to `rest`, or remove `engine_deployment_aware` and give each engine \
                 node the classes of all processes"
                    .to_owned(),
            ));
        }
        let connections = Connections::connect(database, &options).await?;
        let dialect = Box::new(Camunda::new(&options));
        Self::on(connections, options, dialect)
    }

    fn on(
        connections: Connections,
        options: EngineOptions,
        dialect: Box<dyn Dialect>,
    ) -> Result<Self> {
        let question = match options.execution {
            Execution::Endpoint => Some(Question::Endpoint(match dialect.holds_instances() {
                true => Requests::InHeldInstances,
                false => Requests::Executions,
            })),
            _ if options.deployment_aware => Some(Question::Deployments),
            _ => None,
        };
        let parts = Parts::new(options, question, dialect.about())?;
        Ok(Self(Arc::new(Inner {
            dialect,
            connections,
            other_scopes: Searches::new(parts.options.other_scopes),
            parts,
            in_doubt: AtomicBool::new(false),
            tapped: Mutex::new(None),
            leads: Mutex::new(None),
        })))
    }

    /// Returns the options.
    #[must_use]
    pub fn options(&self) -> &EngineOptions {
        &self.0.parts.options
    }

    /// Returns the types of the engine's jobs.
    #[must_use]
    pub fn types(&self) -> &'static [&'static str] {
        self.0.dialect.decoder().types
    }

    /// Returns the number of slots that a node uses at most:
    /// [`NodeOptions::concurrency`](jobwire_core::NodeOptions::concurrency). While a job is locked or
    /// its outcome is committed, it has a slot and no execution, so there are more slots than
    /// [executions at once](EngineOptions::concurrency).
    #[must_use]
    pub fn most_slots(&self) -> usize {
        self.0.parts.pace.most()
    }

    /// Returns the number of slots that keep the engine busy, which follows the duration of its
    /// executions: [`NodeOptions::slot_limit`](jobwire_core::NodeOptions::slot_limit).
    #[must_use]
    pub fn slot_limit(&self) -> SlotLimit {
        self.0.parts.pace.limit().clone()
    }

    /// Returns a pool of connections to the engine's database, for statements that are not on the hot
    /// path.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.0.connections.rest.inner
    }

    pub(crate) fn dialect(&self) -> &dyn Dialect {
        &*self.0.dialect
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The jobs would go to any address.
    #[tokio::test]
    async fn the_endpoint_of_camunda_is_not_asked_for_deployments() {
        let options = EngineOptions::camunda("http://127.0.0.1:1/jobwire")
            .execution(Execution::Endpoint)
            .deployment_aware(true);
        let refused = EngineStore::camunda("postgres://127.0.0.1:1/engine", options).await;
        let said = refused.expect_err("refused").to_string();
        assert!(said.contains("`engine_execute` to `rest`"), "{said}");
    }
}

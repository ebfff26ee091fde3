//! The store of an engine over its endpoint alone. It serves databases that the nodes do not reach
//! and databases without statements in Jobwire: MySQL, MariaDB, Oracle, SQL Server. The engine's
//! endpoint locks, runs, settles and rescues the jobs. Its contract is
//! docs/reference/engine-endpoint.md.
//!
//! * **Hints come from the engine**: its hook publishes them after its commits. There is no tap.
//! * **The answer of an execution is only a hint.** The store reads the fate of the row from the
//!   endpoint. Without an answer the lock stays. The engine extends it during the execution, and it
//!   expires after the engine's death.
//! * **A lock is a guard.** The endpoint runs a job only under the lock of the requesting node.
//! * **The clock is that of the engine's database.** The endpoint reads it.

mod client;
mod executing;
mod interface;
mod leading;
mod locking;
mod members;
mod operating;
mod probe;
mod served;
mod suspects;
mod wire;

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobwire_core::{Handlers, StoreError};
use tokio::time::Instant;

use self::client::Client;
use self::served::Served;
use self::suspects::Suspects;
use crate::decode::Decoder;
use crate::options::{EngineOptions, Execution};
use crate::other_scopes::Searches;
use crate::parts::Parts;
use crate::routing::question::{Question, Requests};
use crate::{activiti, flowable, handler};

type Result<T, E = StoreError> = std::result::Result<T, E>;

/// The jobs of an engine, over its endpoint alone. Clones share the connections. See the
/// [module](self).
///
/// ```no_run
/// # async fn example(transport: std::sync::Arc<dyn jobwire_core::Transport>) -> Result<(), Box<dyn std::error::Error>> {
/// use jobwire_core::store::TapMode;
/// use jobwire_core::{Node, NodeOptions};
/// use jobwire_engines::{EndpointStore, EngineOptions};
///
/// let options = EngineOptions::new("https://engine.example/jobwire");
/// let store = EndpointStore::flowable(options)?;
/// store.probe().await?;
/// let lane = store.options().lane.clone();
/// let node = Node::builder(store.clone(), transport)
///     .handlers(store.handlers()?)
///     .options(NodeOptions::default().lanes(vec![lane.into()]).tap(TapMode::Off))
///     .start()
///     .await?;
/// # node.stop().await;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct EndpointStore(Arc<Inner>);

struct Inner {
    client: Client,
    served: Served,
    decoder: Decoder,
    parts: Parts,
    /// The fence of the last lock.
    fence: AtomicI64,
    /// Whether an answer that may contain locks was lost since the last search for lost leases.
    in_doubt: AtomicBool,
    /// The jobs that the last searches for orphans found.
    suspects: Mutex<Suspects>,
    /// The leader's searches for jobs of other scopes.
    other_scopes: Searches,
    /// The last answer to a health endpoint. Concurrent checks share one request.
    asked: tokio::sync::Mutex<Option<Absence>>,
}

/// The time of the last check of the endpoint, and the reason if it failed.
type Absence = (Instant, Option<String>);

impl std::fmt::Debug for EndpointStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndpointStore")
            .field("engine", &self.0.parts.options.name)
            .finish_non_exhaustive()
    }
}

impl EndpointStore {
    /// Returns the store of the Flowable engine whose endpoint is at the URL of the options. Sends
    /// no request.
    ///
    /// # Errors
    /// If the URL or an option can't be used.
    pub fn flowable(options: EngineOptions) -> Result<Self> {
        Self::of(Served::Act(&flowable::FAMILY), options)
    }

    /// Returns the store of the Activiti engine whose endpoint is at the URL of the options. Sends
    /// no request.
    ///
    /// # Errors
    /// If the URL or an option can't be used.
    pub fn activiti(options: EngineOptions) -> Result<Self> {
        Self::of(Served::Act(&activiti::FAMILY), options)
    }

    /// Returns the store of the Camunda 7 engine whose endpoint is at the URL of the options. Sends
    /// no request.
    ///
    /// # Errors
    /// If the URL or an option can't be used.
    pub fn camunda(options: EngineOptions) -> Result<Self> {
        Self::of(Served::Camunda, options)
    }

    fn of(served: Served, mut options: EngineOptions) -> Result<Self> {
        if options.execution == Execution::Rest {
            return Err(StoreError::Config(
                "without a database, the endpoint executes the jobs; set `engine_execute` to `endpoint`"
                    .to_owned(),
            ));
        }
        options.execution = Execution::Endpoint;
        Ok(Self(Arc::new(Inner {
            client: Client::new(&options)?,
            served,
            decoder: Decoder {
                engine: served.engine(),
                types: served.types(),
                lane: options.lane.clone(),
            },
            other_scopes: Searches::new(options.other_scopes),
            // The scope request to the endpoint needs no version path.
            parts: Parts::new(
                options,
                Some(Question::Endpoint(Requests::Runs)),
                String::new(),
            )?,
            fence: AtomicI64::new(0),
            in_doubt: AtomicBool::new(false),
            suspects: Mutex::default(),
            asked: tokio::sync::Mutex::default(),
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
        self.0.decoder.types
    }

    /// Returns the handlers of all types of the engine's jobs, for a node.
    ///
    /// # Errors
    /// If the engine's URL or path can't be used.
    pub fn handlers(&self) -> Result<Handlers> {
        handler::executing(Arc::new(self.clone()), self.types())
    }

    /// Returns the first fence. Fences start at the clock of this machine, so they also grow over a
    /// restart. The owner of a lock includes the node, so no two locks have the same owner.
    fn fences(&self, count: usize) -> i64 {
        let now = chrono::Utc::now().timestamp_micros();
        let count = i64::try_from(count).unwrap_or(i64::MAX).max(1);
        let next = |last: i64| Some(last.max(now).saturating_add(count));
        let fence = &self.0.fence;
        let last = fence.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
        // The update always succeeds.
        last.unwrap_or_default().max(now)
    }

    /// Returns the time limit of an operation.
    fn within(&self) -> Duration {
        self.0.parts.options.statement_timeout
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> EndpointStore {
        EndpointStore::flowable(EngineOptions::new("http://127.0.0.1:1/jobwire")).expect("usable")
    }

    #[test]
    fn fences_grow_and_no_two_batches_share_one() {
        let store = store();
        let mut last = 0;
        for count in [1, 200, 0, 3, 1] {
            let first = store.fences(count);
            assert!(first > last, "{first} after {last}");
            last = first + i64::try_from(count).unwrap_or_default().max(1) - 1;
        }
    }

    #[test]
    fn rest_is_refused() {
        let options = EngineOptions::new("http://127.0.0.1:1").execution(Execution::Rest);
        let said = EndpointStore::flowable(options)
            .expect_err("refused")
            .to_string();
        assert!(said.contains("engine_execute"), "{said}");
    }

    #[test]
    fn the_jobs_of_each_engine_have_its_own_types_and_lane() {
        let url = "http://127.0.0.1:1/jobwire";
        let activiti = EndpointStore::activiti(EngineOptions::activiti(url)).expect("usable");
        assert_eq!(activiti.types(), activiti::HANDLER_TYPES);
        assert_eq!(activiti.options().lane.as_str(), "activiti");
        let camunda = EndpointStore::camunda(EngineOptions::camunda(url)).expect("usable");
        assert_eq!(camunda.types(), crate::camunda::HANDLER_TYPES);
        assert_eq!(camunda.options().lane.as_str(), "camunda");
    }
}

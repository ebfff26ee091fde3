//! An engine with Jobwire beside it.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::job::scope::Scope;
use jobwire_core::store::{LockTerms, RowTerms, TapMode};
use jobwire_core::{Hint, InProcessTransport, JobId, Node, NodeId, NodeOptions, Transport};
use jobwire_engines::{Credentials, EngineOptions, EngineStore, Execution, handlers};
use jobwire_tests::{EngineServer, EngineSettings, eventually};

use crate::engines::rows::{Rows, World};

/// An instance of any process ends within this time on a busy machine.
pub(super) const DONE: Duration = Duration::from_secs(60);

/// Returns the options of a bridge to this engine.
pub(super) fn options(engine: &EngineServer) -> EngineOptions {
    let program = engine.program();
    // By its version, an engine without REST has the endpoint.
    let url = match program.has_rest() {
        true => engine.url(),
        false => engine.endpoint(),
    };
    let options = match (program.is_camunda(), program.is_activiti()) {
        (true, _) if !program.has_rest() => {
            EngineOptions::camunda(url).execution(Execution::Endpoint)
        }
        (true, _) => EngineOptions::camunda(url),
        (_, true) => EngineOptions::activiti(url),
        _ => EngineOptions::new(url),
    };
    with_user(options)
}

/// Returns the options of a bridge to this Flowable or Camunda over the execution endpoint.
pub(super) fn over_endpoint(engine: &EngineServer) -> EngineOptions {
    let options = match engine.program().is_camunda() {
        true => EngineOptions::camunda(engine.endpoint()),
        false => EngineOptions::new(engine.endpoint()),
    };
    with_user(options.execution(Execution::Endpoint))
}

fn with_user(options: EngineOptions) -> EngineOptions {
    let (user, password) = EngineServer::USER;
    options.credentials(Credentials::basic(user, password))
}

/// Connects to the database of an engine, and creates what Jobwire needs there.
pub(super) async fn store(world: &World, options: EngineOptions) -> EngineStore {
    let program = world.engine.program();
    let store = match (program.is_camunda(), program.is_activiti()) {
        (true, _) => EngineStore::camunda(&world.database, options).await,
        (_, true) => EngineStore::activiti(&world.database, options).await,
        _ => EngineStore::flowable(&world.database, options).await,
    };
    let store = store.unwrap();
    store.init().await.unwrap();
    store
}

/// Returns the terms of a node that takes all jobs.
pub(super) fn terms(owner: NodeId) -> LockTerms {
    LockTerms {
        owner,
        lease: Duration::from_secs(30),
        types: Arc::from([]),
        scope: Arc::new(Scope::default()),
        rows: RowTerms::default(),
    }
}

/// Returns the hint of a job.
pub(super) fn hint(id: &str) -> Hint {
    Hint::new(job_id(id))
}

/// Returns the job id of an engine's id.
pub(super) fn job_id(id: &str) -> JobId {
    jobwire_engines::id::job_id(id).unwrap()
}

/// A node of Jobwire in this process.
pub(super) struct Bridge {
    node: Node,
    transport: Arc<dyn Transport>,
}

impl Bridge {
    /// Starts a node over an in-process transport.
    pub(super) async fn start(world: &World, options: EngineOptions, node: NodeOptions) -> Bridge {
        let store = store(world, options).await;
        Bridge::on(store, Arc::new(InProcessTransport::new()), node).await
    }

    /// Starts a node over a transport.
    pub(super) async fn on(
        store: EngineStore,
        transport: Arc<dyn Transport>,
        options: NodeOptions,
    ) -> Bridge {
        let lane = store.options().lane.clone();
        let node = Node::builder(store.clone(), transport.clone())
            .handlers(handlers(&store).unwrap())
            .options(options.lanes(vec![lane.into()]).tap(TapMode::On))
            .start()
            .await
            .unwrap();
        Bridge { node, transport }
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    pub(super) async fn stop(self) {
        self.node.stop().await;
        self.transport.close(Duration::from_secs(5)).await;
    }
}

/// Returns the options of a node whose dead jobs are taken over soon.
pub(super) fn quick() -> NodeOptions {
    NodeOptions::default()
        .concurrency(8)
        .lease(Duration::from_secs(3))
        .sweep_interval(Duration::from_secs(1))
}

/// Returns the options of a node whose jobs nobody takes over, however slow the machine is. Each
/// activity then runs once.
pub(super) fn steady() -> NodeOptions {
    quick().lease(Duration::from_secs(60))
}

/// Starts Flowable on a database of its own.
pub(super) async fn world() -> World {
    World::start(EngineSettings::flowable7).await
}

/// Waits until all instances have ended.
pub(super) async fn until_ended(rows: &Rows, instances: &[String]) {
    eventually("all instances to end", DONE, || async {
        let left: i64 = sqlx::query_scalar(
            "SELECT count(DISTINCT proc_inst_id_) FROM act_ru_execution WHERE proc_inst_id_ = ANY($1)",
        )
        .bind(instances)
        .fetch_one(&rows.0)
        .await
        .unwrap();
        (left == 0).then_some(())
    })
    .await;
}

/// Fails if a lock is left on a job or an instance.
pub(super) async fn until_no_lock_is_left(rows: &Rows) {
    eventually("no lock to be left", DONE, || async {
        let locks: i64 = sqlx::query_scalar(
            // Not every engine has these columns.
            "SELECT (SELECT count(*) FROM act_ru_execution e WHERE to_jsonb(e) ->> 'lock_owner_' IS NOT NULL OR to_jsonb(e) ->> 'lock_time_' IS NOT NULL)
                + (SELECT count(*) FROM act_ru_job WHERE lock_owner_ IS NOT NULL OR lock_exp_time_ IS NOT NULL)",
        )
        .fetch_one(&rows.0)
        .await
        .unwrap();
        (locks == 0).then_some(())
    })
    .await;
}

/// Returns the activities that ran more than once, for instances of processes without failures.
pub(super) async fn repeated(rows: &Rows) -> Vec<(String, String, i64)> {
    sqlx::query_as(
        "SELECT instance, activity, count(*) FROM jobwire_effect GROUP BY 1, 2 HAVING count(*) > 1",
    )
    .fetch_all(&rows.0)
    .await
    .unwrap()
}

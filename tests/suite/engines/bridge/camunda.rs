//! The bridge to Camunda 7: the store one statement at a time, and what only this engine does.

mod batches;
mod endpoint;
mod faults;
mod store;
mod tap;
mod timers;

use std::time::Duration;

use jobwire_core::JobQuery;
use jobwire_core::store::Store;
use jobwire_engines::EngineStore;
use jobwire_tests::{EngineServer, EngineSettings};
use tokio::sync::OnceCell;

use super::flowable::{options, store};
use crate::engines::rows::{Rows, World};

const JOB: &str = "act_ru_job";

/// How long a job is locked in these tests.
const LOCK: Duration = Duration::from_secs(6);

/// Starts Camunda on a database of its own.
async fn world() -> World {
    World::start(EngineSettings::camunda7).await
}

/// The same, with the execution endpoint.
pub(super) async fn world_with_endpoint() -> World {
    World::start(with_endpoint).await
}

fn with_endpoint(database: &str) -> EngineSettings {
    EngineSettings::camunda7(database).property("jobwire.engine-endpoint", "true")
}

/// The shared engine, on which no node runs; a store on its tables, and its rows.
async fn shared() -> (&'static EngineServer, EngineStore, Rows) {
    static SHARED: OnceCell<World> = OnceCell::const_new();
    let world = SHARED.get_or_init(world).await;
    let store = store(world, options(&world.engine)).await;
    store.check().await.unwrap().ready().unwrap();
    (&world.engine, store, world.connect().await)
}

/// Returns the number of incidents of an instance.
async fn incidents(rows: &Rows, instance: &str) -> i64 {
    let query = "SELECT count(*) FROM act_ru_incident WHERE proc_inst_id_ = $1";
    rows.count(query, instance).await
}

/// Returns a filter for the jobs of an instance.
fn of(instance: &str) -> JobQuery {
    JobQuery::default().instance(instance)
}

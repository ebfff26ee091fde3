//! The bridge to Flowable 8, over the execution endpoint.

use jobwire_core::Store;
use jobwire_engines::{EngineStore, Execution};
use jobwire_tests::{EngineProgram, EngineSettings};
use tokio::sync::OnceCell;

use super::endpoint::{Shared, a_retried_dead_letter_runs, endpoint_cases};
use super::flowable::{options, store};
use crate::engines::rows::World;

async fn shared() -> Shared {
    static SHARED: OnceCell<World> = OnceCell::const_new();
    let world = SHARED
        .get_or_init(|| World::start(EngineSettings::flowable8))
        .await;
    let store = store(world, options(&world.engine)).await;
    store.check().await.unwrap().ready().unwrap();
    (&world.engine, store, world.connect().await)
}

endpoint_cases!(shared);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_dead_letter_of_flowable8_is_retried_and_runs() {
    a_retried_dead_letter_runs(EngineSettings::flowable8).await;
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn flowable8_over_rest_is_refused_with_the_remedy() {
    let world = World::start(EngineSettings::flowable8).await;
    assert_eq!(world.engine.program(), EngineProgram::Flowable8);
    let chosen = store(&world, options(&world.engine)).await;
    assert_eq!(chosen.options().execution, Execution::Endpoint);
    chosen.probe().await.unwrap();
    let rest = options(&world.engine).execution(Execution::Rest);
    let rest = EngineStore::flowable(&world.database, rest).await.unwrap();
    let said = rest.probe().await.expect_err("refused").to_string();
    assert!(said.contains("`engine_execute` to `endpoint`"), "{said}");
}

//! The findings of the doctor that depend on the engine, its executor and the role.

use jobwire_core::store::Store;
use jobwire_engines::examine::{Finding, Level};
use jobwire_engines::{Bridge as _, EngineStore};

use super::tables::{Bare, Engine};

/// No program listens there.
const URL: &str = "http://127.0.0.1:1/jobwire";

/// Returns the findings about a part.
async fn findings(store: &EngineStore, about: &str) -> Vec<Finding> {
    let found = store.examine().await.unwrap();
    found.into_iter().filter(|f| f.about == about).collect()
}

#[tokio::test]
async fn the_global_lock_of_flowables_executor_is_remarked() {
    const LOCK: &str = "INSERT INTO act_ge_property (name_, rev_) VALUES ($1, 2)";
    const FREE: &str = "DELETE FROM act_ge_property WHERE name_ = $1";
    let bare = Bare::of(Engine::Flowable).await;
    let store = bare.store(bare.options(URL)).await;
    assert_eq!(findings(&store, "executor").await, []);
    for name in ["acquireAsyncJobsLock", "shop-acquireTimerJobsLock"] {
        bare.rows.change(LOCK, name).await;
        let found = findings(&store, "executor").await;
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(found[0].level, Level::Remark);
        let remedy = found[0].remedy.as_deref().unwrap();
        assert!(
            remedy.contains("global-acquire-lock-enabled=false"),
            "{remedy}"
        );
        bare.rows.change(FREE, name).await;
    }
    store.close().await;
}

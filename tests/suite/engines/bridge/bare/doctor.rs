//! The findings of the doctor that depend on the engine, its executor and the role.

use jobwire_core::store::Store;
use jobwire_engines::examine::{Finding, Level};
use jobwire_engines::{Bridge as _, EngineOptions, EngineStore, Execution};
use sqlx::AssertSqlSafe;
use url::Url;

use super::tables::{Bare, Engine};
use crate::engines::bridge::zone::{CAMUNDA, JOB_OF_CAMUNDA, Tables};

/// No program listens there.
const URL: &str = "http://127.0.0.1:1/jobwire";

/// Returns the findings about a part.
async fn findings(store: &EngineStore, about: &str) -> Vec<Finding> {
    let found = store.examine().await.unwrap();
    found.into_iter().filter(|f| f.about == about).collect()
}

fn over_rest() -> EngineOptions {
    EngineOptions::new(URL).execution(Execution::Rest)
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

#[tokio::test]
async fn a_lock_timeout_is_asked_only_of_an_engine_that_can_wait_for_itself() {
    let bare = Bare::of(Engine::Flowable).await;
    let camunda = Tables::create(CAMUNDA, JOB_OF_CAMUNDA).await;
    let stores = [
        (bare.store(over_rest()).await, Level::Remark),
        (bare.store(bare.options(URL)).await, Level::Fine),
        (camunda.connect("UTC").await, Level::Fine),
    ];
    for (store, level) in stores {
        let found = findings(&store, "lock_timeout").await;
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!(found[0].level, level, "{found:#?}");
        Store::close(&store).await;
    }
}

#[tokio::test]
async fn the_right_of_the_watchdog_is_checked() {
    let bare = Bare::of(Engine::Flowable).await;
    let off = bare.store(over_rest()).await;
    assert_eq!(findings(&off, "watchdog").await, []);
    // The connections of the test take the place of the engine.
    let user = format!("bridge_{}", uuid::Uuid::new_v4().simple());
    let change = async |sql: String| {
        let change = sqlx::raw_sql(AssertSqlSafe(sql));
        change.execute(&bare.rows.0).await.unwrap();
    };
    change(format!(
        "CREATE ROLE {user} LOGIN PASSWORD 'secret';
         GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}"
    ))
    .await;
    let mut theirs = Url::parse(&bare.database).unwrap();
    theirs.set_username(&user).unwrap();
    theirs.set_password(Some("secret")).unwrap();
    let options = over_rest().watchdog(true);
    let other = EngineStore::flowable(theirs.as_str(), options.clone()).await;
    let (other, own) = (other.unwrap(), bare.store(options).await);
    let level = async |store: &EngineStore| {
        let found = findings(store, "watchdog").await;
        assert_eq!(found.len(), 1, "{found:#?}");
        found[0].level
    };
    assert_eq!(level(&own).await, Level::Fine);
    assert_eq!(level(&other).await, Level::Remark);
    change(format!("GRANT pg_signal_backend TO {user}")).await;
    assert_eq!(level(&other).await, Level::Fine);
    for store in [off, own, other] {
        Store::close(&store).await;
    }
    change(format!("DROP OWNED BY {user}; DROP ROLE {user}")).await;
}

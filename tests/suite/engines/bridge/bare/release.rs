//! The release of an engine, which gives all jobs back: what it leaves, and what it leaves to another
//! engine in the same database.

use jobwire_core::store::Store;
use jobwire_core::{NodeId, StoreError};
use jobwire_engines::EngineStore;
use sqlx::{AssertSqlSafe, PgPool};

use super::tables::{Bare, Engine};
use crate::engines::bridge::flowable::until_no_lock_is_left;
use crate::engines::bridge::zone::{CAMUNDA, JOB_OF_CAMUNDA, JOBS, Tables, row_of};
use crate::engines::rows::JOB;

const URL: &str = "http://127.0.0.1:1/jobwire";

/// Locks a job as a node of Jobwire that has died. `$2`: the seconds until the lock ends.
const LOCK: &str = "
UPDATE act_ru_job SET lock_owner_ = 'jobwire:00000000-0000-4000-8000-000000000000:1',
    lock_exp_time_ = (clock_timestamp() AT TIME ZONE 'UTC') + $2 * interval '1 second'
WHERE id_ = $1 RETURNING process_instance_id_";
/// Locks its instance in the same way.
const LOCK_INSTANCE: &str = "
UPDATE act_ru_execution SET lock_owner_ = 'jobwire:00000000-0000-4000-8000-000000000000:1',
    lock_time_ = (clock_timestamp() AT TIME ZONE 'UTC') + $2 * interval '1 second'
WHERE id_ = $1";

/// Locks a job of Camunda or Activiti, or of Flowable with its instance.
async fn lock(pool: &PgPool, id: &str, seconds: f64, with_instance: bool) {
    let lock = sqlx::query_scalar::<_, String>(LOCK).bind(id).bind(seconds);
    let instance = lock.fetch_one(pool).await.unwrap();
    if with_instance {
        let lock = sqlx::query(LOCK_INSTANCE).bind(instance).bind(seconds);
        assert_eq!(lock.execute(pool).await.unwrap().rows_affected(), 1);
    }
}

/// Returns the reason why a release left locks.
fn refused(released: Result<u64, StoreError>) -> String {
    released.expect_err("locks are left").to_string()
}

async fn count(pool: &PgPool, query: &str) -> i64 {
    let count = sqlx::query_scalar(AssertSqlSafe(query.to_owned()));
    count.fetch_one(pool).await.unwrap()
}

/// The number of instances and jobs that Jobwire has locked, in the tables of any engine.
const LOCKED: &str = "
SELECT (SELECT count(*) FROM act_ru_job WHERE starts_with(lock_owner_, 'jobwire:'))
    + (SELECT count(*) FROM act_ru_execution e WHERE starts_with(to_jsonb(e) ->> 'lock_owner_', 'jobwire:'))";
const SCHEMA: &str = "SELECT count(*) FROM pg_namespace WHERE nspname = 'jobwire_engine'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_leaves_the_locks_of_flowable_whose_executions_may_still_run() {
    let bare = Bare::of(Engine::Flowable).await;
    let jobs = [bare.job().await, bare.job().await, bare.job().await];
    let store = bare.store(bare.options(URL)).await;
    leaves_what_may_run(&store, &bare.rows.0, &jobs, true).await;
    until_no_lock_is_left(&bare.rows).await;
    assert!(bare.find(JOB, &jobs[0]).await.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_leaves_the_locks_of_activiti_whose_executions_may_still_run() {
    let bare = Bare::of(Engine::Activiti).await;
    let jobs = [bare.job().await, bare.job().await, bare.job().await];
    let store = bare.store(bare.options(URL)).await;
    leaves_what_may_run(&store, &bare.rows.0, &jobs, false).await;
    until_no_lock_is_left(&bare.rows).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_leaves_the_locks_of_camunda_whose_executions_may_still_run() {
    let tables = Tables::create(CAMUNDA, JOB_OF_CAMUNDA).await;
    let mut jobs = Vec::new();
    for _ in 0..3 {
        jobs.push(tables.job(JOBS, "UTC").await.job);
    }
    let jobs: [String; 3] = jobs.try_into().unwrap();
    let store = tables.connect("UTC").await;
    leaves_what_may_run(&store, &tables.pool, &jobs, false).await;
}

async fn leaves_what_may_run(
    store: &EngineStore,
    pool: &PgPool,
    [ended, open, running]: &[String; 3],
    with_instance: bool,
) {
    let locks_of_a_job = 1 + i64::from(with_instance);
    lock(pool, ended, -10.0, with_instance).await;
    // The engine's own transaction: it began before the end of the second lock.
    let mut transaction = pool.begin().await.unwrap();
    sqlx::query("SELECT FROM act_ru_job")
        .execute(&mut *transaction)
        .await
        .unwrap();
    lock(pool, open, 0.0, with_instance).await;
    lock(pool, running, 3_600.0, with_instance).await;

    let said = refused(store.release_engine().await);
    for part in [
        "1 locks were released, and 2 have not expired",
        "executor off",
        "run the command again after 20",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
    assert_eq!(count(pool, LOCKED).await, 2 * locks_of_a_job);
    assert_eq!(count(pool, SCHEMA).await, 1, "nothing else is removed");

    transaction.rollback().await.unwrap();
    let said = refused(store.release_engine().await);
    assert!(
        said.contains("1 locks were released, and 1 have not expired"),
        "{said}"
    );
    assert_eq!(count(pool, LOCKED).await, locks_of_a_job);

    // Its execution has ended, but the settling of its instance is missing.
    lock(pool, running, -1.0, with_instance).await;
    assert_eq!(store.release_engine().await.unwrap(), 1);
    assert_eq!(count(pool, LOCKED).await, 0);
    assert_eq!(count(pool, SCHEMA).await, 0);
    assert_eq!(store.release_engine().await.unwrap(), 0, "once more");
}

/// Makes the node of an engine silent for an hour.
const SILENT: &str =
    "UPDATE jobwire_engine.node SET seen_at = seen_at - interval '1 hour' WHERE engine = $1";
const NODES: &str = "SELECT count(*) FROM jobwire_engine.node WHERE engine = $1";
const FENCE: &str = "SELECT nextval('jobwire_engine.fence')";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_release_of_an_engine_leaves_another_engine_in_its_database_alone() {
    let bare = Bare::of(Engine::Flowable).await;
    let mut stores = Vec::new();
    for name in ["billing", "shipping"] {
        let store = bare.store(bare.options(URL).name(name.to_owned())).await;
        store.write_node(&row_of(NodeId::generate())).await.unwrap();
        stores.push(store);
    }
    let [billing, shipping] = &stores[..] else {
        panic!("two engines");
    };
    let said = refused(billing.release_engine().await);
    assert!(said.contains("stop it first"), "{said}");
    bare.rows.change(SILENT, "billing").await;
    let fence = count(&bare.rows.0, FENCE).await;
    assert_eq!(billing.release_engine().await.unwrap(), 0);
    assert_eq!(bare.rows.count(NODES, "billing").await, 0);
    assert_eq!(bare.rows.count(NODES, "shipping").await, 1);
    assert_eq!(shipping.nodes().await.unwrap().len(), 1);
    let next = count(&bare.rows.0, FENCE).await;
    assert!(next > fence, "no number of a lock comes twice");
    bare.rows.change(SILENT, "shipping").await;
    assert_eq!(shipping.release_engine().await.unwrap(), 0);
    assert_eq!(count(&bare.rows.0, SCHEMA).await, 0);
    for store in stores {
        Store::close(&store).await;
    }
}

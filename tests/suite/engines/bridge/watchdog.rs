//! The watchdog: it ends a wait of the engine for its own idle transaction, and no other wait.

use std::time::Duration;

use jobwire_core::NodeId;
use jobwire_core::job::scope::Services;
use jobwire_core::store::attempts::AttemptsKept;
use jobwire_core::store::{CycleOutcome, LeaderCycle, Store};
use jobwire_engines::EngineStore;
use jobwire_tests::eventually;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};
use tokio::task::JoinHandle;

use super::flowable::{DONE, options, world};
use crate::engines::rows::World;

/// Connects as a session of a program.
async fn session(world: &World, program: &str) -> PgConnection {
    let options: PgConnectOptions = world.database.parse().unwrap();
    let session = options.application_name(program).connect().await;
    session.unwrap()
}

/// Begins a transaction that changes a row and then is idle.
async fn hold(world: &World, program: &str, row: &str) -> PgConnection {
    let mut session = session(world, program).await;
    for statement in ["BEGIN".to_owned(), update(row)] {
        let sent = sqlx::raw_sql(AssertSqlSafe(statement));
        sent.execute(&mut session).await.unwrap();
    }
    session
}

/// Changes the same row in another session, which waits.
async fn wait(world: &World, program: &str, row: &str) -> JoinHandle<Result<(), String>> {
    let mut session = session(world, program).await;
    let statement = update(row);
    tokio::spawn(async move {
        let sent = sqlx::raw_sql(AssertSqlSafe(statement));
        let answer = sent.execute(&mut session).await;
        answer.map(drop).map_err(|error| error.to_string())
    })
}

fn update(row: &str) -> String {
    format!("UPDATE watched SET value = value + 1 WHERE name = '{row}'")
}

/// One turn of the leader of this store.
async fn turn(store: &EngineStore, node: NodeId) {
    let turn = LeaderCycle {
        node,
        lease: Duration::from_secs(30),
        transport: "in-process",
        reset_at_most: 0,
        clock: None,
        may_wait: Duration::ZERO,
        grace: Duration::ZERO,
        services: Services::default(),
        again_after: Duration::from_secs(30),
        hint_at_most: 1,
        attempts_kept: AttemptsKept::new(),
    };
    let outcome = store.run_leader_cycle(&turn).await.unwrap();
    assert!(matches!(outcome, CycleOutcome::Leads(_)), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_watchdog_ends_a_wait_of_the_engine_for_itself_and_no_other() {
    let world = world().await;
    let rows = world.connect().await;
    let table = "CREATE TABLE watched AS SELECT name, 0 AS value FROM unnest(ARRAY['own', 'others']) AS name";
    sqlx::query(table).execute(&rows.0).await.unwrap();
    let store = |watchdog: bool| {
        let options = options(&world.engine)
            .watchdog(watchdog)
            .name(format!("watchdog-{watchdog}"));
        EngineStore::flowable(&world.database, options)
    };
    let (off, on) = (store(false).await.unwrap(), store(true).await.unwrap());
    off.init().await.unwrap();
    // A hang of the engine, and a wait of the engine for another program.
    let own = hold(&world, "engine", "own").await;
    let others = hold(&world, "console", "others").await;
    let hung = wait(&world, "engine", "own").await;
    let waits = wait(&world, "engine", "others").await;
    let node = NodeId::generate();
    let seconds = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1
        AND wait_event_type = 'Lock' AND query_start < clock_timestamp() - interval '3 seconds'";
    eventually("both to wait for some time", DONE, || async {
        (rows.count(seconds, "engine").await == 2).then_some(())
    })
    .await;
    turn(&off, node).await;
    assert_eq!(rows.count(seconds, "engine").await, 2, "it is off");
    turn(&on, node).await;
    let said = hung.await.unwrap().expect_err("cancelled");
    assert!(said.contains("user request"), "{said}");
    assert_eq!(rows.count(seconds, "engine").await, 1, "another's lock");
    for session in [own, others] {
        session.close().await.unwrap();
    }
    assert_eq!(waits.await.unwrap(), Ok(()));
}

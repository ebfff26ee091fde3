//! A fleet of processes beside one Flowable, some of which are killed, and many instances whose jobs
//! meet at a join.

use std::time::Duration;

use jobwire_tests::{EngineServer, Running, Scratch, Signal, eventually, shared};

use super::flowable::{DONE, repeated, until_no_lock_is_left, world};
use super::program::{jobwire, succeeds};
use crate::engines::rows::{Rows, World};

const INSTANCES: usize = 1_000;
/// The activities of the process `fork`: four beside each other, and one behind their join.
const ACTIVITIES: usize = 5;
const NODES: usize = 8;
/// The number of nodes that are killed, one after the other.
const KILLS: usize = 4;
/// The deadline of all instances together.
const ALL_DONE: Duration = Duration::from_secs(400);
/// A transaction of the engine that is idle for longer waits for something: its connections wait two
/// seconds for a lock.
const IDLE: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
    AND application_name = $1 AND state LIKE 'idle in transaction%' AND state_change < clock_timestamp() - interval '10 seconds'";
const IN_TRANSACTION: &str =
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
    AND application_name = $1 AND xact_start IS NOT NULL";
/// Ended activities in the history, and those that are there more than once.
const HISTORY: &str = "SELECT count(*) FILTER (WHERE end_time_ IS NOT NULL), count(*) - count(DISTINCT (proc_inst_id_, act_id_))
    FROM act_hi_actinst WHERE act_type_ = 'serviceTask'";

async fn ended_activities(rows: &Rows) -> (i64, i64) {
    sqlx::query_as(HISTORY).fetch_one(&rows.0).await.unwrap()
}

/// Waits until as many activities have ended. No transaction of the engine may be idle for long
/// meanwhile.
async fn until_ended_activities(rows: &Rows, least: usize) {
    let least = i64::try_from(least).unwrap();
    eventually("activities to end", ALL_DONE, || async {
        assert_eq!(rows.count(IDLE, "engine").await, 0, "idle in a transaction");
        (ended_activities(rows).await.0 >= least).then_some(())
    })
    .await;
}

async fn start_instances(engine: &EngineServer) {
    for _ in 0..INSTANCES / 50 {
        engine.start_instances("fork", 50, &[]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::bridge::fleet"]
async fn a_thousand_joins_complete_though_nodes_of_a_fleet_are_killed() {
    let world: World = world().await;
    let rows = world.connect().await;
    let home = Scratch::new();
    let space = shared::rabbitmq().await.space().await;
    let program = |arguments: &[&str]| {
        jobwire(&home, &world, arguments)
            .env("JOBWIRE_BROKER_URL", &space.url)
            .env("JOBWIRE_AMQP_PREFIX", &space.prefix)
            // All of them together leave the engine some of its twenty connections.
            .env("JOBWIRE_ENGINE_CONCURRENCY", "2")
            .env("JOBWIRE_DATABASE_CONNECTIONS", "4")
    };
    succeeds(program(&["engine", "init"])).await;
    let start = || async {
        let node: Running = program(&["engine", "run"]).start();
        node.wait_for_line("is ready", DONE).await;
        node
    };
    let mut nodes = Vec::new();
    for _ in 0..NODES {
        nodes.push(start().await);
    }
    let all = INSTANCES * ACTIVITIES;
    let kills = async {
        for kill in 1..=KILLS {
            until_ended_activities(&rows, all * kill / (KILLS + 2)).await;
            let mut victim = nodes.remove(0);
            victim.signal(Signal::SIGKILL);
            victim.exit(DONE).await;
            nodes.push(start().await);
        }
    };
    tokio::join!(start_instances(&world.engine), kills);
    until_ended_activities(&rows, all).await;
    let exactly = (i64::try_from(all).unwrap(), 0);
    assert_eq!(ended_activities(&rows).await, exactly, "each once");
    assert_eq!(repeated(&rows).await, []);
    let left = "SELECT (SELECT count(*) FROM act_ru_execution) + (SELECT count(*) FROM act_ru_deadletter_job)
        + (SELECT count(*) FROM act_ru_timer_job WHERE $1 <> '')";
    eventually("nothing to be left", DONE, || async {
        (rows.count(left, "-").await == 0).then_some(())
    })
    .await;
    until_no_lock_is_left(&rows).await;
    eventually("the engine to be in no transaction", DONE, || async {
        (rows.count(IN_TRANSACTION, "engine").await == 0).then_some(())
    })
    .await;
    for mut node in nodes {
        node.signal(Signal::SIGTERM);
        assert!(node.exit(DONE).await.success());
    }
}

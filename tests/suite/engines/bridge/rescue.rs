//! Locks whose holder is dead: what the leader clears, and what it leaves.

use std::time::Duration;

use jobwire_core::NodeId;
use jobwire_tests::eventually;

use super::flowable::{Bridge, DONE, options, quick, until_ended, until_no_lock_is_left, world};

/// Locks the job of an instance, and the instance, as `$2`, until `$3` from now.
const LOCK: &str = "
WITH job AS (UPDATE act_ru_job SET lock_owner_ = $2, lock_exp_time_ = (clock_timestamp() AT TIME ZONE 'UTC') + $3 WHERE process_instance_id_ = $1)
UPDATE act_ru_execution SET lock_owner_ = $2, lock_time_ = (clock_timestamp() AT TIME ZONE 'UTC') + $3 WHERE id_ = $1";
/// Locks only the instance.
const HOLD: &str = "
UPDATE act_ru_execution SET lock_owner_ = $2, lock_time_ = (clock_timestamp() AT TIME ZONE 'UTC') + $3 WHERE id_ = $1";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_dead_holders_are_taken_over_and_those_of_living_ones_are_not() {
    let world = world().await;
    let rows = world.connect().await;
    let engine = &world.engine;
    let all = engine.start_instances("one", 6, &[]).await;
    let dead = format!("jobwire:{}:1", NodeId::generate());
    let seconds = |seconds: i64| sqlx::postgres::types::PgInterval {
        months: 0,
        days: 0,
        microseconds: seconds * 1_000_000,
    };
    let cases = [
        // Expired, of a node of ours; expired long ago, of an engine node; an instance that was
        // left behind by either.
        (LOCK, &*dead, -1),
        (LOCK, "engine", -90),
        (HOLD, &*dead, -1),
        (HOLD, "engine", -90),
        // An engine node that lives, and one that its own reset may still clear.
        (LOCK, "engine", 3_600),
        (LOCK, "engine", -10),
    ];
    for (instance, (statement, owner, until)) in all.iter().zip(cases) {
        sqlx::query(statement)
            .bind(instance)
            .bind(owner)
            .bind(seconds(until))
            .execute(&rows.0)
            .await
            .unwrap();
    }
    let bridge = Bridge::start(&world, options(engine), quick()).await;
    until_ended(&rows, &all[..4]).await;
    for instance in &all[4..] {
        assert!(rows.job("act_ru_job", instance).await.is_locked());
    }
    // Both engine nodes have died for long.
    for instance in &all[4..] {
        sqlx::query(LOCK)
            .bind(instance)
            .bind("engine")
            .bind(seconds(-90))
            .execute(&rows.0)
            .await
            .unwrap();
    }
    until_ended(&rows, &all).await;
    for instance in &all {
        assert_eq!(rows.effects(instance).await.len(), 1);
    }
    until_no_lock_is_left(&rows).await;
    bridge.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_of_a_dead_node_waits_while_the_engine_may_still_execute_it() {
    let world = world().await;
    let rows = world.connect().await;
    let engine = &world.engine;
    let instance = engine.start_instance("one", &[]).await;
    // The transaction of an execution, which began under the lock.
    let mut tx = rows.0.begin().await.unwrap();
    sqlx::query("SELECT FROM act_ru_job")
        .execute(&mut *tx)
        .await
        .unwrap();
    let dead = format!("jobwire:{}:1", NodeId::generate());
    let soon = Duration::from_millis(500);
    let lock = sqlx::query(LOCK).bind(&instance).bind(&dead).bind(soon);
    lock.execute(&rows.0).await.unwrap();
    let bridge = Bridge::start(&world, options(engine), quick()).await;
    // Another dead node's job, whose lock expired before the transaction began, shows that the
    // leader has looked.
    let other = engine.start_instance("one", &[]).await;
    let lock = "UPDATE act_ru_job SET lock_owner_ = 'jobwire:00000000-0000-4000-8000-000000000000:1',
        lock_exp_time_ = (clock_timestamp() AT TIME ZONE 'UTC') - interval '1 hour' WHERE process_instance_id_ = $1";
    let mut looks = 0;
    while looks < 2 {
        if rows.change(lock, &other).await == 0 {
            break;
        }
        eventually("the leader to look", DONE, || async {
            let jobs = rows.jobs("act_ru_job", &other).await;
            jobs.iter()
                .all(|job| {
                    job.owner.as_deref() != Some("jobwire:00000000-0000-4000-8000-000000000000:1")
                })
                .then_some(())
        })
        .await;
        looks += 1;
    }
    let job = rows.job("act_ru_job", &instance).await;
    assert_eq!(job.owner.as_deref(), Some(&*dead));
    tx.rollback().await.unwrap();
    until_ended(&rows, std::slice::from_ref(&instance)).await;
    assert_eq!(rows.effects(&instance).await.len(), 1);
    bridge.stop().await;
}

//! Jobs of plain SQL get one hint, and get it at their commit.

use std::time::Duration;

use jobwire_core::{JobId, NewJob, Store};
use jobwire_tests::eventually;

use super::world::Tapped;
use crate::world::{SOON, World, pass};

#[tokio::test]
async fn a_job_of_plain_sql_starts_long_before_the_leader_looks() {
    let tapped = Tapped::new().await;
    for n in 1..=30 {
        tapped.create(&format!("{n}")).await;
        assert_eq!(tapped.notes.until(n).await.last(), Some(&format!("{n}")));
    }
    assert_eq!(tapped.hints(), 30);
    tapped.node.stop().await;
}

#[tokio::test]
async fn a_timer_of_plain_sql_runs_when_it_is_due() {
    let tapped = Tapped::new().await;
    tapped
        .run("SELECT jobwire.create_job(type => 'note', payload => '\"later\"', due_at => clock_timestamp() + interval '2 s')")
        .await;
    assert_eq!(tapped.notes.until(1).await, ["later"]);
    tapped.world.until_empty().await;
    tapped.node.stop().await;
}

#[tokio::test]
async fn exclusive_jobs_of_plain_sql_run_in_their_order() {
    let tapped = Tapped::new().await;
    tapped
        .run(
            "SELECT jobwire.create_job(type => 'note', payload => to_json(n::text), process_instance => 'p')
             FROM generate_series(1, 20) n",
        )
        .await;
    let expected: Vec<String> = (1..=20).map(|n| n.to_string()).collect();
    assert_eq!(tapped.notes.until(20).await, expected);
    tapped.node.stop().await;
}

#[tokio::test]
async fn what_a_savepoint_undid_never_runs() {
    let tapped = Tapped::new().await;
    tapped
        .run(
            "BEGIN; SELECT jobwire.create_job(type => 'note', payload => '\"a\"'); SAVEPOINT s;
             SELECT jobwire.create_job(type => 'note', payload => '\"undone\"'); ROLLBACK TO s;
             SELECT jobwire.create_job(type => 'note', payload => '\"b\"'); COMMIT",
        )
        .await;
    tapped.notes.until(2).await;
    tapped.world.until_empty().await;
    let mut ran = tapped.notes.all();
    ran.sort_unstable();
    assert_eq!(ran, ["a", "b"]);
    assert_eq!(tapped.hints(), 2);
    tapped.node.stop().await;
}

/// Protocol rule 20: jobs of the library have the hint of their commit hook, and the tap does not
/// see them.
#[tokio::test]
async fn hook_and_tap_never_both_hint_a_job() {
    let tapped = Tapped::new().await;
    // The node's own hook, which counts.
    let creator = tapped.world.store.client(tapped.node.hook());
    let sql = async {
        for n in 0..100 {
            tapped.create(&format!("sql {n}")).await;
        }
    };
    let library = async {
        for n in 0..100 {
            let job = NewJob::of("note", &format!("hook {n}"));
            creator.create(job).await.unwrap();
        }
    };
    tokio::join!(sql, library);
    tapped.notes.until(200).await;
    tapped.world.until_empty().await;
    // A job of the library behind them, and a moment in which the tap would have hinted.
    creator.create(NewJob::of("note", "last")).await.unwrap();
    tapped.notes.until(201).await;
    pass(Duration::from_secs(1)).await;
    assert_eq!(tapped.hints(), 201);
    let mut ran = tapped.notes.all();
    ran.sort_unstable();
    ran.dedup();
    assert_eq!(ran.len(), 201);
    tapped.node.stop().await;
}

/// Promise 6: one hint for each job, also of a transaction that is larger than what the leader
/// marks at once.
#[tokio::test]
async fn a_large_transaction_of_plain_sql_costs_one_hint_for_each_job() {
    const JOBS: usize = 10_000;
    let tapped = Tapped::new().await;
    tapped
        .run(
            "INSERT INTO jobwire.job (id, type, payload, correlation_id)
             SELECT id, 'note', to_json(id::text), id FROM (SELECT jobwire.uuid_v7() AS id FROM generate_series(1, 10000)) n",
        )
        .await;
    let ran = tapped.notes.until_within(JOBS, SOON * 4).await;
    tapped.world.until_empty().await;
    let extra = tapped.hints() - JOBS as u64;
    assert!(extra <= JOBS as u64 / 100, "{extra} extra hints");
    assert_eq!(ran.len(), JOBS);
    tapped.node.stop().await;
}

/// The tap marks what it hints, so that the leader cycle does not hint it again.
#[tokio::test]
async fn the_leader_cycle_does_not_hint_again_what_the_tap_has_hinted() {
    let tapped = Tapped::new().await;
    // No node serves this type: the jobs stay.
    tapped
        .run("SELECT jobwire.create_job(type => 'nobody') FROM generate_series(1, 50)")
        .await;
    eventually("fifty hints", SOON, async || {
        (tapped.hints() == 50).then_some(())
    })
    .await;
    let left = "SELECT count(*) FROM jobwire.job WHERE hints = 0";
    assert_eq!(tapped.world.count(left).await, 0);
    // A new leader runs a cycle at once, and looks for unhinted jobs when its tap stands.
    let Tapped {
        world, node, hints, ..
    } = tapped;
    node.stop().await;
    let next = Tapped::with(world, super::world::seldom()).await;
    next.settle().await;
    assert_eq!(next.hints(), 0);
    assert_eq!(hints.load(std::sync::atomic::Ordering::SeqCst), 50);
    next.node.stop().await;
}

/// What the tap reports may not be visible yet, or locked. Such a job is tried again; the statement
/// waits for nothing.
#[tokio::test]
async fn a_mark_waits_for_no_row_and_says_which_jobs_it_has_not_decided() {
    let world = World::new().await;
    let create = "SELECT jobwire.create_job(type => 'note')";
    let mut ids = Vec::new();
    for _ in 0..3 {
        let id: uuid::Uuid = sqlx::query_scalar(create)
            .fetch_one(world.store.pool())
            .await
            .unwrap();
        ids.push(JobId::from_uuid(id));
    }
    let [plain, hinted, locked] = ids[..] else {
        panic!("{ids:?}");
    };
    let first = world.store.mark_hinted(&[hinted]).await.unwrap();
    assert_eq!(first.ready.len(), 1);
    let mut holder = world.store.pool().begin().await.unwrap();
    sqlx::query("SELECT FROM jobwire.job WHERE id = $1 FOR UPDATE")
        .bind(locked.uuid())
        .execute(&mut *holder)
        .await
        .unwrap();
    let mut creator = world.store.pool().begin().await.unwrap();
    let invisible: uuid::Uuid = sqlx::query_scalar(create)
        .fetch_one(&mut *creator)
        .await
        .unwrap();
    let invisible = JobId::from_uuid(invisible);
    let marked = world
        .store
        .mark_hinted(&[invisible, locked, hinted, plain])
        .await
        .unwrap();
    let ready: Vec<JobId> = marked.ready.iter().map(|ready| ready.hint.id).collect();
    assert_eq!((ready, marked.hinted), (vec![plain], vec![hinted]));
    holder.rollback().await.unwrap();
    creator.commit().await.unwrap();
    let marked = world.store.mark_hinted(&[invisible, locked]).await.unwrap();
    assert_eq!(marked.ready.len(), 2);
    assert_eq!(marked.ready[0].lane.as_str(), "default");
    assert_eq!(
        world
            .count("SELECT count(*) FROM jobwire.job WHERE hints = 1")
            .await,
        4
    );
}

//! Timers of Camunda: in place, when due, never before.

use jobwire_core::NodeId;
use jobwire_core::hint::Ready;
use jobwire_core::store::{Completion, Handoff, OrphanQuery, Store};
use jobwire_tests::eventually;

use super::{JOB, shared, world};
use crate::engines::bridge::flowable::{
    Bridge, DONE, hint, job_id, options, quick, terms, until_ended, until_no_lock_is_left,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn cycles_of_camunda_run_to_their_end_and_never_early() {
    let world = world().await;
    let rows = world.connect().await;
    let bridge = Bridge::start(&world, options(&world.engine), quick()).await;
    // The bridge leads, and the engine is warm.
    let first = world.engine.start_instances("chain", 2, &[]).await;
    until_ended(&rows, &first).await;
    let instances = world.engine.start_instances("cycle", 10, &[]).await;
    eventually("the cycles to end", DONE, || async {
        let left: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM act_ru_job WHERE process_instance_id_ = ANY($1)",
        )
        .bind(&instances)
        .fetch_one(&rows.0)
        .await
        .unwrap();
        (left == 0).then_some(())
    })
    .await;
    // The engine skips an occurrence that is late by a whole period, so a busy machine has fewer
    // than three of each.
    let (cycles, runs, early): (i64, i64, i64) = sqlx::query_as(
        "SELECT count(DISTINCT process_instance_id_), count(*), count(*) FILTER (WHERE timestamp_ < job_duedate_)
         FROM act_hi_job_log WHERE job_state_ = 2 AND process_instance_id_ = ANY($1)",
    )
    .bind(&instances)
    .fetch_one(&rows.0)
    .await
    .unwrap();
    assert_eq!((cycles, early), (10, 0));
    assert!((10..=30).contains(&runs), "{runs}");
    // The engine keeps whole seconds in the repetition, so the first gap is shorter than the others.
    let bunched: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM (SELECT job_duedate_ - lag(job_duedate_) OVER run AS gap, row_number() OVER run AS number
            FROM act_hi_job_log WHERE job_state_ = 2 AND process_instance_id_ = ANY($1)
            WINDOW run AS (PARTITION BY process_instance_id_ ORDER BY job_duedate_)) g
         WHERE number > 2 AND gap < interval '900 ms'",
    )
    .bind(&instances)
    .fetch_one(&rows.0)
    .await
    .unwrap();
    assert_eq!(bunched, 0);
    let mut effects = 0;
    for instance in &instances {
        effects += rows.effects(instance).await.len();
    }
    assert_eq!(i64::try_from(effects).unwrap(), runs);
    until_no_lock_is_left(&rows).await;
    bridge.stop().await;
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn a_due_timer_of_camunda_is_hinted_once_by_its_leader_and_then_is_an_orphan() {
    let (engine, store, rows) = shared().await;
    let instance = engine.start_instance("timer", &[("wait", "PT1S")]).await;
    let timer = rows.job(JOB, &instance).await;
    let early = store.move_due_timers(1_000).await.unwrap();
    let is_it = |ready: &Ready| ready.hint.instance.as_deref() == Some(&*instance);
    assert!(!early.ready.iter().any(is_it));
    assert!(early.next_due.is_some_and(|due| due > early.now));
    let hinted = eventually("the timer to be hinted", DONE, || async {
        let moved = store.move_due_timers(1_000).await.unwrap();
        moved.ready.iter().any(is_it).then_some(moved)
    })
    .await;
    assert!(timer.due.is_some_and(|due| due <= hinted.now.naive_utc()));
    let again = store.move_due_timers(1_000).await.unwrap();
    assert!(!again.ready.iter().any(is_it), "hinted before");
    // Its hint is lost: the sweeper finds it.
    let lane = store.options().lane.clone();
    let query = OrphanQuery::new(lane, terms(NodeId::generate()).types, hinted.now, 1_000);
    let orphans = store.orphans(&query).await.unwrap();
    assert!(orphans.ready.iter().any(is_it), "{orphans:?}");
    let owner = NodeId::generate();
    let locked = store.lock(&terms(owner), &[hint(&timer.id)]).await.unwrap();
    assert_eq!(locked.jobs.len(), 1);
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn the_end_of_an_occurrence_tells_the_due_date_of_the_next_one() {
    let (engine, store, rows) = shared().await;
    let instance = engine.start_instance("cycle", &[]).await;
    // So long that a slow machine leaves out none.
    let longer = "UPDATE act_ru_job SET repeat_ = replace(repeat_, 'PT1S', 'PT1H') WHERE process_instance_id_ = $1";
    assert_eq!(rows.change(longer, &instance).await, 1);
    let first = rows.job(JOB, &instance).await;
    let owner = NodeId::generate();
    let held = eventually("the first occurrence to be due", DONE, || async {
        let locked = store.lock(&terms(owner), &[hint(&first.id)]).await.unwrap();
        locked.jobs.first().map(|job| job.held())
    })
    .await;
    assert_eq!(engine.execute(&first.id).await.status, 204);
    let next = rows.job(JOB, &instance).await;
    let done = Completion {
        held,
        next: None,
        has_traces: false,
        cancelled: false,
        attempt: None,
    };
    let outcome = store
        .complete(owner, &[done], &Handoff::Hint)
        .await
        .unwrap();
    assert!(next.due.is_some());
    assert_eq!(outcome.timer.map(|due| due.naive_utc()), next.due);
    store.delete(job_id(&next.id)).await.unwrap();
}

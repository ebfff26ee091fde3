//! The statement that moves a single due timer also locks it, if nothing else runs on the node
//! (docs/internals/measurements.md, 0025).

use std::sync::Arc;
use std::time::{Duration, Instant};

use jobwire_core::node::NodeBuilder;
use jobwire_core::{NewJob, Outcome, Running};
use jobwire_tests::eventually;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::sync::Semaphore;

use super::until_first_turn;
use super::world::counted;
use crate::world::{Notes, SOON, World};

/// Returns the number of jobs that were locked from this source.
fn locked(scraped: &PrometheusHandle, source: &str) -> u64 {
    counted(
        scraped,
        &format!("jobwire_jobs_locked_total{{source=\"{source}\"}}"),
    )
}

/// Returns a node whose handler notes each run.
fn noting(world: &World, notes: &Notes) -> NodeBuilder {
    let seen = notes.clone();
    world.node().handler("note", move |_: Running<()>| {
        seen.add("ran");
        async { Ok(Outcome::Done) }
    })
}

/// Creates timers that are due in a moment, all at once. They exist before that on any machine.
async fn due(world: &World, job_type: &str, count: usize) {
    let at = chrono::Utc::now() + Duration::from_secs(4);
    let timer = || NewJob::of(job_type, &()).due(at);
    let mut transaction = world.jobs.begin().await.unwrap();
    let timers = (0..count).map(|_| timer()).collect();
    transaction.create_many(timers).await.unwrap();
    transaction.commit().await.unwrap();
}

#[tokio::test]
async fn an_idle_leader_locks_a_lone_timer_and_a_busy_one_hints_it() {
    // On a current-thread runtime every task of the node records here.
    let recorder = PrometheusBuilder::new().build_recorder();
    let scraped = recorder.handle();
    let _here = metrics::set_default_local_recorder(&recorder);
    let world = World::new().await;
    let (notes, gate) = (Notes::default(), Arc::new(Semaphore::new(0)));
    let (held, until) = (notes.clone(), gate.clone());
    let node = noting(&world, &notes)
        .handler("held", move |_: Running<()>| {
            held.add("holds");
            let until = until.clone();
            async move {
                drop(until.acquire().await);
                Ok(Outcome::Done)
            }
        })
        .start()
        .await
        .unwrap();
    until_first_turn(&scraped).await;

    due(&world, "note", 1).await;
    notes.until(1).await;
    world.until_empty().await;
    assert_eq!(
        (locked(&scraped, "timer"), locked(&scraped, "hint")),
        (1, 0)
    );

    // A job runs here, while another node may be idle.
    due(&world, "held", 1).await;
    notes.until(2).await;
    due(&world, "note", 1).await;
    notes.until(3).await;
    assert_eq!(
        (locked(&scraped, "timer"), locked(&scraped, "hint")),
        (2, 1)
    );
    gate.add_permits(1);
    world.until_empty().await;

    // Many timers are for the fleet: a few run here, the rest are hinted.
    due(&world, "note", 10).await;
    world.until_empty().await;
    assert_eq!(
        (locked(&scraped, "timer"), locked(&scraped, "hint")),
        (6, 7)
    );
    assert_eq!(notes.all().len(), 13);
    node.stop().await;
}

/// If no job can be locked, timers still move, and they run when locking works again.
#[tokio::test]
async fn a_take_that_fails_stops_no_timer() {
    let world = World::new().await;
    let sql = async |sql: &'static str| {
        let done = sqlx::query(sql).execute(world.store.pool()).await;
        done.unwrap();
    };
    let notes = Notes::default();
    let node = noting(&world, &notes).start().await.unwrap();
    // A node does not start without the sequence.
    sql("ALTER SEQUENCE jobwire.fence_seq RENAME TO gone").await;
    due(&world, "note", 1).await;
    eventually("the timer to be moved", SOON, async || {
        (world.count("SELECT count(*) FROM jobwire.job").await == 1).then_some(())
    })
    .await;
    assert!(notes.all().is_empty());
    sql("ALTER SEQUENCE jobwire.gone RENAME TO fence_seq").await;
    notes.until(1).await;
    world.until_empty().await;
    node.stop().await;
}

/// While another transaction has locked the row of a due timer, the node asks for it at intervals,
/// not all the time.
#[tokio::test]
async fn a_due_timer_whose_row_is_taken_is_waited_for() {
    // On a current-thread runtime every task of the node records here.
    let recorder = PrometheusBuilder::new().build_recorder();
    let scraped = recorder.handle();
    let _here = metrics::set_default_local_recorder(&recorder);
    let moves = || {
        counted(
            &scraped,
            r#"jobwire_statement_seconds_count{statement="move_due_timers"}"#,
        )
    };
    let world = World::new().await;
    let notes = Notes::default();
    let node = noting(&world, &notes).start().await.unwrap();
    due(&world, "note", 1).await;
    let mut other = world.store.pool().begin().await.unwrap();
    let taken = sqlx::query("SELECT FROM jobwire.timer_job FOR UPDATE");
    taken.execute(&mut *other).await.unwrap();
    eventually("the timer to be asked for", SOON, async || {
        (moves() > 1).then_some(())
    })
    .await;
    let (began, before) = (Instant::now(), moves());
    eventually("it to be asked for again", SOON, async || {
        (moves() > before + 5).then_some(())
    })
    .await;
    assert!(began.elapsed() > Duration::from_millis(100));
    assert!(notes.all().is_empty());
    other.commit().await.unwrap();
    notes.until(1).await;
    node.stop().await;
}

//! Rules of the protocol that only a fault or many jobs can show.

mod accounts;
mod ahead;
mod busy;
mod doors;
mod failed_commit;
mod fault_ends;
mod faults;
mod forwarded;
mod full_type;
mod held_back;
mod inline_starts;
mod isolated;
mod lone_timers;
mod long_chains;
mod lost_answer;
mod overtaken;
mod own_instances;
mod packed;
mod poison;
mod priority_gaps;
mod quarantine;
mod registry;
mod row_lock;
mod saturated;
mod suspension;
mod twice;
mod unserved_jobs;
mod world;

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::hint::Hint;
use jobwire_core::producer::commit_hook::HookOptions;
use jobwire_core::transport::{Publisher, Transport};
use jobwire_core::{CommitHook, Lane, NewJob, Node, Outcome, PgStore, Running, Store, StoreError};
use jobwire_tests::{Direction, Flow, eventually};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::sync::Semaphore;

use crate::world::{Notes, SOON, World, pass, proxy_before, quick};

/// Waits until the node has run its first leader cycle, which hints all waiting jobs: it hints none
/// that is created later.
async fn until_first_turn(scraped: &PrometheusHandle) {
    eventually("the node to lead", SOON, || async {
        let text = scraped.render();
        text.lines()
            .any(|line| line == "jobwire_leader 1")
            .then_some(())
    })
    .await;
}

/// Rule 6: a node locks no more jobs than it has free slots, however many wait.
#[tokio::test]
async fn no_more_is_locked_than_there_are_slots() {
    let world = World::new().await;
    let mut tx = world.jobs.begin().await.unwrap();
    let jobs = (0..60).map(|_| NewJob::of("wait", &()));
    tx.create_many(jobs.collect()).await.unwrap();
    tx.commit().await.unwrap();
    let mut options = quick();
    options.concurrency = 3;
    let notes = Notes::default();
    let gate = Arc::new(Semaphore::new(0));
    let node = world
        .node()
        .options(options)
        .handler("wait", world::waits(&notes, &gate))
        .start()
        .await
        .unwrap();
    notes.until(3).await;
    // The leader has run at least two more cycles while every slot was taken.
    pass(Duration::from_secs(2)).await;
    assert_eq!(
        world.count("SELECT count(*) FROM jobwire.job_lease").await,
        3
    );
    assert_eq!(notes.all().len(), 3);
    gate.add_permits(60);
    world.until_empty().await;
    node.stop().await;
}

/// Rule 5: a commit time in the future is counted as clock skew and not recorded as a latency.
#[tokio::test]
async fn a_commit_in_the_future_is_counted_as_skew() {
    // On a current-thread runtime every task of the node records here.
    let recorder = PrometheusBuilder::new().build_recorder();
    let scraped = recorder.handle();
    let _here = metrics::set_default_local_recorder(&recorder);
    let world = World::new().await;
    let notes = Notes::default();
    let seen = notes.clone();
    let node = world
        .node()
        // Only this test hints the job.
        .options(world::unswept())
        .handler("note", move |_: Running<()>| {
            let seen = seen.clone();
            async move {
                seen.add("ran");
                Ok(Outcome::Done)
            }
        })
        .start()
        .await
        .unwrap();
    until_first_turn(&scraped).await;
    let lost = jobwire_core::Client::new(world.store.clone(), CommitHook::disconnected());
    let id = lost.create(NewJob::of("note", &())).await.unwrap();
    let mut hint = Hint::new(id);
    hint.committed_at = Some(chrono::Utc::now() + chrono::Duration::hours(1));
    world
        .transport
        .publish(&Lane::default(), vec![hint])
        .await
        .unwrap();
    notes.until(1).await;
    world.until_empty().await;
    node.stop().await;
    let text = scraped.render();
    let counted = "jobwire_negative_latency_total{stage=\"commit_to_start\"} 1";
    assert!(text.contains(counted), "{text}");
    assert!(text.contains("jobwire_commit_to_start_seconds"), "{text}");
}

/// Rule 29: the answer to COMMIT is lost; the outcome of the transaction is looked up, and its
/// hint is published.
#[tokio::test]
async fn a_lost_answer_to_commit_is_asked_after() {
    // On a current-thread runtime every task of the node records here.
    let recorder = PrometheusBuilder::new().build_recorder();
    let scraped = recorder.handle();
    let _here = metrics::set_default_local_recorder(&recorder);
    let world = World::new().await;
    let proxy = proxy_before(&world.url).await;
    let store = PgStore::connect(&proxy.url(&world.url)).await.unwrap();
    let hook = CommitHook::start(world.transport.publisher(), HookOptions::default());
    let jobs = store.client(hook);
    let notes = Notes::default();
    let seen = notes.clone();
    let node = Node::builder(world.store.clone(), world.transport())
        // The sweeper would find the job, too; here the hint must start it.
        .options(world::unswept())
        .handler("note", move |_: Running<()>| {
            let seen = seen.clone();
            async move {
                seen.add("ran");
                Ok(Outcome::Done)
            }
        })
        .start()
        .await
        .unwrap();
    until_first_turn(&scraped).await;
    let mut tx = jobs.begin().await.unwrap();
    let id = tx.create(NewJob::of("note", &())).await.unwrap();
    proxy.set(Direction::ToClient, Flow::Stall);
    let committing = tokio::spawn(tx.commit());
    eventually("the commit to reach the database", SOON, || async {
        world.store.get(id).await.unwrap()
    })
    .await;
    proxy.set(Direction::ToClient, Flow::Pass);
    proxy.cut();
    committing
        .await
        .unwrap()
        .expect("the transaction has committed, although the answer was lost");
    notes.until(1).await;
    node.stop().await;
}

/// Rule 29 for a transaction that creates only timers.
#[tokio::test]
async fn a_lost_answer_to_a_commit_of_timers_is_asked_after() {
    let world = World::new().await;
    let proxy = proxy_before(&world.url).await;
    let store = PgStore::connect(&proxy.url(&world.url)).await.unwrap();
    let jobs = store.client(CommitHook::disconnected());
    let mut tx = jobs.begin().await.unwrap();
    let later = NewJob::of("note", &()).delay(Duration::from_secs(3_600));
    let id = tx.create(later).await.unwrap();
    proxy.set(Direction::ToClient, Flow::Stall);
    let committing = tokio::spawn(tx.commit());
    eventually("the commit to reach the database", SOON, || async {
        world.store.get(id).await.unwrap()
    })
    .await;
    proxy.cut();
    proxy.set(Direction::ToClient, Flow::Pass);
    let committed = committing.await.unwrap();
    committed.expect("the transaction has committed, although the answer was lost");
}

/// Rule 29 for a COMMIT that never arrived: no job exists and no hint is published.
#[tokio::test]
async fn a_commit_that_never_arrived_is_an_error() {
    // On a current-thread runtime the hook records here.
    let recorder = PrometheusBuilder::new().build_recorder();
    let scraped = recorder.handle();
    let _here = metrics::set_default_local_recorder(&recorder);
    let world = World::new().await;
    let proxy = proxy_before(&world.url).await;
    let store = PgStore::connect(&proxy.url(&world.url)).await.unwrap();
    let hook = CommitHook::start(world.transport.publisher(), HookOptions::default());
    let jobs = store.client(hook.clone());
    let mut tx = jobs.begin().await.unwrap();
    let id = tx.create(NewJob::of("note", &())).await.unwrap();
    // COMMIT stays in the proxy, which drops it with the connection.
    proxy.set(Direction::ToServer, Flow::Stall);
    let committing = tokio::spawn(tx.commit());
    let sent = "the COMMIT to be held by the proxy";
    eventually(sent, SOON, async || (proxy.held() > 0).then_some(())).await;
    proxy.refuse().await;
    proxy.cut();
    eventually("the connections to end", SOON, async || {
        (proxy.connections() == 0).then_some(())
    })
    .await;
    proxy.set(Direction::ToServer, Flow::Pass);
    proxy.accept().await;
    let refused = committing
        .await
        .unwrap()
        .expect_err("nothing has committed");
    assert!(
        !matches!(refused, StoreError::CommitUnknown(_)),
        "{refused:?}"
    );
    assert!(world.store.get(id).await.unwrap().is_none());
    // Everything that was to be published has been published then.
    hook.close(SOON).await;
    let text = scraped.render();
    assert!(!text.contains("jobwire_hints_published_total"), "{text}");
}

/// A caller stops waiting for its transaction to begin: the connection returns to the pool outside
/// of a transaction, or the next statement on it would not be committed.
#[tokio::test]
async fn a_cancelled_begin_leaves_no_open_transaction() {
    let world = World::new().await;
    let proxy = proxy_before(&world.url).await;
    let store = PgStore::connect(&proxy.url(&world.url)).await.unwrap();
    let jobs = store.client(CommitHook::disconnected());
    let open = || {
        world.count(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
        )
    };
    jobs.begin().await.unwrap().rollback().await.unwrap();
    eventually("a connection to be idle in the pool", SOON, || async {
        (store.pool().num_idle() > 0).then_some(())
    })
    .await;
    proxy.set(Direction::ToClient, Flow::Stall);
    let beginning = tokio::spawn(async move { jobs.begin().await.map(drop) });
    eventually("BEGIN to reach the database", SOON, || async {
        (open().await == 1).then_some(())
    })
    .await;
    beginning.abort();
    assert!(beginning.await.is_err(), "cancelled");
    proxy.set(Direction::ToClient, Flow::Pass);
    eventually("the transaction to end", SOON, || async {
        (open().await == 0).then_some(())
    })
    .await;
    store.close().await;
}

/// Rule 30: the next leader cycle moves a timer that the leader was not notified of, at the latest.
#[tokio::test]
async fn a_timer_that_nobody_told_of_is_at_most_a_turn_late() {
    let world = World::new().await;
    let notes = Notes::default();
    let seen = notes.clone();
    let node = world
        .node()
        .handler("tick", move |_: Running<()>| {
            let seen = seen.clone();
            async move {
                seen.add("ran");
                Ok(Outcome::Done)
            }
        })
        .start()
        .await
        .unwrap();
    let silent = jobwire_core::Client::new(world.store.clone(), CommitHook::disconnected());
    silent
        .create(NewJob::of("tick", &()).delay(Duration::from_millis(200)))
        .await
        .unwrap();
    notes.until(1).await;
    node.stop().await;
}

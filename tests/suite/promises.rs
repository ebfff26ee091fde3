//! The promises of docs/reference/guarantees.md, with one node: each test fails without the rule
//! that it names.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::{
    HandlerError, HandlerOptions, Handlers, JobQuery, JobState, NewJob, Outcome, PgStore,
    RetryPolicy, Running, Store,
};
use jobwire_tests::eventually;
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::sync::Semaphore;

use crate::world::{Notes, SOON, World, quick};

fn noting(notes: &Notes) -> Handlers {
    let mut handlers = Handlers::default();
    let notes = notes.clone();
    handlers.add("note", move |job: Running<String>| {
        let notes = notes.clone();
        async move {
            notes.add(job.payload);
            Ok(Outcome::Done)
        }
    });
    handlers
}

#[tokio::test]
async fn a_committed_job_runs_and_is_gone() {
    let world = World::new().await;
    let notes = Notes::default();
    let node = world.node().handlers(noting(&notes)).start().await.unwrap();
    let mut tx = world.jobs.begin().await.unwrap();
    sqlx::query("CREATE TABLE orders (id bigint)")
        .execute(&mut *tx)
        .await
        .unwrap();
    tx.create(NewJob::of("note", "one")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(notes.until(1).await, ["one"]);
    world.until_empty().await;
    assert_eq!(
        world.count("SELECT count(*) FROM jobwire.job_lease").await,
        0
    );
    node.stop().await;
}

#[tokio::test]
async fn a_rolled_back_job_never_runs() {
    let world = World::new().await;
    let notes = Notes::default();
    let node = world.node().handlers(noting(&notes)).start().await.unwrap();
    let mut tx = world.jobs.begin().await.unwrap();
    tx.create(NewJob::of("note", "rolled back")).await.unwrap();
    tx.rollback().await.unwrap();
    let mut tx = world.jobs.begin().await.unwrap();
    tx.create(NewJob::of("note", "dropped")).await.unwrap();
    drop(tx);
    // A job behind them in the same lane runs; they do not.
    world.jobs.create(NewJob::of("note", "kept")).await.unwrap();
    notes.until(1).await;
    world.until_empty().await;
    assert_eq!(notes.all(), ["kept"]);
    node.stop().await;
}

#[tokio::test]
async fn a_users_own_transaction_publishes_when_its_hook_fires() {
    let world = World::new().await;
    let notes = Notes::default();
    let node = world.node().handlers(noting(&notes)).start().await.unwrap();
    let mut tx = world.store.pool().begin().await.unwrap();
    let mut hook = world.jobs.hook();
    hook.create(&mut tx, NewJob::of("note", "fired"))
        .await
        .unwrap();
    tx.commit().await.unwrap();
    hook.fire();
    notes.until(1).await;
    node.stop().await;
}

/// Promise 2: a lost hint costs latency, never the job.
#[tokio::test]
async fn a_hook_that_never_fired_costs_latency_only() {
    let world = World::new().await;
    let notes = Notes::default();
    let node = world.node().handlers(noting(&notes)).start().await.unwrap();
    // The node has run its first leader cycle by now.
    world
        .jobs
        .create(NewJob::of("note", "first"))
        .await
        .unwrap();
    notes.until(1).await;
    let mut tx = world.store.pool().begin().await.unwrap();
    let mut hook = world.jobs.hook();
    hook.create(&mut tx, NewJob::of("note", "forgotten"))
        .await
        .unwrap();
    tx.commit().await.unwrap();
    drop(hook);
    assert_eq!(notes.until(2).await, ["first", "forgotten"]);
    node.stop().await;
}

#[tokio::test]
async fn jobs_created_before_any_node_run_when_one_starts() {
    let world = World::new().await;
    let lost = jobwire_core::Client::new(
        world.store.clone(),
        jobwire_core::CommitHook::disconnected(),
    );
    for n in 0..20 {
        lost.create(NewJob::of("note", &format!("{n}")))
            .await
            .unwrap();
    }
    let notes = Notes::default();
    let node = world.node().handlers(noting(&notes)).start().await.unwrap();
    notes.until(20).await;
    world.until_empty().await;
    node.stop().await;
}

#[tokio::test]
async fn jobs_created_by_plain_sql_run() {
    let world = World::new().await;
    let notes = Notes::default();
    let node = world.node().handlers(noting(&notes)).start().await.unwrap();
    world
        .count("SELECT count(jobwire.create_job(type => 'note', payload => '\"from sql\"', process_instance => 'p'))")
        .await;
    assert_eq!(notes.until(1).await, ["from sql"]);
    node.stop().await;
}

/// The handler's row and the completion of its job commit together.
#[tokio::test]
async fn a_handler_in_the_completing_transaction_commits_with_it() {
    let world = World::new().await;
    sqlx::query("CREATE TABLE effect (n bigint)")
        .execute(world.store.pool())
        .await
        .unwrap();
    let notes = Notes::default();
    let mut handlers = noting(&notes);
    handlers.add_with(
        "effect",
        HandlerOptions::default()
            .in_transaction()
            .retry(RetryPolicy::Fixed(Duration::from_millis(50))),
        |job: Running<i64>| async move {
            let mut tx = job.transaction::<PgStore>().await?;
            sqlx::query("INSERT INTO effect VALUES ($1)")
                .bind(job.payload)
                .execute(&mut *tx)
                .await?;
            tx.create(NewJob::of("note", &format!("after {}", job.payload)))
                .await?;
            if job.job.failures == 0 {
                return Err(HandlerError::retry("first attempt"));
            }
            Ok(Outcome::Done)
        },
    );
    let node = world.node().handlers(handlers).start().await.unwrap();
    world.jobs.create(NewJob::of("effect", &7)).await.unwrap();
    assert_eq!(notes.until(1).await, ["after 7"]);
    world.until_empty().await;
    // The first attempt wrote both, too; both were rolled back.
    assert_eq!(world.count("SELECT count(*) FROM effect").await, 1);
    assert_eq!(notes.all(), ["after 7"]);
    node.stop().await;
}

#[tokio::test]
async fn a_failing_job_is_retried_by_its_policy_and_then_a_dead_letter() {
    let world = World::new().await;
    let notes = Notes::default();
    let seen = notes.clone();
    let node = world
        .node()
        .handler("fail", move |job: Running<()>| {
            let seen = seen.clone();
            async move {
                seen.add(format!("retries {}", job.job.retries));
                Err::<(), _>(HandlerError::retry("no luck"))
            }
        })
        .start()
        .await
        .unwrap();
    let id = world
        .jobs
        .create(NewJob::of("fail", &()).retry_policy_text("100ms"))
        .await
        .unwrap();
    let dead = JobQuery::default().states([JobState::DeadLetter]);
    eventually("the job to become a dead letter", SOON, || async {
        (world.store.count(&dead).await.ok()? == 1).then_some(())
    })
    .await;
    assert_eq!(notes.all(), ["retries 3", "retries 2", "retries 1"]);
    let (view, _, _) = world.store.get(id).await.unwrap().unwrap();
    assert_eq!(view.exception_message.as_deref(), Some("no luck"));
    node.stop().await;
}

/// Promise 5: one at a time, in creation order, without spinning.
#[tokio::test]
async fn exclusive_jobs_of_an_instance_run_one_at_a_time_and_in_order() {
    let world = World::new().await;
    let notes = Notes::default();
    let running = std::sync::Arc::new(std::sync::atomic::AtomicI32::new(0));
    let seen = notes.clone();
    let node = world
        .node()
        .handler("step", move |job: Running<String>| {
            let (seen, running) = (seen.clone(), running.clone());
            async move {
                let others = running.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                tokio::task::yield_now().await;
                seen.add(format!("{} beside {others}", job.payload));
                running.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                Ok(Outcome::Done)
            }
        })
        .start()
        .await
        .unwrap();
    let mut tx = world.jobs.begin().await.unwrap();
    let jobs = (0..200).map(|n| NewJob::of("step", &format!("{n}")).instance("order-1"));
    tx.create_many(jobs.collect()).await.unwrap();
    tx.commit().await.unwrap();
    let expected: Vec<String> = (0..200).map(|n| format!("{n} beside 0")).collect();
    assert_eq!(notes.until(200).await, expected);
    world.until_empty().await;
    assert_eq!(
        world
            .count("SELECT count(*) FROM jobwire.instance_lock")
            .await,
        0
    );
    node.stop().await;
}

/// Promise 4: long jobs run once.
#[tokio::test]
async fn a_job_longer_than_its_lease_runs_once() {
    let world = World::new().await;
    let notes = Notes::default();
    let seen = notes.clone();
    let mut options = quick();
    // Long enough to outlast a stall of the machine.
    options.lease = Duration::from_secs(15);
    options.sweep_interval = Duration::from_millis(300);
    let gate = Arc::new(Semaphore::new(0));
    let exit = gate.clone();
    let node = world
        .node()
        .options(options)
        .handler("long", move |_: Running<()>| {
            let (seen, exit) = (seen.clone(), exit.clone());
            async move {
                seen.add("start");
                exit.acquire().await.map_err(HandlerError::from)?.forget();
                seen.add("end");
                Ok(Outcome::Done)
            }
        })
        .start()
        .await
        .unwrap();
    world.jobs.create(NewJob::of("long", &())).await.unwrap();
    notes.until(1).await;
    eventually("the first lease to be over for a while", SOON, || async {
        let over = "SELECT count(*) FROM jobwire.job_lease WHERE locked_at < clock_timestamp() - interval '18 seconds'";
        (world.count(over).await == 1).then_some(())
    })
    .await;
    assert_eq!(notes.all(), ["start"]);
    gate.add_permits(2);
    notes.until(2).await;
    world.until_empty().await;
    assert_eq!(notes.all(), ["start", "end"]);
    node.stop().await;
}

#[tokio::test]
async fn timers_run_when_due_and_repeat() {
    let world = World::new().await;
    let notes = Notes::default();
    let seen = notes.clone();
    let node = world
        .node()
        .handler("tick", move |job: Running<()>| {
            let seen = seen.clone();
            async move {
                let late = chrono::Utc::now() - job.job.due_at.unwrap();
                seen.add(format!(
                    "{} {}",
                    job.job.correlation_id,
                    if late < chrono::Duration::zero() {
                        "early"
                    } else {
                        "due"
                    }
                ));
                Ok(Outcome::Done)
            }
        })
        .start()
        .await
        .unwrap();
    let id = world
        .jobs
        .create(
            NewJob::of("tick", &())
                .delay(Duration::from_millis(300))
                .repeat_text("R3/PT0.3S"),
        )
        .await
        .unwrap();
    let expected = format!("{id} due");
    assert_eq!(notes.until(3).await, [&*expected; 3]);
    world.until_empty().await;
    node.stop().await;
}

/// None of them runs: the first fires after its end, the second was missed, and the schedule of the
/// third, of plain SQL, begins later.
#[tokio::test]
async fn an_occurrence_that_is_over_missed_or_not_due_yet_does_not_run() {
    let world = World::new().await;
    let notes = Notes::default();
    let node = world.node().handlers(noting(&notes)).start().await.unwrap();
    let due = chrono::Utc::now() - chrono::Duration::hours(5);
    let job = |repeat: &str| NewJob::of("note", repeat).due(due).repeat_text(repeat);
    let over = job("R/PT1H/2020-01-01T00:00:00Z");
    let missed = job("R3/PT1H[catch-up=skip]");
    let missed_id = missed.id().uuid();
    world.jobs.create_many(vec![over, missed]).await.unwrap();
    let sql = "SELECT jobwire.create_job('note', '\"sql\"', repeat => '0 0 1 1 *[Europe/Berlin]')";
    let sql_id: uuid::Uuid = sqlx::query_scalar(sql)
        .fetch_one(world.store.pool())
        .await
        .unwrap();
    let waiting = eventually("two timers to be all that is left", SOON, || async {
        let left = world.store.find(&JobQuery::default()).await.ok()?;
        let timers = left.iter().all(|job| job.state == JobState::Timer);
        (timers && left.len() == 2).then_some(left)
    })
    .await;
    for (id, repeat) in [
        (missed_id, "R3/PT3600S[catch-up=skip]"),
        (sql_id, "0 0 1 1 *[Europe/Berlin]"),
    ] {
        let next = waiting.iter().find(|job| job.correlation_id == id).unwrap();
        assert!(next.due_at.unwrap() > chrono::Utc::now());
        let (_, job, _) = world.store.get(next.id).await.unwrap().unwrap();
        assert_eq!(job.repeat.as_deref(), Some(repeat));
    }
    assert!(notes.all().is_empty(), "{:?}", notes.all());
    node.stop().await;
}

/// A job that still runs at the end of the shutdown is released and spends no attempt.
#[tokio::test]
async fn a_shutdown_gives_back_what_still_runs() {
    let world = World::new().await;
    let notes = Notes::default();
    let seen = notes.clone();
    let mut options = quick();
    options.shutdown_timeout = Duration::from_millis(200);
    let node = world
        .node()
        .options(options)
        .handler("endless", move |_: Running<()>| {
            let seen = seen.clone();
            async move {
                seen.add("start");
                std::future::pending::<()>().await;
                Ok(Outcome::Done)
            }
        })
        .start()
        .await
        .unwrap();
    let id = world.jobs.create(NewJob::of("endless", &())).await.unwrap();
    notes.until(1).await;
    node.stop().await;
    let (view, _, _) = world.store.get(id).await.unwrap().unwrap();
    assert_eq!(view.state, JobState::Executable);
    assert_eq!((view.retries, view.lock_owner), (3, None));
    assert_eq!(
        world.count("SELECT count(*) FROM jobwire.job_lease").await,
        0
    );
}

/// Protocol rule 8: a job of a type that no node serves waits and spends no attempt.
#[tokio::test]
async fn a_type_that_nobody_serves_waits() {
    let world = World::new().await;
    let notes = Notes::default();
    let node = world.node().handlers(noting(&notes)).start().await.unwrap();
    let id = world.jobs.create(NewJob::of("unknown", &())).await.unwrap();
    world
        .jobs
        .create(NewJob::of("note", "known"))
        .await
        .unwrap();
    notes.until(1).await;
    world.until_left(1).await;
    let (view, _, _) = world.store.get(id).await.unwrap().unwrap();
    assert_eq!((view.state, view.retries), (JobState::Executable, 3));
    node.stop().await;
}

/// Protocol rule 33: an embedded node serves its database alone.
#[tokio::test]
async fn a_second_embedded_node_is_refused() {
    let world = World::new().await;
    // While a job waits, the leader keeps leading even if it is seconds late.
    let mut options = quick();
    options.sweep_interval = Duration::from_secs(8);
    let unserved = NewJob::of("unserved", &());
    world.jobs.create(unserved).await.unwrap();
    let node = world.node().options(options.clone()).start().await.unwrap();
    let other = jobwire_core::InProcessTransport::new();
    let refused = jobwire_core::Node::builder(world.store.clone(), std::sync::Arc::new(other))
        .options(options)
        .start()
        .await
        .map(|_| ())
        .unwrap_err();
    assert!(
        refused.to_string().contains("serves its database alone"),
        "{refused}"
    );
    node.stop().await;
}

/// A burst larger than the slots drains completely, by batches: with fewer than 0.2 locks and
/// completions for each job, where one by one there would be two.
#[tokio::test]
async fn a_burst_drains_in_few_statements() {
    const JOBS: u64 = 10_000;
    // On a current-thread runtime every task of the node records here.
    let recorder = PrometheusBuilder::new().build_recorder();
    let scraped = recorder.handle();
    let _here = metrics::set_default_local_recorder(&recorder);
    let world = World::new().await;
    let mut handlers = Handlers::default();
    handlers.add("noop", |_: Running<()>| async move { Ok(Outcome::Done) });
    let mut tx = world.jobs.begin().await.unwrap();
    tx.create_many((0..JOBS).map(|_| NewJob::of("noop", &())).collect())
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let node = world.node().handlers(handlers).start().await.unwrap();
    world.until_empty().await;
    node.stop().await;
    let text = scraped.render();
    let calls = |statement: &str| -> u64 {
        let of = format!("jobwire_statement_seconds_count{{statement=\"{statement}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&of));
        let line = line.unwrap_or_else(|| panic!("no `{statement}` in {text}"));
        line.parse().unwrap()
    };
    let calls = calls("lock") + calls("complete");
    assert!(calls < JOBS / 5, "{calls} statements for {JOBS} jobs");
}

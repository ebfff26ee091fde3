//! The library as its users see it: everything here comes from the crate `jobwire`. On SQLite and in
//! one process. Budget: 10 s.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobwire::store::Operated;
use jobwire::{
    Client, HandlerError, HandlerOptions, HandlerResult, Handlers, InProcessTransport, JobArgs,
    JobId, JobQuery, JobState, LaneRule, NewJob, Next, Node, NodeOptions, Progress, Repeat,
    RetryPolicy, Running, SqliteStore, testing,
};
use jobwire_tests::{Scratch, eventually};
use serde::{Deserialize, Serialize};

const SOON: Duration = Duration::from_secs(60);

#[derive(Serialize, Deserialize)]
struct Invoice {
    order: u64,
}

impl JobArgs for Invoice {
    const TYPE: &'static str = "invoice";
}

struct World {
    node: Node,
    client: Client<SqliteStore>,
    _home: Scratch,
}

/// A node of these handlers. Its sweeper finds nothing in time: jobs run because of their hints.
async fn world(handlers: Handlers) -> World {
    world_with(handlers, Duration::from_secs(3_600)).await
}

async fn world_with(handlers: Handlers, lease: Duration) -> World {
    let home = Scratch::new();
    let url = format!("sqlite:{}", home.join("jobs.db").display());
    let store = SqliteStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let options = NodeOptions::default()
        .sweep_interval(Duration::from_secs(3_600))
        .lease(lease);
    let node = Node::builder(store.clone(), Arc::new(InProcessTransport::new()))
        .options(options)
        .handlers(handlers)
        .start()
        .await
        .unwrap();
    let client = store.client(node.hook());
    World {
        node,
        client,
        _home: home,
    }
}

impl World {
    async fn is_done(&self, id: JobId) {
        eventually("the job to be done", SOON, async || {
            let found = self.client.get(id).await.unwrap();
            found.is_none().then_some(())
        })
        .await;
    }

    async fn is_in(&self, id: JobId, state: JobState) {
        eventually("the job to change its state", SOON, async || {
            let found = self.client.get(id).await.unwrap()?;
            (found.view.state == state).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_typed_job_runs_inside_its_middleware() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let note = {
        let seen = seen.clone();
        move |what: String| seen.lock().unwrap().push(what)
    };
    let mut handlers = Handlers::default();
    let inside = note.clone();
    handlers.job(move |job: Running<Invoice>| {
        inside(format!("order {}", job.payload.order));
        async { Ok(()) }
    });
    for layer in ["inner", "outer"] {
        let note = note.clone();
        handlers.layer(move |job: Running, next: Next| {
            let note = note.clone();
            async move {
                note(format!("{layer} before"));
                let answer = next.run(job).await;
                note(format!("{layer} after"));
                answer
            }
        });
    }
    let world = world(handlers).await;
    let job = NewJob::new(&Invoice { order: 17 });
    let id = world.client.create(job).await.unwrap();
    world.is_done(id).await;
    let expected = [
        "outer before",
        "inner before",
        "order 17",
        "inner after",
        "outer after",
    ];
    assert_eq!(*seen.lock().unwrap(), expected);
    world.node.stop().await;
}

#[tokio::test]
async fn a_dead_letter_is_listed_and_runs_when_it_is_retried() {
    let attempts = Arc::new(AtomicUsize::new(0));
    let mut handlers = Handlers::default();
    let counted = attempts.clone();
    handlers.add("fussy", move |_: Running<u64>| {
        let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if first {
                Err("the printer is on fire")?;
            }
            Ok(())
        }
    });
    let world = world(handlers).await;
    let job = NewJob::of("fussy", &1).max_attempts(1);
    let id = world.client.create(job).await.unwrap();
    world.is_in(id, JobState::DeadLetter).await;

    let dead = world.client.dead_letters("fussy", 10).await.unwrap();
    assert_eq!(dead.len(), 1);
    let message = dead[0].exception_message.as_deref();
    assert_eq!(message, Some("the printer is on fire"));
    let filter = JobQuery::default().states([JobState::DeadLetter]);
    assert_eq!(world.client.count(&filter).await.unwrap(), 1);

    assert_eq!(world.client.retry(id, 1).await.unwrap(), Operated::Done);
    world.is_done(id).await;
    assert_eq!(attempts.load(Ordering::SeqCst), 2);
    assert_eq!(world.client.retry(id, 1).await.unwrap(), Operated::NotFound);
    world.node.stop().await;
}

#[tokio::test]
async fn a_running_job_is_cancelled_and_one_that_waits_is_deleted() {
    let mut handlers = Handlers::default();
    handlers.add("patient", |job: Running<u64>| async move {
        job.stop.cancelled().await;
        Err::<(), _>(HandlerError::unrecoverable("cancelled"))
    });
    let world = world(handlers).await;
    let running = NewJob::of("patient", &1);
    let running = world.client.create(running).await.unwrap();
    eventually("the job to run", SOON, async || {
        let found = world.client.get(running).await.unwrap()?;
        found.view.lock_owner.map(drop)
    })
    .await;
    assert_eq!(
        world.client.delete(running).await.unwrap(),
        Operated::Running
    );
    assert_eq!(
        world.client.cancel(running).await.unwrap(),
        Operated::Running
    );
    world.is_done(running).await;

    let waiting = NewJob::of("patient", &2).delay(Duration::from_secs(3_600));
    let waiting = world.client.create(waiting).await.unwrap();
    assert_eq!(world.client.cancel(waiting).await.unwrap(), Operated::Done);
    assert!(world.client.get(waiting).await.unwrap().is_none());
    world.node.stop().await;
}

/// The client has no way to reach the node but the database, and the handler does not listen.
#[tokio::test]
async fn a_cancel_without_a_message_ends_a_handler_that_ignores_it() {
    let mut handlers = Handlers::default();
    handlers.add("deaf", |_: Running<u64>| async {
        std::future::pending::<()>().await;
        Ok(())
    });
    // A renewal is due after a second.
    let world = world_with(handlers, Duration::from_secs(3)).await;
    let running = world.client.create(NewJob::of("deaf", &1)).await.unwrap();
    eventually("the job to run", SOON, async || {
        let found = world.client.get(running).await.unwrap()?;
        found.view.lock_owner.map(drop)
    })
    .await;
    let elsewhere = Client::without_hints(world.client.store().clone());
    assert_eq!(elsewhere.cancel(running).await.unwrap(), Operated::Running);
    let shown = elsewhere.get(running).await.unwrap().unwrap();
    assert!(shown.view.cancelled_at.is_some());
    world.is_done(running).await;
    world.node.stop().await;
}

#[tokio::test]
async fn progress_is_shown_and_the_next_attempt_reads_the_checkpoint() {
    let seen: Arc<Mutex<Vec<u64>>> = Arc::default();
    let go = Arc::new(tokio::sync::Notify::new());
    let options = HandlerOptions::default().retry(RetryPolicy::Fixed(Duration::from_millis(1)));
    let mut handlers = Handlers::default();
    let (starts, gate) = (seen.clone(), go.clone());
    handlers.add_with("import", options, move |job: Running<u64>| {
        let (starts, gate) = (starts.clone(), gate.clone());
        async move {
            let start: u64 = job.checkpoint().await?.unwrap_or(0);
            starts.lock().unwrap().push(start);
            if start == 0 {
                job.progress(Progress::of(1, 4).text("too early to be written"));
                job.progress(Progress::of(2, 4).text("rows"));
                gate.notified().await;
                job.save_checkpoint(&17).await?;
                return Err(HandlerError::retry("the file has an end here"));
            }
            Ok(())
        }
    });
    // Progress is written four times a second.
    let world = world_with(handlers, Duration::from_secs(3)).await;
    let id = world.client.create(NewJob::of("import", &1)).await.unwrap();
    let shown = eventually("the progress to be shown", SOON, async || {
        world.client.get(id).await.unwrap()?.view.progress
    })
    .await;
    assert_eq!(shown.progress, Progress::of(2, 4).text("rows"));
    assert_eq!(shown.progress.percentage(), Some(50));
    go.notify_one();
    world.is_done(id).await;
    assert_eq!(*seen.lock().unwrap(), [0, 17]);
    assert_eq!(world.client.checkpoint(id).await.unwrap(), None);
    world.node.stop().await;
}

#[tokio::test]
async fn a_checkpoint_of_a_handler_in_a_transaction_or_too_large_is_refused() {
    let mut handlers = Handlers::default();
    let options = HandlerOptions::default().in_transaction();
    handlers.add_with("inside", options, |job: Running<u64>| async move {
        job.save_checkpoint(&1).await?;
        Ok(())
    });
    handlers.add("large", |job: Running<usize>| async move {
        job.save_checkpoint(&"x".repeat(job.payload)).await?;
        Ok(())
    });
    let world = world(handlers).await;
    for (job_type, size, part) in [
        ("inside", 1, "register the handler without"),
        ("large", 70_000, "the checkpoint has 70002 bytes"),
    ] {
        let job = NewJob::of(job_type, &size).max_attempts(1);
        let id = world.client.create(job).await.unwrap();
        world.is_in(id, JobState::DeadLetter).await;
        let found = world.client.get(id).await.unwrap().unwrap();
        let message = found.view.exception_message.unwrap();
        assert!(message.contains(part), "{message}");
    }
    world.node.stop().await;
}

#[tokio::test]
async fn many_jobs_are_created_with_their_ids_in_order() {
    let mut handlers = Handlers::default();
    handlers.add("count", |_: Running<u64>| async { Ok(()) });
    let world = world(handlers).await;
    let jobs = (0..3).map(|n| NewJob::of("count", &n).delay(Duration::from_secs(3_600)));
    let jobs: Vec<NewJob> = jobs.collect();
    let expected: Vec<JobId> = jobs.iter().map(NewJob::id).collect();
    let ids = world.client.create_many(jobs).await.unwrap();
    assert_eq!(ids, expected);
    for (number, id) in ids.iter().enumerate() {
        let found = world.client.get(*id).await.unwrap().expect("it is there");
        assert_eq!(found.job.decode::<usize>().unwrap(), number);
    }
    world.node.stop().await;
}

#[tokio::test]
async fn a_panic_is_stored_with_the_place_where_it_happened() {
    const LINE: u32 = line!() + 4;
    let mut handlers = Handlers::default();
    handlers.add("clumsy", |_: Running<()>| async {
        if true {
            panic!("the cup fell");
        }
        Ok(())
    });
    let world = world(handlers).await;
    let job = NewJob::of("clumsy", &()).max_attempts(1);
    let id = world.client.create(job).await.unwrap();
    world.is_in(id, JobState::DeadLetter).await;
    let dead = world.client.get(id).await.unwrap().unwrap();
    let message = dead.view.exception_message.unwrap();
    assert_eq!(message, "the handler panicked: the cup fell");
    let stack = dead.stack.expect("the place is stored");
    let place = format!("at {}:{LINE}:", file!());
    assert!(stack.starts_with(&place), "{stack}, expected {place}");
    world.node.stop().await;
}

#[tokio::test]
async fn a_type_that_no_node_serves_is_named_in_the_health_of_a_node_that_stays_ready() {
    let home = Scratch::new();
    let url = format!("sqlite:{}", home.join("jobs.db").display());
    let store = SqliteStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    let options = NodeOptions::default().sweep_interval(Duration::from_secs(1));
    let node = Node::builder(store.clone(), Arc::new(InProcessTransport::new()))
        .options(options)
        .start()
        .await
        .unwrap();
    let client = store.client(node.hook());
    let jobs = (0..2).map(|n| NewJob::of("send-invoise", &n)).collect();
    client.create_many(jobs).await.unwrap();
    let unserved = eventually("the type to be named", SOON, async || {
        node.health().unserved.pop()
    })
    .await;
    assert_eq!((&*unserved.job_type, unserved.jobs), ("send-invoise", 2));
    assert!(node.health().ready, "{:?}", node.health());

    let seen = |_: Running<u64>| async { Ok(()) };
    node.registry().register("send-invoise", seen).unwrap();
    eventually("the type to be served", SOON, async || {
        node.health().unserved.is_empty().then_some(())
    })
    .await;
    node.stop().await;
}

#[tokio::test]
async fn policies_and_repeats_are_kept_as_they_were_given() {
    let store = testing::store().await.unwrap();
    let client = Client::without_hints(store.clone());
    let policy = RetryPolicy::exponential(Duration::from_secs(1), Duration::from_secs(3_600));
    let job = NewJob::new(&Invoice { order: 1 })
        .max_attempts(7)
        .retry_policy(policy.clone())
        .repeat(Repeat::times(3, Duration::from_millis(1_500)));
    let id = client.create(job).await.unwrap();
    let job = client.get(id).await.unwrap().unwrap().job;
    assert_eq!(job.retries, 7);
    let kept = job.retry_policy.unwrap().parse::<RetryPolicy>();
    assert_eq!(kept.unwrap(), policy);
    let kept = job.repeat.unwrap().parse::<Repeat>().unwrap();
    assert_eq!(kept, Repeat::times(3, Duration::from_millis(1_500)));

    let rules = [LaneRule::to("slow")];
    client.set_lane_rules(&rules).await.unwrap();
    assert_eq!(client.lane_rules().await.unwrap(), rules);
    client.set_strict_order(true).await.unwrap();
    assert!(client.strict_order().await.unwrap());
}

async fn charge(job: Running<Invoice>) -> HandlerResult<()> {
    let mut tx = job.transaction::<SqliteStore>().await?;
    jobwire::sqlx::query("INSERT INTO charges (id) VALUES (?1)")
        .bind(i64::try_from(job.payload.order)?)
        .execute(&mut *tx)
        .await?;
    tx.create(NewJob::of("receipt", &job.payload.order)).await?;
    Ok(())
}

/// What a handler writes and creates in its transaction exists if and only if its job is completed.
#[tokio::test]
async fn due_jobs_run_without_a_node_and_commit_with_their_effects() {
    let store = testing::store().await.unwrap();
    jobwire::sqlx::query("CREATE TABLE charges (id INTEGER PRIMARY KEY)")
        .execute(store.pool())
        .await
        .unwrap();
    let client = Client::without_hints(store.clone());
    for order in [1, 1, 2] {
        let job = NewJob::new(&Invoice { order }).max_attempts(1);
        client.create(job).await.unwrap();
    }
    let mut handlers = Handlers::default();
    handlers.job_with(HandlerOptions::default().in_transaction(), charge);
    let ran = testing::run_due(&store, &handlers).await.unwrap();
    assert_eq!(ran.done.len(), 2);
    assert_eq!(ran.left.len(), 1);
    assert_eq!(ran.left[0].state, JobState::DeadLetter);
    // No handler serves the receipts.
    assert_eq!(ran.refused.len(), 2);
    let receipts = testing::jobs(&store, "receipt").await.unwrap();
    assert_eq!(receipts.len(), 2);
    handlers.add("receipt", |_: Running<u64>| async { Ok(()) });
    let ran = testing::run_due(&store, &handlers).await.unwrap();
    assert_eq!((ran.done.len(), ran.refused.len()), (2, 0));
}

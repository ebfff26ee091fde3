//! Limits of the fleet: never exceeded, also while nodes die, and no job waits in vain.

mod deaths;
mod service;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobwire_core::{
    Client, HandlerOptions, InProcessTransport, JobQuery, Limit, NewJob, Node, NodeOptions,
    Outcome, Running, Store,
};
use jobwire_harness::world::{SOON, World};
use jobwire_tests::chaos::world;
use jobwire_tests::{Program, Signal, eventually, shared};
use serde_json::json;

use crate::fleet::Fleet;
use service::{Calls, service};

/// Two nodes share a limit of three, and one dies while it holds permits.
#[tokio::test]
async fn a_limit_is_not_exceeded_while_a_node_is_killed() {
    const JOBS: usize = 60;
    const LIMIT: usize = 3;
    let database = shared::postgres().await.create_database().await;
    let fleet = Fleet::new(database, shared::rabbitmq().await.space().await).await;
    let calls = Calls::default();
    let address = service(&calls).await;
    let settings = [
        ("JOBWIRE_HTTP_ALLOW_HOSTS", &*address),
        ("JOBWIRE_TYPE_LIMITS", "http=3"),
        // Calls of the victim that this process has not read by the end of its lease would count
        // beside those of the heir.
        ("JOBWIRE_LEASE", "5s"),
    ];
    let victim = fleet.node(&settings).await;
    let _heir = fleet.node(&settings).await;
    let call = json!({ "url": format!("http://{address}/") });
    let jobs = (0..JOBS).map(|_| NewJob::of("http", &call).max_attempts(1_000));
    let mut tx = fleet.jobs.begin().await.unwrap();
    // The first calls wait for each other, so that the limit is reached on any machine.
    calls.keep();
    tx.create_many(jobs.collect()).await.unwrap();
    tx.commit().await.unwrap();
    calls.until_begun(LIMIT, SOON).await;
    calls.let_go();
    calls.until_begun(JOBS / 4, SOON).await;
    victim.signal(Signal::SIGKILL);
    fleet.until_empty(Duration::from_secs(60)).await;
    assert_eq!(calls.most(), LIMIT, "reached, and never exceeded");
    assert!(calls.begun() >= JOBS);
}

/// Two nodes share a rate, and one dies while it holds permits. Each job fails once, and its second
/// start counts, too. The handlers record their starts in the database.
#[tokio::test]
async fn no_period_has_more_starts_than_the_rate_while_a_node_is_killed() {
    const JOBS: usize = 16;
    const RATE: usize = 5;
    const PERIOD: i64 = 500;
    let database = shared::postgres().await.create_database().await;
    world::prepare(&database).await;
    let fleet = Fleet::new(database, shared::rabbitmq().await.space().await).await;
    let node = async || {
        let program = Program::at(world::chaos_node())
            .env("JOBWIRE_DATABASE_URL", &fleet.database)
            .env("CHAOS_DATABASE_URL", &fleet.database)
            .env("JOBWIRE_BROKER_URL", &fleet.space.url)
            .env("JOBWIRE_AMQP_PREFIX", &fleet.space.prefix)
            .env("JOBWIRE_HTTP", "127.0.0.1:0")
            .env("JOBWIRE_TYPE_LIMITS", "chaos-failing=5/500ms")
            .env("JOBWIRE_LEASE", "1s")
            .env("JOBWIRE_SWEEP_INTERVAL", "1s")
            .env("JOBWIRE_QUARANTINE_AFTER", "1000");
        let node = program.start();
        node.wait_for_line("is ready", Duration::from_secs(60))
            .await;
        node
    };
    let (victim, _heir) = (node().await, node().await);
    let jobs = (0..JOBS).map(|_| {
        let job = NewJob::of("chaos-failing", &json!({ "fails": 1 }));
        job.retry_policy_text("PT0.1S,PT0.1S")
    });
    let mut tx = fleet.jobs.begin().await.unwrap();
    tx.create_many(jobs.collect()).await.unwrap();
    tx.commit().await.unwrap();
    let starts = async || -> Vec<i64> {
        let starts = "SELECT uptime FROM chaos.history WHERE what = 'start' ORDER BY uptime";
        let starts = sqlx::query_scalar(starts).fetch_all(fleet.store.pool());
        starts.await.unwrap()
    };
    eventually("some starts", Duration::from_secs(60), async || {
        (starts().await.len() > JOBS / 2).then_some(())
    })
    .await;
    victim.signal(Signal::SIGKILL);
    fleet.until_empty(Duration::from_secs(60)).await;
    let starts = starts().await;
    assert!(starts.len() >= 2 * JOBS, "{starts:?}");
    let shortest = |starts_each: usize| {
        let spans = starts
            .windows(starts_each)
            .map(|of| of[of.len() - 1] - of[0]);
        spans.min().unwrap()
    };
    // The clock counts hundredths of a second.
    assert!(shortest(RATE + 1) >= PERIOD - 20, "exceeded: {starts:?}");
    assert!(shortest(RATE) < PERIOD, "not reached: {starts:?}");
}

/// Each tenant has a limit of one, and all slots would have room for more.
#[tokio::test]
async fn jobs_of_a_key_exclude_each_other_and_hold_no_slot_from_other_jobs() {
    const TENANTS: usize = 3;
    const EACH: usize = 12;
    let world = World::new().await;
    let inside: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
    let most = Arc::new(AtomicUsize::new(0));
    let (all, highest) = (inside.clone(), most.clone());
    let limited = HandlerOptions::default().limit(Limit::running(1).per_tenant());
    let node = world
        .node()
        .handler_with("limited", limited, move |job: Running<u64>| {
            let (all, highest) = (all.clone(), highest.clone());
            async move {
                let tenant = job.job.tenant.clone().unwrap_or_default();
                let now = {
                    let mut all = all.lock().unwrap();
                    let now = all.entry(tenant.clone()).or_default();
                    *now += 1;
                    *now
                };
                highest.fetch_max(now, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(job.payload)).await;
                *all.lock().unwrap().entry(tenant).or_default() -= 1;
                assert_eq!(job.job.failures, 0, "a wait spends no attempt");
                Ok(Outcome::Done)
            }
        })
        .handler("free", |_: Running<u64>| async { Ok(Outcome::Done) })
        .start()
        .await
        .unwrap();
    // The first jobs of each tenant keep their permits until the other jobs have run.
    let mut jobs = Vec::new();
    for n in 0..TENANTS * EACH {
        let takes = if n < TENANTS { 1_000_u64 } else { 2 };
        let tenant = format!("tenant-{}", n % TENANTS);
        jobs.push(NewJob::of("limited", &takes).tenant(tenant));
    }
    jobs.extend((0..100).map(|_| NewJob::of("free", &0_u64)));
    let mut tx = world.jobs.begin().await.unwrap();
    tx.create_many(jobs).await.unwrap();
    tx.commit().await.unwrap();
    let free = "SELECT count(*) FROM jobwire.job WHERE type = 'free'";
    eventually("the other jobs", Duration::from_secs(60), async || {
        (world.count(free).await == 0).then_some(())
    })
    .await;
    world.until_empty().await;
    assert_eq!(most.load(Ordering::SeqCst), 1);
    node.stop().await;
    assert_eq!(world.count("SELECT count(*) FROM jobwire.permit").await, 0);
}

/// Protocol rule 33. A node that ends frees its permits, and wakes the next jobs by hints that end with
/// it. The next node looks for those that wait only once a minute, but at its start.
#[tokio::test]
async fn limited_jobs_on_sqlite_go_on_with_the_start_of_the_next_node() {
    let (store, _scratch) = crate::event_stream::sqlite().await;
    let begun = Arc::new(AtomicUsize::new(0));
    let begin = async || {
        let transport = InProcessTransport::new();
        let mut options = NodeOptions::default();
        options.lease = Duration::from_secs(600);
        options.sweep_interval = Duration::from_secs(300);
        options.suspect_after = Duration::from_secs(300);
        options.shutdown_timeout = Duration::from_secs(1);
        let calls = begun.clone();
        let limited = HandlerOptions::default().limit(Limit::running(1));
        let node = Node::builder(store.clone(), Arc::new(transport)).options(options);
        let node = node.handler_with("work", limited, move |_: Running<()>| {
            let calls = calls.clone();
            async move {
                // The first node ends while its job runs.
                if calls.fetch_add(1, Ordering::SeqCst) == 0 {
                    std::future::pending::<()>().await;
                }
                Ok(Outcome::Done)
            }
        });
        node.start().await.unwrap()
    };
    let node = begin().await;
    let jobs = Client::new(store.clone(), node.hook());
    for _ in 0..5 {
        jobs.create(NewJob::of("work", &())).await.unwrap();
    }
    eventually("four jobs to wait", SOON, async || {
        let waiting = store.waiting_for_permits(10).await.unwrap();
        (waiting.first()?.jobs == 4).then_some(())
    })
    .await;
    node.stop().await;
    let next = begin().await;
    eventually("all jobs to run", Duration::from_secs(10), async || {
        let left = store.count(&JobQuery::default()).await.unwrap();
        (left == 0).then_some(())
    })
    .await;
    assert_eq!(begun.load(Ordering::SeqCst), 6);
    next.stop().await;
}

//! The promises under real faults: killed and frozen processes, restarted servers, lost and doubled
//! hints.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use jobwire_core::hint::Hint;
use jobwire_core::{CommitHook, JobQuery, Lane, NewJob, Store, Transport};
use jobwire_tests::Signal;
use jobwire_tests::{Postgres, RabbitMq, Stop, eventually, shared, shared::Space};
use serde_json::json;

use crate::fleet::Fleet;

/// A failing test ends after this time; a passing one takes far less.
const SOON: Duration = Duration::from_secs(60);

async fn fleet() -> Fleet {
    let database = shared::postgres().await.create_database().await;
    Fleet::new(database, shared::rabbitmq().await.space().await).await
}

/// Creates events of `cases` instances at these positions, in order, in one transaction.
async fn create_events(fleet: &Fleet, cases: i64, positions: RangeInclusive<i64>) {
    let mut tx = fleet.jobs.begin().await.unwrap();
    let mut jobs = Vec::new();
    for position in positions {
        for case in 0..cases {
            jobs.push(
                NewJob::of("event", &json!({ "position": position }))
                    .instance(format!("case-{case}"))
                    .element("step"),
            );
        }
    }
    tx.create_many(jobs).await.unwrap();
    tx.commit().await.unwrap();
}

async fn assert_events(fleet: &Fleet, expected: i64) {
    assert_eq!(
        fleet.cases().events().await,
        expected,
        "each event exactly once"
    );
    assert_eq!(fleet.cases().doubled().await, 0, "no event twice");
    assert_eq!(
        fleet.cases().disorder().await,
        0,
        "every case one at a time and in order"
    );
}

/// Takeover after `kill -9`: lease plus sweep interval, with slack for a loaded machine.
#[tokio::test]
async fn jobs_of_a_killed_node_are_taken_over() {
    let fleet = fleet().await;
    let victim = fleet.node(&[]).await;
    // Long enough that all of them run at once when the victim dies, on any machine.
    let jobs = (0..8).map(|_| NewJob::of("sleep", &json!({ "ms": 15_000 })));
    let mut tx = fleet.jobs.begin().await.unwrap();
    tx.create_many(jobs.collect()).await.unwrap();
    tx.commit().await.unwrap();
    eventually(
        "the victim to hold all jobs",
        Duration::from_secs(60),
        || async { (fleet.leased().await == 8).then_some(()) },
    )
    .await;
    victim.signal(Signal::SIGKILL);
    let killed = Instant::now();
    let _heir = fleet.node(&[]).await;
    fleet.until_empty(Duration::from_secs(60)).await;
    println!("taken over and done {:?} after the kill", killed.elapsed());
}

/// Rule 24, without a broker: taken-over jobs start before thousands of waiting ones, on at most a
/// quarter of the slots of the node. `broker_away::backlog` has the brokers.
#[tokio::test]
async fn rescued_jobs_go_before_a_backlog_without_a_broker() {
    const WAITING: i64 = 3_000;
    let settings = [
        ("JOBWIRE_CONCURRENCY", "8"),
        ("JOBWIRE_CLAIM_INTERVAL", "1s"),
    ];
    let fleet = fleet().await;
    let jobs = fleet.store.client(CommitHook::disconnected());
    let start = || fleet.node_on(&fleet.database, "none", &settings);
    let create = async |count: i64, ms: u64, element: &str| {
        let job = |_| NewJob::of("sleep", &json!({ "ms": ms })).element(element);
        let mut tx = jobs.begin().await.unwrap();
        tx.create_many((0..count).map(job).collect()).await.unwrap();
        tx.commit().await.unwrap();
    };
    let victim = start().await;
    create(4, 3_600_000, "long").await;
    eventually("the victim to hold all long jobs", SOON, || async {
        (fleet.leased().await == 4).then_some(())
    })
    .await;
    let dead: uuid::Uuid = sqlx::query_scalar("SELECT owner FROM jobwire.job_lease LIMIT 1")
        .fetch_one(fleet.store.pool())
        .await
        .unwrap();
    create(WAITING, 1_000, "short").await;
    let _heir = start().await;
    let held_by_heir = async |element: &str| -> i64 {
        sqlx::query_scalar(
            "SELECT count(*) FROM jobwire.job_lease l JOIN jobwire.job j ON j.id = l.job_id
             WHERE l.owner <> $1 AND j.element = $2",
        )
        .bind(dead)
        .bind(element)
        .fetch_one(fleet.store.pool())
        .await
        .unwrap()
    };
    eventually("the heir to work", SOON, || async {
        (held_by_heir("short").await > 4).then_some(())
    })
    .await;
    victim.signal(Signal::SIGKILL);
    let killed = Instant::now();
    eventually(
        "the heir to have a quarter of its slots filled",
        SOON,
        || async { (held_by_heir("long").await == 2).then_some(()) },
    )
    .await;
    println!("taken over {:?} after the kill", killed.elapsed());
    let waiting = JobQuery::default();
    let left = fleet.store.count(&waiting).await.unwrap();
    assert!(
        left > WAITING / 2,
        "only {left} jobs are left: the rescued ones waited behind the others"
    );
    let quarter = Instant::now();
    eventually("two seconds to pass", SOON, || async {
        let long = held_by_heir("long").await;
        assert_eq!(long, 2, "rescued jobs take a quarter of the slots");
        (quarter.elapsed() > Duration::from_secs(2)).then_some(())
    })
    .await;
}

/// A node that was frozen beyond its lease continues and finds that it has lost the lease: its
/// completion is refused, and the job was completed once.
#[tokio::test]
async fn a_frozen_node_completes_nothing_after_it_lost_its_lease() {
    let fleet = fleet().await;
    let frozen = fleet.node(&[]).await;
    // Long enough that it still runs when the node freezes, on any machine; short enough to end.
    let job = NewJob::of("sleep", &json!({ "ms": 30_000 })).instance("one");
    fleet.jobs.create(job).await.unwrap();
    eventually(
        "the node to hold the job",
        Duration::from_secs(60),
        || async { (fleet.leased().await == 1).then_some(()) },
    )
    .await;
    frozen.signal(Signal::SIGSTOP);
    create_events(&fleet, 1, 1..=1).await;
    let _other = fleet.node(&[]).await;
    fleet.until_empty(Duration::from_secs(60)).await;
    frozen.signal(Signal::SIGCONT);
    frozen
        .wait_for_line("the lock was lost", Duration::from_secs(60))
        .await;
    assert_eq!(fleet.leased().await, 0);
    assert_events(&fleet, 1).await;
}

/// A node that is frozen inside a transaction holds row locks that no lease ends, and its
/// connection stays open: the database ends the transaction after the lease, and another node runs
/// the job.
#[tokio::test]
async fn a_node_frozen_in_a_transaction_holds_no_row_beyond_its_lease() {
    let fleet = fleet().await;
    // The insert may wait as long as this test needs.
    let frozen = fleet.node(&[("JOBWIRE_STATEMENT_TIMEOUT", "10m")]).await;
    // The handler's insert waits for this lock, so the node is certainly inside its transaction.
    let mut gate = fleet.jobs.begin().await.unwrap();
    sqlx::query("LOCK TABLE jobwire.event_log IN SHARE MODE")
        .execute(&mut *gate)
        .await
        .unwrap();
    create_events(&fleet, 1, 1..=1).await;
    eventually("the insert to wait", Duration::from_secs(60), || async {
        (fleet.waiting_for_a_lock().await >= 1).then_some(())
    })
    .await;
    frozen.signal(Signal::SIGSTOP);
    gate.commit().await.unwrap();
    // The insert is done, and no process reads its answer: the row of the log stays locked.
    let _other = fleet.node(&[]).await;
    fleet.until_empty(Duration::from_secs(90)).await;
    assert_events(&fleet, 1).await;
    frozen.signal(Signal::SIGCONT);
    frozen
        .wait_for_line("the lock was lost", Duration::from_secs(60))
        .await;
    assert_events(&fleet, 1).await;
}

/// Every hint three times, and hints for jobs that never existed: each job runs once.
#[tokio::test]
async fn doubled_and_forged_hints_run_nothing_twice() {
    let fleet = fleet().await;
    let mut options = jobwire_amqp::AmqpOptions::default();
    options.prefix.clone_from(&fleet.space.prefix);
    let transport = jobwire_amqp::AmqpTransport::connect(&fleet.space.url, options)
        .await
        .unwrap();
    let publisher = transport.publisher();
    create_events(&fleet, 20, 1..=10).await;
    let all: Vec<uuid::Uuid> = sqlx::query_scalar("SELECT id FROM jobwire.job")
        .fetch_all(fleet.store.pool())
        .await
        .unwrap();
    let _nodes = (fleet.node(&[]).await, fleet.node(&[]).await);
    let lane = Lane::default();
    for round in 0..3 {
        let mut hints: Vec<Hint> = all
            .iter()
            .map(|id| Hint::new(jobwire_core::JobId::from_uuid(*id)))
            .collect();
        if round == 1 {
            hints.reverse();
        }
        hints.extend((0..50).map(|_| Hint::new(jobwire_core::JobId::generate())));
        // If the broker is slow to confirm, some hints are published once more, which is harmless.
        eventually("the hints to be published", Duration::from_secs(60), || {
            let published = publisher.publish(&lane, hints.clone());
            async { published.await.ok() }
        })
        .await;
    }
    fleet.until_empty(Duration::from_secs(60)).await;
    assert_events(&fleet, 200).await;
}

/// The broker stops and comes back while jobs are created and run: no process restarts, no job is
/// lost.
#[tokio::test]
async fn a_broker_restart_under_load_loses_nothing() {
    let database = shared::postgres().await.create_database().await;
    let mut broker = RabbitMq::start().await;
    let space = Space {
        url: broker.url(),
        prefix: "jobwire".to_owned(),
    };
    let fleet = Fleet::new(database, space).await;
    let nodes = (fleet.node(&[]).await, fleet.node(&[]).await);
    create_events(&fleet, 50, 1..=4).await;
    broker.stop().await;
    // These jobs are created while the broker is away: their hints are dropped, their commits are
    // not.
    create_events(&fleet, 50, 1..=4).await;
    broker.start_again().await;
    create_events(&fleet, 50, 1..=4).await;
    fleet.until_empty(Duration::from_secs(90)).await;
    assert_eq!(fleet.cases().events().await, 600);
    assert_eq!(fleet.cases().doubled().await, 0);
    drop(nodes);
}

/// The queue of a lane is purged with hints in it: the sweeper finds the jobs with a marker.
#[tokio::test]
async fn a_purged_queue_is_healed() {
    let fleet = fleet().await;
    let node = fleet.node(&[("JOBWIRE_CONCURRENCY", "2")]).await;
    // Two long jobs fill the slots, so that the hints of the others stay in the queue.
    for _ in 0..2 {
        fleet
            .jobs
            .create(NewJob::of("sleep", &json!({ "ms": 15_000 })))
            .await
            .unwrap();
    }
    eventually("the slots to be taken", Duration::from_secs(60), || async {
        (fleet.leased().await == 2).then_some(())
    })
    .await;
    create_events(&fleet, 30, 1..=2).await;
    let queue = format!("{}.lane.default", fleet.space.prefix);
    let purged =
        lapin::Connection::connect(&fleet.space.url, lapin::ConnectionProperties::default())
            .await
            .unwrap();
    let channel = purged.create_channel().await.unwrap();
    channel
        .queue_purge(
            queue.as_str().into(),
            lapin::options::QueuePurgeOptions::default(),
        )
        .await
        .unwrap();
    fleet.until_empty(Duration::from_secs(60)).await;
    assert_events(&fleet, 60).await;
    drop(node);
}

/// The database crashes and comes back: the nodes survive, and every job is completed once.
#[tokio::test]
async fn a_database_restart_under_load_loses_nothing() {
    let mut postgres = Postgres::start().await;
    let database = postgres.create_database().await;
    let fleet = Fleet::new(database, shared::rabbitmq().await.space().await).await;
    let nodes = (fleet.node(&[]).await, fleet.node(&[]).await);
    create_events(&fleet, 40, 1..=5).await;
    postgres.stop(Stop::Immediate).await;
    postgres.start_again().await;
    eventually(
        "the producer's pool to recover",
        Duration::from_secs(60),
        || async { fleet.store.check().await.ok() },
    )
    .await;
    create_events(&fleet, 40, 6..=6).await;
    // A broken connection costs no attempt, and no sibling passes its job.
    fleet.until_empty(Duration::from_secs(90)).await;
    assert_events(&fleet, 240).await;
    drop(nodes);
}

/// Connections are terminated while they are in use.
#[tokio::test]
async fn terminated_backends_lose_nothing() {
    let fleet = fleet().await;
    let _nodes = (fleet.node(&[]).await, fleet.node(&[]).await);
    for round in 0..5 {
        create_events(&fleet, 40, 2 * round + 1..=2 * round + 2).await;
        sqlx::query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE datname = current_database() AND application_name = 'jobwire' AND pid <> pg_backend_pid()",
        )
        .execute(fleet.store.pool())
        .await
        .unwrap();
        eventually(
            "the producer's pool to recover",
            Duration::from_secs(60),
            || async { fleet.store.check().await.ok() },
        )
        .await;
    }
    // A broken connection costs no attempt, and no sibling passes its job.
    fleet.until_empty(Duration::from_secs(60)).await;
    assert_events(&fleet, 400).await;
}

/// Returns the largest memory that a process has had so far, in megabytes.
fn peak_of(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
    kilobytes.unwrap().parse::<u64>().unwrap() / 1_024
}

/// Any client that may publish can send control messages, in any size and number.
#[tokio::test]
async fn four_hundred_large_control_messages_do_not_fill_the_memory_of_a_node() {
    let fleet = fleet().await;
    let node = fleet.node(&[]).await;
    let before = peak_of(node.id());
    let types: Vec<String> = (0..12_000).map(|n| format!("type-{n:0>90}")).collect();
    let id = jobwire_core::NodeId::generate();
    let message = json!({ "say": "node-alive", "node": id, "types": types, "lanes": ["default"] });
    let message = message.to_string().into_bytes();
    assert!(message.len() > 1_000_000);
    let url = &fleet.space.url;
    let stranger = lapin::Connection::connect(url, lapin::ConnectionProperties::default());
    let stranger = stranger.await.unwrap();
    let channel = stranger.create_channel().await.unwrap();
    let exchange = format!("{}.control", fleet.space.prefix);
    for _ in 0..400 {
        let options = lapin::options::BasicPublishOptions::default();
        let properties = lapin::BasicProperties::default();
        let sent = channel.basic_publish(
            exchange.as_str().into(),
            "".into(),
            options,
            &message,
            properties,
        );
        sent.await.unwrap();
    }
    create_events(&fleet, 1, 1..=1).await;
    fleet.until_empty(Duration::from_secs(60)).await;
    // The messages wait at the broker while the node reads them.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let grown = peak_of(node.id()) - before;
    println!("the node grew from {before} MB by {grown} MB");
    assert!(grown < 200, "{grown} MB");
}

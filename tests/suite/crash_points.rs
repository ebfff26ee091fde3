//! A process dies at every step of a job's life, as by `kill -9`, and another node finishes.
//!
//! Each crash point has its own database and queues. The same must hold after each: a committed job
//! is done once in the database and at least once outside of it, a rolled-back job never runs,
//! attempts are counted exactly, and no dead letter exists twice.
//!
//! Budget: 90 s, most of it waiting for the leases of dead nodes to expire.

mod service;
mod workload;

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use chrono::SubsecRound;
use jobwire_core::store::Change;
use jobwire_core::{Batch, BatchState, BulkOperation, JobQuery, NewJob, PeriodicJob, Store};
use jobwire_tests::{Program, Running, Scratch, Signal, eventually, shared};
use serde_json::json;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::docs;
use crate::fleet::Fleet;
use workload::Workload;

const SOON: Duration = Duration::from_secs(60);

/// Short, because the heirs wait for its expiry; long enough for a living node on a busy machine to
/// renew in time.
const LEASE: &str = "5s";

/// For a victim that must not lose its lease before it dies, however busy the machine is.
const LONG_LEASE: (&str, &str) = ("JOBWIRE_LEASE", "20s");

/// The number of crash points at once; each is one or two processes.
static AT_ONCE: Semaphore = Semaphore::const_new(4);

/// The crash points of a producer, and the number of its three jobs that exist afterwards.
const PRODUCER: [(&str, i64); 4] = [
    ("before-commit", 0),
    ("committed", 3),
    ("hints-sent", 3),
    ("hints-confirmed", 3),
];

/// The crash points of a node, and how many times it passes each before it dies there.
const NODE: [(&str, u32); 18] = [
    ("term-begun", 0),
    ("hints-received", 0),
    ("jobs-locked", 0),
    ("before-handler", 0),
    ("effect-done", 0),
    ("completion-uncommitted", 0),
    ("completion-committed", 0),
    ("hints-settled", 0),
    ("hand-over-taken", 0),
    ("failure-unwritten", 0),
    ("failure-uncommitted", 0),
    ("failure-committed", 0),
    // The second failure is the last.
    ("failure-uncommitted", 1),
    ("failure-committed", 1),
    ("timers-moved", 0),
    ("turn-taken", 0),
    ("orphans-found", 0),
    ("orphans-hinted", 0),
];

/// The crash points of a node whose job has an effect outside of the database.
const OUTSIDE: [&str; 2] = ["effect-done", "completion-committed"];

/// The crash points of a node that holds rows instead of leases.
const BY_ROW: [&str; 3] = ["rows-held", "rows-uncommitted", "rows-committed"];

/// The crash points of the leader of two nodes during a sweep.
const LEADER: [&str; 1] = ["marker-returned"];

/// The crash points of the leader while it creates the job of a schedule.
const SCHEDULE: [&str; 2] = ["periodic-uncommitted", "periodic-committed"];

/// The crash points of the node that ends a batch.
const BATCH: [&str; 3] = [
    "completion-committed",
    "batch-end-uncommitted",
    "batch-end-committed",
];

/// The crash points of a bulk operation.
const BULK: [&str; 1] = ["bulk-page-done"];

/// The crash points of a node that was asked to stop.
const STOPPING: [&str; 2] = ["release-uncommitted", "released"];

/// Runs all points; each failure keeps its own message.
async fn each<F: Future<Output = ()> + Send + 'static>(points: impl Iterator<Item = F>) {
    let mut running = JoinSet::new();
    for point in points {
        running.spawn(Box::pin(point));
    }
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
}

async fn fleet() -> Fleet {
    let database = shared::postgres().await.create_database().await;
    Fleet::new(database, shared::rabbitmq().await.space().await).await
}

fn dies_at(point: &str, before: u32) -> String {
    format!("{point}={before}*off->return")
}

/// Asserts that the victim dies by its crash point and by nothing else.
async fn dies(victim: &mut Running, point: &str) {
    let status = victim.exit(SOON).await;
    let signal = status.signal();
    assert_eq!(
        signal,
        Some(Signal::SIGABRT as i32),
        "{point}: {status}\n{}",
        victim.lines().tail()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_dies_at_each_point_and_what_it_committed_runs_once() {
    each(
        PRODUCER
            .into_iter()
            .map(|(point, jobs)| producer(point, jobs)),
    )
    .await;
}

async fn producer(point: &'static str, created: i64) {
    let _turn = AT_ONCE.acquire().await.unwrap();
    let fleet = fleet().await;
    let line = |position: i64| {
        json!({ "type": "event", "payload": { "position": position }, "process_instance": "case", "element": "step" })
            .to_string()
    };
    let home = Scratch::new();
    let lines: Vec<String> = (1..=3).map(line).collect();
    let file = home.write("jobs.jsonl", lines.join("\n"));
    let mut victim = Program::jobwire()
        .args(["enqueue".as_ref(), file.as_os_str()])
        .env("JOBWIRE_DATABASE_URL", &fleet.database)
        .env("JOBWIRE_BROKER_URL", &fleet.space.url)
        .env("JOBWIRE_AMQP_PREFIX", &fleet.space.prefix)
        .env("FAILPOINTS", dies_at(point, 0))
        .start();
    dies(&mut victim, point).await;
    // A job that certainly runs, so that the others have had their chance.
    let last = NewJob::of("event", &json!({ "position": 4 }));
    let last = last.instance("case").element("step");
    fleet.jobs.create(last).await.unwrap();
    let _heir = fleet.node(&[("JOBWIRE_LEASE", LEASE)]).await;
    fleet.until_empty(SOON).await;
    assert_eq!(fleet.cases().events().await, created + 1, "{point}");
    assert_eq!(fleet.cases().doubled().await, 0, "{point}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_dies_at_each_point_and_another_finishes_each_job_once() {
    each(NODE.into_iter().map(|(point, before)| node(point, before))).await;
}

async fn node(point: &'static str, before: u32) {
    let _turn = AT_ONCE.acquire().await.unwrap();
    let fleet = fleet().await;
    let work = Workload::create(&fleet).await;
    let deadly = dies_at(point, before);
    let mut victim = work.start_node(&fleet, &[("FAILPOINTS", &deadly)]);
    dies(&mut victim, point).await;
    let _heir = work.start_node(&fleet, &[]);
    work.until_done(&fleet).await;
    work.assert_held(&fleet, &format!("{point} after {before}"))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_dies_after_an_effect_outside_and_it_is_repeated_under_its_key() {
    each(OUTSIDE.into_iter().map(outside)).await;
}

async fn outside(point: &'static str) {
    let _turn = AT_ONCE.acquire().await.unwrap();
    let fleet = fleet().await;
    let work = Workload::outside(&fleet).await;
    let deadly = dies_at(point, 0);
    let mut victim = work.start_node(&fleet, &[LONG_LEASE, ("FAILPOINTS", &deadly)]);
    dies(&mut victim, point).await;
    let _heir = work.start_node(&fleet, &[]);
    work.until_done(&fleet).await;
    work.assert_held(&fleet, point).await;
    let calls: Vec<usize> = work.paid_calls().into_values().collect();
    if point == "effect-done" {
        assert!(calls[0] >= 2, "one call before the death and one after it");
    } else {
        assert_eq!(calls, [1], "a completed call is not repeated");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_dies_while_it_holds_rows_and_what_it_committed_is_not_called_again() {
    each(BY_ROW.into_iter().map(by_row)).await;
}

async fn by_row(point: &'static str) {
    let _turn = AT_ONCE.acquire().await.unwrap();
    let fleet = fleet().await;
    let mut work = Workload::outside(&fleet).await;
    let deadly = dies_at(point, 0);
    let short = [
        ("JOBWIRE_ROW_LOCK_TYPES", "http"),
        ("JOBWIRE_ROW_LOCK_FROM", "1"),
    ];
    let settings = [LONG_LEASE, short[0], short[1], ("FAILPOINTS", &deadly)];
    let mut victim = work.start_node(&fleet, &settings);
    // A call that takes longer than rows are held gets a lease, and its end passes none of these
    // points. On a slow machine this happens to the first calls.
    work.pay_until_dead(&fleet, &mut victim).await;
    dies(&mut victim, point).await;
    let completed = work.completed(&fleet).await;
    let _heir = work.start_node(&fleet, &short);
    work.until_done(&fleet).await;
    work.assert_held(&fleet, point).await;
    let calls = work.paid_calls();
    for id in &completed {
        assert_eq!(calls[id], 1, "{point}: a completed call is not repeated");
    }
    if point == "rows-committed" {
        assert!(
            !completed.is_empty(),
            "{point}: the point comes after a completion"
        );
    } else {
        let again = calls.values().filter(|calls| **calls >= 2).count();
        assert!(
            again >= 1,
            "{point}: no call was repeated after the death: {calls:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_dies_in_the_middle_of_its_sweep_and_the_next_one_goes_on() {
    each(LEADER.into_iter().map(leader)).await;
}

async fn leader(point: &'static str) {
    let _turn = AT_ONCE.acquire().await.unwrap();
    let fleet = fleet().await;
    let deadly = dies_at(point, 0);
    let work = Workload::create(&fleet).await;
    // Its term lasts two and a half leader cycles: it must not lose the lead before its marker is
    // back.
    let long_term = ("JOBWIRE_SWEEP_INTERVAL", "10s");
    let mut victim = work.start_node(&fleet, &[LONG_LEASE, long_term, ("FAILPOINTS", &deadly)]);
    victim.wait_for_line("this node leads", SOON).await;
    let heir = work.start_node(&fleet, &[]);
    dies(&mut victim, point).await;
    heir.wait_for_line("this node leads", SOON).await;
    work.until_done(&fleet).await;
    work.assert_held(&fleet, point).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_dies_while_it_creates_the_job_of_a_schedule_and_each_date_has_one() {
    each(SCHEDULE.into_iter().map(schedule)).await;
}

async fn schedule(point: &'static str) {
    let _turn = AT_ONCE.acquire().await.unwrap();
    let fleet = fleet().await;
    let now = chrono::Utc::now().trunc_subsecs(0);
    let [first, last] = [2, 4].map(|seconds| {
        let at = now + chrono::Duration::seconds(seconds);
        at.to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
    });
    let dates = format!("R/{first}/PT1S/{last}[catch-up=all]");
    // No node serves the type, so the jobs stay to be counted.
    let job = NewJob::of("counted", &());
    let periodic = PeriodicJob::new("each-second", &dates, job);
    fleet
        .store
        .declare_periodic_jobs(&[periodic])
        .await
        .unwrap();
    let deadly = dies_at(point, 0);
    let mut victim = fleet.start_on(
        &fleet.database,
        &fleet.space.url,
        &[LONG_LEASE, ("FAILPOINTS", &deadly)],
    );
    dies(&mut victim, point).await;
    let heir = fleet.node(&[]).await;
    let count = "SELECT count(*), count(DISTINCT due_at) FROM jobwire.job WHERE type = 'counted'";
    eventually("the schedule to end", SOON, async || {
        let ended: bool = sqlx::query_scalar("SELECT next_due IS NULL FROM jobwire.periodic_job")
            .fetch_one(fleet.store.pool())
            .await
            .unwrap();
        ended.then_some(())
    })
    .await;
    let created: (i64, i64) = sqlx::query_as(count)
        .fetch_one(fleet.store.pool())
        .await
        .unwrap();
    assert_eq!(created, (3, 3), "{point}: jobs, and their dates");
    heir.signal(Signal::SIGTERM);
    heir.wait_for_line("node stopped", SOON).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_dies_around_the_end_of_a_batch_and_the_job_at_the_end_runs_once() {
    each(BATCH.into_iter().map(batch)).await;
}

fn event(position: i64) -> NewJob {
    let event = NewJob::of("event", &json!({ "position": position }));
    event.instance("case").element("step")
}

async fn batch(point: &'static str) {
    let _turn = AT_ONCE.acquire().await.unwrap();
    let fleet = fleet().await;
    let jobs = Batch::named("b").jobs((1..=3).map(event)).then(event(4));
    let batch = fleet.jobs.create_batch(jobs).await.unwrap();
    // The third completion is that of the last member.
    let before = if point == "completion-committed" {
        2
    } else {
        0
    };
    let deadly = dies_at(point, before);
    let settings = [LONG_LEASE, ("FAILPOINTS", &deadly)];
    let mut victim = fleet.start_on(&fleet.database, &fleet.space.url, &settings);
    dies(&mut victim, point).await;
    let events = fleet.cases().events().await;
    assert_eq!(events, 3, "{point}: the job at the end has not run yet");
    let _heir = fleet.node(&[("JOBWIRE_LEASE", LEASE)]).await;
    eventually("the job at the end to be done", SOON, async || {
        let view = fleet.store.batch(batch).await.unwrap().unwrap();
        let left = fleet.store.count(&JobQuery::default()).await.unwrap();
        (view.state == BatchState::Ended && left == 0).then_some(())
    })
    .await;
    assert_eq!(fleet.cases().events().await, 4, "{point}");
    assert_eq!(fleet.cases().doubled().await, 0, "{point}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_dies_in_a_bulk_operation_and_another_goes_on_with_it() {
    each(BULK.into_iter().map(bulk)).await;
}

async fn bulk(point: &'static str) {
    let _turn = AT_ONCE.acquire().await.unwrap();
    let fleet = fleet().await;
    // Three pages.
    let events = (1..=1_100).map(|position| event(position).concurrent());
    let ids = fleet.jobs.create_many(events.collect()).await.unwrap();
    let bury = Change::MakeDeadLetter("no luck".to_owned());
    fleet.jobs.change(&ids, &bury).await.unwrap();
    let all = JobQuery::default().job_type("event");
    let retry = BulkOperation::retry(all, 1).job().unwrap();
    fleet.jobs.create(retry).await.unwrap();
    // It dies behind the second page, before the end of that page is saved.
    let deadly = dies_at(point, 1);
    let settings = [LONG_LEASE, ("FAILPOINTS", &deadly)];
    let mut victim = fleet.start_on(&fleet.database, &fleet.space.url, &settings);
    dies(&mut victim, point).await;
    let _heir = fleet.node(&[("JOBWIRE_LEASE", LEASE)]).await;
    fleet.until_empty(SOON).await;
    assert_eq!(fleet.cases().events().await, 1_100, "{point}");
    assert_eq!(fleet.cases().doubled().await, 0, "{point}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_dies_while_it_gives_its_jobs_back_and_they_run_elsewhere() {
    each(STOPPING.into_iter().map(stopping)).await;
}

async fn stopping(point: &'static str) {
    let _turn = AT_ONCE.acquire().await.unwrap();
    let fleet = fleet().await;
    let deadly = dies_at(point, 0);
    let settings = [
        LONG_LEASE,
        ("JOBWIRE_SHUTDOWN_TIMEOUT", "10ms"),
        ("FAILPOINTS", &deadly),
    ];
    let mut victim = fleet.node(&settings).await;
    let long = NewJob::of("sleep", &json!({ "ms": 3_600_000 })).max_attempts(3);
    let id = fleet.jobs.create(long).await.unwrap();
    eventually("the victim to hold the job", SOON, async || {
        (fleet.leased().await == 1).then_some(())
    })
    .await;
    victim.signal(Signal::SIGTERM);
    dies(&mut victim, point).await;
    let heir = fleet.node(&[("JOBWIRE_LEASE", LEASE)]).await;
    eventually("the heir to hold the job", SOON, async || {
        (fleet.leased().await == 1).then_some(())
    })
    .await;
    let (job, ..) = fleet.store.get(id).await.unwrap().unwrap();
    assert_eq!(job.retries, 3, "{point}: a death costs no attempt");
    drop(heir);
}

/// The table in the document, the points in the code, and the points in this file are the same.
#[test]
fn every_crash_point_is_in_the_table_and_is_tried() {
    let mut code = BTreeSet::new();
    for source in docs::files(".rs") {
        let text = std::fs::read_to_string(source).unwrap();
        // A mention in prose has no name in it.
        let named = text.split("crash_point!(\"").skip(1);
        code.extend(named.filter_map(|rest| Some(rest.split_once("\")")?.0.to_owned())));
    }
    let tried = PRODUCER.iter().map(|(point, _)| *point);
    let tried = tried.chain(NODE.iter().map(|(point, _)| *point));
    let tried = tried.chain(LEADER).chain(SCHEDULE);
    let tried = tried.chain(BATCH).chain(BULK);
    let tried = tried.chain(STOPPING).chain(BY_ROW);
    let tried = tried.chain([crate::event_stream::deaths::POINT]);
    let tried: BTreeSet<String> = tried.map(str::to_owned).collect();
    assert_eq!(tried, code, "points tested here, and points in the code");
    let page = std::fs::read_to_string(docs::root().join("docs/operating/faults.md")).unwrap();
    let table = page.split("## Crash points").nth(1).unwrap();
    let table = table.split("\n## ").next().unwrap();
    let cells = table.lines().filter_map(|line| line.split('|').nth(2));
    let names = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let listed: BTreeSet<String> = names.map(str::to_owned).collect();
    assert_eq!(
        listed, code,
        "points in docs/operating/faults.md, and points in the code"
    );
}

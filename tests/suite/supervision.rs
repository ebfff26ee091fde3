//! A background task of a node panics: the panic is logged, counted and named in `/readyz`, and the
//! task starts again.
//!
//! Budget: 60 s; each task has a node of its own, and some run at once.

use std::time::Duration;

use jobwire_core::NewJob;
use jobwire_tests::{eventually, http, shared};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::fleet::Fleet;

const SOON: Duration = Duration::from_secs(60);

static AT_ONCE: Semaphore = Semaphore::const_new(5);

/// Every task of a node, and the part that `/readyz` names. The transport's
/// tasks without a part heal within a moment.
const TASKS: [(&str, Option<&str>); 11] = [
    ("leader", Some("leader")),
    ("searches", Some("searches")),
    ("timers", Some("timers")),
    ("consumer", Some("consumer")),
    ("completion", Some("completion")),
    ("renewal", Some("renewal")),
    ("hook", Some("hook")),
    ("amqp publishing", Some("transport")),
    ("amqp receiving", Some("transport")),
    ("amqp telling", None),
    ("amqp hearing", None),
];

/// How many times the task panics as it starts. The pauses in between grow: together they take
/// twenty-three seconds, long enough for a health request to see one.
const TIMES: u32 = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_panics_is_named_and_started_again() {
    let mut nodes = JoinSet::new();
    for (task, part) in TASKS {
        nodes.spawn(Box::pin(dies_and_heals(task, part)));
    }
    while let Some(ended) = nodes.join_next().await {
        ended.unwrap();
    }
}

async fn dies_and_heals(task: &'static str, part: Option<&'static str>) {
    let _turn = AT_ONCE.acquire().await.unwrap();
    let database = shared::postgres().await.migrated_database().await;
    let fleet = Fleet::new(database, shared::rabbitmq().await.space().await).await;
    let times = if part.is_some() { TIMES } else { 1 };
    let panics = format!("task-{}={times}*panic", task.replace(' ', "-"));
    let node = fleet.node(&[("FAILPOINTS", &panics)]).await;
    let ready = node.wait_for_line("is ready", SOON).await;
    let endpoint = http::address_in(&ready);
    // A job, for the tasks that only start with work.
    let job = NewJob::of("event", &json!({ "position": 1 }));
    let job = job.instance("case").element("step");
    fleet
        .jobs
        .create(job.delay(Duration::from_millis(100)))
        .await
        .unwrap();
    if let Some(part) = part {
        eventually(&format!("/readyz to name {part}"), SOON, async || {
            let answer = http::get(&endpoint, "/readyz").await.ok()?;
            let health: Value = serde_json::from_str(&answer.body).ok()?;
            (answer.status == 503 && health["problems"][part].is_string()).then_some(())
        })
        .await;
    }
    let line = node.wait_for_line("a background task died", SOON).await;
    assert!(line.contains(task), "{line}");
    eventually(&format!("{task} to be healthy again"), SOON, async || {
        let answer = http::get(&endpoint, "/readyz").await.ok()?;
        (answer.status == 200).then_some(())
    })
    .await;
    fleet.until_empty(SOON).await;
    assert_eq!(fleet.cases().events().await, 1, "{task}");
    let metrics = eventually("the metrics", SOON, async || {
        http::get(&endpoint, "/metrics").await.ok()
    });
    let metrics = metrics.await.body;
    let counter = format!("jobwire_task_restarts_total{{task=\"{task}\"}} ");
    let counted = metrics
        .lines()
        .find_map(|line| line.strip_prefix(&*counter));
    // Not all ordered panics must occur: the job may be done before.
    let counted: u32 = counted.and_then(|n| n.parse().ok()).unwrap_or(0);
    assert!((1..=times).contains(&counted), "{task}: {counted}");
}

/// A commit is not a task of its own: one that panics must not keep the jobs of its batch forever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_panics_costs_its_jobs_a_repetition() {
    let database = shared::postgres().await.migrated_database().await;
    let fleet = Fleet::new(database, shared::rabbitmq().await.space().await).await;
    let node = fleet.node(&[("FAILPOINTS", "task-commit=2*panic")]).await;
    let ready = node.wait_for_line("is ready", SOON).await;
    let endpoint = http::address_in(&ready);
    for position in 1..=3 {
        let job = NewJob::of("event", &json!({ "position": position }));
        let job = job.instance("case").element("step");
        fleet.jobs.create(job).await.unwrap();
    }
    fleet.until_empty(SOON).await;
    assert_eq!(fleet.cases().events().await, 3);
    eventually("no job in flight", SOON, async || {
        let metrics = http::get(&endpoint, "/metrics").await.ok()?.body;
        let is = |line: &str| metrics.lines().any(|l| l == line);
        let both =
            is("jobwire_jobs_in_flight 0") && is("jobwire_task_restarts_total{task=\"commit\"} 2");
        both.then_some(())
    })
    .await;
}

//! Every process, run by the engine's own executor: the engines and their processes are what the
//! tests of the bridge compare it with.

use std::time::Duration;

use jobwire_tests::{EngineProgram, EngineSettings, JobExecutor, eventually};
use sqlx::Row;

use crate::engines::rows::{Rows, World};

/// Several engines may start at once on two cores.
const SOON: Duration = Duration::from_secs(60);

async fn every_process_ends(settings: impl FnOnce(&str) -> EngineSettings) {
    let world = World::start(|database| settings(database).executor(JobExecutor::On)).await;
    let (engine, rows) = (&world.engine, world.connect().await);
    let one = engine.start_instances("one", 3, &[]).await;
    let chain = engine.start_instance("chain", &[]).await;
    let fork = engine.start_instance("fork", &[]).await;
    let timer = engine.start_instance("timer", &[("wait", "PT1S")]).await;
    let boundary = engine.start_instance("boundary", &[("wait", "PT1S")]).await;
    let slow = engine.start_instance("slow", &[("millis", "200")]).await;
    let failing = engine.start_instance("failing", &[("failures", "1")]).await;
    let cycle = engine.start_instance("cycle", &[]).await;
    engine.deploy("started").await;
    // Camunda's dates follow from the start of the cycle: a slow machine misses some.
    let (timers, least) = match engine.program() {
        EngineProgram::Camunda7 => (TIMERS_OF_CAMUNDA, 1),
        _ => (TIMERS, 3),
    };
    eventually("the cycle to end", SOON, || async {
        (rows.count(timers, &cycle).await == 0).then_some(())
    })
    .await;
    let answer = engine.complete_tasks(&cycle).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    for instance in one
        .iter()
        .chain([&timer, &boundary, &slow, &cycle, &failing])
    {
        rows.until_ended(instance).await;
    }
    rows.until_ended(&chain).await;
    let mut steps: Vec<String> = (1..=10).map(|step| format!("step{step}")).collect();
    assert_eq!(rows.effects(&chain).await, steps);
    rows.until_ended(&fork).await;
    // The tasks that are not exclusive conflict at the join: the engine runs some of them again.
    let mut parts = rows.effects(&fork).await;
    assert_eq!(parts.pop().as_deref(), Some("after"));
    parts.sort();
    parts.dedup();
    assert_eq!(parts, ["free1", "free2", "left", "right"]);
    assert_eq!(rows.effects(&failing).await, ["work"; 2]);
    let runs = "SELECT count(*) FROM jobwire_effect WHERE instance = $1";
    let runs = rows.count(runs, &cycle).await;
    assert!((least..=3).contains(&runs), "{runs} runs of the cycle");
    steps.sort();
    assert_eq!(history(&rows, &chain).await, steps);
    assert_eq!(
        history(&rows, &fork).await,
        ["after", "free1", "free2", "left", "right"]
    );
    let others: Vec<String> = [timer, boundary, slow, failing, cycle]
        .into_iter()
        .chain(one)
        .collect();
    let started = "SELECT count(DISTINCT instance) FROM jobwire_effect
        WHERE activity = 'work' AND NOT instance = ANY (string_to_array($1, ','))";
    eventually("the starts by timer", SOON, || async {
        let count = rows.count(started, &others.join(",")).await;
        (count >= least).then_some(())
    })
    .await;
}

const TIMERS: &str = "SELECT (SELECT count(*) FROM act_ru_job WHERE process_instance_id_ = $1)
    + (SELECT count(*) FROM act_ru_timer_job WHERE process_instance_id_ = $1)";
const TIMERS_OF_CAMUNDA: &str = "SELECT count(*) FROM act_ru_job WHERE process_instance_id_ = $1";

/// The service tasks of an instance in the engine's history, in the order of their names.
async fn history(rows: &Rows, instance: &str) -> Vec<String> {
    let query = "SELECT act_id_ FROM act_hi_actinst WHERE proc_inst_id_ = $1
        AND act_type_ = 'serviceTask' AND end_time_ IS NOT NULL";
    let rows = rows.all(query, instance).await;
    let mut found: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    found.sort();
    found
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn flowable7_completes_every_process_by_its_own_executor() {
    every_process_ends(|database| {
        let executor = "flowable.process.async.executor";
        EngineSettings::flowable7(database)
            .property(
                &format!("{executor}.default-timer-job-acquire-wait-time"),
                "PT0.2S",
            )
            .property(
                &format!("{executor}.default-async-job-acquire-wait-time"),
                "PT0.2S",
            )
    })
    .await;
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn flowable8_completes_every_process_by_its_own_executor() {
    every_process_ends(EngineSettings::flowable8).await;
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn camunda7_completes_every_process_by_its_own_executor() {
    every_process_ends(|database| {
        EngineSettings::camunda7(database).property("camunda.bpm.job-execution.max-wait", "500")
    })
    .await;
}

#[tokio::test]
#[ignore = "long: scripts/test --long engines::"]
async fn activiti7_completes_every_process_by_its_own_executor() {
    every_process_ends(|database| {
        let (lock, reset) = (Duration::from_secs(300), Duration::from_millis(200));
        EngineSettings::activiti7(database).activiti_locks(lock, reset)
    })
    .await;
}

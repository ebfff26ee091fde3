//! Jobs of cases: Jobwire does not run them, and says so.

use std::time::Duration;

use jobwire_tests::{
    EngineServer, EngineSettings, JobExecutor, Program, Running, Scratch, Signal, eventually, http,
};

use crate::engines::bridge::flowable::{DONE, until_ended};
use crate::engines::bridge::program::{jobwire, succeeds};
use crate::engines::rows::World;

/// The leader looks for such jobs once a minute.
const TOLD: Duration = Duration::from_secs(120);

fn with_cases(database: &str) -> EngineSettings {
    EngineSettings::flowable7(database).property("flowable.cmmn.enabled", "true")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn jobs_of_cases_are_told_while_a_node_runs_and_refused_when_one_starts() {
    let world = World::start(with_cases).await;
    let rows = world.connect().await;
    let home = Scratch::new();
    let program = |arguments: &[&str]| -> Program { jobwire(&home, &world, arguments) };
    succeeds(program(&["engine", "init"])).await;
    let mut node: Running = program(&["engine", "run"]).start();
    let line = node.wait_for_line("is ready", DONE).await;
    let (_, address) = line.rsplit_once("http://").expect("the address");
    let begun = world.engine.post_json("/test/case", "{}").await;
    assert_eq!(begun.status, 200, "{}", begun.body);
    let of_cases = "SELECT count(*) FROM act_ru_job WHERE scope_type_ = $1 AND lock_owner_ IS NULL";
    assert_eq!(rows.count(of_cases, "cmmn").await, 1);
    node.wait_for_line("the engine has jobs of another scope", TOLD)
        .await;
    let metrics = http::get(address.trim(), "/metrics").await.unwrap().body;
    let series = "jobwire_engine_unserved_jobs{engine=\"flowable\",why=\"scope\"} 1";
    assert!(metrics.contains(series), "{metrics}");
    // Processes run, and the job stays as it is.
    let instances = world.engine.start_instances("chain", 2, &[]).await;
    until_ended(&rows, &instances).await;
    assert_eq!(rows.count(of_cases, "cmmn").await, 1);
    node.signal(Signal::SIGTERM);
    assert!(node.exit(DONE).await.success());
    for arguments in [&["engine", "run"][..], &["engine", "init"], &["doctor"]] {
        let (status, lines) = program(arguments).run(DONE).await;
        let said = lines.join("\n");
        assert!(!status.success(), "{arguments:?}: {said}");
        for part in [
            "1 jobs have the scope `cmmn`",
            "SpringCmmnEngineConfiguration",
        ] {
            assert!(said.contains(part), "{arguments:?}: {said}");
        }
    }
    // The remedy: an engine node with an executor runs them, beside a node that leaves them to it.
    let left = ["engine", "run", "--engine-other-scopes", "leave"];
    let mut node = program(&left).start();
    node.wait_for_line("is ready", DONE).await;
    let (status, lines) = program(&["doctor", "--engine-other-scopes", "leave"])
        .run(DONE)
        .await;
    let said = lines.join("\n");
    assert!(
        status.success() && said.contains("leaves them to the engine"),
        "{said}"
    );
    let executor = with_cases(&world.database).executor(JobExecutor::On);
    let executor = EngineServer::start(executor).await;
    // Until its job has ended: the executor locks it before.
    let left = "SELECT count(*) FROM act_ru_job WHERE scope_type_ = $1";
    eventually("the case to run", DONE, || async {
        (rows.count(left, "cmmn").await == 0).then_some(())
    })
    .await;
    let instances = world.engine.start_instances("chain", 2, &[]).await;
    until_ended(&rows, &instances).await;
    node.signal(Signal::SIGTERM);
    assert!(node.exit(DONE).await.success());
    drop(executor);
    succeeds(program(&["engine", "init"])).await;
}

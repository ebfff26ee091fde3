//! What operators see and change of an engine's jobs: `jobwire engine jobs` and `engine sweep`.

use jobwire_core::JobId;
use jobwire_engines::id::engine_id;
use jobwire_tests::{EngineServer, EngineSettings, Program, Scratch};
use serde_json::Value;

use super::flowable::{DONE, world};
use super::program::{jobwire, succeeds};
use crate::engines::rows::{Rows, World};

/// The commands of an operator of one engine.
struct Operator<'a> {
    home: Scratch,
    world: &'a World,
}

impl Operator<'_> {
    fn program(&self, arguments: &[&str]) -> Program {
        jobwire(&self.home, self.world, arguments).env("JOBWIRE_LOG", "off")
    }

    async fn says(&self, arguments: &[&str]) -> String {
        let engine = [&["engine"], arguments].concat();
        succeeds(self.program(&engine)).await
    }

    async fn fails(&self, arguments: &[&str], code: i32) -> String {
        let engine = [&["engine"], arguments].concat();
        let (status, lines) = self.program(&engine).run(DONE).await;
        let said = lines.join("\n");
        assert_eq!(status.code(), Some(code), "{said}");
        said
    }

    async fn json(&self, arguments: &[&str]) -> Value {
        let said = self.says(&[arguments, &["--json"]].concat()).await;
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
    }

    /// Returns the jobs of an instance.
    async fn jobs(&self, instance: &str) -> Vec<Value> {
        let found = ["jobs", "list", "--process-instance", instance];
        let found = self.json(&found).await;
        found.as_array().cloned().unwrap_or_default()
    }
}

/// An operator runs a job that fails until it is a dead letter, sees why, retries and deletes it.
async fn jobs_are_seen_and_changed(world: &World) {
    let operator = Operator {
        home: Scratch::new(),
        world,
    };
    let engine = &world.engine;
    succeeds(operator.program(&["engine", "init"])).await;
    let instance = engine
        .start_instance("failing", &[("failures", "100")])
        .await;
    let job = operator.jobs(&instance).await.remove(0);
    let id = job["id"].as_str().unwrap().to_owned();
    assert_eq!(job["state"], "executable");
    assert_eq!(job["retries"], 3);
    // Each execution fails. Before the last one the job waits for its next attempt, or is ready.
    for left in [2, 1] {
        let said = operator.fails(&["jobs", "execute", &id], 1).await;
        assert!(said.contains(&format!("{left} attempts left")), "{said}");
    }
    let said = operator.fails(&["jobs", "execute", &id], 1).await;
    assert!(said.contains("became a dead letter"), "{said}");
    // Activiti and Flowable 8 give a dead letter a new id. The commands print the engine's.
    let job = operator.jobs(&instance).await.remove(0);
    let id: JobId = job["id"].as_str().unwrap().parse().unwrap();
    let id = engine_id(id).unwrap();
    let dead = ["jobs", "list", "--state", "dead-letter"];
    let listed = operator.says(&dead).await;
    assert!(listed.contains(&id) && listed.contains("1 job"), "{listed}");
    let said = operator.fails(&["jobs", "execute", &id], 1).await;
    let remedy = format!("jobwire engine jobs retry {id}");
    assert!(said.contains(&remedy), "{said}");
    let shown = operator.says(&["jobs", "show", &id]).await;
    assert!(
        shown.contains("stack") && shown.contains("as wished"),
        "{shown}"
    );
    let said = operator
        .says(&["jobs", "retry", "--all", "--process-instance", &instance])
        .await;
    assert!(said.contains("1 job made executable"), "{said}");
    let job = operator.jobs(&instance).await.remove(0);
    assert_eq!(job["state"], "executable");
    // Every filter counts, also one that no table of the engine has.
    let other = "0198c0de-7777-7000-8000-000000000001";
    for filter in [
        ["--correlation-id", other],
        ["--type", "timer-start-event"],
        ["--tenant", "nobody"],
        ["--lane", "elsewhere"],
        ["--locked", "true"],
    ] {
        let found = operator
            .json(&[&["jobs", "list"], &filter[..]].concat())
            .await;
        assert_eq!(found.as_array().map(Vec::len), Some(0), "{filter:?}");
    }
    let all = ["jobs", "delete", "--all", "--process-instance", &instance];
    let said = operator.fails(&all, 2).await;
    assert!(said.contains("1 job matches"), "{said}");
    let said = operator.says(&[&all[..], &["--yes"]].concat()).await;
    assert!(said.contains("1 job deleted"), "{said}");
    assert_eq!(operator.jobs(&instance).await, Vec::<Value>::new());
    let said = operator.fails(&["jobs", "show", &id], 1).await;
    assert!(said.contains("there is no job"), "{said}");
    let said = operator.fails(&["jobs", "cancel", &id], 2).await;
    assert!(said.contains("can't be stopped"), "{said}");
    // One that succeeds.
    let rows = world.connect().await;
    let instance = engine.start_instance("one", &[]).await;
    let job = operator.jobs(&instance).await.remove(0);
    let id = job["id"].as_str().unwrap();
    let said = operator.says(&["jobs", "execute", id]).await;
    assert!(said.contains("is done"), "{said}");
    assert!(rows.ended(&instance).await);
}

/// A message that moves the cursor or forges a line does neither.
async fn messages_are_escaped(world: &World, rows: &Rows) {
    let operator = Operator {
        home: Scratch::new(),
        world,
    };
    let instance = world.engine.start_instance("one", &[]).await;
    let forged = "UPDATE act_ru_job SET exception_msg_ = E'\\x1b[2Jgone\\nid forged' WHERE process_instance_id_ = $1";
    assert_eq!(rows.change(forged, &instance).await, 1);
    let list = ["jobs", "list", "--process-instance", &instance];
    let listed = operator.says(&list).await;
    assert!(!listed.contains('\x1b'), "{listed:?}");
    assert_eq!(listed.lines().count(), 3, "{listed}");
    let job = operator.jobs(&instance).await.remove(0);
    let shown = operator
        .says(&["jobs", "show", job["id"].as_str().unwrap()])
        .await;
    assert!(!shown.contains('\x1b'), "{shown:?}");
    assert!(!shown.lines().any(|line| line.starts_with("id forged")));
}

/// The dry run counts what the leader would do, and changes nothing.
async fn a_dry_run_counts(world: &World, rows: &Rows) {
    let operator = Operator {
        home: Scratch::new(),
        world,
    };
    let engine = &world.engine;
    let before = operator.json(&["sweep"]).await;
    let dead = engine.start_instance("one", &[]).await;
    let lock = "UPDATE act_ru_job SET lock_owner_ = 'jobwire:00000000-0000-4000-8000-000000000000:1',
        lock_exp_time_ = (clock_timestamp() AT TIME ZONE 'UTC') - interval '1 second' WHERE process_instance_id_ = $1";
    rows.change(lock, &dead).await;
    let held = engine.start_instance("one", &[]).await;
    let lock = "UPDATE act_ru_job SET lock_owner_ = 'engine',
        lock_exp_time_ = (clock_timestamp() AT TIME ZONE 'UTC') + interval '1 hour' WHERE process_instance_id_ = $1";
    rows.change(lock, &held).await;
    engine.start_instance("fork", &[]).await;
    let suspended = engine.start_instance("one", &[]).await;
    engine.suspend(&suspended).await;
    let locks = "SELECT count(*) FROM act_ru_job WHERE lock_owner_ IS NOT NULL AND $1 <> ''";
    let locked = rows.count(locks, "any").await;
    let after = operator.json(&["sweep"]).await;
    let more = |class: &str| after[class].as_i64().unwrap() - before[class].as_i64().unwrap();
    let counts = [
        "expired",
        "running",
        "ready",
        "instance_held",
        "suspended",
        "unhinted",
    ]
    .map(more);
    assert_eq!(counts, [1, 1, 1, 3, 1, 0], "{before} {after}");
    assert_eq!(rows.count(locks, "any").await, locked);
    let said = operator.says(&["sweep"]).await;
    assert!(said.contains("nothing was changed (dry run)"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_sees_and_changes_the_jobs_of_flowable() {
    let world = world().await;
    let rows = world.connect().await;
    jobs_are_seen_and_changed(&world).await;
    messages_are_escaped(&world, &rows).await;
    a_dry_run_counts(&world, &rows).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn an_operator_sees_and_changes_the_jobs_of_camunda() {
    let world = World::start(EngineSettings::camunda7).await;
    let rows = world.connect().await;
    jobs_are_seen_and_changed(&world).await;
    messages_are_escaped(&world, &rows).await;
    a_dry_run_counts(&world, &rows).await;
}

/// The endpoint of these engines makes the changes: they have no REST interface for jobs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn an_operator_sees_and_changes_the_jobs_of_activiti() {
    jobs_are_seen_and_changed(&World::start(EngineSettings::activiti7).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn an_operator_sees_and_changes_the_jobs_of_flowable8() {
    jobs_are_seen_and_changed(&World::start(EngineSettings::flowable8).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn an_engine_that_is_away_is_told_and_not_asked_for_every_job() {
    let mut world = world().await;
    let operator = Operator {
        home: Scratch::new(),
        world: &world,
    };
    succeeds(operator.program(&["engine", "init"])).await;
    world.engine.start_instances("one", 10, &[]).await;
    world.engine.kill();
    let operator = Operator {
        home: Scratch::new(),
        world: &world,
    };
    let said = operator
        .fails(&["jobs", "delete", "--all", "--yes"], 1)
        .await;
    assert!(said.contains("0 jobs deleted"), "{said}");
    let unsent = said.matches("not sent").count();
    assert_eq!(unsent, 7, "{said}");
    let user = EngineServer::USER;
    assert!(!said.contains(user.1), "the password is told: {said}");
}

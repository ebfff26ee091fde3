//! Flowable, Activiti and Camunda on MariaDB: the nodes know the engine by its endpoint alone, and
//! the engine's hook publishes the hints.

mod activiti;
mod camunda;

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::store::{Store, TapMode};
use jobwire_core::{JobQuery, JobState, Node, NodeOptions, Transport};
use jobwire_engines::EndpointStore;
use jobwire_tests::shared::{self, Space};
use jobwire_tests::{
    EngineProgram, EngineServer, EngineSettings, MariaDb, Program, Running, Scratch, Signal,
    eventually,
};

use super::flowable::{DONE, options, over_endpoint, quick};
use super::program::{kind, succeeds};
use crate::world::connect;

const SOON: Duration = Duration::from_secs(30);
const LOCKS: &str =
    "SELECT count(*) FROM ACT_RU_JOB WHERE LOCK_OWNER_ IS NOT NULL OR LOCK_EXP_TIME_ IS NOT NULL";
/// Camunda's instances have no locks.
const INSTANCES: &str = "SELECT count(*) FROM ACT_RU_EXECUTION WHERE LOCK_TIME_ IS NOT NULL";
/// Activiti's locks of instances have no owner.
const OWNERS: &str = "SELECT count(*) FROM ACT_RU_EXECUTION WHERE LOCK_OWNER_ IS NOT NULL";
/// Jobs that ran more than once.
const REPEATED: &str = "SELECT count(*) FROM (SELECT instance FROM jobwire_effect GROUP BY instance, activity HAVING count(*) > 1) r";

/// An engine on MariaDB, which publishes hints.
struct World {
    // Before the database: fields drop in this order.
    engine: EngineServer,
    database: MariaDb,
    space: Space,
}

impl World {
    async fn start() -> World {
        World::of(|database| read_committed(EngineSettings::flowable7(database))).await
    }

    async fn of(settings: impl FnOnce(&str) -> EngineSettings) -> World {
        let space = shared::rabbitmq().await.space().await;
        let database = MariaDb::start().await;
        let settings = settings(&database.url()).hints(&space);
        World {
            engine: EngineServer::start(settings).await,
            database,
            space,
        }
    }

    fn store(&self) -> EndpointStore {
        let store = match self.engine.program() {
            EngineProgram::Flowable7 => EndpointStore::flowable(over_endpoint(&self.engine)),
            EngineProgram::Camunda7 => EndpointStore::camunda(over_endpoint(&self.engine)),
            _ => EndpointStore::activiti(options(&self.engine)),
        };
        store.unwrap()
    }

    /// Returns the number of locks of jobs and instances.
    async fn locks(&self) -> i64 {
        let counts: &[&str] = match self.engine.program() {
            EngineProgram::Flowable7 => &[LOCKS, INSTANCES, OWNERS],
            EngineProgram::Camunda7 => &[LOCKS],
            _ => &[LOCKS, INSTANCES],
        };
        let mut locks = 0;
        for count in counts {
            locks += self.database.count(count).await;
        }
        locks
    }

    async fn node(&self, options: NodeOptions) -> (Node, Arc<dyn Transport>) {
        self.node_of(self.store(), options).await
    }

    /// Returns a store that waits for an answer no longer than this.
    fn impatient(&self, within: Duration) -> EndpointStore {
        let options = over_endpoint(&self.engine).answer_within(within);
        let store = match self.engine.program() {
            EngineProgram::Camunda7 => EndpointStore::camunda(options),
            _ => EndpointStore::flowable(options),
        };
        store.unwrap()
    }

    async fn node_of(
        &self,
        store: EndpointStore,
        options: NodeOptions,
    ) -> (Node, Arc<dyn Transport>) {
        let transport = connect(&self.space, 3).await;
        let lane = store.options().lane.clone();
        let node = Node::builder(store.clone(), transport.clone())
            .handlers(store.handlers().unwrap())
            .options(options.lanes(vec![lane.into()]).tap(TapMode::Off))
            .start()
            .await
            .unwrap();
        (node, transport)
    }

    async fn until_ended(&self, instances: &[String]) {
        let ids = instances.join("','");
        let left =
            format!("SELECT count(*) FROM ACT_RU_EXECUTION WHERE PROC_INST_ID_ IN ('{ids}')");
        eventually("all instances to end", DONE, || async {
            (self.database.count(&left).await == 0).then_some(())
        })
        .await;
    }

    async fn until_no_lock_is_left(&self) {
        eventually("no lock to be left", DONE, || async {
            (self.locks().await == 0).then_some(())
        })
        .await;
    }

    /// Returns how often the activities of an instance have started.
    async fn runs(&self, instance: &str) -> i64 {
        let runs = format!("SELECT count(*) FROM jobwire_effect WHERE instance = '{instance}'");
        self.database.count(&runs).await
    }

    async fn until_started(&self, instance: &str, count: i64) {
        eventually("the activity to start", DONE, || async {
            (self.runs(instance).await == count).then_some(())
        })
        .await;
    }
}

/// Sets the isolation of an engine on Spring Boot.
fn read_committed(settings: EngineSettings) -> EngineSettings {
    settings.property(
        "spring.datasource.hikari.transaction-isolation",
        "TRANSACTION_READ_COMMITTED",
    )
}

async fn stop((node, transport): (Node, Arc<dyn Transport>)) {
    node.stop().await;
    transport.close(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flowable_on_mariadb_runs_its_jobs_over_the_endpoint_alone() {
    the_engine_runs_its_jobs(World::start().await).await;
}

async fn the_engine_runs_its_jobs(world: World) {
    // No node runs and no lane stands, so these hints are lost: orphans.
    let mut instances = world.engine.start_instances("one", 3, &[]).await;
    let node = world.node(quick()).await;
    eventually("the node to lead", DONE, || async {
        node.0.health().leads.then_some(())
    })
    .await;
    instances.extend(world.engine.start_instances("one", 10, &[]).await);
    instances.extend(world.engine.start_instances("fork", 2, &[]).await);
    instances.extend(world.engine.start_instances("chain", 2, &[]).await);
    let wait = [("wait", "PT1S")];
    instances.extend(world.engine.start_instances("timer", 2, &wait).await);
    world.until_ended(&instances).await;
    assert_eq!(world.database.count(REPEATED).await, 0);
    world.until_no_lock_is_left().await;
    stop(node).await;
    // Back to the engine: no row of Jobwire stays.
    assert_eq!(world.store().release_engine().await.unwrap(), 0);
    let ours = "SELECT count(*) FROM ACT_GE_PROPERTY WHERE NAME_ LIKE 'jobwire.%'";
    assert_eq!(world.database.count(ours).await, 0);
}

/// Jobs that wait are sent in lists, beside long ones, and each runs once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn waiting_jobs_on_mariadb_run_in_lists_and_each_runs_once() {
    waiting_jobs_run_in_lists(World::start().await).await;
}

async fn waiting_jobs_run_in_lists(world: World) {
    let slow = [("millis", "3000")];
    let mut instances = world.engine.start_instances("slow", 3, &slow).await;
    instances.extend(world.engine.start_instances("one", 150, &[]).await);
    instances.extend(world.engine.start_instances("chain", 30, &[]).await);
    let node = world.node(quick().concurrency(64)).await;
    world.until_ended(&instances).await;
    assert_eq!(world.database.count(REPEATED).await, 0);
    world.until_no_lock_is_left().await;
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn an_engine_on_mariadb_that_answers_late_executes_the_job_once_under_a_lock_that_stays() {
    executed_once_although_the_answer_is_late(World::start().await).await;
}

/// The node no longer waits for the answer, and does not hold the job. The engine itself extends the
/// lock until the execution ends.
async fn executed_once_although_the_answer_is_late(world: World) {
    let store = world.impatient(Duration::from_secs(1));
    let node = world.node_of(store, quick()).await;
    let instance = world.engine.start_instance("siblings", &[]).await;
    world.until_started(&instance, 1).await;
    let lock = async || {
        let owner_and_expiry = format!(
            "SELECT LOCK_OWNER_, CAST(UNIX_TIMESTAMP(LOCK_EXP_TIME_) AS SIGNED) FROM ACT_RU_JOB
             WHERE PROCESS_INSTANCE_ID_ = '{instance}' AND LOCK_OWNER_ IS NOT NULL"
        );
        let rows = world.database.query(&owner_and_expiry).await;
        assert_eq!(rows.len(), 1, "one job is locked: {rows:?}");
        (rows[0][0].clone(), rows[0][1].parse::<i64>().unwrap())
    };
    let (owner, first) = lock().await;
    // Longer than any lock of the node or the engine.
    eventually("the lock to be extended", DONE, || async {
        let (now, expiry) = lock().await;
        assert_eq!(now, owner, "the lock has ended");
        (expiry >= first + 20).then_some(())
    })
    .await;
    assert_eq!(world.runs(&instance).await, 1, "it ran a second time");
    // Now the engine ends it, and the leader finds that the instance is free.
    world.engine.release(&instance).await;
    world.until_ended(std::slice::from_ref(&instance)).await;
    assert_eq!(world.runs(&instance).await, 2, "each sibling ran once");
    assert_eq!(world.database.count(REPEATED).await, 0);
    world.until_no_lock_is_left().await;
    stop(node).await;
}

/// The engine's own numbers: three attempts ten seconds apart, and then a dead letter, which an
/// operator retries through the engine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn a_job_that_fails_on_mariadb_has_the_engines_own_retries_and_is_revived() {
    a_failing_job_has_the_engines_own_retries(World::start().await, "work.fail").await;
}

async fn a_failing_job_has_the_engines_own_retries(world: World, said: &str) {
    let node = world.node(quick()).await;
    let failing = [("failures", "3")];
    let instance = world.engine.start_instance("failing", &failing).await;
    let store = world.store();
    let of_it = JobQuery::default().instance(&*instance);
    let dead = eventually("the dead letter", DONE, || async {
        let found = store.find(&of_it).await.unwrap().into_iter().next();
        found.filter(|job| job.state == JobState::DeadLetter)
    })
    .await;
    assert_eq!(world.runs(&instance).await, 3);
    let message = dead.exception_message.unwrap_or_default();
    assert!(message.contains(said), "{message}");
    store.retry(dead.id, 3).await.unwrap();
    world.until_ended(std::slice::from_ref(&instance)).await;
    assert_eq!(world.runs(&instance).await, 4);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn an_engine_on_mariadb_that_is_killed_and_comes_back_loses_no_job_and_no_attempt() {
    a_killed_engine_comes_back(World::start().await).await;
}

async fn a_killed_engine_comes_back(mut world: World) {
    let node = world.node(quick()).await;
    let slow = [("millis", "60000")];
    let slow = world.engine.start_instance("slow", &slow).await;
    world.until_started(&slow, 1).await;
    let instances = world.engine.start_instances("chain", 20, &[]).await;
    world.engine.kill();
    eventually("the health to tell", DONE, || async {
        let health = node.0.watch().checked().await;
        (!health.ready && format!("{:?}", health.problems).contains("engine")).then_some(())
    })
    .await;
    world.engine.start_again().await;
    world.until_ended(&instances).await;
    // The second run began after the first had ended with the engine.
    world.until_started(&slow, 2).await;
    let spent = "SELECT count(*) FROM ACT_RU_JOB WHERE RETRIES_ < 3";
    assert_eq!(world.database.count(spent).await, 0, "an attempt was spent");
    if world.engine.program() != EngineProgram::Camunda7 {
        let moved = "SELECT (SELECT count(*) FROM ACT_RU_TIMER_JOB) + (SELECT count(*) FROM ACT_RU_DEADLETTER_JOB)";
        assert_eq!(world.database.count(moved).await, 0, "an attempt was spent");
    }
    stop(node).await;
}

/// The program, killed while the engine runs a job longer than its lease: the engine goes on and
/// keeps the lock, so no other node repeats the job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: scripts/test --long engines::"]
async fn the_program_on_mariadb_survives_a_kill_and_gives_the_jobs_back() {
    the_program_survives_a_kill(World::start().await, "Flowable, schema version 7").await;
}

async fn the_program_survives_a_kill(world: World, version: &str) {
    let home = Scratch::new();
    let (user, password) = EngineServer::USER;
    let url = world.engine.endpoint();
    let url = url.replace("http://", &format!("http://{user}:{password}@"));
    let program = |arguments: &[&str]| {
        Program::jobwire()
            .in_directory(home.path())
            .env("JOBWIRE_ENGINE_URL", &url)
            .env("JOBWIRE_ENGINE_TYPE", kind(&world.engine))
            .env("JOBWIRE_ENGINE_EXECUTE", "endpoint")
            .env("JOBWIRE_BROKER_URL", &world.space.url)
            .env("JOBWIRE_AMQP_PREFIX", &world.space.prefix)
            .env("JOBWIRE_LEASE", "3s")
            .env("JOBWIRE_SWEEP_INTERVAL", "1s")
            .env("JOBWIRE_HTTP", "127.0.0.1:0")
            .args(arguments)
    };
    let said = succeeds(program(&["doctor"])).await;
    for part in [version, "MariaDB", "answers"] {
        assert!(said.contains(part), "{part} in {said}");
    }
    succeeds(program(&["engine", "init"])).await;
    let start = || async {
        let node: Running = program(&["engine", "run"]).start();
        node.wait_for_line("is ready", SOON).await;
        node
    };
    let first = start().await;
    let slow = [("millis", "20000")];
    let slow = world.engine.start_instance("slow", &slow).await;
    world.until_started(&slow, 1).await;
    let mut instances = world.engine.start_instances("chain", 10, &[]).await;
    first.signal(Signal::SIGKILL);
    let mut second = start().await;
    instances.extend(world.engine.start_instances("one", 10, &[]).await);
    instances.push(slow);
    world.until_ended(&instances).await;
    assert_eq!(world.database.count(REPEATED).await, 0);
    world.until_no_lock_is_left().await;
    let (status, lines) = program(&["engine", "release", "--yes"]).run(SOON).await;
    let said = lines.join("\n");
    assert!(
        !status.success() && said.contains("stop it first"),
        "{said}"
    );
    second.signal(Signal::SIGTERM);
    assert!(second.exit(SOON).await.success());
    // The row of the killed node stays for a while.
    let silent = "DELETE FROM ACT_GE_PROPERTY WHERE NAME_ LIKE 'jobwire.node.%'";
    world.database.query(silent).await;
    let left = world.engine.start_instance("one", &[]).await;
    let lock = |expiry: &str| {
        format!(
            "UPDATE ACT_RU_JOB SET LOCK_OWNER_ = 'jobwire:00000000-0000-4000-8000-000000000000:1',
                LOCK_EXP_TIME_ = NOW(3) {expiry} WHERE PROCESS_INSTANCE_ID_ = '{left}'"
        )
    };
    world.database.query(&lock("+ INTERVAL 1 HOUR")).await;
    let release = program(&["engine", "release", "--yes"]);
    let (status, said) = release.run(SOON).await;
    let said = said.join("\n");
    assert!(
        !status.success() && said.contains("1 have not expired"),
        "an execution may still run: {said}"
    );
    world.database.query(&lock("- INTERVAL 1 HOUR")).await;
    let said = succeeds(program(&["engine", "release", "--yes"])).await;
    assert!(said.contains("1 lock released"), "{said}");
    assert_eq!(world.locks().await, 0);
}

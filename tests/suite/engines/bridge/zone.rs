//! A configured zone that is not that of the engine. No engine runs: the rows are written as by an
//! engine whose clock is five hours behind UTC.

mod evidence;
mod limits;

use std::collections::HashSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use chrono::Utc;
use jobwire_core::job::scope::{Scope, Services};
use jobwire_core::store::attempts::AttemptsKept;
use jobwire_core::store::{
    CycleOutcome, CycleReport, LeaderCycle, Membership, MovedTimers, OrphanQuery, Store,
};
use jobwire_core::{Hint, JobId, NodeId};
use jobwire_engines::{Bridge as _, EngineOptions, EngineStore};
use jobwire_tests::shared;
use sqlx::{AssertSqlSafe, PgPool};

use super::flowable::{hint, job_id, terms};

/// The engine's zone.
const ENGINES: &str = "Etc/GMT+5";
const URL: &str = "http://127.0.0.1:9/engine";

const FLOWABLE: &str = "
CREATE TABLE act_ru_job (id_ text PRIMARY KEY, rev_ integer, category_ text, type_ text, lock_exp_time_ timestamp, lock_owner_ text,
    exclusive_ boolean, execution_id_ text, process_instance_id_ text, proc_def_id_ text, element_id_ text, element_name_ text,
    scope_id_ text, sub_scope_id_ text, scope_type_ text, scope_definition_id_ text, correlation_id_ text, retries_ integer,
    exception_stack_id_ text, exception_msg_ text, duedate_ timestamp, repeat_ text, handler_type_ text, handler_cfg_ text,
    custom_values_id_ text, create_time_ timestamp, tenant_id_ text);
CREATE TABLE act_ru_timer_job (LIKE act_ru_job INCLUDING ALL);
CREATE TABLE act_ru_suspended_job (LIKE act_ru_job INCLUDING ALL);
CREATE TABLE act_ru_deadletter_job (LIKE act_ru_job INCLUDING ALL);
CREATE TABLE act_ru_external_job (LIKE act_ru_job INCLUDING ALL);
CREATE TABLE act_ru_execution (id_ text PRIMARY KEY, rev_ integer, lock_time_ timestamp, lock_owner_ text, suspension_state_ integer,
    is_count_enabled_ boolean, job_count_ integer, timer_job_count_ integer, start_time_ timestamp);
CREATE TABLE act_ge_bytearray (id_ text, bytes_ bytea);
CREATE TABLE act_ge_property (name_ text, value_ text);
INSERT INTO act_ge_property VALUES ('common.schema.version', '7.2.0.2')";

pub(super) const CAMUNDA: &str = "
CREATE TABLE act_ru_job (id_ text PRIMARY KEY, rev_ integer, type_ text, lock_exp_time_ timestamp, lock_owner_ text, execution_id_ text,
    process_instance_id_ text, process_def_id_ text, retries_ integer, exception_stack_id_ text, exception_msg_ text,
    failed_act_id_ text, duedate_ timestamp, handler_type_ text, deployment_id_ text, suspension_state_ integer, priority_ bigint,
    sequence_counter_ bigint, tenant_id_ text, create_time_ timestamp);
CREATE TABLE act_ru_execution (id_ text PRIMARY KEY, suspension_state_ integer);
CREATE TABLE act_ge_bytearray (id_ text, bytes_ bytea);
CREATE TABLE act_ge_schema_log (id_ text, timestamp_ timestamp, version_ text);
INSERT INTO act_ge_schema_log VALUES ('0', localtimestamp, '7.24.0')";

/// Creates an instance and a job of it. `$1`: the zone of the writer, `$2` and `$3`: their ids.
const JOB_OF_FLOWABLE: &str = "
WITH instance AS (INSERT INTO act_ru_execution (id_, rev_, suspension_state_, is_count_enabled_, job_count_, timer_job_count_, start_time_)
    VALUES ($2, 1, 1, true, 1, 0, clock_timestamp() AT TIME ZONE $1))
INSERT INTO TABLE_ (id_, rev_, type_, exclusive_, execution_id_, process_instance_id_, retries_, handler_type_, create_time_)
VALUES ($3, 1, 'message', true, $2, $2, 3, 'async-continuation', clock_timestamp() AT TIME ZONE $1)";
pub(super) const JOB_OF_CAMUNDA: &str = "
WITH instance AS (INSERT INTO act_ru_execution VALUES ($2, 1))
INSERT INTO TABLE_ (id_, rev_, type_, execution_id_, process_instance_id_, retries_, handler_type_, suspension_state_, priority_, sequence_counter_, create_time_)
VALUES ($3, 1, 'message', $2, $2, 3, 'async-continuation', 1, 0, 1, clock_timestamp() AT TIME ZONE $1)";

pub(super) const JOBS: &str = "act_ru_job";
const TIMERS: &str = "act_ru_timer_job";

/// Locks a job until `$4` from now, by a clock in the zone `$2`. `$1`: the job, `$3`: the owner.
const LOCK: &str = "UPDATE TABLE_ SET lock_owner_ = $3, lock_exp_time_ = (clock_timestamp() AT TIME ZONE $2) + $4 WHERE id_ = $1";
/// The same for an instance of Flowable.
const LOCK_INSTANCE: &str = "UPDATE act_ru_execution SET lock_owner_ = $3, lock_time_ = (clock_timestamp() AT TIME ZONE $2) + $4 WHERE id_ = $1";
/// Makes a job a timer that is due `$3` from now, by a clock in the zone `$2`.
const DUE: &str = "UPDATE TABLE_ SET type_ = 'timer', duedate_ = (clock_timestamp() AT TIME ZONE $2) + $3 WHERE id_ = $1";

/// Returns an id as the engine makes it now: a UUID of version 1. No two have the same moment.
fn id() -> String {
    static NUMBER: AtomicI64 = AtomicI64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let ticks = Utc::now().timestamp_micros() * 10 + 122_192_928_000_000_000 + number;
    let (low, middle, high) = (ticks & 0xffff_ffff, (ticks >> 32) & 0xffff, ticks >> 48);
    format!("{low:08x}-{middle:04x}-1{high:03x}-b3c8-9e6bdeced846")
}

fn minutes(minutes: i64) -> sqlx::postgres::types::PgInterval {
    sqlx::postgres::types::PgInterval {
        months: 0,
        days: 0,
        microseconds: minutes * 60_000_000,
    }
}

/// The tables of an engine that does not run, and the leader on them.
pub(super) struct Tables {
    database: String,
    pub(super) pool: PgPool,
    job: &'static str,
    node: NodeId,
}

/// A job and its instance.
pub(super) struct Made {
    pub(super) job: String,
    instance: String,
}

impl Tables {
    pub(super) async fn create(tables: &str, job: &'static str) -> Tables {
        let database = shared::postgres().await.create_database().await;
        let pool = PgPool::connect(&database).await.unwrap();
        let created = sqlx::raw_sql(AssertSqlSafe(tables.to_owned()));
        created.execute(&pool).await.unwrap();
        Tables {
            database,
            pool,
            job,
            node: NodeId::generate(),
        }
    }

    /// Connects with a configured zone, as a node does at its start.
    pub(super) async fn connect(&self, zone: &str) -> EngineStore {
        let zone = zone.to_owned();
        let store = if self.job == JOB_OF_CAMUNDA {
            EngineStore::camunda(&self.database, EngineOptions::camunda(URL).zone(zone)).await
        } else {
            EngineStore::flowable(&self.database, EngineOptions::new(URL).zone(zone)).await
        };
        let store = store.unwrap();
        store.init().await.unwrap();
        store.check().await.unwrap().ready().unwrap();
        store
    }

    /// Creates a job by a clock in this zone.
    pub(super) async fn job(&self, table: &str, zone: &str) -> Made {
        let (instance, job) = (id(), id());
        let statement = self.job.replace("TABLE_", table);
        let created = sqlx::query(AssertSqlSafe(statement));
        let created = created.bind(zone).bind(&instance).bind(&job);
        created.execute(&self.pool).await.unwrap();
        Made { job, instance }
    }

    /// Locks a job, or an instance, by a clock in this zone.
    async fn lock(&self, statement: &str, id: &str, zone: &str, (owner, until): (&str, i64)) {
        let locked = sqlx::query(AssertSqlSafe(statement.to_owned()));
        let locked = locked.bind(id).bind(zone).bind(owner).bind(minutes(until));
        assert_eq!(locked.execute(&self.pool).await.unwrap().rows_affected(), 1);
    }

    /// Creates a timer by a clock in the engine's zone.
    async fn timer(&self, table: &str, due: i64) -> Made {
        let made = self.job(table, ENGINES).await;
        self.set_due(table, &made, due).await;
        made
    }

    async fn set_due(&self, table: &str, made: &Made, due: i64) {
        let timer = sqlx::query(AssertSqlSafe(DUE.replace("TABLE_", table)));
        let timer = timer.bind(&made.job).bind(ENGINES).bind(minutes(due));
        assert_eq!(timer.execute(&self.pool).await.unwrap().rows_affected(), 1);
    }

    /// Runs a cycle of the leader.
    async fn cycle(&self, store: &EngineStore) -> CycleReport {
        let cycle = cycle_of(self.node);
        match store.run_leader_cycle(&cycle).await.unwrap() {
            CycleOutcome::Leads(report) => *report,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the owner of a lock.
    async fn owner(&self, table: &str, id: &str) -> Option<String> {
        let owner = format!("SELECT lock_owner_ FROM {table} WHERE id_ = $1");
        let owner = sqlx::query_scalar(AssertSqlSafe(owner)).bind(id);
        owner.fetch_one(&self.pool).await.unwrap()
    }

    async fn is_in(&self, table: &str, id: &str) -> bool {
        let found = format!("SELECT EXISTS (SELECT FROM {table} WHERE id_ = $1)");
        let found = sqlx::query_scalar(AssertSqlSafe(found)).bind(id);
        found.fetch_one(&self.pool).await.unwrap()
    }
}

fn rescued(report: &CycleReport) -> HashSet<JobId> {
    let ids = report.rescued.iter().map(|rescued| rescued.ready.hint.id);
    ids.collect()
}

fn hints(report: &CycleReport) -> HashSet<JobId> {
    let ids = report.unhinted.iter().map(|ready| ready.hint.id);
    ids.collect()
}

fn moved(timers: &MovedTimers) -> HashSet<JobId> {
    timers.ready.iter().map(|ready| ready.hint.id).collect()
}

fn ids<const N: usize>(of: [&Made; N]) -> HashSet<JobId> {
    of.iter().map(|made| job_id(&made.job)).collect()
}

/// The owner of the locks of a node of Jobwire that is dead.
fn dead() -> String {
    format!("jobwire:{}:1", NodeId::generate())
}

/// Returns the cycle of a leader that clears up to a hundred locks.
pub(super) fn cycle_of(node: NodeId) -> LeaderCycle {
    LeaderCycle {
        node,
        lease: Duration::from_secs(30),
        transport: "in-process",
        reset_at_most: 100,
        clock: None,
        may_wait: Duration::ZERO,
        grace: Duration::ZERO,
        services: Services::default(),
        again_after: Duration::from_secs(30),
        hint_at_most: 100,
        attempts_kept: AttemptsKept::new(),
    }
}

/// Returns the row of a node.
pub(super) fn row_of(id: NodeId) -> Membership {
    Membership {
        id,
        revision: 1,
        types: Vec::new(),
        lanes: Vec::new(),
        scope: Scope::default(),
        host: "host".to_owned(),
        version: "1".to_owned(),
        transport: "in-process".to_owned(),
        attempts_kept: AttemptsKept::new(),
    }
}

/// Asserts that a store reports the wrong zone, to health and to the doctor.
async fn assert_told(store: &EngineStore) {
    let (part, problem) = store.failing_part().expect("a problem");
    assert_eq!(part, "zone");
    assert!(
        problem.contains("5 h 0 min behind the zone `UTC`") && problem.contains("`engine_zone`"),
        "{problem}"
    );
    let findings = store.examine().await.unwrap();
    let of_zone: Vec<_> = findings.iter().filter(|f| f.about == "zone").collect();
    assert_eq!(of_zone.len(), 1, "{findings:#?}");
    assert_eq!(of_zone[0].level, jobwire_engines::examine::Level::Wrong);
    assert!(of_zone[0].found.contains("`engine_zone`"));
}

#[tokio::test]
async fn in_a_wrong_zone_no_lock_of_a_flowable_node_is_cleared_and_no_timer_is_early() {
    let tables = Tables::create(FLOWABLE, JOB_OF_FLOWABLE).await;
    let lock = LOCK.replace("TABLE_", JOBS);
    // An engine node executes a job; another one holds an instance, and a third one a timer.
    let running = tables.job(JOBS, ENGINES).await;
    let held = tables.job(JOBS, ENGINES).await;
    let timer = tables.timer(TIMERS, 60).await;
    let fired = tables.timer(TIMERS, 1).await;
    let by_engine = ("engine", 5);
    tables.lock(&lock, &running.job, ENGINES, by_engine).await;
    for made in [&running, &held] {
        tables
            .lock(LOCK_INSTANCE, &made.instance, ENGINES, by_engine)
            .await;
    }
    let lock_timer = LOCK.replace("TABLE_", TIMERS);
    tables
        .lock(&lock_timer, &fired.job, ENGINES, by_engine)
        .await;
    // A dead node of Jobwire has locked in the configured zone.
    let (lost, dead) = (tables.job(JOBS, ENGINES).await, dead());
    tables.lock(&lock, &lost.job, "UTC", (&dead, -1)).await;
    let ready = tables.job(JOBS, ENGINES).await;

    let wrong = tables.connect("UTC").await;
    assert_told(&wrong).await;
    let early = wrong.move_due_timers(100).await.unwrap();
    assert_eq!(moved(&early), HashSet::new());
    assert!(early.next_due.is_some_and(|due| due > early.now));
    let report = tables.cycle(&wrong).await;
    assert_eq!(rescued(&report), ids([&lost]));
    let engines = Some("engine".to_owned());
    assert_eq!(tables.owner(JOBS, &running.job).await, engines);
    assert_eq!(tables.owner(TIMERS, &fired.job).await, engines);
    for made in [&running, &held] {
        assert_eq!(
            tables.owner("act_ru_execution", &made.instance).await,
            engines
        );
    }
    assert!(tables.is_in(TIMERS, &timer.job).await);
    // Ready jobs run as usual.
    let node = NodeId::generate();
    let locked = wrong.lock(&terms(node), &[hint(&ready.job)]).await.unwrap();
    assert_eq!(locked.jobs.len(), 1, "{locked:?}");
    Store::close(&wrong).await;

    // In the right zone the same locks have not expired.
    let right = tables.connect(ENGINES).await;
    assert_eq!(right.failing_part(), None);
    assert_eq!(rescued(&tables.cycle(&right).await), HashSet::new());
    tables
        .lock(&lock, &running.job, ENGINES, ("engine", -2))
        .await;
    tables.set_due(TIMERS, &timer, -1).await;
    assert_eq!(rescued(&tables.cycle(&right).await), ids([&running]));
    let due = right.move_due_timers(100).await.unwrap();
    assert_eq!(moved(&due), ids([&timer]));
    // A moved timer has the engine's time, too.
    let is_written = "SELECT create_time_ - (clock_timestamp() AT TIME ZONE $2) BETWEEN interval '-1 minute' AND '0' FROM act_ru_job WHERE id_ = $1";
    let is_written = sqlx::query_scalar::<_, bool>(is_written).bind(&timer.job);
    let is_written = is_written.bind(ENGINES).fetch_one(&tables.pool).await;
    assert!(is_written.unwrap());
    Store::close(&right).await;
}

#[tokio::test]
async fn in_a_wrong_zone_no_lock_of_a_camunda_node_is_cleared_and_no_timer_is_early() {
    let tables = Tables::create(CAMUNDA, JOB_OF_CAMUNDA).await;
    let lock = LOCK.replace("TABLE_", JOBS);
    let running = tables.job(JOBS, ENGINES).await;
    tables
        .lock(&lock, &running.job, ENGINES, ("engine", 5))
        .await;
    let timer = tables.timer(JOBS, 60).await;
    let (lost, dead) = (tables.job(JOBS, ENGINES).await, dead());
    tables.lock(&lock, &lost.job, "UTC", (&dead, -1)).await;
    let ready = tables.job(JOBS, ENGINES).await;

    let wrong = tables.connect("UTC").await;
    assert_told(&wrong).await;
    let early = wrong.move_due_timers(100).await.unwrap();
    assert_eq!(moved(&early), HashSet::new());
    assert!(early.next_due.is_some_and(|due| due > early.now));
    let report = tables.cycle(&wrong).await;
    assert_eq!(rescued(&report), ids([&lost]));
    let new = hints(&report);
    assert!(new.contains(&job_id(&ready.job)), "{new:?}");
    assert!(!new.contains(&job_id(&timer.job)), "{new:?}");
    let engines = Some("engine".to_owned());
    assert_eq!(tables.owner(JOBS, &running.job).await, engines);
    // Neither the sweeper nor a hint starts the timer.
    let lane = wrong.options().lane.clone();
    let query = OrphanQuery::new(lane, terms(tables.node).types, Utc::now(), 100);
    let orphans = wrong.orphans(&query).await.unwrap();
    let mut orphans = orphans.ready.iter().map(|ready| ready.hint.id);
    assert!(!orphans.any(|id| id == job_id(&timer.job)));
    let node = NodeId::generate();
    let both: Vec<Hint> = [&timer, &ready].map(|made| hint(&made.job)).to_vec();
    let locked = wrong.lock(&terms(node), &both).await.unwrap();
    let locked: HashSet<JobId> = locked.jobs.iter().map(|locked| locked.job.id).collect();
    assert_eq!(locked, ids([&ready]));
    Store::close(&wrong).await;

    let right = tables.connect(ENGINES).await;
    assert_eq!(right.failing_part(), None);
    assert_eq!(rescued(&tables.cycle(&right).await), HashSet::new());
    tables
        .lock(&lock, &running.job, ENGINES, ("engine", -2))
        .await;
    tables.set_due(JOBS, &timer, -1).await;
    let report = tables.cycle(&right).await;
    assert_eq!(rescued(&report), ids([&running]));
    assert!(hints(&report).contains(&job_id(&timer.job)), "{report:?}");
    let locked = right.lock(&terms(node), &[hint(&timer.job)]).await.unwrap();
    assert_eq!(locked.jobs.len(), 1, "{locked:?}");
    Store::close(&right).await;
}

#[tokio::test]
async fn a_zone_that_becomes_right_is_trusted_again_and_a_few_odd_rows_change_nothing() {
    let tables = Tables::create(FLOWABLE, JOB_OF_FLOWABLE).await;
    for _ in 0..5 {
        tables.job(JOBS, ENGINES).await;
    }
    let store = tables.connect("UTC").await;
    assert_told(&store).await;
    // The engine was restarted in the configured zone: each new instance and each new job is a vote for it.
    for _ in 0..5 {
        tables.job(JOBS, "UTC").await;
    }
    store.check().await.unwrap();
    assert_eq!(store.failing_part(), None);
    let lock = LOCK.replace("TABLE_", JOBS);
    let gone = tables.job(JOBS, "UTC").await;
    tables.lock(&lock, &gone.job, "UTC", ("engine", -2)).await;
    assert_eq!(rescued(&tables.cycle(&store).await), ids([&gone]));
    // Two instances with their jobs are four of nine votes.
    for _ in 0..2 {
        tables.job(JOBS, ENGINES).await;
    }
    store.check().await.unwrap();
    assert_eq!(store.failing_part(), None);
    Store::close(&store).await;
}

#[tokio::test]
async fn a_lock_of_a_living_node_with_another_zone_stays() {
    let tables = Tables::create(FLOWABLE, JOB_OF_FLOWABLE).await;
    let made = tables.job(JOBS, ENGINES).await;
    let right = tables.connect(ENGINES).await;
    let node = NodeId::generate();
    let locked = right.lock(&terms(node), &[hint(&made.job)]).await.unwrap();
    assert_eq!(locked.jobs.len(), 1, "{locked:?}");
    right.write_node(&row_of(node)).await.unwrap();
    let wrong = tables.connect("UTC").await;
    assert_eq!(rescued(&tables.cycle(&wrong).await), HashSet::new());
    let owner = tables.owner(JOBS, &made.job).await.unwrap_or_default();
    assert!(owner.contains(&node.to_string()), "{owner}");
    // When that node is gone, its job is taken over.
    right.remove_node(node).await.unwrap();
    assert_eq!(rescued(&tables.cycle(&wrong).await), ids([&made]));
    for store in [right, wrong] {
        Store::close(&store).await;
    }
}

//! The tables of an engine, with the columns that Jobwire uses.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::{InProcessTransport, JobId, NodeOptions};
use jobwire_engines::{EngineOptions, EngineStore, Execution};
use jobwire_tests::{eventually, shared};
use sqlx::types::chrono::NaiveDateTime;
use sqlx::{AssertSqlSafe, PgPool, Postgres, Transaction};

use crate::engines::bridge::flowable::Bridge;
use crate::engines::bridge::zone::CAMUNDA;
use crate::engines::rows::{JOB, JobRow, Rows, SOON};

/// The tables of Flowable 7.
const FLOWABLE: &str = "
CREATE TABLE act_ge_property (name_ varchar(64) PRIMARY KEY, value_ varchar(300), rev_ integer);
INSERT INTO act_ge_property VALUES ('common.schema.version', '7.2.0.2', 1);
CREATE TABLE act_ge_bytearray (id_ varchar(64) PRIMARY KEY, bytes_ bytea);
CREATE TABLE act_ru_execution (id_ varchar(64) PRIMARY KEY, rev_ integer, proc_inst_id_ varchar(64), lock_time_ timestamp,
    lock_owner_ varchar(255), suspension_state_ integer, is_count_enabled_ boolean, job_count_ integer,
    timer_job_count_ integer, start_time_ timestamp);
CREATE TABLE act_ru_job (id_ varchar(64) PRIMARY KEY, rev_ integer, category_ varchar(255), type_ varchar(255) NOT NULL,
    lock_exp_time_ timestamp, lock_owner_ varchar(255), exclusive_ boolean, execution_id_ varchar(64),
    process_instance_id_ varchar(64), proc_def_id_ varchar(64), element_id_ varchar(255), element_name_ varchar(255),
    scope_id_ varchar(255), sub_scope_id_ varchar(255), scope_type_ varchar(255), scope_definition_id_ varchar(255),
    correlation_id_ varchar(255), retries_ integer, exception_stack_id_ varchar(64), exception_msg_ varchar(4000),
    duedate_ timestamp, repeat_ varchar(255), handler_type_ varchar(255), handler_cfg_ varchar(4000),
    custom_values_id_ varchar(64), create_time_ timestamp DEFAULT (clock_timestamp() AT TIME ZONE 'UTC'),
    tenant_id_ varchar(255) DEFAULT '');
CREATE TABLE act_ru_timer_job (LIKE act_ru_job INCLUDING ALL);
CREATE TABLE act_ru_suspended_job (LIKE act_ru_job INCLUDING ALL);
CREATE TABLE act_ru_deadletter_job (LIKE act_ru_job INCLUDING ALL);
CREATE TABLE act_ru_external_job (LIKE act_ru_job INCLUDING ALL);";

/// Makes these the tables of Activiti 7.
const ACTIVITI: &str = "
UPDATE act_ge_property SET name_ = 'schema.version', value_ = '7.1.0-M6';
DROP TABLE act_ru_external_job;
ALTER TABLE act_ru_execution DROP COLUMN lock_owner_;";

/// The columns of jobs that Activiti lacks.
const LACKING: [&str; 10] = [
    "category_",
    "element_id_",
    "element_name_",
    "scope_id_",
    "sub_scope_id_",
    "scope_type_",
    "scope_definition_id_",
    "correlation_id_",
    "custom_values_id_",
    "create_time_",
];

const TABLES_OF_JOBS: [&str; 4] = [
    JOB,
    "act_ru_timer_job",
    "act_ru_suspended_job",
    "act_ru_deadletter_job",
];

const INSTANCE: &str = "
INSERT INTO act_ru_execution (id_, rev_, proc_inst_id_, suspension_state_, is_count_enabled_, job_count_, timer_job_count_, start_time_)
VALUES ($1, 1, $1, 1, true, 0, 0, clock_timestamp() AT TIME ZONE 'UTC')";

/// Creates a job, and counts it on its execution, as the engine does.
const CREATE: &str = "
WITH counted AS (UPDATE act_ru_execution SET job_count_ = job_count_ + 1 WHERE id_ = $1)
INSERT INTO act_ru_job (id_, rev_, type_, exclusive_, execution_id_, process_instance_id_, proc_def_id_, retries_, handler_type_)
VALUES ($2, 1, 'message', true, $1, $1, 'process:1:1', 3, 'async-continuation')";

const CREATE_TIMER: &str = "
WITH counted AS (UPDATE act_ru_execution SET timer_job_count_ = timer_job_count_ + 1 WHERE id_ = $1)
INSERT INTO act_ru_timer_job (id_, rev_, type_, exclusive_, execution_id_, process_instance_id_, proc_def_id_, retries_, handler_type_, duedate_)
VALUES ($2, 1, 'timer', true, $1, $1, 'process:1:1', 3, 'trigger-timer', (clock_timestamp() AT TIME ZONE 'UTC') - interval '1 day')";

const INSTANCE_OF_CAMUNDA: &str =
    "INSERT INTO act_ru_execution (id_, suspension_state_) VALUES ($1, 1)";
const CREATE_IN_CAMUNDA: &str = "
INSERT INTO act_ru_job (id_, rev_, type_, execution_id_, process_instance_id_, process_def_id_, retries_, handler_type_,
    suspension_state_, priority_, sequence_counter_, create_time_)
VALUES ($2, 1, 'message', $1, $1, 'process:1:1', 3, 'async-continuation', 1, 0, 1, clock_timestamp() AT TIME ZONE 'UTC')";

/// The engine whose tables these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    Flowable,
    Activiti,
    Camunda,
}

/// A database with the tables of an engine.
pub(super) struct Bare {
    pub(super) engine: Engine,
    pub(super) database: String,
    pub(super) rows: Rows,
}

impl Bare {
    /// Creates the tables, and those of Jobwire beside them.
    pub(super) async fn of(engine: Engine) -> Bare {
        let database = shared::postgres().await.create_database().await;
        let pool = PgPool::connect(&database).await.unwrap();
        let mut tables = match engine {
            Engine::Camunda => CAMUNDA.to_owned(),
            Engine::Flowable | Engine::Activiti => FLOWABLE.to_owned(),
        };
        if engine == Engine::Activiti {
            tables.push_str(ACTIVITI);
            for table in TABLES_OF_JOBS {
                let drops = LACKING.map(|column| format!("DROP COLUMN {column}"));
                tables.push_str(&format!("ALTER TABLE {table} {};", drops.join(", ")));
            }
        }
        sqlx::raw_sql(AssertSqlSafe(tables))
            .execute(&pool)
            .await
            .unwrap();
        let bare = Bare {
            engine,
            database,
            rows: Rows(pool),
        };
        // No program listens there, and no request is sent.
        let options = bare.options("http://127.0.0.1:1/jobwire");
        bare.store(options).await.init().await.unwrap();
        bare
    }

    /// Connects to the tables.
    pub(super) async fn store(&self, options: EngineOptions) -> EngineStore {
        let store = match self.engine {
            Engine::Flowable => EngineStore::flowable(&self.database, options).await,
            Engine::Activiti => EngineStore::activiti(&self.database, options).await,
            Engine::Camunda => EngineStore::camunda(&self.database, options).await,
        };
        store.unwrap()
    }

    /// Returns the options of a bridge to the execution endpoint at this URL.
    pub(super) fn options(&self, url: impl Into<String>) -> EngineOptions {
        let options = match self.engine {
            Engine::Flowable => EngineOptions::new(url),
            Engine::Activiti => EngineOptions::activiti(url),
            Engine::Camunda => EngineOptions::camunda(url),
        };
        options.execution(Execution::Endpoint)
    }

    /// Starts a node of this process.
    pub(super) async fn bridge(&self, options: EngineOptions, node: NodeOptions) -> Bridge {
        let store = self.store(options).await;
        Bridge::on(store, Arc::new(InProcessTransport::new()), node).await
    }

    /// Creates an instance with this number of jobs. Returns its id and theirs, in the order of
    /// their creation.
    pub(super) async fn instance(&self, jobs: usize) -> (String, Vec<String>) {
        let instance = JobId::generate().to_string();
        let (begin, create) = match self.engine {
            Engine::Camunda => (INSTANCE_OF_CAMUNDA, CREATE_IN_CAMUNDA),
            Engine::Flowable | Engine::Activiti => (INSTANCE, CREATE),
        };
        self.rows.change(begin, &instance).await;
        let mut ids = Vec::new();
        for _ in 0..jobs {
            ids.push(self.create(create, &instance).await);
        }
        (instance, ids)
    }

    /// Creates an instance with one job. Returns the id of the job.
    pub(super) async fn job(&self) -> String {
        self.instance(1).await.1.remove(0)
    }

    /// Creates an instance with a timer that has been due for a day, in the table of timers. Returns the
    /// id of the timer.
    pub(super) async fn timer(&self) -> String {
        let (instance, _) = self.instance(0).await;
        self.create(CREATE_TIMER, &instance).await
    }

    async fn create(&self, statement: &'static str, instance: &str) -> String {
        let id = JobId::generate().to_string();
        let create = sqlx::query(statement).bind(instance).bind(&id);
        create.execute(&self.rows.0).await.unwrap();
        id
    }

    /// Returns the row of a job in this table.
    pub(super) async fn find(&self, table: &str, id: &str) -> Option<JobRow> {
        let query = format!(
            "SELECT id_, rev_, retries_, execution_id_, lock_owner_, lock_exp_time_, duedate_
             FROM {table} WHERE id_ = $1"
        );
        let query = sqlx::query_as(AssertSqlSafe(query)).bind(id);
        query.fetch_optional(&self.rows.0).await.unwrap()
    }

    /// Returns the database's clock as the engine writes it.
    pub(super) async fn clock(&self) -> NaiveDateTime {
        let clock = sqlx::query_scalar("SELECT clock_timestamp() AT TIME ZONE 'UTC'");
        clock.fetch_one(&self.rows.0).await.unwrap()
    }

    /// Begins a transaction as the engine does for an execution.
    pub(super) async fn begin(&self) -> Transaction<'static, Postgres> {
        let mut transaction = self.rows.0.begin().await.unwrap();
        sqlx::query("SELECT FROM act_ru_job")
            .execute(&mut *transaction)
            .await
            .unwrap();
        transaction
    }

    /// Ends a job as an execution does.
    pub(super) async fn end(&self, id: &str) {
        let delete = "DELETE FROM act_ru_job WHERE id_ = $1";
        assert_eq!(self.rows.change(delete, id).await, 1, "{id}");
    }

    /// Waits until a job has been under its lock for this time: a lock is extended, and one of Camunda
    /// stays as it is. Fails if another lock takes its place.
    pub(super) async fn until_held(&self, lock: &JobRow, long: Duration) {
        if self.engine != Engine::Camunda {
            return self.until_renewed(lock, long).await;
        }
        let past = self.clock().await + long;
        eventually("the lock to have stayed", SOON, || async {
            let row = self.find(JOB, &lock.id).await;
            assert_eq!(row.as_ref(), Some(lock), "the row has changed");
            (self.clock().await > past).then_some(())
        })
        .await;
    }

    /// Waits until the lock of a job has been extended to this time after another expiry. Fails if
    /// another lock takes its place.
    pub(super) async fn until_renewed(&self, lock: &JobRow, by: Duration) {
        let past = lock.expiry.unwrap() + by;
        eventually("the lock to be renewed", SOON, || async {
            let row = self.find(JOB, &lock.id).await.expect("the job");
            assert_eq!(row.owner, lock.owner, "the lock has ended");
            (row.expiry.unwrap() > past).then_some(())
        })
        .await;
    }
}

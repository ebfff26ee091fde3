//! Rows of an engine's database, as the tests of engines read them.

use std::time::Duration;

use jobwire_tests::http::Response;
use jobwire_tests::{EngineServer, EngineSettings, eventually, shared};
use serde_json::Value;
use sqlx::PgPool;
use sqlx::postgres::PgRow;
use sqlx::types::chrono::NaiveDateTime;
use sqlx::{AssertSqlSafe, FromRow, Row};

pub(crate) const SOON: Duration = Duration::from_secs(30);

pub(crate) const JOB: &str = "act_ru_job";
pub(crate) const TIMER: &str = "act_ru_timer_job";
pub(crate) const SUSPENDED: &str = "act_ru_suspended_job";
pub(crate) const DEAD: &str = "act_ru_deadletter_job";

/// Locks a job as a node of the engine does.
pub(crate) const LOCK: &str = "UPDATE act_ru_job SET lock_owner_ = 'somebody',
    lock_exp_time_ = localtimestamp + interval '1 hour' WHERE id_ = $1";

/// Locks a job as a node of Jobwire does.
pub(crate) const LOCK_BY_NODE: &str = "UPDATE act_ru_job
    SET lock_owner_ = 'jobwire:0198c0de-7777-7000-8000-000000000001:1',
    lock_exp_time_ = localtimestamp + interval '1 hour' WHERE id_ = $1";

/// Locks an instance as a node of the engine does; Flowable writes the owner, too.
pub(crate) const LOCK_INSTANCE: &str = "UPDATE act_ru_execution
    SET lock_time_ = localtimestamp + interval '1 hour' WHERE id_ = $1";

/// Locks the rows of a job and its instance for a moment; fails if somebody holds one.
pub(crate) const LOCK_ROWS: &str = "SELECT FROM act_ru_job JOIN act_ru_execution
    ON act_ru_execution.id_ = process_instance_id_ WHERE act_ru_job.id_ = $1 FOR UPDATE NOWAIT";

/// An engine and its database.
pub(crate) struct World {
    pub(crate) engine: EngineServer,
    pub(crate) database: String,
}

impl World {
    /// Starts an engine on a new database.
    pub(crate) async fn start(settings: impl FnOnce(&str) -> EngineSettings) -> World {
        let database = shared::postgres().await.create_database().await;
        let engine = EngineServer::start(settings(&database)).await;
        World { engine, database }
    }

    /// Connects to its database. A pool belongs to the runtime of one test.
    pub(crate) async fn connect(&self) -> Rows {
        Rows(PgPool::connect(&self.database).await.unwrap())
    }
}

/// What became of a job, by the answer of the execution endpoint.
pub(crate) fn state(answer: &Response) -> String {
    assert_eq!(answer.status, 200, "{}", answer.body);
    let body: Value = serde_json::from_str(&answer.body).unwrap();
    body["state"].as_str().unwrap().to_owned()
}

/// The columns of a job that the engines share.
#[derive(Clone, Debug, PartialEq, FromRow)]
pub(crate) struct JobRow {
    #[sqlx(rename = "id_")]
    pub(crate) id: String,
    #[sqlx(rename = "rev_")]
    pub(crate) revision: i32,
    #[sqlx(rename = "retries_")]
    pub(crate) retries: Option<i32>,
    #[sqlx(rename = "execution_id_")]
    pub(crate) execution: Option<String>,
    #[sqlx(rename = "lock_owner_")]
    pub(crate) owner: Option<String>,
    #[sqlx(rename = "lock_exp_time_")]
    pub(crate) expiry: Option<NaiveDateTime>,
    #[sqlx(rename = "duedate_")]
    pub(crate) due: Option<NaiveDateTime>,
}

impl JobRow {
    pub(crate) fn is_locked(&self) -> bool {
        self.owner.is_some() || self.expiry.is_some()
    }
}

/// The database of an engine.
pub(crate) struct Rows(pub(crate) PgPool);

impl Rows {
    /// Runs a statement with one parameter, and returns how many rows it changed or locked.
    pub(crate) async fn change(&self, statement: &str, parameter: &str) -> u64 {
        let query = sqlx::query(AssertSqlSafe(statement)).bind(parameter);
        query.execute(&self.0).await.unwrap().rows_affected()
    }

    /// Returns the rows of a query with one parameter.
    pub(crate) async fn all(&self, query: &str, parameter: &str) -> Vec<PgRow> {
        let query = sqlx::query(AssertSqlSafe(query)).bind(parameter);
        query.fetch_all(&self.0).await.unwrap()
    }

    /// Returns the number that a query with one parameter counts.
    pub(crate) async fn count(&self, query: &str, parameter: &str) -> i64 {
        self.all(query, parameter).await[0].get(0)
    }

    /// Returns the jobs of an instance in a table of jobs with all of [`JobRow`]'s columns.
    pub(crate) async fn jobs(&self, table: &str, instance: &str) -> Vec<JobRow> {
        let query = format!(
            "SELECT id_, rev_, retries_, execution_id_, lock_owner_, lock_exp_time_, duedate_
             FROM {table} WHERE process_instance_id_ = $1 ORDER BY id_"
        );
        let query = sqlx::query_as(AssertSqlSafe(query)).bind(instance);
        query.fetch_all(&self.0).await.unwrap()
    }

    /// Returns the one job of an instance in a table.
    pub(crate) async fn job(&self, table: &str, instance: &str) -> JobRow {
        let mut jobs = self.jobs(table, instance).await;
        assert_eq!(jobs.len(), 1, "{jobs:#?}");
        jobs.remove(0)
    }

    /// Returns the ids of the jobs of an instance in a table.
    pub(crate) async fn ids(&self, table: &str, instance: &str) -> Vec<String> {
        let query = format!("SELECT id_ FROM {table} WHERE process_instance_id_ = $1 ORDER BY id_");
        let rows = self.all(&query, instance).await;
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Waits until an instance has ended.
    pub(crate) async fn until_ended(&self, instance: &str) {
        eventually("the instance to end", SOON, || async {
            self.ended(instance).await.then_some(())
        })
        .await;
    }

    /// Returns the activities of an instance that ran, in the order of their starts.
    pub(crate) async fn effects(&self, instance: &str) -> Vec<String> {
        let query = "SELECT activity FROM jobwire_effect WHERE instance = $1 ORDER BY at";
        let rows = self.all(query, instance).await;
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Waits until as many activities of an instance have started.
    pub(crate) async fn until_started(&self, instance: &str, count: usize) {
        eventually("the activity to start", SOON, || async {
            (self.effects(instance).await.len() == count).then_some(())
        })
        .await;
    }

    /// Returns whether an instance has ended.
    pub(crate) async fn ended(&self, instance: &str) -> bool {
        let query = "SELECT count(*) FROM act_ru_execution WHERE proc_inst_id_ = $1";
        self.count(query, instance).await == 0
    }
}

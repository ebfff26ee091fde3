//! Camunda 7.20 to 7.24 on PostgreSQL, and the engines that share its schema (Operaton, CIB seven):
//! the rules of its job table, each in one file.
//!
//! | table | content |
//! | --- | --- |
//! | `ACT_RU_JOB` | all jobs, for their whole life: executable, timers, suspended, without attempts |
//! | `ACT_RU_EXECUTION` | instances |
//!
//! Rules that all statements keep:
//!
//! * **Each execution has one long lock, which does not change while the job runs.** After a
//!   failure, the engine compares the expiry with the former one. If it differs, the engine counts
//!   no failure and creates no incident. So a renewal only reads the lock. A job whose node has
//!   died is taken over after the expiry of its lock: after [`EngineOptions::lock_for`]. The endpoint
//!   compares the owner instead, and its jobs have the same lock, so that nodes over REST may run
//!   beside nodes over the endpoint.
//! * **`REV_` of a job changes with its lock, and never while the lock is held.** If it changed
//!   during an execution, the engine would roll back work whose effects stay. If it did not change
//!   with the lock, an engine node that polls would replace a lock that was written after its read.
//! * **The lock statement checks conditions that the REST interface ignores**: an existing lock,
//!   the due date, the attempts, and the suspension. The execution of a suspended job costs an
//!   attempt. A cycle that runs early gets its next due dates too close together. The endpoint checks
//!   these conditions again in the transaction of the job.
//! * **One job of an instance at a time**, exclusive or not: the REST interface does not keep
//!   exclusive jobs apart. An instance has no lock. So its row is locked first, and a second
//!   statement, whose snapshot is younger than that row lock, looks at the jobs of the instance
//!   (`lock.rs`).
//! * **The answer 404 does not mean that a job is gone.** Over REST it also stands for a conflict
//!   between transactions, for a suspended instance, and for some failures; over the endpoint for a
//!   job that it does not run now. The row decides.
//! * **Only unlocked rows are locked.** The leader clears expired locks (`rescue.rs`).
//! * **Times are local times of the engine's JVM**, in the zone of the options.
//! * **No statement waits for a row that the engine has locked.** Rows of instances are locked
//!   before rows of jobs, each sorted by key.

mod lock;
mod look;
mod operate;
pub mod probe;
mod release;
mod renew;
mod rescue;
mod settle;
mod sql;
mod sweep;
mod sweepable;
mod tap;
mod timers;

use std::collections::HashSet;
use std::time::Duration;

use async_trait::async_trait;
use jobwire_core::hint::Ready;
use jobwire_core::job::{LockToken, LockedJob};
use jobwire_core::store::{
    ClaimPage, Claimable, Committed, LockTerms, Marked, MovedTimers, Renewed,
};
use jobwire_core::{Fence, JobId, JobState, NodeId, StoreError};
use jobwire_tap::{PgPublication, Rows};
use sqlx::PgPool;
use sqlx::postgres::PgRow;

use crate::call::{Call, Method};
use crate::changing::Change;
use crate::columns::{Columns, Wanted};
use crate::decode::Decoder;
pub use crate::decode::OTHER;
use crate::dialect::{Dialect, Settled};
use crate::fate::Ended;
use crate::finding::Finding;
use crate::freed::{Freed, FreedInstances};
use crate::offset::Offset;
use crate::options::EngineOptions;
use crate::released::Released;
use crate::statements::{DryRun, Queries, Sweep};
use crate::walk::Walk;
use crate::zone::Zone;

/// The kind of engine.
pub(crate) const ENGINE: &str = "camunda";
/// Its name for operators.
pub(crate) const TITLE: &str = "Camunda 7 or an engine with its schema";
/// The setting that turns off its own executor.
pub(crate) const HAND_OVER: &str = "camunda.bpm.job-execution.enabled=false";

/// The types of Camunda's job handlers. Jobs of other handlers have the type [`OTHER`].
pub const HANDLER_TYPES: [&str; 29] = [
    "activate-job-definition",
    "activate-processdefinition",
    "async-continuation",
    "batch-monitor-job",
    "batch-seed-job",
    "batch-set-removal-time",
    "correlate-message",
    "decision-set-removal-time",
    "event",
    "historic-decision-instance-deletion",
    "historic-instance-deletion",
    "history-cleanup",
    "instance-deletion",
    "instance-migration",
    "instance-modification",
    "instance-restart",
    "instance-update-suspension-state",
    OTHER,
    "process-set-removal-time",
    "set-external-task-retries",
    "set-job-retries",
    "set-variables",
    "suspend-job-definition",
    "suspend-processdefinition",
    "timer-intermediate-transition",
    "timer-start-event",
    "timer-start-event-subprocess",
    "timer-task-listener",
    "timer-transition",
];

/// The rules of Camunda's tables.
#[derive(Debug)]
pub(crate) struct Camunda {
    zone: Zone,
    decoder: Decoder,
    lock_for: Duration,
    patience: Duration,
    timers: timers::Reached,
    looks: Walk,
    rescues: Walk,
    offset: Offset,
}

impl Camunda {
    pub(crate) fn new(options: &EngineOptions) -> Self {
        Self {
            zone: Zone::new(&options.zone),
            decoder: Decoder {
                engine: ENGINE,
                types: &HANDLER_TYPES,
                lane: options.lane.clone(),
            },
            lock_for: options.lock_for,
            patience: options.takeover_patience,
            timers: timers::Reached::default(),
            looks: Walk::default(),
            rescues: Walk::default(),
            offset: Offset::default(),
        }
    }
}

/// The rights that a node needs.
const RIGHTS: [(&str, &str); 6] = [
    ("act_ru_job", "SELECT"),
    ("act_ru_job", "UPDATE"),
    ("act_ru_execution", "SELECT"),
    ("act_ru_execution", "UPDATE"),
    ("act_ge_schema_log", "SELECT"),
    ("act_ge_bytearray", "SELECT"),
];

#[async_trait]
impl Dialect for Camunda {
    fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    fn zone(&self) -> &Zone {
        &self.zone
    }

    fn stamps(&self) -> &'static str {
        probe::STAMPS
    }

    fn offset(&self) -> &Offset {
        &self.offset
    }

    fn queries(&self) -> &'static Queries {
        &operate::QUERIES
    }

    fn sweep(&self) -> &'static Sweep {
        &sweep::SWEEP
    }

    fn sweepable(&self) -> Option<DryRun> {
        Some(DryRun {
            sql: sweepable::SWEEPABLE,
            patience: self.patience,
        })
    }

    fn looks(&self) -> &Walk {
        &self.looks
    }

    fn rescues(&self) -> &Walk {
        &self.rescues
    }

    fn execution_body(&self) -> &'static str {
        "{}"
    }

    fn is_refusal(&self, said: &str) -> bool {
        // Over REST, a path that does not exist is a `NotFoundException`. The endpoint names the job.
        said.contains("InvalidRequestException") || said.contains("executable job")
    }

    /// Returns half of the lock: no lock is extended, so a job that has waited longer is not sent.
    fn send_within(&self) -> Option<Duration> {
        Some(self.lock_for / 2)
    }

    fn change(&self, change: Change, state: JobState, id: &str) -> Option<Call> {
        let job = format!("/job/{id}");
        Some(match (change, state) {
            (Change::Delete, _) => Call {
                method: Method::Delete,
                path: job,
                body: String::new(),
            },
            // An empty due date means at once.
            (Change::Retry(_), JobState::Timer) => Call {
                method: Method::Put,
                path: format!("{job}/duedate"),
                body: "{\"duedate\":null}".to_owned(),
            },
            (Change::Retry(retries), JobState::DeadLetter) => Call {
                method: Method::Put,
                path: format!("{job}/retries"),
                body: format!("{{\"retries\":{}}}", retries.max(1)),
            },
            (Change::Retry(_), _) => return None,
        })
    }

    fn about(&self) -> String {
        "/version".to_owned()
    }

    fn rights(&self) -> &'static [(&'static str, &'static str)] {
        &RIGHTS
    }

    async fn examine(&self, pool: &PgPool) -> Result<(Vec<Finding>, bool), StoreError> {
        let probed = probe::probe(pool, self.zone.name()).await?;
        Ok((probed.findings(), probed.missing.is_empty()))
    }

    fn publication(&self, name: String, schema: &str, selects: bool) -> PgPublication {
        tap::publication(name, schema, selects)
    }

    fn committed(&self, rows: &Rows, into: &mut Committed) -> bool {
        tap::committed(rows, self.offset.get(), into)
    }

    async fn probe(&self, pool: &PgPool) -> Result<(), StoreError> {
        probe::probe(pool, self.zone.name()).await?.refuse()
    }

    async fn send_lock(
        &self,
        pool: &PgPool,
        terms: &LockTerms,
        wanted: &Wanted,
    ) -> Result<Vec<PgRow>, StoreError> {
        self.lock_wanted(pool, terms, wanted).await
    }

    async fn claimable(&self, pool: &PgPool, page: &ClaimPage) -> Result<Claimable, StoreError> {
        self.claimable_page(pool, page).await
    }

    async fn renew(
        &self,
        pool: &PgPool,
        owner: NodeId,
        _: Duration,
        held: &[LockToken],
    ) -> Result<Renewed, StoreError> {
        renew::look(pool, owner, held).await
    }

    async fn held_by(
        &self,
        pool: &PgPool,
        owner: NodeId,
        _: Duration,
        known: &[Fence],
    ) -> Result<Vec<LockedJob>, StoreError> {
        self.held_by_node(pool, owner, known).await
    }

    async fn settle_once(
        &self,
        pool: &PgPool,
        held: &Columns,
        unanswered: &[String],
        take: Option<&LockTerms>,
        settled: &mut Settled,
    ) -> Result<HashSet<String>, StoreError> {
        self.settle_rows(pool, held, unanswered, take, settled)
            .await
    }

    async fn ended(
        &self,
        pool: &PgPool,
        id: JobId,
        owner: &str,
        retries: i32,
    ) -> Result<Ended, StoreError> {
        settle::ended(pool, id, owner, retries).await
    }

    async fn move_due(&self, pool: &PgPool, at_most: i64) -> Result<MovedTimers, StoreError> {
        self.hint_due_timers(pool, at_most).await
    }

    async fn new_jobs(
        &self,
        pool: &PgPool,
        engine: &str,
        node: NodeId,
        report: bool,
    ) -> Result<Vec<Ready>, StoreError> {
        self.look_for_new(pool, engine, node, report).await
    }

    async fn hints_of(&self, pool: &PgPool, jobs: &[JobId]) -> Result<Marked, StoreError> {
        self.hints_of_jobs(pool, jobs).await
    }

    async fn free_expired(&self, pool: &PgPool, at_most: i64) -> Result<Vec<Freed>, StoreError> {
        self.free_expired_locks(pool, at_most).await
    }

    /// Returns none: an instance has no lock that could be left behind.
    async fn free_instances(&self, _: &PgPool) -> Result<FreedInstances, StoreError> {
        Ok(FreedInstances::default())
    }

    async fn release_all(&self, pool: &PgPool) -> Result<Released, StoreError> {
        self.release_locks(pool).await
    }

    /// Returns zero: the engine records a failure after the end of the failed transaction, so the
    /// two can't wait for each other.
    async fn cancel_hung(&self, _: &PgPool) -> Result<u64, StoreError> {
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Such an answer is the end of an execution. Another 404 shows a wrong path.
    #[test]
    fn a_refusal_of_the_engine_or_its_endpoint_is_told_from_a_wrong_path() {
        let camunda = Camunda::new(&EngineOptions::camunda("http://127.0.0.1:1/jobwire"));
        for refusal in [
            r#"{"type":"InvalidRequestException","message":"No job found with id '7'"}"#,
            r#"{"message":"there is no executable job 7 that the node has locked"}"#,
            "the node has locked no such executable job",
        ] {
            assert!(camunda.is_refusal(refusal), "{refusal}");
        }
        for page in [
            r#"{"type":"NotFoundException","message":"HTTP 404 Not Found"}"#,
            r#"{"status":404,"error":"Not Found","path":"/jobwire/jobs/7/execute"}"#,
            "",
        ] {
            assert!(!camunda.is_refusal(page), "{page}");
        }
    }
}

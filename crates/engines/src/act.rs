//! Flowable and its ancestor Activiti on PostgreSQL: the rules of their job tables, each in one
//! file. The differences between the two are data ([`Family`]).
//!
//! | table | content |
//! | --- | --- |
//! | `ACT_RU_JOB` | executable jobs, locked or not |
//! | `ACT_RU_TIMER_JOB` | timers, and failed jobs that wait for their next attempt |
//! | `ACT_RU_SUSPENDED_JOB` | jobs of suspended instances |
//! | `ACT_RU_DEADLETTER_JOB` | jobs without attempts left |
//! | `ACT_RU_EXECUTION` | instances; the row of an instance also carries its lock |
//!
//! Rules that all statements keep:
//!
//! * **`REV_` of a job changes with its lock, and never while the lock is held.** The engine
//!   deletes a job `WHERE REV_ =` the value that it has read, so a change during an execution would
//!   make the execution fail after its effects.
//! * **One job of an instance at a time**, exclusive or not. The REST interface does not ensure
//!   this. Two executions that meet at a join can block each other for ever, because the engine
//!   records the failure over a second connection. The endpoint keeps exclusive jobs apart, and
//!   counts a failure for a conflict. `statements.rs` describes which side writes the lock of the
//!   instance.
//! * **Only unlocked rows are locked.** The leader clears expired locks (`rescue.rs`).
//! * **A lock lasts for the lease, or for [`EngineOptions::lock_for`] if that is longer.** A polling
//!   engine node clears an expired lock without a look at open transactions. So beside polling nodes a
//!   lock must outlast the execution of a node that has died.
//! * **Both lock columns are written together.** The engine reads `LOCK_EXP_TIME_` of a job and
//!   `LOCK_OWNER_` of a timer. Jobwire reads `LOCK_EXP_TIME_`: an owner without it holds no lock,
//!   since nothing would end that lock.
//! * **Times are local times of the engine's JVM**, in the zone of the options.
//! * **No statement waits for a row that the engine has locked.** Rows of instances are locked
//!   before rows of jobs, each sorted by key.

mod aside;
mod family;
mod instance_lock;
mod lock;
mod look;
mod operate;
mod probe;
mod release;
mod renew;
mod rescue;
mod settle;
mod sql;
mod statements;
mod sweep;
mod sweepable;
mod tap;
mod timers;

use async_trait::async_trait;
use std::collections::HashSet;
use std::time::Duration;

use jobwire_core::hint::Ready;
use jobwire_core::job::{LockToken, LockedJob};
use jobwire_core::store::{
    ClaimPage, Claimable, Committed, LockTerms, Marked, MovedTimers, Renewed,
};
use jobwire_core::{Fence, JobId, JobState, NodeId, StoreError};
use jobwire_tap::{PgPublication, Rows};
use sqlx::PgPool;
use sqlx::postgres::PgRow;

use self::aside::Aside;
pub(crate) use self::family::Family;
use self::instance_lock::InstanceLock;
pub(crate) use self::statements::Statements;
use crate::call::{Call, Method};
use crate::changing::Change;
use crate::columns::{Columns, Wanted};
use crate::decode::Decoder;
use crate::dialect::{Dialect, Settled};
use crate::finding::Finding;
use crate::freed::{Freed, FreedInstances};
use crate::offset::Offset;
use crate::options::{EngineOptions, Execution, OtherScopes};
use crate::released::Released;
use crate::statements::{DryRun, Queries, Sweep};
use crate::walk::Walk;
use crate::zone::Zone;

/// The rules of the tables of an engine.
#[derive(Debug)]
pub(crate) struct Act {
    family: &'static Family,
    execution: Execution,
    other_scopes: OtherScopes,
    instances_of: InstanceLock,
    sql: &'static Statements,
    zone: Zone,
    decoder: Decoder,
    lock_for: Duration,
    patience: Duration,
    path: String,
    looks: Walk,
    rescues: Walk,
    instances: Walk,
    offset: Offset,
    aside: Aside,
}

impl Act {
    /// Returns the rules for the way of execution in the options.
    pub(crate) fn new(
        family: &'static Family,
        sql: &'static Statements,
        options: &EngineOptions,
    ) -> Self {
        Self {
            family,
            execution: options.execution,
            other_scopes: options.other_scopes,
            instances_of: InstanceLock::of(family, options.execution),
            sql,
            zone: Zone::new(&options.zone),
            decoder: Decoder {
                engine: family.engine,
                types: family.types,
                lane: options.lane.clone(),
            },
            lock_for: options.lock_for,
            patience: options.takeover_patience,
            path: options.path.clone(),
            looks: Walk::default(),
            rescues: Walk::default(),
            instances: Walk::default(),
            offset: Offset::default(),
            aside: Aside::default(),
        }
    }

    /// Returns the length of a lock for this lease.
    fn locked_for(&self, lease: Duration) -> Duration {
        self.lock_for.max(lease)
    }

    /// Returns the path up to the jobs, under which the engine's other tables of jobs are siblings.
    fn management(&self) -> &str {
        self.path.split("/jobs/").next().unwrap_or_default()
    }
}

/// Returns the default way of execution for a Flowable engine: version 8 has no REST interface for
/// jobs. The probe reports missing tables.
///
/// # Errors
/// The database's error.
pub(crate) async fn execution_by_version(pool: &PgPool) -> Result<Execution, StoreError> {
    let version = probe::version(pool).await?.unwrap_or_default();
    Ok(if version.starts_with("8.") {
        Execution::Endpoint
    } else {
        Execution::Rest
    })
}

/// The rights that a node needs. It also reads Flowable's jobs of external workers.
const RIGHTS: [(&str, &str); 12] = [
    ("act_ru_job", "SELECT"),
    ("act_ru_job", "INSERT"),
    ("act_ru_job", "UPDATE"),
    ("act_ru_timer_job", "SELECT"),
    ("act_ru_timer_job", "UPDATE"),
    ("act_ru_timer_job", "DELETE"),
    ("act_ru_suspended_job", "SELECT"),
    ("act_ru_deadletter_job", "SELECT"),
    ("act_ru_execution", "SELECT"),
    ("act_ru_execution", "UPDATE"),
    ("act_ge_property", "SELECT"),
    ("act_ge_bytearray", "SELECT"),
];
const RIGHTS_WITH_EXTERNAL_JOBS: [(&str, &str); 13] = {
    let mut rights = [("act_ru_external_job", "SELECT"); 13];
    let mut at = 0;
    while at < RIGHTS.len() {
        rights[at] = RIGHTS[at];
        at += 1;
    }
    rights
};

#[async_trait]
impl Dialect for Act {
    fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    fn zone(&self) -> &Zone {
        &self.zone
    }

    fn stamps(&self) -> &'static str {
        self.sql.stamps
    }

    fn offset(&self) -> &Offset {
        &self.offset
    }

    fn queries(&self) -> &'static Queries {
        &self.sql.queries
    }

    fn sweep(&self) -> &'static Sweep {
        &self.sql.sweep
    }

    fn sweepable(&self) -> Option<DryRun> {
        Some(DryRun {
            sql: self.sql.sweepable,
            patience: self.patience,
        })
    }

    fn looks(&self) -> &Walk {
        &self.looks
    }

    fn rescues(&self) -> &Walk {
        &self.rescues
    }

    fn instances(&self) -> Option<&Walk> {
        Some(&self.instances)
    }

    fn execution_body(&self) -> &'static str {
        "{\"action\":\"execute\"}"
    }

    fn holds_instances(&self) -> bool {
        self.instances_of == InstanceLock::OfNode
    }

    fn tells_age(&self) -> bool {
        self.family.lacks("create_time_").is_none()
    }

    fn change(&self, change: Change, state: JobState, id: &str) -> Option<Call> {
        let table = match state {
            JobState::Timer => "timer-jobs",
            JobState::Suspended => "suspended-jobs",
            JobState::DeadLetter => "deadletter-jobs",
            _ => "jobs",
        };
        let path = format!("{}/{table}/{id}", self.management());
        match (change, state) {
            (Change::Delete, _) => Some(Call {
                method: Method::Delete,
                path,
                body: String::new(),
            }),
            (Change::Retry(_), JobState::Timer | JobState::DeadLetter) => Some(Call {
                method: Method::Post,
                path,
                body: "{\"action\":\"move\"}".to_owned(),
            }),
            (Change::Retry(_), _) => None,
        }
    }

    fn about(&self) -> String {
        format!("{}/engine", self.management())
    }

    fn rights(&self) -> &'static [(&'static str, &'static str)] {
        if self.family.has_external_jobs {
            &RIGHTS_WITH_EXTERNAL_JOBS
        } else {
            &RIGHTS
        }
    }

    async fn examine(&self, pool: &PgPool) -> Result<(Vec<Finding>, bool), StoreError> {
        let probed = self.probed(pool).await?;
        Ok((probed.findings(), probed.is_readable()))
    }

    fn publication(&self, name: String, schema: &str, selects: bool) -> PgPublication {
        tap::publication(name, schema, selects)
    }

    fn committed(&self, rows: &Rows, into: &mut Committed) -> bool {
        tap::committed(rows, self.offset.get(), into)
    }

    async fn probe(&self, pool: &PgPool) -> Result<(), StoreError> {
        self.probed(pool).await?.refuse()
    }

    async fn foreign(&self, pool: &PgPool) -> Result<Vec<(String, i64)>, StoreError> {
        self.of_other_scopes(pool).await
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
        lease: Duration,
        held: &[LockToken],
    ) -> Result<Renewed, StoreError> {
        self.renew_held(pool, owner, lease, held).await
    }

    async fn held_by(
        &self,
        pool: &PgPool,
        owner: NodeId,
        lease: Duration,
        known: &[Fence],
    ) -> Result<Vec<LockedJob>, StoreError> {
        self.held_by_node(pool, owner, lease, known).await
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

    async fn move_due(&self, pool: &PgPool, at_most: i64) -> Result<MovedTimers, StoreError> {
        self.move_due_timers(pool, at_most).await
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

    async fn free_timers(&self, pool: &PgPool) -> Result<u64, StoreError> {
        self.free_expired_timers(pool).await
    }

    async fn free_instances(&self, pool: &PgPool) -> Result<FreedInstances, StoreError> {
        self.free_left_instances(pool).await
    }

    async fn release_all(&self, pool: &PgPool) -> Result<Released, StoreError> {
        self.release_locks(pool).await
    }

    /// The endpoint records a failure after the transaction of the job has ended.
    fn can_wait_for_itself(&self) -> bool {
        self.execution == Execution::Rest
    }

    async fn cancel_hung(&self, pool: &PgPool) -> Result<u64, StoreError> {
        rescue::cancel_hung(pool).await
    }
}

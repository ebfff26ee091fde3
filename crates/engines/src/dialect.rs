//! The dialect of an engine: the rules of its job tables, as statements.
//!
//! [`EngineStore`](crate::EngineStore) is the store of every engine. This trait covers the
//! differences between engines, with one implementation for each.

use std::collections::HashSet;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use jobwire_core::hint::Ready;
use jobwire_core::job::{LockToken, LockedJob};
use jobwire_core::store::{
    ClaimPage, Claimable, Committed, LockTerms, Marked, MovedTimers, Renewed,
};
use jobwire_core::{Fence, JobId, JobState, NodeId, StoreError};
use jobwire_tap::{PgPublication, Rows};
use sqlx::PgPool;
use sqlx::postgres::PgRow;

use crate::call::Call;
use crate::changing::Change;
use crate::columns::{Columns, Wanted, still_ours};
use crate::decode::Decoder;
use crate::fate::{Ended, Fate};
use crate::finding::Finding;
use crate::freed::{Freed, FreedInstances};
use crate::offset::Offset;
use crate::released::Released;
use crate::statements::{DryRun, Queries, Sweep};
use crate::walk::Walk;
use crate::zone::Zone;

/// A lock whose job has ended its run.
#[derive(Clone, Debug)]
pub(crate) struct Settling {
    pub(crate) held: LockToken,
    /// Whether the execution gave no answer. Then the engine may still run the job, and the lock
    /// stays until it expires.
    pub(crate) unanswered: bool,
}

/// The result of settling a batch.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    pub(crate) fates: Vec<(JobId, Fate)>,
    /// The next jobs of the instances that were left, locked for the same node.
    pub(crate) next: Vec<LockedJob>,
    /// Jobs that are ready and were not locked.
    pub(crate) ready: Vec<Ready>,
    /// The earliest due date that the engine wrote for a failed job, or for a timer of its
    /// instance.
    pub(crate) timer: Option<DateTime<Utc>>,
}

impl Settled {
    /// Adds the result of another statement.
    pub(crate) fn add(&mut self, other: Settled) {
        self.fates.extend(other.fates);
        self.next.extend(other.next);
        self.ready.extend(other.ready);
        self.timer = self.timer.into_iter().chain(other.timer).min();
    }
}

/// The rules of an engine's job tables.
#[async_trait]
pub(crate) trait Dialect: std::fmt::Debug + Send + Sync + 'static {
    /// Returns the decoder for the rows of jobs.
    fn decoder(&self) -> &Decoder;

    /// Returns the configured zone of the engine's JVM, with the votes of the engine's rows.
    fn zone(&self) -> &Zone;

    /// Returns the statement that selects rows with a time that the engine wrote when it made their
    /// id. `$1`: the zone.
    fn stamps(&self) -> &'static str;

    /// Returns the current offset of that zone from UTC.
    fn offset(&self) -> &Offset;

    /// Returns the statements of operators' queries.
    fn queries(&self) -> &'static Queries;

    /// Returns the reading statements of the leader.
    fn sweep(&self) -> &'static Sweep;

    /// Returns the statement of a dry run; `None` if the dialect has none.
    fn sweepable(&self) -> Option<DryRun> {
        None
    }

    /// Returns the walk of the looks for new jobs.
    fn looks(&self) -> &Walk;

    /// Returns the walk of the rescue of jobs.
    fn rescues(&self) -> &Walk;

    /// Returns the walk of the rescue of instances; `None` if the engine locks no instance.
    fn instances(&self) -> Option<&Walk> {
        None
    }

    /// Returns the body of the request that executes a job over REST.
    fn execution_body(&self) -> &'static str;

    /// Returns whether requests to the endpoint state that the node holds the instance.
    fn holds_instances(&self) -> bool {
        false
    }

    /// Returns whether jobs have a time of creation.
    fn tells_age(&self) -> bool {
        true
    }

    /// Returns whether an answer 404 with this text is the result of an execution. Otherwise it
    /// means that there is no such job, or no such path.
    fn is_refusal(&self, _said: &str) -> bool {
        false
    }

    /// Returns the time after its lock within which a job may be sent to the engine; `None` if
    /// locks are renewed.
    fn send_within(&self) -> Option<Duration> {
        None
    }

    /// Returns the call that changes a job in this state over REST; `None` if there is nothing to do.
    /// `id` is the engine's.
    fn change(&self, change: Change, state: JobState, id: &str) -> Option<Call>;

    /// Returns the path that answers with the engine's version.
    fn about(&self) -> String;

    /// Returns the rights that a node needs, each with its table.
    fn rights(&self) -> &'static [(&'static str, &'static str)];

    /// Returns the findings about the tables, and whether all tables exist.
    async fn examine(&self, pool: &PgPool) -> Result<(Vec<Finding>, bool), StoreError>;

    /// Returns the publication of the commit tap. `selects`: the server supports chosen columns and
    /// conditions of rows.
    fn publication(&self, name: String, schema: &str, selects: bool) -> PgPublication;

    /// Adds rows that a tap reports. Returns false for rows of an unknown table.
    fn committed(&self, rows: &Rows, committed: &mut Committed) -> bool;

    /// Checks that the tables are those of a supported engine.
    async fn probe(&self, pool: &PgPool) -> Result<(), StoreError>;

    /// Returns the number of jobs in the engine's tables that belong to another engine, such as that
    /// of cases, by its name. They never run over Jobwire.
    async fn foreign(&self, _: &PgPool) -> Result<Vec<(String, i64)>, StoreError> {
        Ok(Vec::new())
    }

    /// Sends the lock statement. Its rows have the columns of a locked job, all NULL if none was
    /// locked; `hinted`: the id of the hint, or NULL; `class`: `locked-now` or a refusal; and the
    /// needs of the job for the refusal `unserved`.
    async fn send_lock(
        &self,
        pool: &PgPool,
        terms: &LockTerms,
        wanted: &Wanted,
    ) -> Result<Vec<PgRow>, StoreError>;

    /// Returns the unlocked jobs of a page of a claim.
    async fn claimable(&self, pool: &PgPool, page: &ClaimPage) -> Result<Claimable, StoreError>;

    /// Extends locks. Waits for no row.
    async fn renew(
        &self,
        pool: &PgPool,
        owner: NodeId,
        lease: Duration,
        held: &[LockToken],
    ) -> Result<Renewed, StoreError>;

    /// Extends and returns the locks of a node that have none of these fences.
    async fn held_by(
        &self,
        pool: &PgPool,
        owner: NodeId,
        lease: Duration,
        known: &[Fence],
    ) -> Result<Vec<LockedJob>, StoreError>;

    /// Reads the fates of these jobs, releases their locks and hands off their instances. With
    /// `take`, locks the next job of each instance. The locks of `unanswered` jobs stay. Returns
    /// the ids whose rows the engine has locked; these rows are unchanged.
    async fn settle_once(
        &self,
        pool: &PgPool,
        held: &Columns,
        unanswered: &[String],
        take: Option<&LockTerms>,
        settled: &mut Settled,
    ) -> Result<HashSet<String>, StoreError>;

    /// Returns the end of an execution that began with this number of attempts left.
    async fn ended(
        &self,
        pool: &PgPool,
        id: JobId,
        owner: &str,
        _retries: i32,
    ) -> Result<Ended, StoreError> {
        Ok(if still_ours(pool, id, owner).await? {
            Ended::Conflict
        } else {
            Ended::Counted
        })
    }

    /// Makes due timers executable.
    async fn move_due(&self, pool: &PgPool, at_most: i64) -> Result<MovedTimers, StoreError>;

    /// Returns the unlocked jobs that became visible since the leader's last look, and remembers
    /// this look. Without `report` it only remembers.
    async fn new_jobs(
        &self,
        pool: &PgPool,
        engine: &str,
        node: NodeId,
        report: bool,
    ) -> Result<Vec<Ready>, StoreError>;

    /// Returns the hints of these jobs, as far as they are visible: those of unlocked jobs, which
    /// the caller publishes, and the locked jobs.
    async fn hints_of(&self, pool: &PgPool, jobs: &[JobId]) -> Result<Marked, StoreError>;

    /// Clears expired locks of jobs and returns the jobs.
    async fn free_expired(&self, pool: &PgPool, at_most: i64) -> Result<Vec<Freed>, StoreError>;

    /// Clears expired locks of engine nodes on timers. Returns their number.
    async fn free_timers(&self, _: &PgPool) -> Result<u64, StoreError> {
        Ok(0)
    }

    /// Clears expired locks of instances for which a job or a timer waits.
    async fn free_instances(&self, pool: &PgPool) -> Result<FreedInstances, StoreError>;

    /// Clears the locks of Jobwire's nodes whose executions have ended.
    async fn release_all(&self, pool: &PgPool) -> Result<Released, StoreError>;

    /// Returns whether two transactions of the engine can wait for each other without an end: it records
    /// a failure over a second connection, before the transaction of the job has rolled back.
    fn can_wait_for_itself(&self) -> bool {
        false
    }

    /// Cancels statements of the engine that wait for a lock of an idle transaction of the engine.
    async fn cancel_hung(&self, pool: &PgPool) -> Result<u64, StoreError>;
}

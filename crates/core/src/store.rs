//! The store: where jobs live, and who decides who runs them.
//!
//! Every transition of a job's life is one method here, one statement or one transaction in an
//! implementation. A conformance suite (tests/) holds every implementation to the same behaviour.
//!
//! Three rules hold for all methods:
//! * **Guards name (id, owner, fence)**, and no time. A statement that changes a locked job names all three; it changes
//!   nothing where the lease names another owner, another fence, or none. Only [`run_leader_cycle`](Store::run_leader_cycle) clears
//!   an owner, so a lease that ran out is as good as any other until the leader's turn has looked at it.
//! * **Time is the database's.** Leases and due dates are written and compared by its clock.
//! * **Lock order** is instance rows, then leases, then job rows, each sorted by its key. A statement that takes jobs
//!   locks job rows first, and never waits for one (`SKIP LOCKED`). Renewal and the leader's turn wait for no row at
//!   all.

pub(crate) mod allowance;
mod answer;
pub(crate) mod created;
pub mod error;
mod locking;
mod membership;
mod moving;
mod operating;
mod poison;
#[cfg(feature = "postgres")]
pub mod postgres;
mod presence;
mod process_lock;
mod row_locks;
mod schema;
mod settling;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod sweeping;
pub mod transaction;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tokio::sync::OwnedSemaphorePermit;

use crate::hint::{Hint, Ready};
use crate::job::new_job::NewJob;
use crate::job::query::{JobFilter, JobView, LaneBacklog, LaneView, Sweepable};
use crate::job::scope::Services;
use crate::job::{Fence, Job, JobId, Lane, LockToken, LockedJob, NodeId, text_enum};
use crate::lane::rule::{self, LaneRule};
pub use crate::store::created::{Created, TransactionId};
pub use crate::store::error::StoreError;

pub(crate) use answer::answer_within;
use answer::measured;
pub(crate) use locking::Tried;
pub use locking::{ClaimOf, ClaimPage, Claimable, Claimed, LockTerms, Locked, Refusal};
use membership::readable;
pub use membership::{MAX_NAMES, MAX_NODES, Membership, NodeView, services_of};
pub(crate) use moving::LANE_SLICE;
pub use moving::{LanePage, MovedPage};
pub use operating::{Operated, OperatedJobs, Suspended, SuspensionScope};
pub use poison::StuckBatch;
pub use process_lock::{ProcessLock, Succession};
pub use row_locks::{HeldRows, RowHold, RowTerms};
use schema::schema_status;
pub use schema::{SCHEMA_VERSION, SchemaStatus};
pub use settling::{Completion, Destination, Failure, Handoff, Renewed, Settled};
use settling::{instances, released};
pub use sweeping::{
    COUNT_LIMIT, ClockWindow, CycleOutcome, CycleReport, Horizon, LeaderCycle, MovedTimers,
    OrphanPage, OrphanQuery, Rescued,
};
use transaction::AfterCommit;

/// Shorthand for this layer.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Where jobs live. See the [module](self) for the rules; every method is one transition or question.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// `postgres` or `sqlite`.
    fn name(&self) -> &'static str;

    /// Can the database be reached, and does its schema fit this program?
    async fn check(&self) -> Result<SchemaStatus>;

    /// Does the database answer a statement of this node?
    async fn answers(&self) -> Result<()> {
        self.check().await.map(drop)
    }

    /// A node is about to lock jobs through this store: from now on its fences lie beyond all that were handed out
    /// before, also by a server that has crashed since (protocol rule 1). Locking does it, too; here what is missing
    /// for it is said at the start.
    async fn begin_locking(&self) -> Result<()> {
        Ok(())
    }

    /// Lock what a batch of hints names (protocol rules 6 to 12). The caller asks for no more than it
    /// has free slots.
    async fn lock(&self, terms: &LockTerms, hints: &[Hint]) -> Result<Locked>;

    /// Lock ready jobs of a lane without a hint, by the same gates and in the order of their ids: those
    /// that nobody else locks at this moment, so that nodes which claim at once take different ones.
    async fn claim(&self, terms: &LockTerms, page: &ClaimPage) -> Result<Claimed>;

    /// What such a page would hold, where the database refuses it: to be locked in parts.
    async fn claimable(&self, terms: &LockTerms, page: &ClaimPage) -> Result<Claimable>;

    /// Push the end of these leases to `lease` from now, also of those that ran out. Waits for no row.
    async fn renew(&self, owner: NodeId, lease: Duration, held: &[LockToken]) -> Result<Renewed>;

    /// Leases that name this owner and have none of these fences, renewed: what the owner holds without knowing it,
    /// since an answer was lost. One statement; it reads every lease.
    async fn unknown(
        &self,
        owner: NodeId,
        lease: Duration,
        known: &[Fence],
    ) -> Result<Vec<LockedJob>>;

    /// When this much time has passed without an answer to a statement, it has taken effect or never will.
    fn outcome_within(&self) -> Duration;

    /// Note that this job, whose earlier holders died, runs alone on its node from now on: if this one
    /// dies too, the job is to blame (protocol rule 26). False where the lock is gone.
    async fn run_alone(&self, owner: NodeId, held: &LockToken) -> Result<bool>;

    /// Take back the strikes that were counted against these locks: their node lives. Waits for no row; false where one
    /// was locked. Asking again changes nothing.
    async fn clear_strike(&self, lost: &[LockToken]) -> Result<bool>;

    /// Delete what is done, create next occurrences, hand instances over.
    async fn complete(&self, owner: NodeId, done: &[Completion], then: &Handoff)
    -> Result<Settled>;

    /// Move what failed to the timer or the dead-letter table (or, where it has been suspended
    /// meanwhile, to the suspended one); hand instances over.
    async fn fail(&self, owner: NodeId, failed: &[Failure], then: &Handoff) -> Result<Settled>;

    /// Unlock without a trace: the jobs are ready again and to be hinted.
    async fn release(&self, owner: NodeId, held: &[LockToken]) -> Result<Settled>;

    /// Open the transaction in which a handler works and which completes its job.
    /// The hints of jobs that the handler creates leave through `hook`.
    async fn begin_completing(
        &self,
        after: Arc<dyn AfterCommit>,
    ) -> Result<Box<dyn CompletingTransaction>>;

    /// Make due timers executable.
    async fn move_due_timers(&self, at_most: i64) -> Result<MovedTimers>;

    /// The same, and lock those that `terms` allow, of these lanes, that are neither exclusive nor suspended: a timer
    /// that is due alone costs one statement less. For a few; the others come back as ready.
    async fn take_due_timers(
        &self,
        terms: &LockTerms,
        lanes: &[Lane],
        at_most: i64,
    ) -> Result<MovedTimers>;

    /// The leader's turn: lead (or learn which node does), end leases that ran out, learn what there is.
    async fn run_leader_cycle(&self, turn: &LeaderCycle) -> Result<CycleOutcome>;

    /// Mark and return jobs that nobody hinted yet, without taking a turn.
    async fn unhinted(&self, at_most: i64) -> Result<Vec<Ready>>;

    /// A number that changes when another connection writes, where asking costs next to nothing
    /// (SQLite); `None` where the store has no such number.
    async fn data_version(&self) -> Result<Option<i64>> {
        Ok(None)
    }

    /// A node that serves this database alone begins. Where the store can prove that the last such node has died, the
    /// leases of that node, and its leadership, end at once. Where it can prove that another such node lives, it says
    /// so.
    async fn succeed(&self, node: NodeId) -> Result<Succession> {
        let _ = node;
        Ok(Succession::Unknown)
    }

    /// Write what a node says of itself, and that it lives. A row that was removed meanwhile is there again.
    async fn write_node(&self, node: &Membership) -> Result<()>;

    /// The node stops.
    async fn remove_node(&self, node: NodeId) -> Result<()>;

    /// Remove the rows of nodes that wrote none for so long and are not among those that were heard. Waits for no row.
    async fn remove_silent_nodes(&self, silent_for: Duration, heard: &[NodeId]) -> Result<u64>;

    /// The nodes that have a row, those that wrote it last first; at most [`MAX_NODES`].
    async fn nodes(&self) -> Result<Vec<NodeView>>;

    /// Stop leading.
    async fn resign(&self, node: NodeId) -> Result<()>;

    /// Jobs that are ready, unlocked and ungated although every hint sent before was decided; of an
    /// instance only the first sibling.
    async fn orphans(&self, query: &OrphanQuery) -> Result<OrphanPage>;

    /// Count what a sweep would look at, for people. Changes nothing; reads every executable job. A store
    /// need not offer it.
    async fn sweepable(&self, services: &Services) -> Result<Sweepable> {
        let _ = services;
        Err(StoreError::Config(format!(
            "the store `{}` can't be asked what a sweep would do",
            self.name()
        )))
    }

    /// Free instances whose holder has neither a lease nor a row any more. Returns what became ready.
    async fn free_instances(&self) -> Result<Vec<Ready>>;

    /// What became of a transaction whose COMMIT was not answered?
    async fn committed(&self, transaction: &TransactionId) -> Result<Fate>;

    /// Jobs that match, of every state, oldest first.
    async fn find(&self, filter: &JobFilter) -> Result<Vec<JobView>>;

    /// How many match.
    async fn count(&self, filter: &JobFilter) -> Result<i64>;

    /// One job with its exception's stack.
    async fn get(&self, id: JobId) -> Result<Option<(JobView, Job, Option<String>)>>;

    /// Delete a job of any state that is not running.
    async fn delete(&self, id: JobId) -> Result<(Operated, Vec<Ready>)>;

    /// The same for all of these, in one transaction. Where the database refuses it, it is tried in parts: a job that is
    /// refused alone stays as it was, and the others are deleted.
    async fn delete_many(&self, ids: &[JobId]) -> Result<OperatedJobs>;

    /// Make a dead letter, a waiting retry or a timer executable now, with so many attempts.
    async fn retry(&self, id: JobId, retries: i32) -> Result<(Operated, Vec<Ready>)>;

    /// The same for all of these, in one transaction. Where the database refuses it, it is tried in parts, as in
    /// [`delete_many`](Self::delete_many).
    async fn retry_many(&self, ids: &[JobId], retries: i32) -> Result<OperatedJobs>;

    /// Suspend: what runs goes on, everything else of the scope goes to the suspended table, now and when it is created
    /// or fails later. A job that the database refuses to move stays where it is, and is not locked either.
    async fn suspend(&self, scope: &SuspensionScope) -> Result<Suspended>;

    /// Is the order of exclusive jobs strict?
    async fn strict_order(&self) -> Result<bool> {
        Ok(false)
    }

    /// Make the order of exclusive jobs strict, or not, for every node on this database: no job of an instance starts
    /// while an elder sibling waits for a retry, is suspended, or is a dead letter. An operator who retries or deletes
    /// the elder one lets the others go on. A store need not offer it.
    async fn set_strict_order(&self, strict: bool) -> Result<()> {
        let _ = strict;
        Err(StoreError::Config(format!(
            "the store `{}` knows no strict order",
            self.name()
        )))
    }

    /// Activate what [`suspend`](Self::suspend) put aside. Returns what became ready.
    async fn activate(&self, scope: &SuspensionScope) -> Result<Vec<Ready>>;

    /// The rules for the lanes of jobs whose creator names none, in their order.
    async fn lane_rules(&self) -> Result<Vec<LaneRule>>;

    /// Replace them all at once. Jobs that exist keep their lanes.
    ///
    /// # Errors
    /// [`StoreError::InvalidRules`] before anything is changed.
    async fn set_lane_rules(&self, rules: &[LaneRule]) -> Result<()>;

    /// Every lane of which there are jobs, and how many. Reads all of them.
    async fn lanes(&self) -> Result<Vec<LaneView>>;

    /// Unlocked executable jobs in other lanes than these, by lane, the deepest first. Reads all of them.
    async fn lanes_outside(&self, lanes: &[Lane], at_most: i64) -> Result<Vec<LaneBacklog>>;

    /// Give a page of jobs another lane. See [`crate::producer::lane_move`].
    async fn move_lane(&self, page: &LanePage) -> Result<MovedPage>;

    /// Operations of which a batch does not get through, since the database refuses a row of it or the whole
    /// (protocol rule 37). For people: nothing stops for it.
    fn stuck(&self) -> Vec<StuckBatch> {
        Vec::new()
    }

    /// Close every connection.
    async fn close(&self);
}

/// The transaction that a handler works in and that completes its job: effects and completion commit
/// together or not at all.
#[async_trait]
pub trait CompletingTransaction: Send {
    /// The concrete [`JobTransaction`](crate::JobTransaction), for the handler.
    fn as_any(&mut self) -> &mut (dyn Any + Send);

    /// Complete the job and commit. Nothing is committed where the lock was lost.
    async fn complete(
        self: Box<Self>,
        owner: NodeId,
        completion: &Completion,
        then: &Handoff,
    ) -> Result<Settled>;

    /// Ready when the connection is not to be believed in any more: whatever the handler asks there may wait
    /// for ever. Never before an answer on a living connection would have come.
    fn line_ends(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    /// Undo everything.
    ///
    /// # Errors
    /// The connection is lost; the database undoes the transaction all the same.
    async fn rollback(self: Box<Self>) -> Result<()>;
}

/// A store whose transactions a user can share: jobs are created inside them.
#[async_trait]
pub trait SqlStore: Store + Clone {
    /// The database.
    type Db: sqlx::Database;

    /// How long the database may take to answer before its answer counts as lost.
    fn deadline(&self) -> Duration;

    /// No answer came within it: connections that are open now are not used again.
    fn suspect_connections(&self) {}

    /// Ready when the connections that are open now were suspected, and have said nothing since.
    fn line_ends(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    /// Wait for a permit to hold a connection for a transaction of an application or a handler. One connection has no
    /// permit, so that the leader's turn, timers and failures get through.
    ///
    /// # Errors
    /// None ended in time.
    async fn hold_permit(&self) -> Result<Option<OwnedSemaphorePermit>> {
        Ok(None)
    }

    /// Open a transaction that may write.
    async fn begin(&self) -> Result<sqlx::Transaction<'static, Self::Db>>;

    /// Can the transaction of this connection still commit?
    ///
    /// # Errors
    /// [`StoreError::TransactionFailed`] where one of its statements has failed and the database will undo all.
    async fn ensure_intact(
        &self,
        connection: &mut <Self::Db as sqlx::Database>::Connection,
    ) -> Result<()>;

    /// Commit a transaction of [`begin`](Self::begin), or fail: COMMIT of a transaction in which a statement has failed
    /// rolls back, and the answer is no error.
    ///
    /// # Errors
    /// What the database said. Whether anything was committed after a broken connection is not known.
    async fn commit(&self, transaction: sqlx::Transaction<'static, Self::Db>) -> Result<()>;

    /// Insert jobs over a connection that is inside the caller's transaction.
    ///
    /// # Errors
    /// [`StoreError::InvalidJob`] before anything was written; else what the database said.
    async fn insert(
        &self,
        connection: &mut <Self::Db as sqlx::Database>::Connection,
        jobs: Vec<NewJob>,
        origin: Origin,
    ) -> Result<Created>;

    /// Who is next in each of these instances, where nobody holds it: asked after a transaction that
    /// [could not see it](Settled::unseen).
    async fn next_of(&self, instances: &[String]) -> Result<Vec<Ready>> {
        let _ = instances;
        Ok(Vec::new())
    }

    /// Complete one job over a connection inside the caller's transaction.
    async fn complete_in(
        &self,
        connection: &mut <Self::Db as sqlx::Database>::Connection,
        owner: NodeId,
        completion: &Completion,
        then: &Handoff,
    ) -> Result<Settled>;
}

/// What became of a transaction whose COMMIT was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It committed.
    Committed,
    /// It did not.
    RolledBack,
    /// The database can't say (any more, or yet).
    Unknown,
}

text_enum! {
    /// Who hints a new job: the creating process, or somebody who finds it (protocol rule 20).
    Origin {
        /// The creating process, when its transaction has committed.
        Hook = "hook",
        /// The sweeper (later: the tap).
        Sql = "sql",
    }
}

/// Refuse rules that can't work.
fn check_rules(rules: &[LaneRule]) -> Result<()> {
    rule::validate(rules).map_err(StoreError::InvalidRules)
}

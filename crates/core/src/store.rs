//! The store: where jobs live and which node runs them.
//!
//! Every transition of a job is one method of [`Store`], and one statement or one transaction in an
//! implementation. A conformance suite (tests/) holds every implementation to the same behaviour.
//!
//! Three rules hold for all methods:
//! * **Guards name (id, owner, fence)**, and no time. A statement that changes a locked job names
//!   all three. It changes nothing if the lease names another owner, another fence, or no owner.
//!   Only [`run_leader_cycle`](Store::run_leader_cycle) clears an owner, so an expired lease stays
//!   valid until the leader cycle ends it.
//! * **Time is the database's.** Its clock writes and compares leases and due dates.
//! * **Lock order** is batches, instance rows, then keys of limits, each sorted by key, then leases,
//!   then job rows. A statement that takes, deletes or sets aside jobs without an owner locks the job
//!   rows first; no other statement waits for the lease of such a job. A statement that takes jobs
//!   never waits for a job row (`SKIP LOCKED`). Renewal and the leader cycle wait for no row at all.

pub(crate) mod allowance;
#[doc(hidden)]
pub mod answer;
pub mod attempts;
mod batch_outcome;
pub mod batches;
pub mod change;
pub(crate) mod created;
mod decode;
mod ending;
pub mod error;
mod find;
mod gates;
mod locking;
mod membership;
mod moving;
mod operating;
mod periodic;
pub mod permits;
mod poison;
#[cfg(feature = "postgres")]
pub mod postgres;
#[doc(hidden)]
pub mod presence;
mod process_lock;
pub mod purging;
mod row_locks;
mod schema;
mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod statements;
mod sweeping;
pub mod tap;
pub mod transaction;
mod transitions;
mod unique;
mod unserved;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::LazyLock;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;
use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::event::stream::{EventStream, EventStreamState, StreamedEvent};
use crate::hint::{Hint, Ready};
use crate::job::batch::BatchView;
use crate::job::calendar::Calendars;
pub use crate::job::definition_key::{DefinitionKey, InvalidDefinitionKey};
pub use crate::job::gate::{Gate, GateView, PauseScope, SUSPENSION_TYPE, SuspensionScope};
use crate::job::new_job::NewJob;
use crate::job::periodic::{Declared, PeriodicJob};
use crate::job::progress::Progress;
use crate::job::query::{
    JobQuery, JobView, LaneBacklog, LaneView, PendingJobs, Sweepable, UnservedType,
};
use crate::job::scope::{Scope, Services};
use crate::job::{BatchId, Fence, Job, JobId, Lane, LockToken, LockedJob, NodeId, text_enum};
use crate::lane::priority::{MAX_PRIORITY_RULES, PriorityRule, PriorityScope};
use crate::lane::rule::{self, LaneRule};
use crate::lane::start_order::Rank;
pub use crate::store::created::{Created, TransactionId};
pub use crate::store::error::StoreError;
use purging::{PurgeScope, PurgeableJob, TableCount};

pub(crate) use answer::answer_within;
use answer::measured;
use attempts::{AttemptQuery, AttemptView, ErrorGroup, Incident, IncidentFilter};
pub(crate) use batch_outcome::CANCELLED;
pub use batch_outcome::{
    BatchOutcome, Completion, Destination, Failure, Handoff, Release, Renewed,
};
use batch_outcome::{instances, released};
use batches::{BatchMembers, EndedBatch, NewBatch, OpenBatches};
pub use change::Change;
pub use ending::{Ended, EndedScope};
pub use gates::{Lifted, Waiting};
pub(crate) use locking::Tried;
pub use locking::{ClaimOf, ClaimPage, Claimable, Claimed, LockTerms, Locked, Refusal};
use membership::readable;
pub use membership::{
    Holder, MAX_NAMES, MAX_NODES, Membership, NodeView, received_by, services_of, silence,
};
pub(crate) use moving::LANE_SLICE;
pub use moving::{LanePage, MovedPage};
pub use operating::{Action, Operated, OperatedJobs, Suspended};
pub use periodic::{DuePeriodicJobs, DuePlace, Fired, PeriodicView, Triggered};
use permits::{LastingPermit, PermitAnswer, PermitRequest, StalledKey, WaitingJob, WaitingType};
pub use poison::StuckBatch;
pub use process_lock::{ProcessLock, Succession};
pub use row_locks::{HeldRows, RowHold, RowTerms, RowsCommitted};
use schema::schema_status;
pub use schema::{SCHEMA_VERSION, SchemaStatus};
pub(crate) use sweeping::BACK_OFF;
pub use sweeping::{
    Announced, COUNT_LIMIT, ClockWindow, CycleOutcome, CycleReport, Horizon, LeaderCycle,
    MovedTimers, OrphanPage, OrphanQuery, Rescued,
};
pub use tap::{CommitTap, Committed, Marked, TapMode, TapNews, TapOffer};
use transaction::AfterCommit;
pub use unique::Creation;

/// The error for a new rule beside as many as are allowed.
fn too_many_priority_rules() -> StoreError {
    StoreError::InvalidChange(format!(
        "there are {MAX_PRIORITY_RULES} priority rules, and no more are allowed; clear some, or let \
         creators give the priority"
    ))
}

fn no_priority_rules(store: &str) -> StoreError {
    StoreError::Config(format!(
        "the store `{store}` does not support priority rules"
    ))
}

fn no_purge(store: &str) -> StoreError {
    StoreError::Config(format!("the store `{store}` does not support purges"))
}

fn no_event_stream(store: &str) -> StoreError {
    StoreError::Config(format!(
        "the store `{store}` has no event stream; a process engine tells its own events"
    ))
}

fn no_suspensions_inside(store: &str) -> StoreError {
    StoreError::Config(format!(
        "the store `{store}` does not suspend and activate scopes in a transaction of the caller; call \
         `Client::suspend` or `Client::activate` after the commit"
    ))
}

fn no_pauses(store: &str) -> StoreError {
    StoreError::Config(format!("the store `{store}` does not support pauses"))
}

/// The result of a store's methods.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// The database of jobs. Every method is one transition or one query. See the [module](self) for
/// the rules.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Returns `postgres` or `sqlite`.
    fn name(&self) -> &'static str;

    /// Returns the business calendars that this program knows. They are used for the next occurrences
    /// of jobs and for periodic jobs.
    fn calendars(&self) -> &Calendars {
        static NONE: LazyLock<Calendars> = LazyLock::new(Calendars::default);
        &NONE
    }

    /// Checks that the database can be reached, and returns whether its schema fits this program.
    async fn check(&self) -> Result<SchemaStatus>;

    /// Checks that the database answers a statement of this node.
    async fn answers(&self) -> Result<()> {
        self.check().await.map(drop)
    }

    /// Returns how often the server was replaced or restarted, also by itself after a crash, as the
    /// connections of this store have found so far. Optional for a store.
    fn server_changes(&self) -> u64 {
        0
    }

    /// Returns the reason why the database does not answer, with its address; `None` if it answers.
    /// For health endpoints: answers within two seconds, and asks the database at most once a
    /// second.
    async fn absence(&self) -> Option<String> {
        None
    }

    /// Returns the part beside the database that jobs need and that fails now, and why: the engine
    /// of a bridge. For health endpoints.
    fn failing_part(&self) -> Option<(&'static str, String)> {
        None
    }

    /// Prepares this node for locking. From now on its fences are larger than all earlier ones,
    /// even those of a server that has crashed since (protocol rule 1). The first lock does this,
    /// too; this call reports a missing right or table at the start.
    async fn begin_locking(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the jobs that can be run through this store, and each change of them: the nodes of a
    /// process engine may have some of its deployments only. A node takes the jobs that its own
    /// scope and this one take. `None` if all jobs can be run at any time. The node calls this at
    /// its start. The answer comes within some seconds.
    async fn reach(&self) -> Option<watch::Receiver<Scope>> {
        None
    }

    /// Locks the jobs that a batch of hints names (protocol rules 6 to 12). The caller passes no
    /// more hints than it has free slots.
    async fn lock(&self, terms: &LockTerms, hints: &[Hint]) -> Result<Locked>;

    /// Returns the rank of each of these jobs that is ready, for a node with a
    /// [start order](crate::StartOrder). One statement; waits for no row. `None` if the store has
    /// no ranks.
    async fn ranks(&self, jobs: &[JobId]) -> Result<Option<Vec<(JobId, Rank)>>> {
        let _ = jobs;
        Ok(None)
    }

    /// Locks ready jobs of a lane without a hint, under the same conditions as
    /// [`lock`](Self::lock), in the order of their ids. Skips jobs that another node locks at this
    /// moment, so nodes that claim at once take different jobs.
    async fn claim(&self, terms: &LockTerms, page: &ClaimPage) -> Result<Claimed>;

    /// Returns the jobs that a page of [`claim`](Self::claim) would hold. After the database has
    /// refused the page, the caller locks them in parts.
    async fn claimable(&self, terms: &LockTerms, page: &ClaimPage) -> Result<Claimable>;

    /// Extends these leases to `lease` from now, expired ones included. Waits for no row.
    async fn renew(&self, owner: NodeId, lease: Duration, held: &[LockToken]) -> Result<Renewed>;

    /// Renews and returns the lost leases of this owner: leases that name it and have none of the
    /// `known` fences, since an answer was lost. One statement; it reads every lease.
    async fn unknown(
        &self,
        owner: NodeId,
        lease: Duration,
        known: &[Fence],
    ) -> Result<Vec<LockedJob>>;

    /// Returns the time after which an unanswered statement can no longer take effect.
    fn outcome_within(&self) -> Duration;

    /// Returns the time from the beginning of one commit of outcomes to that of the next one, now.
    /// Outcomes gather in it, since a statement of many costs little more than that of one. The
    /// node asks again with each outcome that arrives. The default is no wait.
    ///
    /// The next job of an instance waits for the commit. So a store asks for a wait only while that
    /// job could not start anyway. Outcomes for which no job waits gather for some milliseconds in
    /// any case.
    fn gathers_for(&self) -> Duration {
        Duration::ZERO
    }

    /// Records that this job, whose earlier holders died, runs alone on its node from now on. If
    /// this holder dies too, the job counts as the cause (protocol rule 26). Returns false if the
    /// lock is gone.
    async fn run_alone(&self, owner: NodeId, held: &LockToken) -> Result<bool>;

    /// Takes back the strikes that were counted for these locks, because their node lives, and
    /// corrects their recorded attempts. Waits for no row. Returns false if a row was locked, or if a
    /// lease still has this fence and its owner, since the leader cycle may count its strike yet;
    /// the caller repeats the call, which takes back no strike twice.
    async fn clear_strike(&self, lost: &[LockToken]) -> Result<bool>;

    /// Deletes completed jobs, creates their next occurrences, and hands off their instances.
    async fn complete(
        &self,
        owner: NodeId,
        done: &[Completion],
        then: &Handoff,
    ) -> Result<BatchOutcome>;

    /// Moves failed jobs to the timer or the dead-letter table, or to the suspended table if they
    /// were suspended meanwhile. Hands off their instances.
    async fn fail(&self, owner: NodeId, failed: &[Failure], then: &Handoff)
    -> Result<BatchOutcome>;

    /// Unlocks jobs and leaves no trace of the attempt. The jobs are ready again and need hints. An
    /// attempt clears the strikes of its job. A job whose handler did not start keeps them, in a lease
    /// without an owner.
    async fn release(&self, owner: NodeId, released: &[Release]) -> Result<BatchOutcome>;

    /// Opens the transaction in which a handler works and which completes its job. `after`
    /// publishes the hints of the jobs that the handler creates.
    async fn begin_completing(
        &self,
        after: Arc<dyn AfterCommit>,
    ) -> Result<Box<dyn CompletingTransaction>>;

    /// Makes due timers executable.
    async fn move_due_timers(&self, at_most: i64) -> Result<MovedTimers>;

    /// Makes due timers executable. Locks the timers of these lanes that `terms` allow, unless they
    /// are exclusive or suspended, and returns the others as ready. This saves a statement for a
    /// timer that is due alone. Meant for a few timers.
    async fn take_due_timers(
        &self,
        terms: &LockTerms,
        lanes: &[Lane],
        at_most: i64,
    ) -> Result<MovedTimers>;

    /// Runs the leader cycle: takes or renews the lead (or learns which node leads), ends expired
    /// leases, and reads the backlog.
    async fn run_leader_cycle(&self, cycle: &LeaderCycle) -> Result<CycleOutcome>;

    /// Marks and returns jobs that have never had a hint, without a leader cycle.
    async fn unhinted(&self, at_most: i64) -> Result<Vec<Ready>>;

    /// Opens the commit tap, which reports the jobs of plain SQL. At most one is open for a
    /// database: the leader's. Optional for a store.
    async fn tap(&self) -> Result<TapOffer> {
        Ok(TapOffer::missing(self.name()))
    }

    /// Marks the jobs among these that are visible and never had a hint. They then count as hinted,
    /// so the leader cycle does not hint them again. Waits for no row. Optional for a store without
    /// a [`tap`](Self::tap).
    async fn mark_hinted(&self, jobs: &[JobId]) -> Result<Marked> {
        let _ = jobs;
        Ok(Marked::default())
    }

    /// Notes jobs that became ready in a process without a transport. A leader
    /// [hints](Self::announce_noted) them. Waits for no row of a job. Optional for a store.
    async fn note_unannounced(&self, jobs: &[JobId]) -> Result<()> {
        let _ = jobs;
        Ok(())
    }

    /// Marks and returns jobs that were [noted](Self::note_unannounced), and forgets them. A job that a
    /// node has locked, or that was hinted since, is only forgotten. If the process dies now, the sweeper
    /// finds the jobs. Optional for a store.
    async fn announce_noted(&self, at_most: i64) -> Result<Announced> {
        let _ = at_most;
        Ok(Announced::default())
    }

    /// Returns a number that changes when another connection writes (SQLite). `None` if the store
    /// has no such number, or if its read would be expensive.
    async fn data_version(&self) -> Result<Option<i64>> {
        Ok(None)
    }

    /// Starts a node that serves this database alone. If the store can prove that the last such
    /// node has died, it ends that node's leases and leadership at once. If it can prove that
    /// another such node lives, it returns that node.
    async fn succeed(&self, node: NodeId) -> Result<Succession> {
        let _ = node;
        Ok(Succession::Unknown)
    }

    /// Writes the row of a node, which also shows that the node lives. Creates the row again if it
    /// was removed meanwhile.
    async fn write_node(&self, node: &Membership) -> Result<()>;

    /// Removes the row of a node that stops.
    async fn remove_node(&self, node: NodeId) -> Result<()>;

    /// Removes the rows of nodes that have not written for `silent_for`, and rows from the future, but none
    /// of a node in `heard`. Waits for no row.
    async fn remove_silent_nodes(&self, silent_for: Duration, heard: &[NodeId]) -> Result<u64>;

    /// Returns the nodes that have a row, the latest writers first, and rows from the future last; at most
    /// [`MAX_NODES`].
    async fn nodes(&self) -> Result<Vec<NodeView>>;

    /// Returns the holders of leases that have not expired, those that last longest first. Optional for a
    /// store; by default none.
    async fn holders(&self, limit: i64) -> Result<Vec<Holder>> {
        let _ = limit;
        Ok(Vec::new())
    }

    /// Gives up the lead.
    async fn resign(&self, node: NodeId) -> Result<()>;

    /// Returns jobs that are ready, unlocked and ungated although every hint sent before was
    /// decided. Of an instance it returns only the first sibling.
    async fn orphans(&self, query: &OrphanQuery) -> Result<OrphanPage>;

    /// Counts the jobs that a sweep would look at, for reports. `received` are the lanes that living
    /// nodes receive. Changes nothing; reads every executable job. Optional for a store.
    async fn sweepable(&self, services: &Services, received: &[Lane]) -> Result<Sweepable> {
        let _ = (services, received);
        Err(StoreError::Config(format!(
            "the store `{}` does not support a dry run of the sweeper",
            self.name()
        )))
    }

    /// Counts the unlocked executable jobs that no living node takes, by type. Returns at most
    /// `limit` types, those with most jobs first. A job counts if no node serves its type, or none
    /// takes its deployment, category, tenant or priority. Names the tenants, categories and deployments
    /// that no node of the type takes. Reads every executable job. A store without this query
    /// returns no type.
    async fn unserved_types(&self, services: &Services, limit: i64) -> Result<Vec<UnservedType>> {
        let _ = (services, limit);
        Ok(Vec::new())
    }

    /// Frees instances whose holder no longer has a lease. Returns the jobs that became ready.
    async fn free_instances(&self) -> Result<Vec<Ready>>;

    /// Returns the fate of a transaction whose COMMIT was not answered.
    async fn committed(&self, transaction: &TransactionId) -> Result<Fate>;

    /// Returns a page of the jobs that match, in the order of the query.
    ///
    /// # Errors
    /// [`StoreError::InvalidQuery`], or a database error.
    async fn find(&self, query: &JobQuery) -> Result<Vec<JobView>>;

    /// Returns the number of jobs that match. Order and page do not count.
    ///
    /// # Errors
    /// The same as those of [`find`](Self::find).
    async fn count(&self, query: &JobQuery) -> Result<i64>;

    /// Returns the number of jobs that match, and `at_most` if there are more. The database stops to
    /// count there.
    ///
    /// # Errors
    /// The same as those of [`find`](Self::find).
    async fn count_at_most(&self, query: &JobQuery, at_most: i64) -> Result<i64> {
        Ok(self.count(query).await?.min(at_most.max(0)))
    }

    /// Returns one job with the stack of its exception.
    async fn get(&self, id: JobId) -> Result<Option<(JobView, Job, Option<String>)>>;

    /// Deletes a job of any state that is not running.
    async fn delete(&self, id: JobId) -> Result<(Operated, Vec<Ready>)>;

    /// Deletes a job of any state. If a node runs it, marks its lease as cancelled instead, and
    /// returns [`Operated::Running`]: the next renewal of the lease returns the mark, and the end of
    /// the lease by anything but a completion deletes the job. Optional for a store.
    async fn cancel(&self, id: JobId) -> Result<(Operated, Vec<Ready>)> {
        let _ = id;
        Err(StoreError::Config(format!(
            "the store `{}` does not support cancelling running jobs",
            self.name()
        )))
    }

    /// Writes the progress of running jobs, in one statement. Returns the jobs whose progress was
    /// written; the others have lost their locks, or their rows were locked. Waits for no lease.
    /// A store without progress writes nothing, and returns all.
    async fn report_progress(
        &self,
        owner: NodeId,
        reports: &[(LockToken, Progress)],
    ) -> Result<Vec<JobId>> {
        let _ = owner;
        Ok(reports.iter().map(|(held, _)| held.id).collect())
    }

    /// Saves a checkpoint of a running job: a JSON text of at most
    /// [`MAX_CHECKPOINT_BYTES`](crate::MAX_CHECKPOINT_BYTES). Returns false if the lock is lost.
    /// Optional for a store.
    async fn save_checkpoint(
        &self,
        owner: NodeId,
        held: &LockToken,
        checkpoint: &str,
    ) -> Result<bool> {
        let _ = (owner, held, checkpoint);
        Err(StoreError::Config(format!(
            "the store `{}` has no checkpoints",
            self.name()
        )))
    }

    /// Returns the checkpoint of a job of any state.
    async fn checkpoint(&self, id: JobId) -> Result<Option<String>> {
        let _ = id;
        Ok(None)
    }

    /// Deletes these jobs in one transaction. If the database refuses it, the store tries it in
    /// parts: a job that is refused alone stays as it was, and the others are deleted.
    async fn delete_many(&self, ids: &[JobId]) -> Result<OperatedJobs>;

    /// Counts the rows of each table that a [purge](crate::Purge) would delete. Optional for a
    /// store, as the other methods of a purge.
    async fn purge_count(&self, scope: &PurgeScope) -> Result<Vec<TableCount>> {
        let _ = scope;
        Err(no_purge(self.name()))
    }

    /// Returns the jobs of every state in a scope, in the order of their ids, after this one.
    async fn purge_page(
        &self,
        scope: &PurgeScope,
        after: Option<JobId>,
        at_most: i64,
    ) -> Result<Vec<PurgeableJob>> {
        let _ = (scope, after, at_most);
        Err(no_purge(self.name()))
    }

    /// Deletes the attempts, incidents, keys and events of these jobs, which are gone.
    async fn purge_of_jobs(&self, jobs: &[JobId]) -> Result<Vec<TableCount>> {
        let _ = jobs;
        Err(no_purge(self.name()))
    }

    /// Deletes attempts and incidents that name a scope, at most `at_most` of each. Returns their
    /// jobs.
    async fn purge_records(
        &self,
        scope: &PurgeScope,
        at_most: i64,
    ) -> Result<(Vec<TableCount>, Vec<JobId>)> {
        let _ = (scope, at_most);
        Err(no_purge(self.name()))
    }

    /// Closes open batches whose jobs at the end belong to a scope, and deletes their members, at most
    /// `at_most`, and the batches that have no member left. Jobs stay.
    async fn purge_batches(&self, scope: &PurgeScope, at_most: i64) -> Result<Vec<TableCount>> {
        let _ = (scope, at_most);
        Err(no_purge(self.name()))
    }

    /// Deletes what names a scope and belongs to no job: its keys, suspensions, and keys of limits.
    async fn purge_rest(&self, scope: &PurgeScope) -> Result<Vec<TableCount>> {
        let _ = scope;
        Err(no_purge(self.name()))
    }

    /// Deletes events of the stream that name a scope, some thousands. Returns their number.
    async fn purge_events(&self, scope: &PurgeScope) -> Result<u64> {
        let _ = scope;
        Err(no_purge(self.name()))
    }

    /// Returns the limits of which nodes hold permits for a key that is the name of this tenant.
    async fn purge_held(&self, scope: &PurgeScope) -> Result<Vec<String>> {
        let _ = scope;
        Err(no_purge(self.name()))
    }

    /// Makes a dead letter, a waiting retry or a timer executable now, with this number of
    /// attempts.
    async fn retry(&self, id: JobId, retries: i32) -> Result<(Operated, Vec<Ready>)>;

    /// Retries these jobs in one transaction. If the database refuses it, the store tries it in
    /// parts, as in [`delete_many`](Self::delete_many).
    async fn retry_many(&self, ids: &[JobId], retries: i32) -> Result<OperatedJobs>;

    /// Changes these jobs: those whose rows are free in one transaction, and the others when their
    /// rows become free. Jobs that run are not changed, and neither are jobs in a state that the
    /// change does not [apply to](Change::applies_to). If the database refuses
    /// it, the store tries it in parts, as in [`delete_many`](Self::delete_many). Optional for a
    /// store.
    ///
    /// # Errors
    /// [`StoreError::InvalidChange`] before anything is changed, or a database error.
    async fn change_many(&self, ids: &[JobId], change: &Change) -> Result<OperatedJobs> {
        let _ = (ids, change);
        Err(StoreError::Config(format!(
            "the store `{}` does not support this change of jobs",
            self.name()
        )))
    }

    /// Takes the lock of a job from its node, if it has one. Names its fence, so a lock that was
    /// taken meanwhile stays. A job that had been cancelled is deleted instead of released, and is in
    /// [`cancelled`](OperatedJobs::cancelled). See [`Client::unlock`](crate::Client::unlock).
    async fn unlock(&self, id: JobId) -> Result<OperatedJobs> {
        let told = |operated| OperatedJobs {
            operated: vec![(id, operated)],
            ..OperatedJobs::default()
        };
        let Some((view, ..)) = self.get(id).await? else {
            return Ok(told(Operated::NotFound));
        };
        let (Some(owner), Some(fence)) = (view.lock_owner, view.fence) else {
            return Ok(told(Operated::OtherState));
        };
        let held = LockToken {
            id,
            fence: Fence::new(fence),
            instance: view.process_instance.filter(|_| view.exclusive),
        };
        let released = [Release::of_attempt(held)];
        let released = self.release(NodeId::from_uuid(owner), &released).await?;
        if released.applied.is_empty() {
            return Ok(told(Operated::OtherState));
        }
        Ok(OperatedJobs {
            cancelled: released.cancelled,
            ready: released.ready,
            ..told(Operated::Done)
        })
    }

    /// Returns the recorded attempts of a job, which may be gone by now, in their order. Optional for
    /// a store; see [`attempts`].
    async fn attempts(&self, job: JobId, limit: i64) -> Result<Vec<AttemptView>> {
        let _ = (job, limit);
        Ok(Vec::new())
    }

    /// Returns a page of the matching recorded attempts of all jobs, in the order of the query.
    /// Optional for a store; see [`attempts`].
    ///
    /// # Errors
    /// [`StoreError::InvalidQuery`], or a database error.
    async fn find_attempts(&self, query: &AttemptQuery) -> Result<Vec<AttemptView>> {
        query.check()?;
        Ok(Vec::new())
    }

    /// Returns incidents, the latest first. Optional for a store; see [`attempts`].
    async fn incidents(&self, filter: &IncidentFilter) -> Result<Vec<Incident>> {
        let _ = filter;
        Ok(Vec::new())
    }

    /// Returns those of the jobs that have an open incident. For the events of an operation; optional
    /// for a store.
    async fn open_incidents(&self, jobs: &[JobId]) -> Result<Vec<JobId>> {
        let _ = jobs;
        Ok(Vec::new())
    }

    /// Groups the failures of a type, or of all types, by type and message, the most frequent
    /// first. Reads all jobs and all recorded attempts. Optional for a store; see [`attempts`].
    async fn errors(&self, job_type: Option<&str>, limit: i64) -> Result<Vec<ErrorGroup>> {
        let _ = (job_type, limit);
        Ok(Vec::new())
    }

    /// Deletes up to `at_most` attempts whose time is over, as many incidents that were resolved
    /// before this time, and the free keys among as many that were not seen for an hour. Returns
    /// the largest of the three numbers. Waits for no row. Optional for a store.
    async fn prune_history(&self, incidents: Duration, at_most: i64) -> Result<u64> {
        let _ = (incidents, at_most);
        Ok(0)
    }

    /// Switches the [event stream](crate::event::stream) on with these options, or changes them, or
    /// switches it off. Creators and nodes wait for a moment, on PostgreSQL for some seconds at worst.
    /// Returns the number of events that were dropped, because the stream was switched off before they
    /// were published. On PostgreSQL the role owns the job tables. Optional for a store.
    ///
    /// # Errors
    /// [`StoreError::InvalidChange`] if an option is wrong. The database's error if the role may not
    /// create triggers, or a transaction keeps the job tables busy.
    async fn switch_event_stream(&self, stream: Option<&EventStream>) -> Result<u64> {
        let _ = stream;
        Err(no_event_stream(self.name()))
    }

    /// Returns the options of the event stream, if it is switched on.
    async fn event_stream(&self) -> Result<Option<EventStream>> {
        Ok(None)
    }

    /// Returns the state of the event stream. Optional for a store.
    async fn event_stream_state(&self) -> Result<EventStreamState> {
        Err(no_event_stream(self.name()))
    }

    /// Returns the number of events that wait to be published, at most
    /// [`COUNTED_EVENTS`](crate::event::stream::COUNTED_EVENTS), and the time of the oldest.
    async fn waiting_events(&self) -> Result<(i64, Option<DateTime<Utc>>)> {
        Ok((0, None))
    }

    /// Returns the first events that wait, in their order.
    async fn next_events(&self, at_most: i64) -> Result<Vec<StreamedEvent>> {
        let _ = at_most;
        Ok(Vec::new())
    }

    /// Deletes published events, by their numbers and ids. A database that has lost its last commits gives
    /// the same numbers to other events.
    async fn forget_events(&self, published: &[(i64, uuid::Uuid)]) -> Result<u64> {
        let _ = published;
        Ok(0)
    }

    /// Deletes those of the first `at_most` events that have waited longer than the stream keeps
    /// them. Returns their number.
    async fn drop_old_events(&self, at_most: i64) -> Result<u64> {
        let _ = at_most;
        Ok(0)
    }

    /// Deletes those of these events, by their numbers and ids, that have waited longer than the stream
    /// keeps them. Returns their number.
    async fn drop_failed_events(&self, failed: &[(i64, uuid::Uuid)]) -> Result<u64> {
        let _ = failed;
        Ok(0)
    }

    /// Suspends a scope from the first commit on. Its waiting jobs then move to the suspended table
    /// in parts, and running ones when they fail. If a part fails, the suspension holds, and the
    /// next call moves the rest. Jobs that are created later stay executable and are not locked, and neither is a
    /// job that the database refuses to move.
    async fn suspend(&self, scope: &SuspensionScope) -> Result<Suspended>;

    /// Moves the waiting jobs of a suspension that [has begun](SqlStore::suspend_in) to the suspended
    /// table, in parts. Moves none if there is no such suspension.
    async fn move_suspended(&self, scope: &SuspensionScope) -> Result<Suspended> {
        let _ = scope;
        Ok(Suspended::default())
    }

    /// Returns whether the order of exclusive jobs is strict.
    async fn strict_order(&self) -> Result<bool> {
        Ok(false)
    }

    /// Sets whether the order of exclusive jobs is strict, for every node on this database. In a
    /// strict order, no job of an instance starts while an earlier sibling waits for a retry, is
    /// suspended, or is a dead letter. The others continue after an operator has retried or deleted
    /// the earlier sibling. Optional for a store.
    async fn set_strict_order(&self, strict: bool) -> Result<()> {
        let _ = strict;
        Err(StoreError::Config(format!(
            "the store `{}` does not support the strict order",
            self.name()
        )))
    }

    /// Brings back the jobs that [`suspend`](Self::suspend) moved, part by part, and ends the
    /// suspension with the last part: an interrupted end leaves the suspension in place, and another
    /// call continues. Returns the first page of the jobs to hint; [`waited`](Self::waited) returns
    /// the next ones.
    async fn activate(&self, scope: &SuspensionScope) -> Result<Lifted>;

    /// Returns whether scopes of this store can be suspended and paused. Nodes then run the jobs that
    /// do so at a date.
    fn has_suspensions(&self) -> bool {
        false
    }

    /// Pauses a scope: its jobs stay where they are, and no statement locks them. Running jobs
    /// continue. Returns false if the scope is paused already. Optional for a store.
    async fn pause(&self, scope: &PauseScope) -> Result<bool> {
        let _ = scope;
        Err(no_pauses(self.name()))
    }

    /// Ends a pause. Returns the first page of the jobs to hint; [`waited`](Self::waited) returns
    /// the next ones. Jobs whose hints are not published are found by the sweeper.
    async fn resume(&self, scope: &PauseScope) -> Result<Lifted> {
        let _ = scope;
        Err(no_pauses(self.name()))
    }

    /// Marks a page of the jobs that waited for the end of a suspension or pause, and returns them
    /// to be hinted.
    async fn waited(&self, waiting: &Waiting) -> Result<Lifted> {
        let _ = waiting;
        Ok(Lifted::default())
    }

    /// Returns the suspensions and pauses, oldest first, with the numbers of their jobs. Reads all
    /// jobs if any exists.
    async fn suspensions(&self) -> Result<Vec<GateView>> {
        Ok(Vec::new())
    }

    /// Returns the rules, in their order, for the lanes of jobs whose creator names none.
    async fn lane_rules(&self) -> Result<Vec<LaneRule>>;

    /// Replaces all rules at once. Existing jobs keep their lanes.
    ///
    /// # Errors
    /// [`StoreError::InvalidRules`] before anything is changed.
    async fn set_lane_rules(&self, rules: &[LaneRule]) -> Result<()>;

    /// Returns the priority rules. Optional for a store, like the other methods of these rules.
    async fn priority_rules(&self) -> Result<Vec<PriorityRule>> {
        Ok(Vec::new())
    }

    /// Sets the priority of a scope, for jobs that are created from now on.
    ///
    /// # Errors
    /// [`StoreError::InvalidChange`] before anything is changed.
    async fn set_priority_rule(&self, rule: &PriorityRule) -> Result<()> {
        let _ = rule;
        Err(no_priority_rules(self.name()))
    }

    /// Removes the priority of a scope. Existing jobs keep theirs. Returns false if there is none.
    async fn clear_priority_rule(&self, scope: &PriorityScope) -> Result<bool> {
        let _ = scope;
        Err(no_priority_rules(self.name()))
    }

    /// Returns every lane that has jobs, and their number. Reads all jobs.
    async fn lanes(&self) -> Result<Vec<LaneView>>;

    /// Returns the number of unlocked executable jobs in each lane other than these, the deepest
    /// lane first. Reads all jobs.
    async fn lanes_outside(&self, lanes: &[Lane], at_most: i64) -> Result<Vec<LaneBacklog>>;

    /// Gives a page of jobs another lane. See [`crate::producer::lane_move`].
    async fn move_lane(&self, page: &LanePage) -> Result<MovedPage>;

    /// Declares periodic jobs and returns the result of each. Optional for a store, like the other methods
    /// of periodic jobs. A store may declare them in several transactions: after an error some of them may
    /// be declared, and the same call declares the others.
    ///
    /// # Errors
    /// [`StoreError::InvalidPeriodicJob`]. For a schedule or job that is not valid before anything is
    /// changed.
    async fn declare_periodic_jobs(&self, jobs: &[PeriodicJob]) -> Result<Vec<Declared>> {
        let _ = jobs;
        Err(no_periodic_jobs(self.name()))
    }

    /// Returns the periodic jobs, ordered by name.
    async fn periodic_jobs(&self) -> Result<Vec<PeriodicView>> {
        Err(no_periodic_jobs(self.name()))
    }

    /// Returns the names and templates of those of these periodic jobs that exist.
    async fn periodic_templates(&self, names: &[String]) -> Result<Vec<(String, String)>> {
        let all = self.periodic_jobs().await?.into_iter();
        let these = all.filter(|view| names.contains(&view.name));
        Ok(these.map(|view| (view.name, view.template)).collect())
    }

    /// Pauses or resumes a periodic job. Returns false if there is none of this name.
    async fn pause_periodic_job(&self, name: &str, paused: bool) -> Result<bool> {
        let _ = (name, paused);
        Err(no_periodic_jobs(self.name()))
    }

    /// Removes a periodic job. Returns false if there is none of this name.
    async fn remove_periodic_job(&self, name: &str) -> Result<bool> {
        let _ = name;
        Err(no_periodic_jobs(self.name()))
    }

    /// Creates a job of a periodic job, whose due dates do not change. `origin` names the part that
    /// hints it. `None` if there is none of this name.
    async fn run_periodic_job(&self, name: &str, origin: Origin) -> Result<Option<Triggered>> {
        let _ = (name, origin);
        Err(no_periodic_jobs(self.name()))
    }

    /// Returns the periodic jobs that are due, behind a place, ordered by due date and name. Leaves
    /// out those whose business calendar this program does not know.
    async fn due_periodic_jobs(
        &self,
        after: Option<&DuePlace>,
        at_most: i64,
    ) -> Result<DuePeriodicJobs> {
        let _ = (after, at_most);
        Err(no_periodic_jobs(self.name()))
    }

    /// Counts the occurrences without a date, which wait for a node that knows their business calendar.
    /// Returns at most `limit` calendars, those with most jobs first. Reads all executable jobs.
    /// Optional for a store.
    async fn pending_jobs(&self, limit: i64) -> Result<Vec<PendingJobs>> {
        let _ = limit;
        Ok(Vec::new())
    }

    /// Creates the jobs of a periodic job that is due, and advances it, in one transaction. Creates
    /// at most 100. Waits for no row.
    ///
    /// # Errors
    /// [`StoreError::InvalidPeriodicJob`] for a row that this program can't read. With any error the
    /// periodic job stays due.
    async fn fire_periodic_job(&self, name: &str) -> Result<Fired> {
        let _ = name;
        Err(no_periodic_jobs(self.name()))
    }

    /// Gives periodic jobs whose last date lies in the future their next date from now on: the database's
    /// clock was set ahead for a while, and has been set back. Looks at `at_most` of them, and reads all
    /// periodic jobs. Waits for no row. Returns their names. Optional for a store.
    async fn revise_periodic_jobs(&self, at_most: i64) -> Result<Vec<String>> {
        let _ = at_most;
        Ok(Vec::new())
    }

    /// Returns whether this store keeps permits of limits.
    fn has_permits(&self) -> bool {
        false
    }

    /// Grants permits of limits to this node, takes permits back, ends the leases of asking jobs that
    /// get none, and wakes waiting jobs. See the [module](permits). Optional for a store.
    async fn exchange_permits(&self, request: &PermitRequest) -> Result<PermitAnswer> {
        let _ = request;
        Err(StoreError::Config(format!(
            "the store `{}` does not support limits",
            self.name()
        )))
    }

    /// Returns keys whose waiting jobs could run, and deletes rows that nothing uses any more. A
    /// request that names such a key wakes them. The leader cycle frees the permits of nodes that
    /// have died. Keys of the limits `served` whose permits are all in use count as used: their jobs
    /// go on waiting. Optional for a store.
    async fn stalled_keys(&self, served: &[String]) -> Result<Vec<StalledKey>> {
        let _ = served;
        Ok(Vec::new())
    }

    /// Returns the permits of these limits that expire later than the time of their limit from now, and
    /// for which jobs wait. Before that, deletes those of `ended` that have not changed and whose nodes
    /// have no lease. Optional for a store.
    async fn lasting_permits(
        &self,
        limits: &[(String, Duration)],
        ended: &[LastingPermit],
    ) -> Result<Vec<LastingPermit>> {
        let _ = (limits, ended);
        Ok(Vec::new())
    }

    /// Counts the jobs that wait for a permit, by type. Returns at most `limit` types, those with
    /// most jobs first. Optional for a store.
    async fn waiting_for_permits(&self, limit: i64) -> Result<Vec<WaitingType>> {
        let _ = limit;
        Ok(Vec::new())
    }

    /// Returns those of these executable jobs that wait for another job of their process instance: for
    /// the one that runs, or for an earlier one. Optional for a store.
    async fn waiting_for_siblings(&self, jobs: &[JobId]) -> Result<Vec<JobId>> {
        let _ = jobs;
        Ok(Vec::new())
    }

    /// Returns those of these jobs that wait for a permit, and of which key. Optional for a store.
    async fn waiting_of(&self, jobs: &[JobId]) -> Result<Vec<WaitingJob>> {
        let _ = jobs;
        Ok(Vec::new())
    }

    /// Returns whether this store keeps batches.
    fn has_batches(&self) -> bool {
        false
    }

    /// Ends a batch whose members have all ended: creates the job at its end, exactly once. Changes
    /// nothing if a member is present, if more than 5,000 are not forgotten, or if the batch is not
    /// open. `left` are members that the caller believes to have ended; the others are looked for. See
    /// the [module](batches). Optional for a store, like the other methods of batches.
    ///
    /// If a job has the id of the job at the end, the batch ends without it. With an error it stays open.
    async fn end_batch(&self, batch: BatchId, left: &[JobId]) -> Result<Option<EndedBatch>> {
        let _ = (batch, left);
        Ok(None)
    }

    /// Returns which of the next `at_most` open batches have no present member. Waits for no row.
    async fn open_batches(&self, after: Option<BatchId>, at_most: i64) -> Result<OpenBatches> {
        let _ = (after, at_most);
        Ok(OpenBatches::default())
    }

    /// Returns the open batches, the latest first; with `ended` those that have ended, too. Reads
    /// their members.
    async fn batches(&self, ended: bool, at_most: i64) -> Result<Vec<BatchView>> {
        let _ = (ended, at_most);
        Ok(Vec::new())
    }

    /// Returns a batch. Reads its members.
    async fn batch(&self, batch: BatchId) -> Result<Option<BatchView>> {
        let _ = batch;
        Ok(None)
    }

    /// Marks a batch as cancelled: its end creates no job, and no job can be added. Its members stay.
    /// Returns false if it is not open.
    async fn cancel_batch(&self, batch: BatchId) -> Result<bool> {
        let _ = batch;
        Ok(false)
    }

    /// Returns a page of the members of a batch that are not forgotten.
    async fn batch_members(
        &self,
        batch: BatchId,
        after: Option<JobId>,
        at_most: i64,
    ) -> Result<BatchMembers> {
        let _ = (batch, after, at_most);
        Ok(BatchMembers::default())
    }

    /// Forgets the members among `left` that are no longer present. Returns whether one of the others
    /// keeps the batch open.
    async fn forget_batch_members(&self, batch: BatchId, left: &[JobId]) -> Result<bool> {
        let _ = (batch, left);
        Ok(false)
    }

    /// Forgets these members of a batch whose members have all ended, and counts the dead letters among
    /// them. Returns false, and changes nothing, if one of them keeps the batch open, if dead letters
    /// do, or if the batch is not open. A retry of a forgotten dead letter is too late to keep the
    /// batch open.
    async fn forget_dead_letters(&self, batch: BatchId, members: &[JobId]) -> Result<bool> {
        let _ = (batch, members);
        Ok(false)
    }

    /// Returns the stuck operations: the database refuses rows of a batch, or the whole batch
    /// (protocol rule 37). For reports only: a stuck operation stops no other work.
    fn stuck(&self) -> Vec<StuckBatch> {
        Vec::new()
    }

    /// Closes every connection.
    async fn close(&self);
}

/// The transaction that a handler works in and that completes its job. Effects and completion
/// commit together or not at all.
#[async_trait]
pub trait CompletingTransaction: Send {
    /// Returns the concrete [`JobTransaction`](crate::JobTransaction), for the handler.
    fn as_any(&mut self) -> &mut (dyn Any + Send);

    /// Names the job that the transaction completes. A handler that [ends](crate::JobTransaction::end) a
    /// scope does not cancel it.
    fn completes(&mut self, job: JobId) {
        let _ = job;
    }

    /// Completes the job and commits. Commits nothing if the lock was lost.
    async fn complete(
        self: Box<Self>,
        owner: NodeId,
        completion: &Completion,
        then: &Handoff,
    ) -> Result<BatchOutcome>;

    /// Resolves when the connection is no longer trusted: a statement on it may wait for ever. A
    /// living connection has time to answer before that.
    fn line_ends(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    /// Undoes everything.
    ///
    /// # Errors
    /// Fails if the connection is lost. The database then undoes the transaction itself.
    async fn rollback(self: Box<Self>) -> Result<()>;
}

/// A store whose transactions a user can share, to create jobs in them.
#[async_trait]
pub trait SqlStore: Store + Clone {
    /// The database.
    type Db: sqlx::Database;

    /// Returns the time after which an answer of the database counts as lost.
    fn deadline(&self) -> Duration;

    /// Marks the connections that are open now as suspect, after an answer did not come in time.
    /// They are not used again.
    fn suspect_connections(&self) {}

    /// Resolves when the connections that are open now have been suspected, and the longest time
    /// for an answer has passed since.
    fn line_ends(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    /// Waits for a permit to hold a connection for a transaction of an application or a handler.
    /// One connection has no permit: it stays free for the leader cycle, timers and failures.
    ///
    /// # Errors
    /// No permit became free in time.
    async fn hold_permit(&self) -> Result<Option<OwnedSemaphorePermit>> {
        Ok(None)
    }

    /// Opens a transaction that may write.
    async fn begin(&self) -> Result<sqlx::Transaction<'static, Self::Db>>;

    /// Checks that the transaction of this connection can still commit.
    ///
    /// # Errors
    /// [`StoreError::TransactionFailed`] if one of its statements has failed and the database will
    /// undo all.
    async fn ensure_intact(
        &self,
        connection: &mut <Self::Db as sqlx::Database>::Connection,
    ) -> Result<()>;

    /// Commits a transaction of [`begin`](Self::begin) in which statements of an application ran.
    /// Fails if one of them has failed: the database answers such a COMMIT with a rollback and no
    /// error.
    ///
    /// # Errors
    /// The database's error. After a broken connection it is unknown whether anything was
    /// committed.
    async fn commit(&self, transaction: sqlx::Transaction<'static, Self::Db>) -> Result<()>;

    /// Inserts jobs over a connection that is inside the caller's transaction. Of a unique job whose
    /// key another job has, returns [that one](Created::existing).
    ///
    /// # Errors
    /// [`StoreError::InvalidJob`] before anything was written; otherwise the database's error.
    async fn insert(
        &self,
        connection: &mut <Self::Db as sqlx::Database>::Connection,
        jobs: Vec<NewJob>,
        origin: Origin,
    ) -> Result<Created>;

    /// Writes a batch over a connection that is inside the caller's transaction. Its members are
    /// [inserted](Self::insert) after that.
    ///
    /// # Errors
    /// [`StoreError::BatchEnded`] if the job at its end belongs to a batch that is not open;
    /// otherwise the database's error.
    async fn insert_batch(
        &self,
        connection: &mut <Self::Db as sqlx::Database>::Connection,
        batch: &NewBatch,
    ) -> Result<()> {
        let _ = (connection, batch);
        Err(StoreError::Config(format!(
            "the store `{}` does not support batches",
            self.name()
        )))
    }

    /// Deletes the jobs of a scope that no node runs, and marks the others as cancelled, over a connection
    /// that is inside the caller's transaction. `own` is the job that this transaction completes: it gets
    /// no mark.
    ///
    /// # Errors
    /// [`StoreError::RowLocked`] if another transaction locked a row for two seconds: roll back.
    /// Otherwise the database's error: a [conflict](StoreError::is_conflict) if the lock of one of the jobs
    /// has changed since the snapshot of the transaction.
    async fn end(
        &self,
        connection: &mut <Self::Db as sqlx::Database>::Connection,
        scope: &EndedScope,
        own: Option<JobId>,
    ) -> Result<Ended>;

    /// Performs an operator's action on jobs, over a connection that is inside the caller's
    /// transaction. No job is [refused](OperatedJobs::refused): either the action succeeds for all of
    /// them, or it fails and changes nothing.
    ///
    /// # Errors
    /// [`StoreError::RowLocked`] if another transaction locked a row for two seconds.
    /// [`StoreError::TooIsolated`] if the transaction is isolated more strictly than READ COMMITTED.
    /// Otherwise the database's error.
    async fn operate(
        &self,
        connection: &mut <Self::Db as sqlx::Database>::Connection,
        ids: &[JobId],
        action: &Action,
    ) -> Result<OperatedJobs>;

    /// Records a suspension over a connection that is inside the caller's transaction, and keeps it from
    /// ending before that transaction. Returns false if it was recorded before. After the commit
    /// [`move_suspended`](Store::move_suspended) moves its jobs. If it fails, nothing is changed.
    ///
    /// # Errors
    /// [`StoreError::Config`] if the store can't do this; otherwise the database's error.
    async fn suspend_in(
        &self,
        connection: &mut <Self::Db as sqlx::Database>::Connection,
        scope: &SuspensionScope,
    ) -> Result<bool> {
        let _ = (connection, scope);
        Err(no_suspensions_inside(self.name()))
    }

    /// Brings back all jobs of a suspension and ends it, over a connection that is inside the caller's
    /// transaction. Returns the number of jobs, or `None` if there is no such suspension. If it fails,
    /// nothing is changed. After the commit [`waited`](Store::waited) returns the jobs to hint.
    ///
    /// # Errors
    /// [`StoreError::TooIsolated`] if the transaction is isolated more strictly than READ COMMITTED;
    /// [`StoreError::Config`] if the store can't do this; otherwise the database's error.
    async fn activate_in(
        &self,
        connection: &mut <Self::Db as sqlx::Database>::Connection,
        scope: &SuspensionScope,
    ) -> Result<Option<u64>> {
        let _ = (connection, scope);
        Err(no_suspensions_inside(self.name()))
    }

    /// Returns the jobs with an open incident, as the caller's transaction sees them. For the events of
    /// an action. After an error the transaction can go on.
    async fn open_incidents_in(
        &self,
        connection: &mut <Self::Db as sqlx::Database>::Connection,
        jobs: &[JobId],
    ) -> Result<Vec<JobId>> {
        let _ = (connection, jobs);
        Ok(Vec::new())
    }

    /// Returns the next job of each of these instances that no job holds. Called after the commit of a
    /// transaction in which jobs left the instances, or that [could not see](BatchOutcome::unseen) the
    /// next ones. A query before that commit would miss a job that commits in between and is refused.
    async fn next_of(&self, instances: &[String]) -> Result<Vec<Ready>> {
        let _ = instances;
        Ok(Vec::new())
    }

    /// Completes one job over a connection inside the caller's transaction.
    async fn complete_in(
        &self,
        connection: &mut <Self::Db as sqlx::Database>::Connection,
        owner: NodeId,
        completion: &Completion,
        then: &Handoff,
    ) -> Result<BatchOutcome>;
}

/// The fate of a transaction whose COMMIT was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It committed.
    Committed,
    /// It rolled back.
    RolledBack,
    /// The database does not know it, no longer or not yet.
    Unknown,
}

text_enum! {
    /// The part that hints a new job: the creating process or the leader (protocol rule 20).
    Origin {
        /// The creating process, after its transaction has committed.
        Hook = "hook",
        /// The commit tap, or the leader cycle.
        Sql = "sql",
    }
}

/// Returns the error of a store that keeps no periodic jobs.
fn no_periodic_jobs(store: &str) -> StoreError {
    StoreError::Config(format!(
        "the store `{store}` does not support periodic jobs; declare them on a database of Jobwire"
    ))
}

/// Rejects rules that can't work.
fn check_rules(rules: &[LaneRule]) -> Result<()> {
    rule::validate(rules).map_err(StoreError::InvalidRules)
}

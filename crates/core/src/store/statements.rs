//! The statements of a SQL store, each trait in the file of the same topic of both databases.
//!
//! [`transitions`](super::transitions) makes a [`Store`](super::Store) of them. A function here is
//! one attempt: one statement or one transaction. Its caller sets the deadline, retries after
//! conflicts and searches for refused rows. With `these`, a function acts on those jobs only, for
//! that search. Without, it finds its jobs itself.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::attempts::{AttemptQuery, AttemptView, ErrorGroup, Incident, IncidentFilter};
use super::batches::{BatchMembers, EndedBatch, OpenBatches};
use super::change::Change;
use super::permits::{
    LastingPermit, PermitAnswer, PermitRequest, StalledKey, WaitingJob, WaitingType,
};
use super::poison::{Activated, SetsAside};
use super::purging::{PurgeScope, PurgeableJob, TableCount};
use super::transaction::AfterCommit;
use super::{
    BatchOutcome, ClaimPage, Claimable, Claimed, CompletingTransaction, Completion, CycleOutcome,
    DuePeriodicJobs, DuePlace, Failure, Fate, Fired, Gate, GateView, Handoff, Holder, LanePage,
    LeaderCycle, Lifted, LockTerms, Locked, Marked, Membership, MovedPage, MovedTimers, NodeView,
    OperatedJobs, Origin, OrphanPage, OrphanQuery, PauseScope, PeriodicView, Release, Renewed,
    Result, SchemaStatus, Succession, Suspended, SuspensionScope, TapOffer, TransactionId,
    Triggered, Waiting,
};
use crate::event::stream::{EventStream, EventStreamState, StreamedEvent};
use crate::hint::{Hint, Ready};
use crate::job::batch::BatchView;
use crate::job::calendar::Calendars;
use crate::job::periodic::{Declaration, Declared};
use crate::job::progress::Progress;
use crate::job::query::{
    JobQuery, JobView, LaneBacklog, LaneView, PendingJobs, Sweepable, UnservedType,
};
use crate::job::scope::Services;
use crate::job::{BatchId, Fence, Job, JobId, Lane, LockToken, LockedJob, NodeId};
use crate::lane::priority::{PriorityRule, PriorityScope};
use crate::lane::rule::LaneRule;
use crate::lane::start_order::Rank;

/// All statements of a store.
pub(super) trait Statements:
    Database
    + Locking
    + Ranking
    + Claiming
    + Leases
    + Completing
    + Failing
    + Timers
    + Leading
    + Orphans
    + Members
    + Finding
    + Operating
    + Progressing
    + Changing
    + Purging
    + Recording
    + Suspending
    + Lanes
    + Priorities
    + Periodic
    + Permitting
    + Streaming
    + Batching
{
}

/// The connections to a database, and the abilities of some databases.
pub(super) trait Database: SetsAside + fmt::Debug + Send + Sync + 'static {
    /// The name of the store.
    const NAME: &'static str;

    /// Runs one transition with a deadline, measures it, and retries it after a conflict between
    /// transactions.
    fn run<T, F, Fut>(
        &self,
        statement: &'static str,
        transition: F,
    ) -> impl Future<Output = Result<T>> + Send
    where
        T: Send,
        F: Fn() -> Fut + Send,
        Fut: Future<Output = Result<T>> + Send;

    /// Returns the time after which an unanswered statement can no longer take effect.
    fn within(&self) -> Duration;

    /// Returns the business calendars of the options.
    fn known_calendars(&self) -> &Calendars;

    /// Checks the connections and reads the version of the schema.
    fn read_schema(&self) -> impl Future<Output = Result<SchemaStatus>> + Send;

    /// Checks that the database answers.
    fn is_there(&self) -> impl Future<Output = Result<()>> + Send {
        async { self.run("check", || self.read_schema()).await.map(drop) }
    }

    /// Returns the reason why the database does not answer.
    fn why_absent(&self) -> impl Future<Output = Option<String>> + Send {
        std::future::ready(None)
    }

    /// Returns the number of changes of the server that were found so far.
    fn found_changes(&self) -> u64 {
        0
    }

    /// Makes the next fences larger than all before.
    fn leap(&self) -> impl Future<Output = Result<()>> + Send {
        std::future::ready(Ok(()))
    }

    /// Opens the transaction in which a handler works.
    fn open_completing(
        &self,
        after: Arc<dyn AfterCommit>,
    ) -> impl Future<Output = Result<Box<dyn CompletingTransaction>>> + Send;

    /// Returns the fate of a transaction.
    fn fate(&self, transaction: &TransactionId) -> impl Future<Output = Result<Fate>> + Send {
        let _ = transaction;
        std::future::ready(Ok(Fate::Unknown))
    }

    /// Opens the commit tap.
    fn offer_tap(&self) -> impl Future<Output = Result<TapOffer>> + Send {
        std::future::ready(Ok(TapOffer::missing(Self::NAME)))
    }

    /// Marks the jobs among these that were never hinted.
    fn mark_tapped(&self, jobs: &[JobId]) -> impl Future<Output = Result<Marked>> + Send {
        let _ = jobs;
        std::future::ready(Ok(Marked::default()))
    }

    /// Returns a number that changes when another connection writes.
    fn version(&self) -> impl Future<Output = Result<Option<i64>>> + Send {
        std::future::ready(Ok(None))
    }

    /// Starts a node that serves this database alone.
    fn succeed_to(&self, node: NodeId) -> impl Future<Output = Result<Succession>> + Send {
        let _ = node;
        std::future::ready(Ok(Succession::Unknown))
    }

    /// Closes every connection.
    fn disconnect(&self) -> impl Future<Output = ()> + Send;
}

/// Locks jobs by hints.
pub(super) trait Locking {
    fn lock_batch(
        &self,
        terms: &LockTerms,
        hints: &[Hint],
    ) -> impl Future<Output = Result<Locked>> + Send;
}

/// Reads the ranks of ready jobs.
pub(super) trait Ranking {
    fn read_ranks(&self, jobs: &[JobId])
    -> impl Future<Output = Result<Vec<(JobId, Rank)>>> + Send;
}

/// Locks jobs without hints.
pub(super) trait Claiming {
    fn claim_page(
        &self,
        terms: &LockTerms,
        page: &ClaimPage,
    ) -> impl Future<Output = Result<Claimed>> + Send;

    fn claimable_page(
        &self,
        terms: &LockTerms,
        page: &ClaimPage,
    ) -> impl Future<Output = Result<Claimable>> + Send;
}

/// Renews leases of a holder, finds lost ones, and clears strikes.
pub(super) trait Leases {
    fn renew_batch(
        &self,
        owner: NodeId,
        lease: Duration,
        held: &[LockToken],
    ) -> impl Future<Output = Result<Renewed>> + Send;

    fn find_unknown(
        &self,
        owner: NodeId,
        lease: Duration,
        known: &[Fence],
    ) -> impl Future<Output = Result<Vec<LockedJob>>> + Send;

    fn note_alone(
        &self,
        owner: NodeId,
        held: &LockToken,
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Clears the last strike of these jobs. Returns false if a row was locked, or if a lease still
    /// has its owner under its fence.
    fn take_strikes_back(&self, lost: &[LockToken]) -> impl Future<Output = Result<bool>> + Send;
}

/// Completes and releases jobs.
pub(super) trait Completing {
    fn complete_batch(
        &self,
        owner: NodeId,
        done: &[Completion],
        then: &Handoff,
    ) -> impl Future<Output = Result<BatchOutcome>> + Send;

    fn release_batch(
        &self,
        owner: NodeId,
        released: &[Release],
    ) -> impl Future<Output = Result<BatchOutcome>> + Send;
}

/// Moves failed jobs to the table where they wait.
pub(super) trait Failing {
    fn fail_batch(
        &self,
        owner: NodeId,
        failed: &[Failure],
        then: &Handoff,
    ) -> impl Future<Output = Result<BatchOutcome>> + Send;
}

/// Moves due timers to the executable table.
pub(super) trait Timers {
    /// Returns due timers: up to `at_most` of the oldest, and as many of the newest.
    fn due(&self, at_most: i64) -> impl Future<Output = Result<Vec<JobId>>> + Send;

    /// Moves due timers. With `take`, locks the timers of its lanes that its terms allow.
    fn move_due(
        &self,
        at_most: i64,
        take: Option<(&LockTerms, &[Lane])>,
        these: Option<&[JobId]>,
    ) -> impl Future<Output = Result<MovedTimers>> + Send;
}

/// A job that was noted, unless the row has no id, and the time of the note in microseconds since 1970.
pub(super) type Noted = (Option<JobId>, i64);

/// Runs the leader cycle.
pub(super) trait Leading {
    fn cycle(
        &self,
        cycle: &LeaderCycle,
        these: Option<&[JobId]>,
    ) -> impl Future<Output = Result<CycleOutcome>> + Send;

    /// Returns the jobs that a cycle may mark.
    fn marked(&self, at_most: i64) -> impl Future<Output = Result<Vec<JobId>>> + Send;

    fn hint_unhinted(
        &self,
        at_most: i64,
        these: Option<&[JobId]>,
    ) -> impl Future<Output = Result<Vec<Ready>>> + Send;

    /// Returns the jobs that were never hinted: up to `at_most` of the oldest, and of the newest.
    fn find_unhinted(&self, at_most: i64) -> impl Future<Output = Result<Vec<JobId>>> + Send;

    fn note_jobs(&self, jobs: &[JobId]) -> impl Future<Output = Result<()>> + Send;

    /// Forgets jobs that were noted, and returns them.
    fn forget_noted(&self, at_most: i64) -> impl Future<Output = Result<Vec<Noted>>> + Send;

    /// Counts a hint for those of these jobs that are free and were not hinted since, and returns them.
    fn announce_jobs(&self, noted: &[Noted]) -> impl Future<Output = Result<Vec<Ready>>> + Send;

    fn resign_leading(&self, node: NodeId) -> impl Future<Output = Result<()>> + Send;

    /// Returns the session whose transaction has locked the leader's row, in words, if it can be told.
    fn lead_locker(&self) -> impl Future<Output = Result<Option<String>>> + Send;
}

/// Finds jobs whose hint was lost.
pub(super) trait Orphans {
    fn find_orphans(
        &self,
        query: &OrphanQuery,
        these: Option<&[JobId]>,
    ) -> impl Future<Output = Result<OrphanPage>> + Send;

    fn count_sweepable(
        &self,
        services: &Services,
        received: &[Lane],
    ) -> impl Future<Output = Result<Sweepable>> + Send;

    /// Counts the jobs of the types that no node serves, the most frequent types first.
    fn count_unserved(
        &self,
        services: &Services,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<UnservedType>>> + Send;

    /// Frees instances whose holder has no lease, and returns their next jobs.
    fn free_left_over(&self) -> impl Future<Output = Result<Vec<Ready>>> + Send;
}

/// Writes and reads the rows of the nodes.
pub(super) trait Members {
    fn write_membership(&self, node: &Membership) -> impl Future<Output = Result<()>> + Send;

    fn delete_node(&self, node: NodeId) -> impl Future<Output = Result<()>> + Send;

    fn delete_silent_nodes(
        &self,
        silent_for: Duration,
        heard: &[NodeId],
    ) -> impl Future<Output = Result<u64>> + Send;

    fn read_nodes(&self) -> impl Future<Output = Result<Vec<NodeView>>> + Send;

    /// Returns the holders of leases, those that last longest first.
    fn read_holders(&self, limit: i64) -> impl Future<Output = Result<Vec<Holder>>> + Send;
}

/// Answers operators' queries.
pub(super) trait Finding {
    fn find_jobs(&self, query: &JobQuery) -> impl Future<Output = Result<Vec<JobView>>> + Send;

    fn count_jobs(
        &self,
        query: &JobQuery,
        at_most: Option<i64>,
    ) -> impl Future<Output = Result<i64>> + Send;

    /// Returns those of these executable jobs whose turn in their instance has not come.
    fn find_out_of_turn(&self, jobs: &[JobId]) -> impl Future<Output = Result<Vec<JobId>>> + Send;

    /// Returns the job and the stack of its exception.
    fn get_job(
        &self,
        id: JobId,
    ) -> impl Future<Output = Result<Option<(Job, Option<String>)>>> + Send;
}

/// Performs operators' actions.
pub(super) trait Operating {
    /// Deletes the jobs that no node runs.
    fn delete_jobs(&self, ids: &[JobId]) -> impl Future<Output = Result<OperatedJobs>> + Send;

    /// Marks the lease of a running job as cancelled. Returns false if no node runs the job.
    fn mark_cancelled(&self, id: JobId) -> impl Future<Output = Result<bool>> + Send;

    fn retry_jobs(
        &self,
        ids: &[JobId],
        retries: i32,
    ) -> impl Future<Output = Result<OperatedJobs>> + Send;

    fn is_strict(&self) -> impl Future<Output = Result<bool>> + Send;

    fn write_strict_order(&self, strict: bool) -> impl Future<Output = Result<()>> + Send;
}

/// Writes and reads the progress and the checkpoints of running jobs.
pub(super) trait Progressing {
    /// Writes progress. Returns the jobs whose guard held.
    fn write_reports(
        &self,
        owner: NodeId,
        reports: &[(LockToken, Progress)],
    ) -> impl Future<Output = Result<Vec<JobId>>> + Send;

    /// Saves a checkpoint. Returns false if the guard did not hold.
    fn write_checkpoint(
        &self,
        owner: NodeId,
        held: &LockToken,
        checkpoint: &str,
    ) -> impl Future<Output = Result<bool>> + Send;

    fn read_checkpoint(&self, id: JobId) -> impl Future<Output = Result<Option<String>>> + Send;
}

/// Changes jobs for operators.
pub(super) trait Changing {
    /// Changes the jobs that no node runs. A job is changed only in a state that the change
    /// [applies to](Change::applies_to).
    fn change_jobs(
        &self,
        ids: &[JobId],
        change: &Change,
    ) -> impl Future<Output = Result<OperatedJobs>> + Send;
}

/// Removes every trace of an instance or a tenant.
pub(super) trait Purging {
    fn count_purgeable(
        &self,
        scope: &PurgeScope,
    ) -> impl Future<Output = Result<Vec<TableCount>>> + Send;

    fn purgeable_page(
        &self,
        scope: &PurgeScope,
        after: Option<JobId>,
        at_most: i64,
    ) -> impl Future<Output = Result<Vec<PurgeableJob>>> + Send;

    fn purge_of_jobs(&self, jobs: &[JobId])
    -> impl Future<Output = Result<Vec<TableCount>>> + Send;

    fn purge_records(
        &self,
        scope: &PurgeScope,
        at_most: i64,
    ) -> impl Future<Output = Result<(Vec<TableCount>, Vec<JobId>)>> + Send;

    fn purge_batches(
        &self,
        scope: &PurgeScope,
        at_most: i64,
    ) -> impl Future<Output = Result<Vec<TableCount>>> + Send;

    fn purge_rest(
        &self,
        scope: &PurgeScope,
    ) -> impl Future<Output = Result<Vec<TableCount>>> + Send;

    fn purge_events(&self, scope: &PurgeScope) -> impl Future<Output = Result<u64>> + Send;

    fn limits_held(&self, scope: &PurgeScope) -> impl Future<Output = Result<Vec<String>>> + Send;
}

/// Reads and prunes attempts, errors and incidents.
pub(super) trait Recording {
    fn read_attempts(
        &self,
        job: JobId,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<AttemptView>>> + Send;

    /// Reads the attempts of a query that has been checked.
    fn read_attempts_by(
        &self,
        query: &AttemptQuery,
    ) -> impl Future<Output = Result<Vec<AttemptView>>> + Send;

    fn read_incidents(
        &self,
        filter: &IncidentFilter,
    ) -> impl Future<Output = Result<Vec<Incident>>> + Send;

    fn read_open(&self, jobs: &[JobId]) -> impl Future<Output = Result<Vec<JobId>>> + Send;

    fn group_errors(
        &self,
        job_type: Option<&str>,
        limit: i64,
    ) -> impl Future<Output = Result<Vec<ErrorGroup>>> + Send;

    /// Deletes attempts whose time is over, and incidents that were resolved before this time.
    fn prune(&self, incidents: Duration, at_most: i64) -> impl Future<Output = Result<u64>> + Send;
}

/// Suspends and activates jobs, pauses and resumes them.
pub(super) trait Suspending {
    /// Records a suspension or a pause. Returns false if it was recorded before.
    fn write_gate(&self, gate: &Gate) -> impl Future<Output = Result<bool>> + Send;

    /// Returns the first jobs in the order of their ids that a suspension moves, behind `after`.
    fn suspendable(
        &self,
        scope: &SuspensionScope,
        after: Option<JobId>,
        at_most: i64,
    ) -> impl Future<Output = Result<Vec<JobId>>> + Send;

    /// Moves these jobs to the suspended table; none if the suspension has ended meanwhile.
    fn suspend_jobs(
        &self,
        scope: &SuspensionScope,
        these: &[JobId],
    ) -> impl Future<Output = Result<Suspended>> + Send;

    /// Brings back the next jobs of the suspension, at most `at_most`. Ends the suspension in the
    /// same transaction if there are no more.
    fn end_part(
        &self,
        scope: &SuspensionScope,
        at_most: i64,
    ) -> impl Future<Output = Result<Activated>> + Send;

    /// Returns the first jobs that the suspension has moved and that its end brings back.
    fn put_aside(
        &self,
        scope: &SuspensionScope,
        at_most: i64,
    ) -> impl Future<Output = Result<Vec<JobId>>> + Send;

    /// Brings these jobs back; the suspension itself continues. Returns their number.
    fn bring_back(
        &self,
        scope: &SuspensionScope,
        these: &[JobId],
    ) -> impl Future<Output = Result<u64>> + Send;

    /// Ends a pause. Returns false if there is none.
    fn delete_pause(&self, scope: &PauseScope) -> impl Future<Output = Result<bool>> + Send;

    /// Marks a page of the jobs that waited for the end of a suspension or pause, which has
    /// committed, and returns them to be hinted.
    fn mark_waited(&self, waiting: &Waiting) -> impl Future<Output = Result<Lifted>> + Send;

    /// Returns the suspensions and pauses, with the numbers of their jobs.
    fn read_gates(&self) -> impl Future<Output = Result<Vec<GateView>>> + Send;
}

/// Reads and writes lane rules, counts the backlogs of lanes, and moves jobs to another lane.
pub(super) trait Lanes {
    fn read_rules(&self) -> impl Future<Output = Result<Vec<LaneRule>>> + Send;

    fn write_rules(&self, rules: &[LaneRule]) -> impl Future<Output = Result<()>> + Send;

    fn read_lanes(&self) -> impl Future<Output = Result<Vec<LaneView>>> + Send;

    fn read_lanes_outside(
        &self,
        lanes: &[Lane],
        at_most: i64,
    ) -> impl Future<Output = Result<Vec<LaneBacklog>>> + Send;

    fn page_ids(&self, page: &LanePage) -> impl Future<Output = Result<Vec<JobId>>> + Send;

    fn move_page(
        &self,
        page: &LanePage,
        these: Option<&[JobId]>,
    ) -> impl Future<Output = Result<MovedPage>> + Send;
}

/// Keeps the priority rules.
pub(super) trait Priorities {
    fn read_priorities(&self) -> impl Future<Output = Result<Vec<PriorityRule>>> + Send;

    /// Writes a rule. Fails if there are as many as allowed, and this one is new.
    fn write_priority(&self, rule: &PriorityRule) -> impl Future<Output = Result<()>> + Send;

    /// Deletes a rule. Returns false if there is none.
    fn delete_priority(&self, scope: &PriorityScope) -> impl Future<Output = Result<bool>> + Send;
}

/// The event stream.
pub(super) trait Streaming {
    /// Switches the stream on with these options, or off. Returns the number of dropped events.
    fn switch_stream(
        &self,
        stream: Option<&EventStream>,
    ) -> impl Future<Output = Result<u64>> + Send;

    fn read_stream(&self) -> impl Future<Output = Result<Option<EventStream>>> + Send;

    fn stream_state(&self) -> impl Future<Output = Result<EventStreamState>> + Send;

    /// Returns the number of events that wait, and the time of the oldest.
    fn count_events(&self) -> impl Future<Output = Result<(i64, Option<DateTime<Utc>>)>> + Send;

    fn events_page(&self, at_most: i64) -> impl Future<Output = Result<Vec<StreamedEvent>>> + Send;

    fn delete_events(
        &self,
        published: &[(i64, uuid::Uuid)],
    ) -> impl Future<Output = Result<u64>> + Send;

    fn delete_old_events(&self, at_most: i64) -> impl Future<Output = Result<u64>> + Send;

    /// Deletes those of these events that have waited longer than the stream keeps them.
    fn delete_failed_events(
        &self,
        failed: &[(i64, uuid::Uuid)],
    ) -> impl Future<Output = Result<u64>> + Send;
}

/// Grants permits of limits, and parks and wakes jobs.
pub(super) trait Permitting {
    fn exchange_batch(
        &self,
        request: &PermitRequest,
    ) -> impl Future<Output = Result<PermitAnswer>> + Send;

    /// Returns the keys whose waiting jobs could run. Keys of the limits `served` whose permits cool
    /// down in the database count as used.
    fn find_stalled(
        &self,
        served: &[String],
    ) -> impl Future<Output = Result<Vec<StalledKey>>> + Send;

    /// Returns the permits of these limits that expire later than the time of their limit from now, and
    /// for which jobs wait.
    fn find_lasting(
        &self,
        limits: &[(String, Duration)],
    ) -> impl Future<Output = Result<Vec<LastingPermit>>> + Send;

    /// Deletes those of these permits that have not changed and whose nodes have no lease.
    fn end_permits(&self, ended: &[LastingPermit]) -> impl Future<Output = Result<()>> + Send;

    /// Counts the waiting jobs by type, the most frequent types first.
    fn count_waiting(&self, limit: i64) -> impl Future<Output = Result<Vec<WaitingType>>> + Send;

    /// Returns those of these jobs that wait, and the key of each.
    fn find_waiting(&self, jobs: &[JobId]) -> impl Future<Output = Result<Vec<WaitingJob>>> + Send;
}

/// Ends, lists and cancels batches.
pub(super) trait Batching {
    /// Forgets the members among `left` that are no longer present, and ends the batch if no member
    /// is: with the job at its end, or without it if a job with its id exists.
    fn end_if_over(
        &self,
        batch: BatchId,
        left: &[JobId],
    ) -> impl Future<Output = Result<Option<EndedBatch>>> + Send;

    /// Tells which batches of the next page of open ones have no present member.
    fn page_of_open(
        &self,
        after: Option<BatchId>,
        at_most: i64,
    ) -> impl Future<Output = Result<OpenBatches>> + Send;

    /// Returns the open batches, the latest first, or all of them.
    fn list_batches(
        &self,
        ended: bool,
        at_most: i64,
    ) -> impl Future<Output = Result<Vec<BatchView>>> + Send;

    fn read_batch(&self, batch: BatchId) -> impl Future<Output = Result<Option<BatchView>>> + Send;

    /// Marks an open batch as cancelled. Returns false if it is not open.
    fn mark_batch_cancelled(&self, batch: BatchId) -> impl Future<Output = Result<bool>> + Send;

    fn page_of_members(
        &self,
        batch: BatchId,
        after: Option<JobId>,
        at_most: i64,
    ) -> impl Future<Output = Result<BatchMembers>> + Send;

    /// Forgets the members among `left` that are no longer present. Returns whether one of the others
    /// keeps the batch open.
    fn forget_members(
        &self,
        batch: BatchId,
        left: &[JobId],
    ) -> impl Future<Output = Result<bool>> + Send;

    /// Forgets these members, and counts the dead letters among them, unless one keeps the batch open.
    fn forget_dead(
        &self,
        batch: BatchId,
        members: &[JobId],
    ) -> impl Future<Output = Result<bool>> + Send;
}

/// Keeps the periodic jobs, and creates their jobs.
pub(super) trait Periodic {
    /// Declares these, in the order of their names, in one transaction.
    fn declare_all(
        &self,
        declarations: &[Declaration],
    ) -> impl Future<Output = Result<Vec<Declared>>> + Send;

    fn list_periodic(&self) -> impl Future<Output = Result<Vec<PeriodicView>>> + Send;

    /// Returns the names and templates of those of these schedules that exist.
    fn templates(
        &self,
        names: &[String],
    ) -> impl Future<Output = Result<Vec<(String, String)>>> + Send;

    fn set_paused(&self, name: &str, paused: bool) -> impl Future<Output = Result<bool>> + Send;

    fn delete_periodic(&self, name: &str) -> impl Future<Output = Result<bool>> + Send;

    /// Creates a job without an advance of the schedule.
    fn trigger(
        &self,
        name: &str,
        origin: Origin,
    ) -> impl Future<Output = Result<Option<Triggered>>> + Send;

    fn due_schedules(
        &self,
        after: Option<&DuePlace>,
        at_most: i64,
    ) -> impl Future<Output = Result<DuePeriodicJobs>> + Send;

    /// Counts the occurrences without a date by calendar, the most frequent calendars first.
    fn count_pending(&self, limit: i64) -> impl Future<Output = Result<Vec<PendingJobs>>> + Send;

    /// Returns the names of schedules whose last date lies in the future.
    fn find_ahead(&self, at_most: i64) -> impl Future<Output = Result<Vec<String>>> + Send;

    /// Gives a schedule whose last date lies in the future its next date from now on. Returns false if it
    /// is no such schedule, or if its row is locked.
    fn revise(&self, name: &str) -> impl Future<Output = Result<bool>> + Send;

    /// Creates the jobs of a schedule that is due, and advances it. Stops one that can't be
    /// read.
    fn fire(&self, name: &str) -> impl Future<Output = Result<Fired>> + Send;
}

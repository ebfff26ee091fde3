//! The store of every SQL database: the statement that each method of [`Store`] runs, and its steps
//! when the database refuses a row.

mod parts;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures_util::FutureExt;

use super::attempts::{AttemptQuery, AttemptView, ErrorGroup, Incident, IncidentFilter};
use super::batches::{BatchMembers, EndedBatch, OpenBatches};
use super::error::StoreError;
use super::permits::{
    LastingPermit, PermitAnswer, PermitRequest, StalledKey, WaitingJob, WaitingType,
};
use super::poison::{Found, StuckBatch, found_page, held_page, told_page};
use super::purging::{PurgeScope, PurgeableJob, TableCount};
use super::statements::{Purging, Statements};
use super::transaction::AfterCommit;
use super::{
    Announced, BatchOutcome, Change, ClaimPage, Claimable, Claimed, CompletingTransaction,
    Completion, CycleOutcome, DuePeriodicJobs, DuePlace, Failure, Fate, Fired, Gate, GateView,
    Handoff, Holder, LanePage, LeaderCycle, Lifted, LockTerms, Locked, Marked, Membership,
    MovedPage, MovedTimers, NodeView, Operated, OperatedJobs, Origin, OrphanPage, OrphanQuery,
    PauseScope, PeriodicView, Release, Renewed, Result, SchemaStatus, Store, Succession, Suspended,
    SuspensionScope, TapOffer, TransactionId, Triggered, Waiting, check_rules, measured,
};
use crate::event::stream::{EventStream, EventStreamState, StreamedEvent};
use crate::hint::{Hint, Ready};
use crate::job::batch::BatchView;
use crate::job::calendar::Calendars;
use crate::job::periodic::{Declaration, Declared, PeriodicJob};
use crate::job::progress::Progress;
use crate::job::query::{
    JobQuery, JobView, LaneBacklog, LaneView, PendingJobs, Sweepable, UnservedType,
};
use crate::job::scope::Services;
use crate::job::{BatchId, Fence, Job, JobId, JobState, Lane, LockToken, LockedJob, NodeId};
use crate::lane::priority::{PriorityRule, PriorityScope};
use crate::lane::rule::LaneRule;
use crate::lane::start_order::Rank;
use crate::telemetry::plain::one_line;

/// How often a cancel is tried while the job ends and starts again in between.
const CANCEL_ROUNDS: usize = 5;
/// Maximum number of noted jobs that one statement marks.
const ANNOUNCED_AT_ONCE: usize = 500;
/// The number of periodic jobs that one transaction declares. Others wait for its rows for a quarter of a
/// second.
const DECLARED_AT_ONCE: usize = 10;
/// The pause before the next attempt if another transaction has locked one of their rows.
const DECLARED_AGAIN: Duration = Duration::from_millis(50);

/// Returns the result of a request for one job.
fn alone(id: JobId, told: OperatedJobs) -> Result<(Operated, Vec<Ready>)> {
    if !told.refused.is_empty() {
        return Err(StoreError::RowLocked(id));
    }
    let of_it = told.operated.first().map(|(_, operated)| *operated);
    Ok((of_it.unwrap_or(Operated::NotFound), told.ready))
}

#[async_trait]
impl<S: Statements> Store for S {
    fn name(&self) -> &'static str {
        S::NAME
    }

    fn calendars(&self) -> &Calendars {
        self.known_calendars()
    }

    async fn check(&self) -> Result<SchemaStatus> {
        self.run("check", || self.read_schema()).await
    }

    async fn answers(&self) -> Result<()> {
        self.is_there().await
    }

    fn server_changes(&self) -> u64 {
        self.found_changes()
    }

    async fn absence(&self) -> Option<String> {
        self.why_absent().await
    }

    async fn begin_locking(&self) -> Result<()> {
        self.leap().await
    }

    async fn lock(&self, terms: &LockTerms, hints: &[Hint]) -> Result<Locked> {
        let locked = self.run("lock", || self.lock_batch(terms, hints)).await;
        self.refusals().note_lock(hints, locked.as_ref().err());
        locked
    }

    async fn purge_count(&self, scope: &PurgeScope) -> Result<Vec<TableCount>> {
        self.run("purge_count", || self.count_purgeable(scope))
            .await
    }

    async fn purge_page(
        &self,
        scope: &PurgeScope,
        after: Option<JobId>,
        at_most: i64,
    ) -> Result<Vec<PurgeableJob>> {
        self.run("purge_page", || self.purgeable_page(scope, after, at_most))
            .await
    }

    async fn purge_of_jobs(&self, jobs: &[JobId]) -> Result<Vec<TableCount>> {
        self.run("purge", || Purging::purge_of_jobs(self, jobs))
            .await
    }

    async fn purge_records(
        &self,
        scope: &PurgeScope,
        at_most: i64,
    ) -> Result<(Vec<TableCount>, Vec<JobId>)> {
        self.run("purge", || Purging::purge_records(self, scope, at_most))
            .await
    }

    async fn purge_batches(&self, scope: &PurgeScope, at_most: i64) -> Result<Vec<TableCount>> {
        self.run("purge", || Purging::purge_batches(self, scope, at_most))
            .await
    }

    async fn purge_rest(&self, scope: &PurgeScope) -> Result<Vec<TableCount>> {
        self.run("purge", || Purging::purge_rest(self, scope)).await
    }

    async fn purge_events(&self, scope: &PurgeScope) -> Result<u64> {
        self.run("purge", || Purging::purge_events(self, scope))
            .await
    }

    async fn purge_held(&self, scope: &PurgeScope) -> Result<Vec<String>> {
        self.run("purge_count", || self.limits_held(scope)).await
    }

    async fn ranks(&self, jobs: &[JobId]) -> Result<Option<Vec<(JobId, Rank)>>> {
        self.run("ranks", || self.read_ranks(jobs)).await.map(Some)
    }

    async fn claim(&self, terms: &LockTerms, page: &ClaimPage) -> Result<Claimed> {
        self.run("claim", || self.claim_page(terms, page)).await
    }

    async fn claimable(&self, terms: &LockTerms, page: &ClaimPage) -> Result<Claimable> {
        self.run("claim", || self.claimable_page(terms, page)).await
    }

    async fn renew(&self, owner: NodeId, lease: Duration, held: &[LockToken]) -> Result<Renewed> {
        // A late renewal has no effect, so it waits no longer than the lease lasts.
        let deadline = self.within().min(lease);
        measured("renew", deadline, || self.renew_batch(owner, lease, held)).await
    }

    async fn unknown(
        &self,
        owner: NodeId,
        lease: Duration,
        known: &[Fence],
    ) -> Result<Vec<LockedJob>> {
        self.run("unknown", || self.find_unknown(owner, lease, known))
            .await
    }

    fn outcome_within(&self) -> Duration {
        self.within()
    }

    async fn run_alone(&self, owner: NodeId, held: &LockToken) -> Result<bool> {
        self.run("run_alone", || self.note_alone(owner, held)).await
    }

    async fn clear_strike(&self, lost: &[LockToken]) -> Result<bool> {
        self.run("absolve", || self.take_strikes_back(lost)).await
    }

    async fn complete(
        &self,
        owner: NodeId,
        done: &[Completion],
        then: &Handoff,
    ) -> Result<BatchOutcome> {
        let whole = self.run("complete", || self.complete_batch(owner, done, then));
        held_page(self, "complete", owner, done, whole, |part| {
            let part = async move {
                let complete = || self.complete_batch(owner, &part, &Handoff::Hint);
                self.run("complete", complete).await
            };
            part.boxed()
        })
        .await
    }

    async fn fail(
        &self,
        owner: NodeId,
        failed: &[Failure],
        then: &Handoff,
    ) -> Result<BatchOutcome> {
        let whole = self.run("fail", || self.fail_batch(owner, failed, then));
        held_page(self, "fail", owner, failed, whole, |part| {
            let part = async move {
                let fail = || self.fail_batch(owner, &part, &Handoff::Hint);
                self.run("fail", fail).await
            };
            part.boxed()
        })
        .await
    }

    async fn release(&self, owner: NodeId, released: &[Release]) -> Result<BatchOutcome> {
        let whole = self.run("release", || self.release_batch(owner, released));
        held_page(self, "release", owner, released, whole, |part| {
            let part = async move {
                let release = || self.release_batch(owner, &part);
                self.run("release", release).await
            };
            part.boxed()
        })
        .await
    }

    async fn begin_completing(
        &self,
        after: Arc<dyn AfterCommit>,
    ) -> Result<Box<dyn CompletingTransaction>> {
        self.open_completing(after).await
    }

    async fn move_due_timers(&self, at_most: i64) -> Result<MovedTimers> {
        parts::timers(self, at_most, None).await
    }

    async fn take_due_timers(
        &self,
        terms: &LockTerms,
        lanes: &[Lane],
        at_most: i64,
    ) -> Result<MovedTimers> {
        parts::timers(self, at_most, Some((terms, lanes))).await
    }

    async fn run_leader_cycle(&self, cycle: &LeaderCycle) -> Result<CycleOutcome> {
        let began = Instant::now();
        let whole = self.run("take_turn", || self.cycle(cycle, None));
        let found = |at_most| {
            let marked = move || async move { Ok(Found::of(self.marked(at_most).await?, at_most)) };
            self.run("take_turn", marked).boxed()
        };
        let state = JobState::Executable;
        let outcome = found_page(self, "take_turn", state, whole, found, |these| {
            let part = async move {
                let cycle = &cycle.after(began.elapsed());
                let take = || self.cycle(cycle, Some(&these));
                self.run("take_turn", take).await
            };
            part.boxed()
        });
        let outcome = outcome.await?;
        let unled =
            matches!(&outcome, CycleOutcome::Follows { remaining, .. } if remaining.is_zero());
        if self.refusals().stays_unled(unled) {
            let locker = self.run("lead_locker", || self.lead_locker()).await;
            self.refusals().nobody_leads(locker.ok().flatten());
        }
        Ok(outcome)
    }

    async fn unhinted(&self, at_most: i64) -> Result<Vec<Ready>> {
        let whole = self.run("unhinted", || self.hint_unhinted(at_most, None));
        let found = |at_most| {
            let find =
                move || async move { Ok(Found::of(self.find_unhinted(at_most).await?, at_most)) };
            self.run("unhinted", find).boxed()
        };
        let state = JobState::Executable;
        found_page(self, "unhinted", state, whole, found, |these| {
            let part = async move {
                let hint = || self.hint_unhinted(i64::MAX, Some(&these));
                self.run("unhinted", hint).await
            };
            part.boxed()
        })
        .await
    }

    async fn tap(&self) -> Result<TapOffer> {
        self.offer_tap().await
    }

    async fn mark_hinted(&self, jobs: &[JobId]) -> Result<Marked> {
        self.mark_tapped(jobs).await
    }

    async fn note_unannounced(&self, jobs: &[JobId]) -> Result<()> {
        // A statement of PostgreSQL can't write a row twice.
        let jobs = Vec::from_iter(BTreeSet::from_iter(jobs.iter().copied()));
        self.run("note_unannounced", || self.note_jobs(&jobs)).await
    }

    async fn announce_noted(&self, at_most: i64) -> Result<Announced> {
        // They are forgotten first, so that a row that can't be marked holds up no other one for ever.
        let noted = self.run("forget_noted", || self.forget_noted(at_most));
        let noted = noted.await?;
        let mut announced = Announced {
            ready: Vec::new(),
            more: i64::try_from(noted.len()).is_ok_and(|found| found >= at_most),
        };
        for part in noted.chunks(ANNOUNCED_AT_ONCE) {
            match self
                .run("announce_noted", || self.announce_jobs(part))
                .await
            {
                Ok(ready) => announced.ready.extend(ready),
                Err(error) => {
                    tracing::warn!(
                        %error, jobs = part.len(),
                        "jobs that operations made ready could not be hinted; the sweeper finds them"
                    );
                    // The other parts would wait for the same database.
                    if error.fails_others() {
                        break;
                    }
                }
            }
        }
        Ok(announced)
    }

    async fn data_version(&self) -> Result<Option<i64>> {
        self.version().await
    }

    async fn succeed(&self, node: NodeId) -> Result<Succession> {
        self.succeed_to(node).await
    }

    async fn write_node(&self, node: &Membership) -> Result<()> {
        node.check()?;
        self.run("write_node", || self.write_membership(node)).await
    }

    async fn remove_node(&self, node: NodeId) -> Result<()> {
        self.run("remove_node", || self.delete_node(node)).await
    }

    async fn remove_silent_nodes(&self, silent_for: Duration, heard: &[NodeId]) -> Result<u64> {
        self.run("remove_silent_nodes", || {
            self.delete_silent_nodes(silent_for, heard)
        })
        .await
    }

    async fn nodes(&self) -> Result<Vec<NodeView>> {
        self.run("nodes", || self.read_nodes()).await
    }

    async fn holders(&self, limit: i64) -> Result<Vec<Holder>> {
        self.run("holders", || self.read_holders(limit)).await
    }

    async fn resign(&self, node: NodeId) -> Result<()> {
        self.run("resign", || self.resign_leading(node)).await
    }

    async fn orphans(&self, query: &OrphanQuery) -> Result<OrphanPage> {
        let find = |query: OrphanQuery, these: Option<Vec<JobId>>| async move {
            let find = || self.find_orphans(&query, these.as_deref());
            self.run("orphans", find).await
        };
        let found = |limit| {
            let look = OrphanQuery {
                mark: false,
                limit,
                ..query.clone()
            };
            let found = async move {
                let page = find(look, None).await?;
                let ids = page.ready.into_iter().map(|ready| ready.hint.id);
                Ok(Found::of(ids.collect(), limit))
            };
            found.boxed()
        };
        let state = JobState::Executable;
        let whole = find(query.clone(), None);
        found_page(self, "orphans", state, whole, found, |these| {
            let of_these = OrphanQuery {
                limit: i64::try_from(these.len()).unwrap_or(i64::MAX),
                ..query.clone()
            };
            find(of_these, Some(these)).boxed()
        })
        .await
    }

    async fn sweepable(&self, services: &Services, received: &[Lane]) -> Result<Sweepable> {
        self.run("sweepable", || self.count_sweepable(services, received))
            .await
    }

    async fn unserved_types(&self, services: &Services, limit: i64) -> Result<Vec<UnservedType>> {
        self.run("unserved_types", || self.count_unserved(services, limit))
            .await
    }

    async fn free_instances(&self) -> Result<Vec<Ready>> {
        self.run("free_instances", || self.free_left_over()).await
    }

    async fn committed(&self, transaction: &TransactionId) -> Result<Fate> {
        self.fate(transaction).await
    }

    async fn find(&self, query: &JobQuery) -> Result<Vec<JobView>> {
        self.run("find", || self.find_jobs(query)).await
    }

    async fn count(&self, query: &JobQuery) -> Result<i64> {
        self.run("count", || self.count_jobs(query, None)).await
    }

    async fn count_at_most(&self, query: &JobQuery, at_most: i64) -> Result<i64> {
        self.run("count", || self.count_jobs(query, Some(at_most)))
            .await
    }

    async fn get(&self, id: JobId) -> Result<Option<(JobView, Job, Option<String>)>> {
        let query = JobQuery::default().id(id);
        self.run("get", || async {
            let Some(view) = self.find_jobs(&query).await?.pop() else {
                return Ok(None);
            };
            let job = self.get_job(id).await?;
            Ok(job.map(|(job, stack)| (view, job, stack)))
        })
        .await
    }

    async fn delete(&self, id: JobId) -> Result<(Operated, Vec<Ready>)> {
        let delete = || self.delete_jobs(std::slice::from_ref(&id));
        alone(id, self.run("delete", delete).await?)
    }

    async fn cancel(&self, id: JobId) -> Result<(Operated, Vec<Ready>)> {
        // A job may end or start between the two statements.
        for _ in 0..CANCEL_ROUNDS {
            let (operated, ready) = self.delete(id).await?;
            if operated != Operated::Running {
                return Ok((operated, ready));
            }
            if self.run("cancel", || self.mark_cancelled(id)).await? {
                return Ok((Operated::Running, Vec::new()));
            }
        }
        Err(StoreError::RowLocked(id))
    }

    async fn report_progress(
        &self,
        owner: NodeId,
        reports: &[(LockToken, Progress)],
    ) -> Result<Vec<JobId>> {
        self.run("report_progress", || self.write_reports(owner, reports))
            .await
    }

    async fn save_checkpoint(
        &self,
        owner: NodeId,
        held: &LockToken,
        checkpoint: &str,
    ) -> Result<bool> {
        let write = || self.write_checkpoint(owner, held, checkpoint);
        self.run("save_checkpoint", write).await
    }

    async fn checkpoint(&self, id: JobId) -> Result<Option<String>> {
        self.run("checkpoint", || self.read_checkpoint(id)).await
    }

    async fn delete_many(&self, ids: &[JobId]) -> Result<OperatedJobs> {
        let rows = async { Ok(ids.to_vec()) };
        let whole = self.run("delete", || self.delete_jobs(ids));
        told_page("delete", whole, rows, |these| {
            let part = async move { self.run("delete", || self.delete_jobs(&these)).await };
            part.boxed()
        })
        .await
    }

    async fn retry(&self, id: JobId, retries: i32) -> Result<(Operated, Vec<Ready>)> {
        let retry = || self.retry_jobs(std::slice::from_ref(&id), retries);
        alone(id, self.run("retry", retry).await?)
    }

    async fn retry_many(&self, ids: &[JobId], retries: i32) -> Result<OperatedJobs> {
        let rows = async { Ok(ids.to_vec()) };
        let whole = self.run("retry", || self.retry_jobs(ids, retries));
        told_page("retry", whole, rows, |these| {
            let part = async move {
                let retry = || self.retry_jobs(&these, retries);
                self.run("retry", retry).await
            };
            part.boxed()
        })
        .await
    }

    async fn change_many(&self, ids: &[JobId], change: &Change) -> Result<OperatedJobs> {
        change.validate()?;
        let rows = async { Ok(ids.to_vec()) };
        let whole = self.run("change", || self.change_jobs(ids, change));
        told_page("change", whole, rows, |these| {
            let part = async move {
                let change = || self.change_jobs(&these, change);
                self.run("change", change).await
            };
            part.boxed()
        })
        .await
    }

    async fn attempts(&self, job: JobId, limit: i64) -> Result<Vec<AttemptView>> {
        self.run("attempts", || self.read_attempts(job, limit))
            .await
    }

    async fn find_attempts(&self, query: &AttemptQuery) -> Result<Vec<AttemptView>> {
        query.check()?;
        self.run("find_attempts", || self.read_attempts_by(query))
            .await
    }

    async fn incidents(&self, filter: &IncidentFilter) -> Result<Vec<Incident>> {
        self.run("incidents", || self.read_incidents(filter)).await
    }

    async fn open_incidents(&self, jobs: &[JobId]) -> Result<Vec<JobId>> {
        self.run("incidents", || self.read_open(jobs)).await
    }

    async fn errors(&self, job_type: Option<&str>, limit: i64) -> Result<Vec<ErrorGroup>> {
        self.run("errors", || self.group_errors(job_type, limit))
            .await
    }

    async fn prune_history(&self, incidents: Duration, at_most: i64) -> Result<u64> {
        self.run("prune_history", || self.prune(incidents, at_most))
            .await
    }

    async fn switch_event_stream(&self, stream: Option<&EventStream>) -> Result<u64> {
        if let Some(stream) = stream {
            stream.check().map_err(StoreError::InvalidChange)?;
        }
        // The transaction waits for its locks itself, and is tried once.
        self.switch_stream(stream).await
    }

    async fn event_stream(&self) -> Result<Option<EventStream>> {
        self.run("event_stream", || self.read_stream()).await
    }

    async fn event_stream_state(&self) -> Result<EventStreamState> {
        self.run("event_stream_state", || self.stream_state()).await
    }

    async fn waiting_events(&self) -> Result<(i64, Option<DateTime<Utc>>)> {
        self.run("waiting_events", || self.count_events()).await
    }

    async fn next_events(&self, at_most: i64) -> Result<Vec<StreamedEvent>> {
        self.run("next_events", || self.events_page(at_most)).await
    }

    async fn forget_events(&self, published: &[(i64, uuid::Uuid)]) -> Result<u64> {
        self.run("forget_events", || self.delete_events(published))
            .await
    }

    async fn drop_old_events(&self, at_most: i64) -> Result<u64> {
        self.run("drop_old_events", || self.delete_old_events(at_most))
            .await
    }

    async fn drop_failed_events(&self, failed: &[(i64, uuid::Uuid)]) -> Result<u64> {
        self.run("drop_failed_events", || self.delete_failed_events(failed))
            .await
    }

    async fn strict_order(&self) -> Result<bool> {
        self.run("strict_order", || self.is_strict()).await
    }

    async fn set_strict_order(&self, strict: bool) -> Result<()> {
        self.run("set_strict_order", || self.write_strict_order(strict))
            .await
    }

    async fn suspend(&self, scope: &SuspensionScope) -> Result<Suspended> {
        parts::begin_suspension(self, scope).await
    }

    async fn move_suspended(&self, scope: &SuspensionScope) -> Result<Suspended> {
        parts::move_suspended(self, scope).await
    }

    async fn activate(&self, scope: &SuspensionScope) -> Result<Lifted> {
        let Some(brought_back) = parts::end_suspension(self, scope).await? else {
            return Ok(Lifted::default());
        };
        let waited = parts::first_waited(self, scope.clone().into()).await;
        Ok(Lifted {
            brought_back,
            ..waited
        })
    }

    fn has_suspensions(&self) -> bool {
        true
    }

    async fn pause(&self, scope: &PauseScope) -> Result<bool> {
        let pause = Gate::from(scope.clone());
        self.run("pause", || self.write_gate(&pause)).await
    }

    async fn resume(&self, scope: &PauseScope) -> Result<Lifted> {
        if !self.run("resume", || self.delete_pause(scope)).await? {
            return Ok(Lifted::default());
        }
        Ok(parts::first_waited(self, scope.clone().into()).await)
    }

    async fn waited(&self, waiting: &Waiting) -> Result<Lifted> {
        self.run("waited", || self.mark_waited(waiting)).await
    }

    async fn suspensions(&self) -> Result<Vec<GateView>> {
        self.run("suspensions", || self.read_gates()).await
    }

    async fn lane_rules(&self) -> Result<Vec<LaneRule>> {
        self.run("lane_rules", || self.read_rules()).await
    }

    async fn set_lane_rules(&self, rules: &[LaneRule]) -> Result<()> {
        check_rules(rules)?;
        self.run("set_lane_rules", || self.write_rules(rules)).await
    }

    async fn priority_rules(&self) -> Result<Vec<PriorityRule>> {
        self.run("priority_rules", || self.read_priorities()).await
    }

    async fn set_priority_rule(&self, rule: &PriorityRule) -> Result<()> {
        rule.validate().map_err(StoreError::InvalidChange)?;
        self.run("set_priority_rule", || self.write_priority(rule))
            .await
    }

    async fn clear_priority_rule(&self, scope: &PriorityScope) -> Result<bool> {
        self.run("clear_priority_rule", || self.delete_priority(scope))
            .await
    }

    async fn lanes(&self) -> Result<Vec<LaneView>> {
        self.run("lanes", || self.read_lanes()).await
    }

    async fn lanes_outside(&self, lanes: &[Lane], at_most: i64) -> Result<Vec<LaneBacklog>> {
        self.run("lanes_outside", || self.read_lanes_outside(lanes, at_most))
            .await
    }

    async fn move_lane(&self, page: &LanePage) -> Result<MovedPage> {
        let whole = self.run("move_lane", || self.move_page(page, None));
        let found = |_| {
            let page_ids = || async { Ok(Found::of(self.page_ids(page).await?, i64::MAX)) };
            self.run("move_lane", page_ids).boxed()
        };
        found_page(self, "move_lane", page.state, whole, found, |these| {
            let part = async move {
                let move_these = || self.move_page(page, Some(&these));
                self.run("move_lane", move_these).await
            };
            part.boxed()
        })
        .await
    }

    async fn declare_periodic_jobs(&self, jobs: &[PeriodicJob]) -> Result<Vec<Declared>> {
        let declared: std::result::Result<Vec<_>, _> =
            jobs.iter().map(PeriodicJob::declare).collect();
        let declared = declared.map_err(StoreError::InvalidPeriodicJob)?;
        // In the order of their names, so that two programs wait for each other in no circle.
        let mut sorted: Vec<(usize, Declaration)> = declared.into_iter().enumerate().collect();
        sorted.sort_by(|(_, one), (_, other)| one.name.cmp(&other.name));
        let (places, sorted): (Vec<usize>, Vec<Declaration>) = sorted.into_iter().unzip();
        let began = Instant::now();
        let mut results = Vec::with_capacity(sorted.len());
        for slice in sorted.chunks(DECLARED_AT_ONCE) {
            let declared = loop {
                match self
                    .run("declare_periodic", || self.declare_all(slice))
                    .await
                {
                    // Another node declares the same ones, or the leader creates their jobs.
                    Err(error) if error.is_lock_timeout() && began.elapsed() < self.within() => {
                        tokio::time::sleep(DECLARED_AGAIN).await;
                    }
                    declared => break declared?,
                }
            };
            results.extend(declared);
        }
        let mut results: Vec<(usize, Declared)> = places.into_iter().zip(results).collect();
        results.sort_unstable_by_key(|(place, _)| *place);
        Ok(results.into_iter().map(|(_, declared)| declared).collect())
    }

    async fn periodic_jobs(&self) -> Result<Vec<PeriodicView>> {
        self.run("periodic_jobs", || self.list_periodic()).await
    }

    async fn periodic_templates(&self, names: &[String]) -> Result<Vec<(String, String)>> {
        self.run("periodic_jobs", || self.templates(names)).await
    }

    async fn pause_periodic_job(&self, name: &str, paused: bool) -> Result<bool> {
        self.run("pause_periodic", || self.set_paused(name, paused))
            .await
    }

    async fn remove_periodic_job(&self, name: &str) -> Result<bool> {
        self.run("remove_periodic", || self.delete_periodic(name))
            .await
    }

    async fn run_periodic_job(&self, name: &str, origin: Origin) -> Result<Option<Triggered>> {
        self.run("run_periodic", || self.trigger(name, origin))
            .await
    }

    async fn due_periodic_jobs(
        &self,
        after: Option<&DuePlace>,
        at_most: i64,
    ) -> Result<DuePeriodicJobs> {
        let due = || self.due_schedules(after, at_most);
        self.run("due_periodic", due).await
    }

    async fn pending_jobs(&self, limit: i64) -> Result<Vec<PendingJobs>> {
        self.run("pending_jobs", || self.count_pending(limit)).await
    }

    async fn fire_periodic_job(&self, name: &str) -> Result<Fired> {
        self.run("fire_periodic", || self.fire(name)).await
    }

    async fn revise_periodic_jobs(&self, at_most: i64) -> Result<Vec<String>> {
        let ahead = self.run("revise_periodic", || self.find_ahead(at_most));
        let mut revised = Vec::new();
        for name in ahead.await? {
            match self.run("revise_periodic", || self.revise(&name)).await {
                Ok(true) => revised.push(name),
                Ok(false) => {}
                Err(error) if error.fails_others() => return Err(error),
                // This program can't read it. The others go on.
                Err(error) => {
                    let name = one_line(&name, 256);
                    tracing::debug!(%error, name, "a periodic job gets no new date");
                }
            }
        }
        Ok(revised)
    }

    fn has_permits(&self) -> bool {
        true
    }

    async fn exchange_permits(&self, request: &PermitRequest) -> Result<PermitAnswer> {
        self.run("exchange_permits", || self.exchange_batch(request))
            .await
    }

    async fn stalled_keys(&self, served: &[String]) -> Result<Vec<StalledKey>> {
        self.run("stalled_keys", || self.find_stalled(served)).await
    }

    async fn lasting_permits(
        &self,
        limits: &[(String, Duration)],
        ended: &[LastingPermit],
    ) -> Result<Vec<LastingPermit>> {
        if !ended.is_empty() {
            self.run("end_permits", || self.end_permits(ended)).await?;
        }
        if limits.is_empty() {
            return Ok(Vec::new());
        }
        self.run("lasting_permits", || self.find_lasting(limits))
            .await
    }

    async fn waiting_for_permits(&self, limit: i64) -> Result<Vec<WaitingType>> {
        self.run("waiting_for_permits", || self.count_waiting(limit))
            .await
    }

    async fn waiting_for_siblings(&self, jobs: &[JobId]) -> Result<Vec<JobId>> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        self.run("waiting_for_siblings", || self.find_out_of_turn(jobs))
            .await
    }

    async fn waiting_of(&self, jobs: &[JobId]) -> Result<Vec<WaitingJob>> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        self.run("waiting_of", || self.find_waiting(jobs)).await
    }

    fn has_batches(&self) -> bool {
        true
    }

    async fn end_batch(&self, batch: BatchId, left: &[JobId]) -> Result<Option<EndedBatch>> {
        self.run("end_batch", || self.end_if_over(batch, left))
            .await
    }

    async fn open_batches(&self, after: Option<BatchId>, at_most: i64) -> Result<OpenBatches> {
        self.run("open_batches", || self.page_of_open(after, at_most))
            .await
    }

    async fn batches(&self, ended: bool, at_most: i64) -> Result<Vec<BatchView>> {
        self.run("batches", || self.list_batches(ended, at_most))
            .await
    }

    async fn batch(&self, batch: BatchId) -> Result<Option<BatchView>> {
        self.run("batches", || self.read_batch(batch)).await
    }

    async fn cancel_batch(&self, batch: BatchId) -> Result<bool> {
        self.run("cancel_batch", || self.mark_batch_cancelled(batch))
            .await
    }

    async fn batch_members(
        &self,
        batch: BatchId,
        after: Option<JobId>,
        at_most: i64,
    ) -> Result<BatchMembers> {
        let page = || self.page_of_members(batch, after, at_most);
        self.run("batch_members", page).await
    }

    async fn forget_batch_members(&self, batch: BatchId, left: &[JobId]) -> Result<bool> {
        self.run("batch_members", || self.forget_members(batch, left))
            .await
    }

    async fn forget_dead_letters(&self, batch: BatchId, members: &[JobId]) -> Result<bool> {
        self.run("batch_members", || self.forget_dead(batch, members))
            .await
    }

    fn stuck(&self) -> Vec<StuckBatch> {
        self.refusals().stuck()
    }

    async fn close(&self) {
        self.disconnect().await;
    }
}

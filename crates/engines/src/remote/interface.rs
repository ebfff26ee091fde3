//! The methods of [`Store`].

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jobwire_core::hint::Ready;
use jobwire_core::job::query::{JobQuery, JobView, LaneBacklog, LaneView, UnservedType};
use jobwire_core::job::scope::{Scope, Services};
use jobwire_core::job::{LockToken, LockedJob};
use jobwire_core::store::transaction::AfterCommit;
use jobwire_core::store::{
    BatchOutcome, ClaimOf, ClaimPage, Claimable, Claimed, CompletingTransaction, Completion,
    CycleOutcome, Failure, Fate, Handoff, LanePage, LeaderCycle, Lifted, LockTerms, Locked,
    Membership, MovedPage, MovedTimers, NodeView, Operated, OperatedJobs, OrphanPage, OrphanQuery,
    Release, Renewed, SchemaStatus, Store, Suspended, SuspensionScope, TransactionId,
};
use jobwire_core::{Fence, Hint, Job, JobId, Lane, LaneRule, NodeId};
use tokio::sync::watch;
use tokio::time::Instant;

use super::wire::{Orphans, Page};
use super::{EndpointStore, Result};
use crate::changing::Change;
use crate::id::engine_id;
use crate::listing::page;
use crate::meter::Unrun;
use crate::settling::COMPLETE;

/// The time within which a health check is answered. For the same time its answer is used again.
const ABSENT_AFTER: Duration = Duration::from_millis(1_500);
const LASTS: Duration = Duration::from_secs(1);

#[async_trait]
impl Store for EndpointStore {
    fn name(&self) -> &'static str {
        self.0.decoder.engine
    }

    async fn check(&self) -> Result<SchemaStatus> {
        self.status().await
    }

    async fn answers(&self) -> Result<()> {
        self.clock().await.map(drop)
    }

    async fn absence(&self) -> Option<String> {
        let mut asked = self.0.asked.lock().await;
        if let Some((at, answer)) = &*asked
            && at.elapsed() < LASTS
        {
            return answer.clone();
        }
        let answer = match tokio::time::timeout(ABSENT_AFTER, self.clock()).await {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!(
                "the engine's endpoint at {} does not answer",
                self.0.parts.options.urls.join(", ")
            )),
        };
        *asked = Some((Instant::now(), answer.clone()));
        answer
    }

    fn failing_part(&self) -> Option<(&'static str, String)> {
        Some(("engine", self.0.parts.routes.problem()?))
    }

    async fn reach(&self) -> Option<watch::Receiver<Scope>> {
        self.0.parts.routes.watch().await
    }

    async fn lock(&self, terms: &LockTerms, hints: &[Hint]) -> Result<Locked> {
        self.lock_hinted(terms, hints).await
    }

    async fn claim(&self, terms: &LockTerms, page: &ClaimPage) -> Result<Claimed> {
        let Claimable { hints, after } = self.claimable(terms, page).await?;
        let locked = self.lock_hinted(terms, &hints).await?;
        Ok(Claimed {
            jobs: locked.jobs,
            undecided: Vec::new(),
            after,
        })
    }

    async fn claimable(&self, _: &LockTerms, page: &ClaimPage) -> Result<Claimable> {
        let ClaimOf::Next { after, look_at } = page.of else {
            return Ok(Claimable::default());
        };
        if page.lane != self.0.parts.options.lane {
            return Ok(Claimable::default());
        }
        let limit = page.at_most.min(look_at).clamp(1, 1_000);
        let asked = Orphans {
            after: after.and_then(engine_id),
            created_before: None,
            limit,
        };
        let found: Page = self.0.client.ask("claim", "orphans", &asked).await?;
        let ready = found.jobs.iter().filter_map(|row| self.ready(row));
        let next = found.next.as_deref();
        Ok(Claimable {
            hints: ready.map(|ready| ready.hint).collect(),
            after: next.and_then(|id| self.0.decoder.job_id(id)),
        })
    }

    async fn renew(&self, owner: NodeId, lease: Duration, held: &[LockToken]) -> Result<Renewed> {
        self.renew_held(owner, lease, held).await
    }

    async fn unknown(
        &self,
        owner: NodeId,
        lease: Duration,
        known: &[Fence],
    ) -> Result<Vec<LockedJob>> {
        self.lost_locks(owner, lease, known).await
    }

    fn outcome_within(&self) -> Duration {
        // The statements of an operation continue in the engine.
        self.within() * 2
    }

    fn gathers_for(&self) -> Duration {
        self.0.parts.gathers_for()
    }

    async fn run_alone(&self, _: NodeId, _: &LockToken) -> Result<bool> {
        // The engine runs the job, so no job ends a node of Jobwire.
        Ok(true)
    }

    async fn clear_strike(&self, _: &[LockToken]) -> Result<bool> {
        Ok(true)
    }

    async fn complete(
        &self,
        owner: NodeId,
        done: &[Completion],
        then: &Handoff,
    ) -> Result<BatchOutcome> {
        let held: Vec<LockToken> = done.iter().map(|done| done.held.clone()).collect();
        self.settle(COMPLETE, owner, &held, then).await
    }

    async fn fail(
        &self,
        owner: NodeId,
        failed: &[Failure],
        then: &Handoff,
    ) -> Result<BatchOutcome> {
        let held: Vec<LockToken> = failed.iter().map(|failed| failed.held.clone()).collect();
        self.settle("fail", owner, &held, then).await
    }

    async fn release(&self, owner: NodeId, released: &[Release]) -> Result<BatchOutcome> {
        let held: Vec<LockToken> = released.iter().map(|r| r.held.clone()).collect();
        self.settle("release", owner, &held, &Handoff::Hint).await
    }

    async fn begin_completing(
        &self,
        _: Arc<dyn AfterCommit>,
    ) -> Result<Box<dyn CompletingTransaction>> {
        self.0
            .parts
            .options
            .refuse("the transaction", "a delegate of the process")
    }

    async fn move_due_timers(&self, at_most: i64) -> Result<MovedTimers> {
        self.move_timers(at_most).await
    }

    async fn take_due_timers(
        &self,
        _: &LockTerms,
        _: &[Lane],
        at_most: i64,
    ) -> Result<MovedTimers> {
        self.move_timers(at_most).await
    }

    async fn run_leader_cycle(&self, cycle: &LeaderCycle) -> Result<CycleOutcome> {
        self.run_cycle(cycle).await
    }

    async fn unhinted(&self, _: i64) -> Result<Vec<Ready>> {
        // The engine's hook publishes the hints. The sweeper finds lost ones.
        Ok(Vec::new())
    }

    async fn write_node(&self, node: &Membership) -> Result<()> {
        node.check()?;
        self.join(node).await
    }

    async fn remove_node(&self, node: NodeId) -> Result<()> {
        self.leave(node).await
    }

    async fn remove_silent_nodes(&self, silent_for: Duration, heard: &[NodeId]) -> Result<u64> {
        self.forget(silent_for, heard).await
    }

    async fn nodes(&self) -> Result<Vec<NodeView>> {
        self.members().await
    }

    async fn resign(&self, node: NodeId) -> Result<()> {
        self.stop_leading(node).await
    }

    async fn orphans(&self, query: &OrphanQuery) -> Result<OrphanPage> {
        self.lost_hints(query).await
    }

    async fn unserved_types(&self, services: &Services, limit: i64) -> Result<Vec<UnservedType>> {
        let found = self.unserved(services).await?;
        self.0.parts.meter.unrun(Unrun::Reach, found.jobs());
        found.warn();
        Ok(found.types(usize::try_from(limit).unwrap_or_default()))
    }

    async fn free_instances(&self) -> Result<Vec<Ready>> {
        // The leader cycle clears the locks of jobs and of instances in one request.
        Ok(Vec::new())
    }

    async fn committed(&self, _: &TransactionId) -> Result<Fate> {
        Ok(Fate::Unknown)
    }

    async fn find(&self, query: &JobQuery) -> Result<Vec<JobView>> {
        let found = page(query, self.list(query).await?);
        Ok(found.into_iter().map(|(view, _)| view).collect())
    }

    async fn count(&self, query: &JobQuery) -> Result<i64> {
        let mut all = query.clone();
        all.after = None;
        let found = self.list(&all).await?;
        Ok(i64::try_from(found.len()).unwrap_or(i64::MAX))
    }

    async fn get(&self, id: JobId) -> Result<Option<(JobView, Job, Option<String>)>> {
        let found = self.list(&JobQuery::default().id(id)).await?;
        let found = found.into_iter().next_back();
        Ok(found.map(|(view, job)| (view, job, None)))
    }

    async fn delete(&self, id: JobId) -> Result<(Operated, Vec<Ready>)> {
        Ok((self.change(id, Change::Delete).await?, Vec::new()))
    }

    async fn delete_many(&self, ids: &[JobId]) -> Result<OperatedJobs> {
        self.change_many(ids, Change::Delete).await
    }

    async fn retry(&self, id: JobId, retries: i32) -> Result<(Operated, Vec<Ready>)> {
        let retried = self.change(id, Change::Retry(retries)).await?;
        let ready = self.retried(id, retried).await;
        Ok((retried, ready.into_iter().collect()))
    }

    async fn retry_many(&self, ids: &[JobId], retries: i32) -> Result<OperatedJobs> {
        self.change_many(ids, Change::Retry(retries)).await
    }

    async fn suspend(&self, _: &SuspensionScope) -> Result<Suspended> {
        self.0
            .parts
            .options
            .refuse("suspension", "the engine's suspension of process instances")
    }

    async fn activate(&self, _: &SuspensionScope) -> Result<Lifted> {
        self.0
            .parts
            .options
            .refuse("activation", "the engine's activation of process instances")
    }

    async fn lane_rules(&self) -> Result<Vec<LaneRule>> {
        Ok(Vec::new())
    }

    async fn set_lane_rules(&self, _: &[LaneRule]) -> Result<()> {
        self.0
            .parts
            .options
            .refuse("the lane", "`engine_lane`, which is one for all its jobs")
    }

    async fn lanes(&self) -> Result<Vec<LaneView>> {
        let backlog = self.backlog().await?;
        Ok(vec![backlog.lane(&self.0.parts.options.lane)])
    }

    async fn lanes_outside(&self, lanes: &[Lane], _: i64) -> Result<Vec<LaneBacklog>> {
        if lanes.contains(&self.0.parts.options.lane) {
            return Ok(Vec::new());
        }
        let backlog = self.backlog().await?;
        Ok(vec![backlog.jobs_in(&self.0.parts.options.lane)])
    }

    async fn move_lane(&self, _: &LanePage) -> Result<MovedPage> {
        self.0
            .parts
            .options
            .refuse("the lane", "`engine_lane`, which is one for all its jobs")
    }

    async fn close(&self) {
        // Closes nothing: idle connections end by themselves.
    }
}

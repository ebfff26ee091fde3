//! The methods of [`Store`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use jobwire_core::hint::Ready;
use jobwire_core::job::query::{JobQuery, JobView, LaneBacklog, LaneView, Sweepable, UnservedType};
use jobwire_core::job::scope::{Scope, Services};
use jobwire_core::job::{LockToken, LockedJob};
use jobwire_core::store::answer::measured;
use jobwire_core::store::transaction::AfterCommit;
use jobwire_core::store::{
    BatchOutcome, ClaimPage, Claimable, Claimed, CompletingTransaction, Completion, CycleOutcome,
    Failure, Fate, Handoff, LanePage, LeaderCycle, Lifted, LockTerms, Locked, Marked, Membership,
    MovedPage, MovedTimers, NodeView, Operated, OperatedJobs, OrphanPage, OrphanQuery, Release,
    Renewed, SchemaStatus, Store, Suspended, SuspensionScope, TapOffer, TransactionId,
};
use jobwire_core::{Fence, Hint, Job, JobId, Lane, LaneRule, NodeId};
use tokio::sync::watch;

use super::{EngineStore, Result};
use crate::changing::Change;
use crate::coordination::{leader, nodes, schema};
use crate::doubt::Asked;
use crate::meter::Unrun;
use crate::settling::COMPLETE;
use crate::{locking, queries, sweep, sweepable, tap, unserved};

#[async_trait]
impl Store for EngineStore {
    fn name(&self) -> &'static str {
        self.0.dialect.decoder().engine
    }

    async fn check(&self) -> Result<SchemaStatus> {
        let (dialect, pool) = (self.dialect(), &self.0.connections.rest);
        let status = self.run("check", pool, || async {
            dialect.probe(&pool.inner).await?;
            schema::status(&pool.inner).await
        });
        let status = status.await?;
        self.check_zone().await;
        Ok(status)
    }

    async fn answers(&self) -> Result<()> {
        let pool = &self.0.connections.rest;
        self.run("answers", pool, || async {
            sqlx::query("SELECT").execute(&pool.inner).await?;
            Ok(())
        })
        .await
    }

    async fn absence(&self) -> Option<String> {
        let connections = &self.0.connections;
        let ask = async {
            sqlx::query("SELECT")
                .execute(&connections.renewals.inner)
                .await?;
            Ok(())
        };
        connections.presence.absence(ask).await
    }

    fn failing_part(&self) -> Option<(&'static str, String)> {
        let engine = self.0.parts.routes.problem();
        let zone = || Some(("zone", self.0.dialect.zone().problem()?));
        engine.map(|problem| ("engine", problem)).or_else(zone)
    }

    async fn reach(&self) -> Option<watch::Receiver<Scope>> {
        self.0.parts.routes.watch().await
    }

    async fn lock(&self, terms: &LockTerms, hints: &[Hint]) -> Result<Locked> {
        let (dialect, connections) = (self.dialect(), &self.0.connections);
        self.run_locking("lock", || {
            locking::lock_hinted(dialect, &connections.keyed.inner, terms, hints)
        })
        .await
    }

    async fn claim(&self, terms: &LockTerms, page: &ClaimPage) -> Result<Claimed> {
        let (dialect, connections) = (self.dialect(), &self.0.connections);
        let Claimable { hints, after } = self.claimable(terms, page).await?;
        if hints.is_empty() {
            return Ok(Claimed {
                after,
                ..Claimed::default()
            });
        }
        let locked = self
            .run_locking("claim", || {
                locking::lock_hinted(dialect, &connections.keyed.inner, terms, &hints)
            })
            .await?;
        Ok(Claimed {
            jobs: locked.jobs,
            undecided: Vec::new(),
            after,
        })
    }

    async fn claimable(&self, _: &LockTerms, page: &ClaimPage) -> Result<Claimable> {
        let (dialect, pool) = (self.dialect(), &self.0.connections.rest);
        self.run("claim", pool, || dialect.claimable(&pool.inner, page))
            .await
    }

    async fn renew(&self, owner: NodeId, lease: Duration, held: &[LockToken]) -> Result<Renewed> {
        let (dialect, pool) = (&self.0.dialect, &self.0.connections.renewals);
        // A late renewal is useless, so it must not wait as long as other statements.
        let deadline = pool.within.min(lease);
        let answer = measured("renew", deadline, || {
            pool.answer(dialect.renew(&pool.inner, owner, lease, held))
        })
        .await;
        self.0.connections.presence.note(&answer);
        answer
    }

    async fn unknown(
        &self,
        owner: NodeId,
        lease: Duration,
        known: &[Fence],
    ) -> Result<Vec<LockedJob>> {
        // This store sends all statements that lock jobs for this node. The search reads every job,
        // so it is sent only if the answer to one of them was lost.
        if !self.0.in_doubt.swap(false, Ordering::SeqCst) {
            return Ok(Vec::new());
        }
        let mut asked = Asked(&self.0.in_doubt, true);
        let (dialect, pool) = (self.dialect(), &self.0.connections.rest);
        // An execution without an answer may still run: its lock stays, and its job is not run again.
        let mut known = known.to_vec();
        known.extend(self.0.parts.calls.unanswered());
        let found = self
            .run("unknown", pool, || {
                dialect.held_by(&pool.inner, owner, lease, &known)
            })
            .await;
        asked.1 = found.is_err();
        found
    }

    fn outcome_within(&self) -> Duration {
        self.0.connections.keyed.within
    }

    fn gathers_for(&self) -> Duration {
        self.0.parts.gathers_for()
    }

    async fn run_alone(&self, _: NodeId, _: &LockToken) -> Result<bool> {
        // The engine runs the job, so no job can kill a Jobwire node.
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
        let held = done.iter().map(|done| done.held.clone()).collect();
        self.settle(COMPLETE, owner, held, then).await
    }

    async fn fail(
        &self,
        owner: NodeId,
        failed: &[Failure],
        then: &Handoff,
    ) -> Result<BatchOutcome> {
        let held = failed.iter().map(|failed| failed.held.clone()).collect();
        self.settle("fail", owner, held, then).await
    }

    async fn release(&self, owner: NodeId, released: &[Release]) -> Result<BatchOutcome> {
        let held = released.iter().map(|r| r.held.clone()).collect();
        self.settle("release", owner, held, &Handoff::Hint).await
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
        let (dialect, pool) = (self.dialect(), &self.0.connections.rest);
        self.run("move_due_timers", pool, || {
            dialect.move_due(&pool.inner, at_most)
        })
        .await
    }

    async fn take_due_timers(
        &self,
        _: &LockTerms,
        _: &[Lane],
        at_most: i64,
    ) -> Result<MovedTimers> {
        self.move_due_timers(at_most).await
    }

    async fn run_leader_cycle(&self, cycle: &LeaderCycle) -> Result<CycleOutcome> {
        self.run_cycle(cycle).await
    }

    async fn tap(&self) -> Result<TapOffer> {
        tap::open(self).await
    }

    async fn mark_hinted(&self, jobs: &[JobId]) -> Result<Marked> {
        let (dialect, pool) = (self.dialect(), &self.0.connections.rest);
        self.run("mark_hinted", pool, || dialect.hints_of(&pool.inner, jobs))
            .await
    }

    async fn unhinted(&self, _: i64) -> Result<Vec<Ready>> {
        match self.leading() {
            Some(node) => self.look(node, true).await,
            None => Ok(Vec::new()),
        }
    }

    async fn write_node(&self, node: &Membership) -> Result<()> {
        node.check()?;
        let pool = &self.0.connections.rest;
        self.run("write_node", pool, || {
            nodes::write(&pool.inner, &self.0.parts.options.name, node)
        })
        .await
    }

    async fn remove_node(&self, node: NodeId) -> Result<()> {
        let pool = &self.0.connections.rest;
        self.run("remove_node", pool, || nodes::leave(&pool.inner, node))
            .await
    }

    async fn remove_silent_nodes(&self, silent_for: Duration, heard: &[NodeId]) -> Result<u64> {
        let pool = &self.0.connections.rest;
        self.run("remove_silent_nodes", pool, || {
            nodes::forget(&pool.inner, &self.0.parts.options.name, silent_for, heard)
        })
        .await
    }

    async fn nodes(&self) -> Result<Vec<NodeView>> {
        let pool = &self.0.connections.rest;
        self.run("nodes", pool, || {
            nodes::read(&pool.inner, &self.0.parts.options.name)
        })
        .await
    }

    async fn resign(&self, node: NodeId) -> Result<()> {
        self.set_leading(None);
        let pool = &self.0.connections.rest;
        self.run("resign", pool, || {
            leader::resign(&pool.inner, &self.0.parts.options.name, node)
        })
        .await
    }

    async fn orphans(&self, query: &OrphanQuery) -> Result<OrphanPage> {
        let (dialect, pool) = (self.dialect(), &self.0.connections.rest);
        self.run("orphans", pool, || {
            sweep::orphans(dialect, &pool.inner, query)
        })
        .await
    }

    async fn sweepable(&self, services: &Services, received: &[Lane]) -> Result<Sweepable> {
        let (dialect, pool) = (self.dialect(), &self.0.connections.rest);
        let options = &self.0.parts.options;
        let mut counted = self
            .run("sweepable", pool, || {
                sweepable::count(dialect, &pool.inner, &options.name, services)
            })
            .await?;
        if !received.contains(&options.lane) {
            let kept = [&mut counted.ready, &mut counted.instance_held];
            counted.unreceived = kept.into_iter().map(std::mem::take).sum();
        }
        Ok(counted)
    }

    async fn unserved_types(&self, services: &Services, limit: i64) -> Result<Vec<UnservedType>> {
        let (dialect, pool) = (self.dialect(), &self.0.connections.rest);
        let found = self
            .run("unserved_types", pool, || {
                unserved::count(dialect, &pool.inner, services)
            })
            .await?;
        self.0.parts.meter.unrun(Unrun::Reach, found.jobs());
        found.warn();
        Ok(found.types(usize::try_from(limit).unwrap_or_default()))
    }

    async fn free_instances(&self) -> Result<Vec<Ready>> {
        let (dialect, pool) = (self.dialect(), &self.0.connections.rest);
        let freed = self.run("free_instances", pool, || {
            dialect.free_instances(&pool.inner)
        });
        Ok(freed.await?.ready)
    }

    async fn committed(&self, _: &TransactionId) -> Result<Fate> {
        Ok(Fate::Unknown)
    }

    async fn find(&self, query: &JobQuery) -> Result<Vec<JobView>> {
        self.0.parts.options.check_filter(query)?;
        let (dialect, pool) = (self.dialect(), &self.0.connections.rest);
        self.run("find", pool, || queries::find(dialect, &pool.inner, query))
            .await
    }

    async fn count(&self, query: &JobQuery) -> Result<i64> {
        self.0.parts.options.check_filter(query)?;
        let (dialect, pool) = (self.dialect(), &self.0.connections.rest);
        self.run("count", pool, || {
            queries::count(dialect, &pool.inner, query)
        })
        .await
    }

    async fn get(&self, id: JobId) -> Result<Option<(JobView, Job, Option<String>)>> {
        let (dialect, pool) = (self.dialect(), &self.0.connections.rest);
        self.run("get", pool, || queries::get(dialect, &pool.inner, id))
            .await
    }

    async fn delete(&self, id: JobId) -> Result<(Operated, Vec<Ready>)> {
        Ok((self.operate(id, Change::Delete).await?, Vec::new()))
    }

    async fn delete_many(&self, ids: &[JobId]) -> Result<OperatedJobs> {
        self.operate_many(ids, Change::Delete).await
    }

    /// Lets the engine retry a job. Over REST, Flowable chooses the number of attempts itself. The
    /// tap, the engine's hook or the leader hints the job.
    async fn retry(&self, id: JobId, retries: i32) -> Result<(Operated, Vec<Ready>)> {
        Ok((self.operate(id, Change::Retry(retries)).await?, Vec::new()))
    }

    async fn retry_many(&self, ids: &[JobId], retries: i32) -> Result<OperatedJobs> {
        self.operate_many(ids, Change::Retry(retries)).await
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
        self.0.connections.close().await;
    }
}

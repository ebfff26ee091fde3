//! The methods of [`Store`].

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use jobwire_core::hint::Ready;
use jobwire_core::job::query::{JobFilter, JobView, LaneBacklog, LaneView, Sweepable};
use jobwire_core::job::scope::Services;
use jobwire_core::job::{LockToken, LockedJob};
use jobwire_core::store::answer::measured;
use jobwire_core::store::transaction::AfterCommit;
use jobwire_core::store::{
    BatchOutcome, ClaimPage, Claimable, Claimed, CompletingTransaction, Completion, CycleOutcome,
    Failure, Fate, Handoff, LanePage, LeaderCycle, LockTerms, Locked, Marked, Membership,
    MovedPage, MovedTimers, NodeView, Operated, OperatedJobs, OrphanPage, OrphanQuery, Renewed,
    SchemaStatus, Store, Suspended, SuspensionScope, TapOffer, TransactionId,
};
use jobwire_core::{Fence, Hint, Job, JobId, Lane, LaneRule, NodeId};

use super::statement::Asked;
use super::{EngineStore, Result};
use crate::coordination::{leader, nodes, schema};
use crate::dialect::Change;
use crate::{locking, queries, sweep, sweepable, tap};

#[async_trait]
impl Store for EngineStore {
    fn name(&self) -> &'static str {
        self.0.dialect.decoder().engine
    }

    async fn check(&self) -> Result<SchemaStatus> {
        let (dialect, line) = (self.dialect(), &self.0.lines.rest);
        self.run("check", line, || async {
            dialect.probe(&line.pool).await?;
            schema::status(&line.pool).await
        })
        .await
    }

    async fn answers(&self) -> Result<()> {
        let line = &self.0.lines.rest;
        self.run("answers", line, || async {
            sqlx::query("SELECT").execute(&line.pool).await?;
            Ok(())
        })
        .await
    }

    async fn absence(&self) -> Option<String> {
        let lines = &self.0.lines;
        let ask = async {
            sqlx::query("SELECT").execute(&lines.renewals.pool).await?;
            Ok(())
        };
        match lines.presence.absence(ask).await {
            Some(absence) => Some(absence),
            None => self.0.breaker.problem(),
        }
    }

    async fn lock(&self, terms: &LockTerms, hints: &[Hint]) -> Result<Locked> {
        let (dialect, lines) = (self.dialect(), &self.0.lines);
        self.run_locking("lock", || {
            locking::lock_hinted(dialect, &lines.hot.pool, terms, hints)
        })
        .await
    }

    async fn claim(&self, terms: &LockTerms, page: &ClaimPage) -> Result<Claimed> {
        let (dialect, lines) = (self.dialect(), &self.0.lines);
        let Claimable { hints, after } = self.claimable(terms, page).await?;
        if hints.is_empty() {
            return Ok(Claimed {
                after,
                ..Claimed::default()
            });
        }
        let locked = self
            .run_locking("claim", || {
                locking::lock_hinted(dialect, &lines.hot.pool, terms, &hints)
            })
            .await?;
        Ok(Claimed {
            jobs: locked.jobs,
            undecided: Vec::new(),
            after,
        })
    }

    async fn claimable(&self, _: &LockTerms, page: &ClaimPage) -> Result<Claimable> {
        let (dialect, line) = (self.dialect(), &self.0.lines.rest);
        self.run("claim", line, || dialect.claimable(&line.pool, page))
            .await
    }

    async fn renew(&self, owner: NodeId, lease: Duration, held: &[LockToken]) -> Result<Renewed> {
        let (dialect, line) = (&self.0.dialect, &self.0.lines.renewals);
        // A late renewal is useless, so it must not wait as long as other statements.
        let deadline = line.within.min(lease);
        let answer = measured("renew", deadline, || {
            line.answer(dialect.renew(&line.pool, owner, lease, held))
        })
        .await;
        self.0.lines.presence.note(&answer);
        answer
    }

    async fn unknown(
        &self,
        owner: NodeId,
        lease: Duration,
        known: &[Fence],
    ) -> Result<Vec<LockedJob>> {
        // All statements that lock jobs for this node go through this store. The search reads every
        // job, so it is sent only if one of their answers was lost.
        if !self.0.in_doubt.swap(false, Ordering::SeqCst) {
            return Ok(Vec::new());
        }
        let mut asked = Asked(&self.0.in_doubt, true);
        let (dialect, line) = (self.dialect(), &self.0.lines.rest);
        let found = self
            .run("unknown", line, || {
                dialect.held_by(&line.pool, owner, lease, known)
            })
            .await;
        asked.1 = found.is_err();
        found
    }

    fn outcome_within(&self) -> Duration {
        self.0.lines.hot.within
    }

    async fn run_alone(&self, _: NodeId, _: &LockToken) -> Result<bool> {
        // The engine runs the job, so no job ends a node of ours.
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
        self.settle("complete", owner, held, then).await
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

    async fn release(&self, owner: NodeId, held: &[LockToken]) -> Result<BatchOutcome> {
        self.settle("release", owner, held.to_vec(), &Handoff::Hint)
            .await
    }

    async fn begin_completing(
        &self,
        _: Arc<dyn AfterCommit>,
    ) -> Result<Box<dyn CompletingTransaction>> {
        self.refuse("the transaction", "a delegate of the process")
    }

    async fn move_due_timers(&self, at_most: i64) -> Result<MovedTimers> {
        let (dialect, line) = (self.dialect(), &self.0.lines.rest);
        self.run("move_due_timers", line, || {
            dialect.move_due(&line.pool, at_most)
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

    async fn run_leader_cycle(&self, turn: &LeaderCycle) -> Result<CycleOutcome> {
        self.take_turn(turn).await
    }

    async fn tap(&self) -> Result<TapOffer> {
        tap::open(self).await
    }

    async fn mark_hinted(&self, jobs: &[JobId]) -> Result<Marked> {
        let (dialect, line) = (self.dialect(), &self.0.lines.rest);
        self.run("mark_hinted", line, || dialect.hints_of(&line.pool, jobs))
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
        let line = &self.0.lines.rest;
        self.run("write_node", line, || {
            nodes::write(&line.pool, &self.0.options.name, node)
        })
        .await
    }

    async fn remove_node(&self, node: NodeId) -> Result<()> {
        let line = &self.0.lines.rest;
        self.run("remove_node", line, || nodes::leave(&line.pool, node))
            .await
    }

    async fn remove_silent_nodes(&self, silent_for: Duration, heard: &[NodeId]) -> Result<u64> {
        let line = &self.0.lines.rest;
        self.run("remove_silent_nodes", line, || {
            nodes::forget(&line.pool, &self.0.options.name, silent_for, heard)
        })
        .await
    }

    async fn nodes(&self) -> Result<Vec<NodeView>> {
        let line = &self.0.lines.rest;
        self.run("nodes", line, || {
            nodes::read(&line.pool, &self.0.options.name)
        })
        .await
    }

    async fn resign(&self, node: NodeId) -> Result<()> {
        self.set_leading(None);
        let line = &self.0.lines.rest;
        self.run("resign", line, || {
            leader::resign(&line.pool, &self.0.options.name, node)
        })
        .await
    }

    async fn orphans(&self, query: &OrphanQuery) -> Result<OrphanPage> {
        let (dialect, line) = (self.dialect(), &self.0.lines.rest);
        self.run("orphans", line, || {
            sweep::orphans(dialect, &line.pool, query)
        })
        .await
    }

    async fn sweepable(&self, _: &Services) -> Result<Sweepable> {
        let (dialect, line) = (self.dialect(), &self.0.lines.rest);
        self.run("sweepable", line, || {
            sweepable::count(dialect, &line.pool, &self.0.options.name)
        })
        .await
    }

    async fn free_instances(&self) -> Result<Vec<Ready>> {
        let (dialect, line) = (self.dialect(), &self.0.lines.rest);
        self.run("free_instances", line, || {
            dialect.free_instances(&line.pool)
        })
        .await
    }

    async fn committed(&self, _: &TransactionId) -> Result<Fate> {
        Ok(Fate::Unknown)
    }

    async fn find(&self, filter: &JobFilter) -> Result<Vec<JobView>> {
        let (dialect, line) = (self.dialect(), &self.0.lines.rest);
        self.run("find", line, || queries::find(dialect, &line.pool, filter))
            .await
    }

    async fn count(&self, filter: &JobFilter) -> Result<i64> {
        let (dialect, line) = (self.dialect(), &self.0.lines.rest);
        self.run("count", line, || {
            queries::count(dialect, &line.pool, filter)
        })
        .await
    }

    async fn get(&self, id: JobId) -> Result<Option<(JobView, Job, Option<String>)>> {
        let (dialect, line) = (self.dialect(), &self.0.lines.rest);
        self.run("get", line, || queries::get(dialect, &line.pool, id))
            .await
    }

    async fn delete(&self, id: JobId) -> Result<(Operated, Vec<Ready>)> {
        Ok((self.operate(id, Change::Delete, 0).await?, Vec::new()))
    }

    async fn delete_many(&self, ids: &[JobId]) -> Result<OperatedJobs> {
        self.operate_many(ids, Change::Delete, 0).await
    }

    /// Flowable decides the number of attempts itself. The leader finds the changed row and hints
    /// it. Over the endpoint no job can be changed.
    async fn retry(&self, id: JobId, retries: i32) -> Result<(Operated, Vec<Ready>)> {
        Ok((self.operate(id, Change::Retry, retries).await?, Vec::new()))
    }

    async fn retry_many(&self, ids: &[JobId], retries: i32) -> Result<OperatedJobs> {
        self.operate_many(ids, Change::Retry, retries).await
    }

    async fn suspend(&self, _: &SuspensionScope) -> Result<Suspended> {
        self.refuse("suspension", "the engine's suspension of process instances")
    }

    async fn activate(&self, _: &SuspensionScope) -> Result<Vec<Ready>> {
        self.refuse("activation", "the engine's activation of process instances")
    }

    async fn lane_rules(&self) -> Result<Vec<LaneRule>> {
        Ok(Vec::new())
    }

    async fn set_lane_rules(&self, _: &[LaneRule]) -> Result<()> {
        self.refuse("the lane", "`engine_lane`, which is one for all its jobs")
    }

    async fn lanes(&self) -> Result<Vec<LaneView>> {
        let backlog = self.backlog().await?;
        Ok(vec![LaneView {
            lane: self.0.options.lane.clone(),
            ready: (backlog.executable - backlog.leased).max(0),
            running: backlog.leased,
            timers: backlog.timers,
            suspended: 0,
            dead_letters: backlog.dead_letters,
            oldest_ready_at: backlog.oldest,
            nodes: 0,
        }])
    }

    async fn lanes_outside(&self, lanes: &[Lane], _: i64) -> Result<Vec<LaneBacklog>> {
        if lanes.contains(&self.0.options.lane) {
            return Ok(Vec::new());
        }
        let backlog = self.backlog().await?;
        Ok(vec![LaneBacklog {
            lane: self.0.options.lane.clone(),
            jobs: backlog.executable,
        }])
    }

    async fn move_lane(&self, _: &LanePage) -> Result<MovedPage> {
        self.refuse("the lane", "`engine_lane`, which is one for all its jobs")
    }

    async fn close(&self) {
        self.0.lines.close().await;
    }
}

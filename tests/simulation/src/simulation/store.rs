//! The store over the [`Database`] in memory, used over a [`Link`] or directly.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jobwire_core::hint::{Hint, Ready};
use jobwire_core::job::periodic::Declared;
use jobwire_core::job::{LockToken, LockedJob};
use jobwire_core::store::transaction::AfterCommit;
use jobwire_core::store::{
    BatchOutcome, ClaimPage, Claimable, Claimed, CompletingTransaction, Completion, CycleOutcome,
    DuePeriodicJobs, DuePlace, Failure, Fate, Fired, Handoff, LanePage, LeaderCycle, Lifted,
    LockTerms, Locked, Membership, MovedPage, MovedTimers, NodeView, Operated, OperatedJobs,
    Origin, OrphanPage, OrphanQuery, PeriodicView, Refusal, Release, Renewed, Result,
    SCHEMA_VERSION, SchemaStatus, Suspended, SuspensionScope, TransactionId, Triggered,
};
use jobwire_core::{
    Fence, Job, JobId, JobQuery, JobView, Lane, LaneBacklog, LaneRule, LaneView, NodeId,
    PeriodicJob, Store, StoreError,
};
use tokio::time::Instant;

use super::database::Database;
use super::link::{Link, unreachable};
use crate::history::Event;

/// The store that a simulated node uses.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    database: Arc<Mutex<Database>>,
    link: Option<Arc<Link>>,
    /// The delay of the next leader cycle.
    late_cycle: Arc<Mutex<Option<Duration>>>,
    /// The times at which a leader deleted old rows.
    prunings: Arc<Mutex<Vec<Instant>>>,
}

impl MemoryStore {
    /// Creates a store that always reaches its database at once.
    #[must_use]
    pub fn new(database: Database) -> MemoryStore {
        MemoryStore {
            database: Arc::new(Mutex::new(database)),
            link: None,
            late_cycle: Arc::default(),
            prunings: Arc::default(),
        }
    }

    /// Makes the next leader cycle take effect this much after it was sent.
    pub fn delay_next_cycle(&self, by: Duration) {
        *self.late() = Some(by);
    }

    /// Returns the times at which a leader deleted old rows. This database has none, so each deletion
    /// is a short slice.
    #[must_use]
    pub fn prunings(&self) -> Vec<Instant> {
        self.pruned().clone()
    }

    fn pruned(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.prunings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn late(&self) -> MutexGuard<'_, Option<Duration>> {
        self.late_cycle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn over(&self, link: Arc<Link>) -> MemoryStore {
        MemoryStore {
            database: self.database.clone(),
            link: Some(link),
            late_cycle: self.late_cycle.clone(),
            prunings: self.prunings.clone(),
        }
    }

    pub(super) fn shared(&self) -> Arc<Mutex<Database>> {
        self.database.clone()
    }

    /// Returns the database itself, for creators' transactions and for tests.
    pub fn database(&self) -> MutexGuard<'_, Database> {
        self.database.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn call<T: Send + 'static>(
        &self,
        statement: &'static str,
        effect: impl FnOnce(&mut Database) -> T + Send + 'static,
    ) -> Result<T> {
        match &self.link {
            Some(link) => link.call(statement, &self.database, effect).await,
            None => Ok(effect(&mut self.database())),
        }
    }

    /// Splits off hints of rows that another transaction has locked for a moment. They are to be
    /// tried again.
    fn busy(&self, hints: &[Hint]) -> (Vec<Hint>, Vec<(JobId, Refusal)>) {
        let (mut asked, mut busy) = (Vec::with_capacity(hints.len()), Vec::new());
        for hint in hints {
            let injector = self.link.as_ref().map(|link| link.injector());
            if injector.is_some_and(|injector| injector.strikes(injector.now().busy)) {
                busy.push((hint.id, Refusal::Busy));
            } else {
                asked.push(hint.clone());
            }
        }
        (asked, busy)
    }
}

fn no_lanes<T>() -> Result<T> {
    Err(StoreError::Config(
        "the store in memory has no rules for lanes and moves no jobs between them".to_owned(),
    ))
}

#[async_trait]
impl Store for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    async fn check(&self) -> Result<SchemaStatus> {
        self.call("check", |_| SchemaStatus::Ready {
            version: SCHEMA_VERSION,
            server: "memory".to_owned(),
        })
        .await
    }

    async fn lock(&self, terms: &LockTerms, hints: &[Hint]) -> Result<Locked> {
        let (hints, busy) = self.busy(hints);
        let plain = hints.iter().any(|hint| hint.instance.is_none());
        let statement = if plain { "lock" } else { "lock instances" };
        let asked = terms.clone();
        let (mut locked, instances) = self
            .call(statement, move |db| {
                let (mut locked, mut instances) = db.lock_plain(&asked, &hints);
                if !plain {
                    let all = std::mem::take(&mut instances);
                    db.lock_instances(&asked, all, &mut locked);
                }
                (locked, instances)
            })
            .await?;
        if !instances.is_empty() {
            // A transaction of its own: locks of the first one stay if this one fails.
            let terms = terms.clone();
            locked = self
                .call("lock instances", move |db| {
                    db.lock_instances(&terms, instances, &mut locked);
                    locked
                })
                .await?;
        }
        locked.refused.extend(busy);
        Ok(locked)
    }

    async fn claim(&self, terms: &LockTerms, page: &ClaimPage) -> Result<Claimed> {
        let (terms, page) = (terms.clone(), page.clone());
        self.call("claim", move |db| db.claim(&terms, &page)).await
    }

    async fn claimable(&self, terms: &LockTerms, page: &ClaimPage) -> Result<Claimable> {
        let (terms, page) = (terms.clone(), page.clone());
        self.call("claim", move |db| db.claimable(&terms, &page))
            .await
    }

    async fn renew(&self, owner: NodeId, lease: Duration, held: &[LockToken]) -> Result<Renewed> {
        let held = held.to_vec();
        self.call("renew", move |db| db.renew(owner, lease, &held))
            .await
    }

    async fn unknown(
        &self,
        owner: NodeId,
        lease: Duration,
        known: &[Fence],
    ) -> Result<Vec<LockedJob>> {
        let known = known.to_vec();
        self.call("unknown", move |db| db.unknown(owner, lease, &known))
            .await
    }

    fn outcome_within(&self) -> Duration {
        Link::OUTCOME_WITHIN
    }

    async fn run_alone(&self, owner: NodeId, held: &LockToken) -> Result<bool> {
        let held = held.clone();
        self.call("run alone", move |db| db.run_alone(owner, &held))
            .await
    }

    async fn clear_strike(&self, lost: &[LockToken]) -> Result<bool> {
        let lost = lost.to_vec();
        self.call("absolve", move |db| db.clear_strike(&lost)).await
    }

    async fn complete(
        &self,
        owner: NodeId,
        done: &[Completion],
        then: &Handoff,
    ) -> Result<BatchOutcome> {
        let (done, then) = (done.to_vec(), then.clone());
        self.call("complete", move |db| db.complete(owner, &done, &then))
            .await?
    }

    async fn fail(
        &self,
        owner: NodeId,
        failed: &[Failure],
        then: &Handoff,
    ) -> Result<BatchOutcome> {
        let (failed, then) = (failed.to_vec(), then.clone());
        self.call("fail", move |db| db.fail(owner, &failed, &then))
            .await
    }

    async fn release(&self, owner: NodeId, released: &[Release]) -> Result<BatchOutcome> {
        let released = released.to_vec();
        self.call("release", move |db| db.release(owner, &released))
            .await
    }

    async fn begin_completing(
        &self,
        _: Arc<dyn AfterCommit>,
    ) -> Result<Box<dyn CompletingTransaction>> {
        self.call("begin", |_| ()).await?;
        Ok(Box::new(MemoryTransaction(self.clone())))
    }

    async fn move_due_timers(&self, at_most: i64) -> Result<MovedTimers> {
        self.call("move due timers", move |db| db.move_due_timers(at_most))
            .await
    }

    async fn take_due_timers(
        &self,
        terms: &LockTerms,
        lanes: &[Lane],
        at_most: i64,
    ) -> Result<MovedTimers> {
        let (terms, lanes) = (terms.clone(), lanes.to_vec());
        self.call("move due timers", move |db| {
            db.take_due_timers(&terms, &lanes, at_most)
        })
        .await
    }

    async fn run_leader_cycle(&self, turn: &LeaderCycle) -> Result<CycleOutcome> {
        let turn = turn.clone();
        let late = self.late().take();
        if let Some(by) = late {
            tokio::time::sleep(by).await;
        }
        self.call("turn", move |db| db.run_leader_cycle(&turn))
            .await
    }

    async fn unhinted(&self, at_most: i64) -> Result<Vec<Ready>> {
        self.call("unhinted", move |db| db.unhinted(at_most)).await
    }

    async fn write_node(&self, node: &Membership) -> Result<()> {
        let node = node.clone();
        self.call("write node", move |db| db.write_node(node)).await
    }

    async fn remove_node(&self, node: NodeId) -> Result<()> {
        self.call("remove node", move |db| db.remove_node(node))
            .await
    }

    async fn remove_silent_nodes(&self, silent_for: Duration, heard: &[NodeId]) -> Result<u64> {
        let heard = heard.to_vec();
        self.call("remove silent nodes", move |db| {
            db.remove_silent_nodes(silent_for, &heard)
        })
        .await
    }

    async fn nodes(&self) -> Result<Vec<NodeView>> {
        self.call("nodes", Database::nodes).await
    }

    async fn resign(&self, node: NodeId) -> Result<()> {
        self.call("resign", move |db| db.resign(node)).await
    }

    async fn orphans(&self, query: &OrphanQuery) -> Result<OrphanPage> {
        let query = query.clone();
        self.call("orphans", move |db| db.orphans(&query)).await
    }

    async fn free_instances(&self) -> Result<Vec<Ready>> {
        self.call("free instances", Database::free_instances).await
    }

    async fn prune_history(&self, _: Duration, _: i64) -> Result<u64> {
        self.pruned().push(Instant::now());
        Ok(0)
    }

    async fn committed(&self, _: &TransactionId) -> Result<Fate> {
        Ok(Fate::Unknown)
    }

    async fn find(&self, query: &JobQuery) -> Result<Vec<JobView>> {
        query.check()?;
        let (offset, limit) = (query.offset.max(0), query.limit.max(0));
        let query = query.clone();
        let mut found = self.call("find", move |db| db.find(&query)).await?;
        found.drain(..usize::try_from(offset).unwrap_or(0).min(found.len()));
        found.truncate(usize::try_from(limit).unwrap_or(0));
        Ok(found)
    }

    async fn count(&self, query: &JobQuery) -> Result<i64> {
        query.check()?;
        let mut query = query.clone();
        query.after = None;
        let found = self.call("count", move |db| db.find(&query).len()).await?;
        Ok(i64::try_from(found).unwrap_or(i64::MAX))
    }

    async fn get(&self, id: JobId) -> Result<Option<(JobView, Job, Option<String>)>> {
        self.call("get", move |db| db.get(id)).await
    }

    async fn delete(&self, id: JobId) -> Result<(Operated, Vec<Ready>)> {
        self.call("delete", move |db| db.delete(id)).await
    }

    async fn delete_many(&self, ids: &[JobId]) -> Result<OperatedJobs> {
        let ids = ids.to_vec();
        self.call("delete", move |db| {
            let mut deleted = OperatedJobs::default();
            for id in &ids {
                let (operated, ready) = db.delete(*id);
                deleted.operated.push((*id, operated));
                deleted.ready.extend(ready);
            }
            let is_left = |ready: &Ready| !ids.contains(&ready.hint.id);
            deleted.ready.retain(is_left);
            deleted
        })
        .await
    }

    async fn retry(&self, id: JobId, retries: i32) -> Result<(Operated, Vec<Ready>)> {
        self.call("retry", move |db| db.retry(id, retries)).await
    }

    async fn retry_many(&self, ids: &[JobId], retries: i32) -> Result<OperatedJobs> {
        let ids = ids.to_vec();
        self.call("retry", move |db| {
            let mut retried = OperatedJobs::default();
            for id in ids {
                let (operated, ready) = db.retry(id, retries);
                retried.operated.push((id, operated));
                retried.ready.extend(ready);
            }
            retried
        })
        .await
    }

    async fn suspend(&self, scope: &SuspensionScope) -> Result<Suspended> {
        let scope = scope.clone();
        self.call("suspend", move |db| {
            let (moved, ready) = db.suspend(&scope);
            Suspended {
                moved,
                ready,
                ..Suspended::default()
            }
        })
        .await
    }

    async fn activate(&self, scope: &SuspensionScope) -> Result<Lifted> {
        let scope = scope.clone();
        self.call("activate", move |db| Lifted {
            was_there: true,
            ready: db.activate(&scope),
            ..Lifted::default()
        })
        .await
    }

    async fn lane_rules(&self) -> Result<Vec<LaneRule>> {
        Ok(Vec::new())
    }

    async fn set_lane_rules(&self, _: &[LaneRule]) -> Result<()> {
        no_lanes()
    }

    async fn lanes(&self) -> Result<Vec<LaneView>> {
        no_lanes()
    }

    async fn lanes_outside(&self, _: &[Lane], _: i64) -> Result<Vec<LaneBacklog>> {
        // Every node of a simulation receives the only lane.
        Ok(Vec::new())
    }

    async fn move_lane(&self, _: &LanePage) -> Result<MovedPage> {
        no_lanes()
    }

    async fn declare_periodic_jobs(&self, jobs: &[PeriodicJob]) -> Result<Vec<Declared>> {
        let jobs = jobs.to_vec();
        self.call("declare", move |db| db.declare_periodic_jobs(&jobs))
            .await?
    }

    async fn periodic_jobs(&self) -> Result<Vec<PeriodicView>> {
        self.call("periodic jobs", |db| db.periodic_jobs()).await
    }

    async fn pause_periodic_job(&self, name: &str, paused: bool) -> Result<bool> {
        let name = name.to_owned();
        self.call("pause", move |db| db.pause_periodic_job(&name, paused))
            .await?
    }

    async fn remove_periodic_job(&self, name: &str) -> Result<bool> {
        let name = name.to_owned();
        self.call("remove", move |db| db.remove_periodic_job(&name))
            .await
    }

    async fn run_periodic_job(&self, name: &str, origin: Origin) -> Result<Option<Triggered>> {
        let name = name.to_owned();
        self.call("run periodic", move |db| db.run_periodic_job(&name, origin))
            .await?
    }

    async fn due_periodic_jobs(
        &self,
        after: Option<&DuePlace>,
        at_most: i64,
    ) -> Result<DuePeriodicJobs> {
        let after = after.cloned();
        self.call("due periodic", move |db| {
            db.due_periodic_jobs(after.as_ref(), at_most)
        })
        .await
    }

    async fn fire_periodic_job(&self, name: &str) -> Result<Fired> {
        let name = name.to_owned();
        self.call("fire periodic", move |db| db.fire_periodic_job(&name))
            .await?
    }

    async fn close(&self) {}
}

/// The transaction in which a handler works and which completes its job.
struct MemoryTransaction(MemoryStore);

#[async_trait]
impl CompletingTransaction for MemoryTransaction {
    fn as_any(&mut self) -> &mut (dyn Any + Send) {
        self
    }

    async fn complete(
        self: Box<Self>,
        owner: NodeId,
        completion: &Completion,
        then: &Handoff,
    ) -> Result<BatchOutcome> {
        let (id, fence) = (completion.held.id, completion.held.fence);
        let (done, then) = (vec![completion.clone()], then.clone());
        let completed = self.0.call("commit", move |db| {
            let settled = db.complete(owner, &done, &then)?;
            if settled.applied.is_empty() {
                return Err(StoreError::LostLock(id));
            }
            db.record(id, Event::Effect { fence });
            Ok(settled)
        });
        match completed.await {
            Ok(settled) => settled,
            // Whether it committed is unknown.
            Err(StoreError::Timeout(_)) => Err(StoreError::CommitUnknown(sqlx::Error::Io(
                std::io::Error::other("the answer is lost"),
            ))),
            Err(_) => Err(unreachable()),
        }
    }

    async fn rollback(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

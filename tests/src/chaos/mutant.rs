//! Stores and transports with a bug, to test that the checker finds it.
//!
//! Each bug wraps the real store or transport at its trait; the product has no code for it. A node
//! of the chaos suite reads its bug from `CHAOS_BUG`.

use async_trait::async_trait;
use chrono::Duration as Span;
use jobwire_core::hint::{Hint, Ready};
use jobwire_core::job::query::{LaneBacklog, LaneView};
use jobwire_core::job::{Job, LockToken, LockedJob};
use jobwire_core::store::Failure;
use jobwire_core::store::permits::{
    KeyAnswer, LastingPermit, PermitAnswer, PermitRequest, StalledKey,
};
use jobwire_core::store::transaction::AfterCommit;
use jobwire_core::store::{
    Action, BatchOutcome, ClaimPage, Claimable, Claimed, CompletingTransaction, Completion,
    Created, CycleOutcome, Ended, EndedScope, Fate, Handoff, LanePage, LeaderCycle, Lifted,
    LockTerms, Locked, Membership, MovedPage, MovedTimers, NodeView, Operated, OperatedJobs,
    Origin, OrphanPage, OrphanQuery, Release, Renewed, Result, SchemaStatus, Suspended,
    SuspensionScope, TransactionId, Waiting,
};
use jobwire_core::transport::{
    Control, Delivery, Publisher, Receiver, Subscription, Ticket, TransportError,
};
use jobwire_core::{
    Calendars, Fence, JobId, JobQuery, JobView, Lane, LaneRule, NewJob, NodeId, PgStore, SqlStore,
    Store, StoreError, Transport,
};
use sqlx::postgres::PgConnection;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Not a bug: completions arrive only after another node has taken the job over. They must
    /// change nothing.
    LateCompletion,
    /// Like `LateCompletion`, and the completion does not name its own fence.
    NoFence,
    /// Not a bug: the lock statement never returns, as in a node that hangs.
    HangingLock,
    /// Like `HangingLock`, and hints are settled before the lock.
    AckBeforeLock,
    /// The sweeper ends leases without a check of their expiry.
    UnguardedSweeper,
    /// The lock statement does not check the instance.
    NoInstanceCheck,
    /// The sweeper treats every job that has waited for a second as an orphan.
    OrphansByAge,
    /// Hints are published while their transaction is open. Only for producers.
    PublishBeforeCommit,
    /// Not a bug: PostgreSQL reused the transaction's id for a later transaction, which committed,
    /// as may happen after a crash. Only for producers.
    ReusedTransaction,
    /// Every job that asks for a permit gets one, whatever other nodes have.
    GenerousPermits,
}

impl Bug {
    const ALL: [(Bug, &'static str); 10] = [
        (Bug::LateCompletion, "late-completion"),
        (Bug::NoFence, "no-fence"),
        (Bug::HangingLock, "hanging-lock"),
        (Bug::AckBeforeLock, "ack-before-lock"),
        (Bug::UnguardedSweeper, "unguarded-sweeper"),
        (Bug::NoInstanceCheck, "no-instance-check"),
        (Bug::OrphansByAge, "orphans-by-age"),
        (Bug::PublishBeforeCommit, "publish-before-commit"),
        (Bug::ReusedTransaction, "reused-transaction"),
        (Bug::GenerousPermits, "generous-permits"),
    ];

    /// Returns its name in `CHAOS_BUG`.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = Bug::ALL.iter().find(|(bug, _)| *bug == self);
        found.map_or("", |(_, name)| name)
    }

    /// Returns the bug of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Bug> {
        let found = Bug::ALL.iter().find(|(_, its)| *its == name);
        found.map(|(bug, _)| *bug)
    }
}

/// A store with a bug.
#[derive(Clone)]
pub struct Mutant {
    bug: Bug,
    inner: Arc<dyn Store>,
    /// For the mutant's own statements, and for producers.
    direct: PgStore,
    publisher: Option<Arc<dyn Publisher>>,
}

impl fmt::Debug for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutant").field("bug", &self.bug).finish()
    }
}

const LEASE_OF: &str =
    "SELECT owner, fence FROM jobwire.job_lease WHERE job_id = $1 AND owner IS NOT NULL";

impl Mutant {
    /// Wraps a store with a bug.
    #[must_use]
    pub fn new(bug: Bug, inner: Arc<dyn Store>, direct: PgStore) -> Mutant {
        Mutant {
            bug,
            inner,
            direct,
            publisher: None,
        }
    }

    /// Returns a producer's store that publishes while its transaction is open.
    #[must_use]
    pub fn hasty(direct: PgStore, publisher: Arc<dyn Publisher>) -> Mutant {
        Mutant {
            bug: Bug::PublishBeforeCommit,
            inner: Arc::new(direct.clone()),
            direct,
            publisher: Some(publisher),
        }
    }

    /// Waits until another node holds the job, and returns that node and its fence.
    async fn taken_over(&self, owner: NodeId, held: &LockToken) -> Result<(NodeId, Fence)> {
        loop {
            let lease: Option<(Uuid, i64)> = sqlx::query_as(LEASE_OF)
                .bind(held.id.uuid())
                .fetch_optional(self.direct.pool())
                .await?;
            // The mutant may take its job over itself while no other node is ready.
            let is_heir = |(node, _): &(Uuid, i64)| *node != owner.uuid();
            if let Some((heir, fence)) = lease.filter(is_heir) {
                return Ok((NodeId::from_uuid(heir), Fence::new(fence)));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Locks the jobs that the hints name, without any other check.
    async fn lock_blindly(&self, terms: &LockTerms, hints: &[Hint]) -> Result<Locked> {
        let ids: Vec<Uuid> = hints.iter().map(|hint| hint.id.uuid()).collect();
        let rows: Vec<(Uuid, i64)> = sqlx::query_as(
            "INSERT INTO jobwire.job_lease (job_id, owner, fence, locked_at, expires_at)
             SELECT id, $2, nextval('jobwire.fence_seq'), clock_timestamp(), clock_timestamp() + $3
             FROM jobwire.job WHERE id = ANY($1) ORDER BY seq
             ON CONFLICT (job_id) DO NOTHING RETURNING job_id, fence",
        )
        .bind(ids)
        .bind(terms.owner.uuid())
        .bind(terms.lease)
        .fetch_all(self.direct.pool())
        .await?;
        let mut locked = Locked::default();
        for (id, fence) in rows {
            if let Some((_, job, _)) = self.inner.get(JobId::from_uuid(id)).await? {
                let fence = Fence::new(fence);
                locked.jobs.push(LockedJob {
                    locked_at: job.ready_at,
                    job: Arc::new(job),
                    fence,
                    strikes: 0,
                });
            }
        }
        Ok(locked)
    }

    async fn take_all_locks_off(&self) -> Result<()> {
        sqlx::query(
            "UPDATE jobwire.job_lease SET owner = NULL, strikes = strikes + 1 WHERE owner IS NOT NULL",
        )
        .execute(self.direct.pool())
        .await?;
        Ok(())
    }
}

#[async_trait]
impl Store for Mutant {
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn calendars(&self) -> &Calendars {
        self.inner.calendars()
    }
    fn server_changes(&self) -> u64 {
        self.inner.server_changes()
    }
    async fn check(&self) -> Result<SchemaStatus> {
        self.inner.check().await
    }
    fn has_permits(&self) -> bool {
        self.inner.has_permits()
    }
    async fn exchange_permits(&self, request: &PermitRequest) -> Result<PermitAnswer> {
        match self.bug {
            Bug::GenerousPermits => Ok(all_permits(request)),
            _ => self.inner.exchange_permits(request).await,
        }
    }
    async fn stalled_keys(&self, served: &[String]) -> Result<Vec<StalledKey>> {
        self.inner.stalled_keys(served).await
    }
    async fn lasting_permits(
        &self,
        limits: &[(String, Duration)],
        ended: &[LastingPermit],
    ) -> Result<Vec<LastingPermit>> {
        self.inner.lasting_permits(limits, ended).await
    }
    async fn begin_locking(&self) -> Result<()> {
        self.inner.begin_locking().await
    }
    async fn lock(&self, terms: &LockTerms, hints: &[Hint]) -> Result<Locked> {
        match self.bug {
            Bug::HangingLock | Bug::AckBeforeLock => {
                say("hangs before the lock");
                std::future::pending().await
            }
            Bug::NoInstanceCheck => self.lock_blindly(terms, hints).await,
            _ => self.inner.lock(terms, hints).await,
        }
    }
    async fn claim(&self, terms: &LockTerms, page: &ClaimPage) -> Result<Claimed> {
        self.inner.claim(terms, page).await
    }
    async fn claimable(&self, terms: &LockTerms, page: &ClaimPage) -> Result<Claimable> {
        self.inner.claimable(terms, page).await
    }
    async fn renew(&self, owner: NodeId, lease: Duration, held: &[LockToken]) -> Result<Renewed> {
        match self.bug {
            // If the mutant renewed, no other node would take its job over. A node that can't renew
            // takes no more work.
            Bug::LateCompletion | Bug::NoFence => {
                Err(StoreError::Config("this mutant renews nothing".to_owned()))
            }
            _ => self.inner.renew(owner, lease, held).await,
        }
    }
    async fn unknown(
        &self,
        owner: NodeId,
        lease: Duration,
        known: &[Fence],
    ) -> Result<Vec<LockedJob>> {
        self.inner.unknown(owner, lease, known).await
    }
    fn outcome_within(&self) -> Duration {
        self.inner.outcome_within()
    }
    async fn clear_strike(&self, lost: &[LockToken]) -> Result<bool> {
        self.inner.clear_strike(lost).await
    }

    async fn run_alone(&self, owner: NodeId, held: &LockToken) -> Result<bool> {
        self.inner.run_alone(owner, held).await
    }
    async fn complete(
        &self,
        owner: NodeId,
        done: &[Completion],
        then: &Handoff,
    ) -> Result<BatchOutcome> {
        let (Bug::LateCompletion | Bug::NoFence, [one]) = (self.bug, done) else {
            return self.inner.complete(owner, done, then).await;
        };
        let (heir, fence) = self.taken_over(owner, &one.held).await?;
        let completion = if self.bug == Bug::NoFence {
            // The run under the new lock has to be under way, so that nothing explains the end of
            // the job.
            until_started(&self.direct, one.held.id, fence).await?;
            let held = LockToken {
                fence,
                ..one.held.clone()
            };
            let completion = Completion {
                held,
                ..one.clone()
            };
            self.inner.complete(heir, &[completion], then).await
        } else {
            self.inner.complete(owner, done, then).await
        };
        // After an error, as of a slow database, the node tries again.
        if let Ok(outcome) = &completion
            && (self.bug == Bug::LateCompletion || !outcome.applied.is_empty())
        {
            say("completed late");
        }
        completion
    }
    async fn fail(
        &self,
        owner: NodeId,
        failed: &[Failure],
        then: &Handoff,
    ) -> Result<BatchOutcome> {
        self.inner.fail(owner, failed, then).await
    }
    async fn release(&self, owner: NodeId, released: &[Release]) -> Result<BatchOutcome> {
        self.inner.release(owner, released).await
    }
    async fn begin_completing(
        &self,
        after: Arc<dyn AfterCommit>,
    ) -> Result<Box<dyn CompletingTransaction>> {
        self.inner.begin_completing(after).await
    }
    async fn move_due_timers(&self, at_most: i64) -> Result<MovedTimers> {
        self.inner.move_due_timers(at_most).await
    }
    async fn take_due_timers(
        &self,
        terms: &LockTerms,
        lanes: &[Lane],
        at_most: i64,
    ) -> Result<MovedTimers> {
        self.inner.take_due_timers(terms, lanes, at_most).await
    }
    async fn run_leader_cycle(&self, turn: &LeaderCycle) -> Result<CycleOutcome> {
        if self.bug == Bug::UnguardedSweeper {
            self.take_all_locks_off().await?;
        }
        let mut outcome = self.inner.run_leader_cycle(turn).await?;
        if let (Bug::OrphansByAge, CycleOutcome::Leads(report)) = (self.bug, &mut outcome) {
            let kinds = super::workload::Kind::ALL.iter();
            let types: std::sync::Arc<[String]> =
                kinds.map(|kind| kind.job_type().to_owned()).collect();
            let before = report.now - Span::seconds(1);
            let mut old = OrphanQuery::new(Lane::default(), types, before, 10_000);
            old.whole = false;
            old.mark = true;
            report
                .unhinted
                .extend(self.inner.orphans(&old).await?.ready);
        }
        Ok(outcome)
    }
    async fn unhinted(&self, at_most: i64) -> Result<Vec<Ready>> {
        self.inner.unhinted(at_most).await
    }
    async fn write_node(&self, node: &Membership) -> Result<()> {
        self.inner.write_node(node).await
    }
    async fn remove_node(&self, node: NodeId) -> Result<()> {
        self.inner.remove_node(node).await
    }
    async fn remove_silent_nodes(&self, silent_for: Duration, heard: &[NodeId]) -> Result<u64> {
        self.inner.remove_silent_nodes(silent_for, heard).await
    }
    async fn nodes(&self) -> Result<Vec<NodeView>> {
        self.inner.nodes().await
    }
    async fn resign(&self, node: NodeId) -> Result<()> {
        self.inner.resign(node).await
    }
    async fn orphans(&self, query: &OrphanQuery) -> Result<OrphanPage> {
        self.inner.orphans(query).await
    }
    async fn free_instances(&self) -> Result<Vec<Ready>> {
        self.inner.free_instances().await
    }
    async fn committed(&self, transaction: &TransactionId) -> Result<Fate> {
        match self.bug {
            Bug::ReusedTransaction => Ok(Fate::Committed),
            _ => self.inner.committed(transaction).await,
        }
    }
    async fn find(&self, filter: &JobQuery) -> Result<Vec<JobView>> {
        self.inner.find(filter).await
    }
    async fn count(&self, filter: &JobQuery) -> Result<i64> {
        self.inner.count(filter).await
    }
    async fn get(&self, id: JobId) -> Result<Option<(JobView, Job, Option<String>)>> {
        self.inner.get(id).await
    }
    async fn delete(&self, id: JobId) -> Result<(Operated, Vec<Ready>)> {
        self.inner.delete(id).await
    }
    async fn delete_many(&self, ids: &[JobId]) -> Result<OperatedJobs> {
        self.inner.delete_many(ids).await
    }
    async fn retry_many(&self, ids: &[JobId], retries: i32) -> Result<OperatedJobs> {
        self.inner.retry_many(ids, retries).await
    }
    async fn retry(&self, id: JobId, retries: i32) -> Result<(Operated, Vec<Ready>)> {
        self.inner.retry(id, retries).await
    }
    async fn suspend(&self, scope: &SuspensionScope) -> Result<Suspended> {
        self.inner.suspend(scope).await
    }
    async fn move_suspended(&self, scope: &SuspensionScope) -> Result<Suspended> {
        self.inner.move_suspended(scope).await
    }
    async fn activate(&self, scope: &SuspensionScope) -> Result<Lifted> {
        self.inner.activate(scope).await
    }
    async fn waited(&self, waiting: &Waiting) -> Result<Lifted> {
        self.inner.waited(waiting).await
    }
    async fn lane_rules(&self) -> Result<Vec<LaneRule>> {
        self.inner.lane_rules().await
    }
    async fn set_lane_rules(&self, rules: &[LaneRule]) -> Result<()> {
        self.inner.set_lane_rules(rules).await
    }
    async fn lanes(&self) -> Result<Vec<LaneView>> {
        self.inner.lanes().await
    }
    async fn lanes_outside(&self, lanes: &[Lane], at_most: i64) -> Result<Vec<LaneBacklog>> {
        self.inner.lanes_outside(lanes, at_most).await
    }
    async fn move_lane(&self, page: &LanePage) -> Result<MovedPage> {
        self.inner.move_lane(page).await
    }
    async fn close(&self) {
        self.inner.close().await;
    }
}

/// Returns the answer that grants each asking job a permit.
fn all_permits(request: &PermitRequest) -> PermitAnswer {
    let keys = request.keys().iter().map(|of| KeyAnswer {
        key: of.key.clone(),
        number: of.keep + i32::try_from(of.asking.len()).unwrap_or(i32::MAX),
        granted: of.asking.iter().map(|asking| asking.held.id).collect(),
        contended: false,
    });
    PermitAnswer {
        keys: keys.collect(),
        ..PermitAnswer::default()
    }
}

/// Prints an event that the test waits for.
#[allow(clippy::print_stdout, reason = "the test reads it")]
fn say(what: &str) {
    println!("mutant: {what}");
}

async fn until_started(store: &PgStore, job: JobId, fence: Fence) -> Result<()> {
    loop {
        let started: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT FROM chaos.history WHERE what = 'start' AND job = $1 AND fence = $2)",
        )
        .bind(job.uuid())
        .bind(fence.number())
        .fetch_one(store.pool())
        .await?;
        if started {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[async_trait]
impl SqlStore for Mutant {
    type Db = sqlx::Postgres;

    fn deadline(&self) -> Duration {
        self.direct.deadline()
    }

    async fn begin(&self) -> Result<sqlx::Transaction<'static, sqlx::Postgres>> {
        self.direct.begin().await
    }

    async fn ensure_intact(&self, connection: &mut PgConnection) -> Result<()> {
        self.direct.ensure_intact(connection).await
    }

    async fn commit(&self, transaction: sqlx::Transaction<'static, sqlx::Postgres>) -> Result<()> {
        self.direct.commit(transaction).await
    }

    async fn insert(
        &self,
        connection: &mut PgConnection,
        jobs: Vec<NewJob>,
        origin: Origin,
    ) -> Result<Created> {
        let created = self.direct.insert(connection, jobs, origin).await?;
        if let Some(publisher) = &self.publisher {
            let hints = created.ready.iter().map(|ready| ready.hint.clone());
            let published = publisher.publish(&Lane::default(), hints.collect()).await;
            if let Err(error) = published {
                say(&format!("could not publish early: {error}"));
            }
        }
        Ok(created)
    }

    async fn end(
        &self,
        connection: &mut PgConnection,
        scope: &EndedScope,
        own: Option<JobId>,
    ) -> Result<Ended> {
        self.direct.end(connection, scope, own).await
    }

    async fn operate(
        &self,
        connection: &mut PgConnection,
        ids: &[JobId],
        action: &Action,
    ) -> Result<OperatedJobs> {
        self.direct.operate(connection, ids, action).await
    }

    async fn suspend_in(
        &self,
        connection: &mut PgConnection,
        scope: &SuspensionScope,
    ) -> Result<bool> {
        self.direct.suspend_in(connection, scope).await
    }

    async fn activate_in(
        &self,
        connection: &mut PgConnection,
        scope: &SuspensionScope,
    ) -> Result<Option<u64>> {
        self.direct.activate_in(connection, scope).await
    }

    async fn complete_in(
        &self,
        connection: &mut PgConnection,
        owner: NodeId,
        completion: &Completion,
        then: &Handoff,
    ) -> Result<BatchOutcome> {
        self.direct
            .complete_in(connection, owner, completion, then)
            .await
    }
}

/// A transport that settles deliveries on receipt.
pub struct HastyTransport(pub Arc<dyn Transport>);

#[async_trait]
impl Transport for HastyTransport {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn publisher(&self) -> Arc<dyn Publisher> {
        self.0.publisher()
    }
    async fn subscribe(
        &self,
        subscription: Subscription,
    ) -> std::result::Result<Box<dyn Receiver>, TransportError> {
        Ok(Box::new(HastyReceiver(
            self.0.subscribe(subscription).await?,
        )))
    }
    fn listen(&self) -> tokio::sync::broadcast::Receiver<Control> {
        self.0.listen()
    }
    async fn close(&self, within: Duration) {
        self.0.close(within).await;
    }
}

struct HastyReceiver(Box<dyn Receiver>);

#[async_trait]
impl Receiver for HastyReceiver {
    async fn receive(&mut self, max: usize) -> std::result::Result<Vec<Delivery>, TransportError> {
        let deliveries = self.0.receive(max).await?;
        let tickets: Vec<Ticket> = deliveries.iter().map(|delivery| delivery.ticket).collect();
        self.0.settle(&tickets).await;
        say("settled");
        Ok(deliveries)
    }
    async fn settle(&mut self, _: &[Ticket]) {}
    async fn requeue(&mut self, _: &[Ticket]) {}
    async fn pause(&mut self) {
        self.0.pause().await;
    }
    async fn resume(&mut self) {
        self.0.resume().await;
    }
}

//! The transitions: which statements of which file each method of [`Store`] runs.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;

use super::{SqliteStore, find, lanes, operate};
use crate::hint::{Hint, Ready};
use crate::job::query::{JobFilter, JobView, LaneBacklog, LaneView, Sweepable, UnservedType};
use crate::job::scope::Services;
use crate::job::{Fence, Job, JobId, JobState, Lane, LockToken, LockedJob, NodeId};
use crate::lane::rule::LaneRule;
use crate::store::poison::{Activated, Found, StuckBatch, found_page, held_page, told_page};
use crate::store::transaction::{AfterCommit, JobTransaction};
use crate::store::{
    BatchOutcome, ClaimPage, Claimable, Claimed, CompletingTransaction, Completion, CycleOutcome,
    Failure, Fate, Handoff, LanePage, LeaderCycle, LockTerms, Locked, Membership, MovedPage,
    MovedTimers, NodeView, Operated, OperatedJobs, Origin, OrphanPage, OrphanQuery, ProcessLock,
    Renewed, Result, SchemaStatus, SqlStore, Store, Succession, Suspended, SuspensionScope,
    TransactionId, check_rules, measured, schema_status,
};

#[async_trait]
impl Store for SqliteStore {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    async fn check(&self) -> Result<SchemaStatus> {
        self.run("check", || async {
            let (server, exists): (String, bool) = sqlx::query_as(
                "SELECT sqlite_version(), EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'schema_version')",
            )
            .fetch_one(&self.readers)
            .await?;
            let newest: Option<(i32, i32)> = if exists {
                sqlx::query_as(
                    "SELECT version, readable_by FROM schema_version ORDER BY version DESC LIMIT 1",
                )
                .fetch_optional(&self.readers)
                .await?
            } else {
                None
            };
            Ok(schema_status(newest, server))
        })
        .await
    }

    async fn lock(&self, terms: &LockTerms, hints: &[Hint]) -> Result<Locked> {
        self.run("lock", || self.lock_batch(terms, hints)).await
    }

    async fn claim(&self, terms: &LockTerms, page: &ClaimPage) -> Result<Claimed> {
        self.run("claim", || self.claim_page(terms, page)).await
    }

    async fn claimable(&self, terms: &LockTerms, page: &ClaimPage) -> Result<Claimable> {
        self.run("claim", || self.claimable_page(terms, page)).await
    }

    async fn renew(&self, owner: NodeId, lease: Duration, held: &[LockToken]) -> Result<Renewed> {
        // A late renewal has no effect, so it waits no longer than the lease lasts.
        let deadline = self.deadline.min(lease);
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
        self.deadline
    }

    async fn run_alone(&self, owner: NodeId, held: &LockToken) -> Result<bool> {
        self.run("run_alone", || self.note_alone(owner, held)).await
    }

    async fn clear_strike(&self, lost: &[LockToken]) -> Result<bool> {
        self.run("absolve", || self.take_strikes_back(lost)).await?;
        Ok(true)
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

    async fn release(&self, owner: NodeId, held: &[LockToken]) -> Result<BatchOutcome> {
        let whole = self.run("release", || self.release_batch(owner, held));
        held_page(self, "release", owner, held, whole, |part| {
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
        let turn = self.hold_permit().await?;
        let begun = self.begin().await?;
        let store = self.clone();
        Ok(Box::new(JobTransaction::over(
            store,
            begun,
            turn,
            Origin::Hook,
            after,
        )))
    }

    async fn move_due_timers(&self, at_most: i64) -> Result<MovedTimers> {
        self.timers(at_most, None).await
    }

    async fn take_due_timers(
        &self,
        terms: &LockTerms,
        lanes: &[Lane],
        at_most: i64,
    ) -> Result<MovedTimers> {
        self.timers(at_most, Some((terms, lanes))).await
    }

    async fn run_leader_cycle(&self, turn: &LeaderCycle) -> Result<CycleOutcome> {
        let whole = self.run("take_turn", || self.turn(turn, None));
        let found = |at_most| {
            let marked = move || async move { Ok(Found::of(self.marked(at_most).await?, at_most)) };
            self.run("take_turn", marked).boxed()
        };
        let state = JobState::Executable;
        let began = std::time::Instant::now();
        found_page(self, "take_turn", state, whole, found, |these| {
            let part = async move {
                let turn = &turn.after(began.elapsed());
                let take = || self.turn(turn, Some(&these));
                self.run("take_turn", take).await
            };
            part.boxed()
        })
        .await
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

    /// Returns a number that changes with every commit of a connection other than the watcher's, in
    /// any process. Reads no table and takes no lock. `None` in memory, where there are no other
    /// connections.
    async fn data_version(&self) -> Result<Option<i64>> {
        let Some(watcher) = &self.watcher else {
            return Ok(None);
        };
        self.run("data_version", || async {
            Ok(sqlx::query_scalar("PRAGMA data_version")
                .fetch_optional(watcher)
                .await?)
        })
        .await
    }

    async fn succeed(&self, node: NodeId) -> Result<Succession> {
        let Some(path) = &self.lock_file else {
            return Ok(Succession::Unknown);
        };
        let mut lock = match ProcessLock::take(path) {
            Ok(Succession::Ours(lock)) => lock,
            Ok(theirs) => return Ok(theirs),
            Err(error) => {
                tracing::warn!(
                    file = %path.display(), %error,
                    "cannot lock the node file; after a crash, the jobs of the dead node wait until their leases expire"
                );
                return Ok(Succession::Unknown);
            }
        };
        if let Some(dead) = lock.predecessor() {
            let jobs = self.run("succeed", || self.end_leases_of(dead)).await?;
            tracing::info!(node = %dead, jobs, "the previous node of this database died; its leases end now");
        }
        if let Err(error) = lock.name(node) {
            tracing::warn!(
                file = %path.display(), %error,
                "cannot write the node id to the node file; after a crash, the jobs of this node wait until their leases expire"
            );
        }
        Ok(Succession::Ours(lock))
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

    async fn resign(&self, node: NodeId) -> Result<()> {
        self.run("resign", || self.resign_leading(node)).await
    }

    async fn orphans(&self, query: &OrphanQuery) -> Result<OrphanPage> {
        let find = |query: OrphanQuery, these: Option<Vec<JobId>>| async move {
            let find = || self.find_orphans(&query, these.as_deref());
            let ready = self.run("orphans", find).await?;
            Ok(OrphanPage::of(ready, query.limit))
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

    async fn sweepable(&self, services: &Services) -> Result<Sweepable> {
        self.run("sweepable", || self.count_sweepable(services))
            .await
    }

    async fn unserved_types(&self, services: &Services, limit: i64) -> Result<Vec<UnservedType>> {
        self.run("unserved_types", || self.count_unserved(services, limit))
            .await
    }

    async fn free_instances(&self) -> Result<Vec<Ready>> {
        self.run("free_instances", || self.free_left_over()).await
    }

    async fn committed(&self, _transaction: &TransactionId) -> Result<Fate> {
        Ok(Fate::Unknown)
    }

    async fn find(&self, filter: &JobFilter) -> Result<Vec<JobView>> {
        self.run("find", || find::find(&self.readers, filter)).await
    }

    async fn count(&self, filter: &JobFilter) -> Result<i64> {
        self.run("count", || find::count(&self.readers, filter))
            .await
    }

    async fn get(&self, id: JobId) -> Result<Option<(JobView, Job, Option<String>)>> {
        self.run("get", || find::get(&self.readers, id)).await
    }

    async fn delete(&self, id: JobId) -> Result<(Operated, Vec<Ready>)> {
        self.run("delete", || self.delete_job(id)).await
    }

    async fn delete_many(&self, ids: &[JobId]) -> Result<OperatedJobs> {
        let rows = async { Ok(ids.to_vec()) };
        let whole = self.run("delete", || self.delete_jobs(ids));
        told_page("delete", whole, rows, |these| {
            let part = async move {
                let delete = || self.delete_jobs(&these);
                self.run("delete", delete).await
            };
            part.boxed()
        })
        .await
    }

    async fn retry(&self, id: JobId, retries: i32) -> Result<(Operated, Vec<Ready>)> {
        let retry = || self.retry_jobs(std::slice::from_ref(&id), retries);
        let retried = self.run("retry", retry).await?;
        let of_it = retried.operated.first().map(|(_, operated)| *operated);
        Ok((of_it.unwrap_or(Operated::NotFound), retried.ready))
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

    async fn strict_order(&self) -> Result<bool> {
        self.run("strict_order", || operate::strict_order(&self.readers))
            .await
    }

    async fn set_strict_order(&self, strict: bool) -> Result<()> {
        self.run("set_strict_order", || self.write_strict_order(strict))
            .await
    }

    async fn suspend(&self, scope: &SuspensionScope) -> Result<Suspended> {
        let whole = self.run("suspend", || self.suspend_scope(scope, None));
        let rows = self.run("suspend", || self.suspendable(scope));
        told_page("suspend", whole, rows, |these| {
            let part = async move {
                let suspend = || self.suspend_scope(scope, Some(&these));
                self.run("suspend", suspend).await
            };
            part.boxed()
        })
        .await
    }

    async fn activate(&self, scope: &SuspensionScope) -> Result<Vec<Ready>> {
        let end = || self.end_suspension(scope);
        let whole = async move { Ok(Activated::AtOnce(self.run("activate", end).await?)) };
        let found = |_| {
            let put_aside = || async { Ok(Found::of(self.put_aside(scope).await?, i64::MAX)) };
            self.run("activate", put_aside).boxed()
        };
        let state = JobState::Suspended;
        let activated = found_page(self, "activate", state, whole, found, |these| {
            let part = async move {
                let bring_back = || self.bring_back(scope, &these);
                Ok(Activated::InParts(self.run("activate", bring_back).await?))
            };
            part.boxed()
        });
        let back = match activated.await? {
            Activated::AtOnce(None) => return Ok(Vec::new()),
            Activated::AtOnce(Some(ready)) => ready,
            // This transaction ends the suspension and brings back the remaining suspended jobs, so
            // none is left behind.
            Activated::InParts(mut ready) => {
                let rest = self.run("activate", end).await?;
                ready.extend(rest.into_iter().flatten());
                ready
            }
        };
        // These include the jobs that came back.
        let waited = self.run("activate", || self.waited(scope)).await;
        Ok(waited.unwrap_or_else(|error| {
            tracing::warn!(
                %error,
                "jobs created during a suspension could not be hinted at its end; the sweeper will find them"
            );
            back
        }))
    }

    async fn lane_rules(&self) -> Result<Vec<LaneRule>> {
        self.run("lane_rules", || lanes::rules(&self.readers)).await
    }

    async fn set_lane_rules(&self, rules: &[LaneRule]) -> Result<()> {
        check_rules(rules)?;
        self.run("set_lane_rules", || self.write_rules(rules)).await
    }

    async fn lanes(&self) -> Result<Vec<LaneView>> {
        self.run("lanes", || lanes::lanes(&self.readers)).await
    }

    async fn lanes_outside(&self, lanes: &[Lane], at_most: i64) -> Result<Vec<LaneBacklog>> {
        self.run("lanes_outside", || {
            lanes::outside(&self.readers, lanes, at_most)
        })
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

    fn stuck(&self) -> Vec<StuckBatch> {
        self.refusals.stuck()
    }

    async fn close(&self) {
        if let Some(watcher) = &self.watcher {
            watcher.close().await;
        }
        self.readers.close().await;
        self.writer.close().await;
    }
}

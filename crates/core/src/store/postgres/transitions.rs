//! The transitions: which statement of which file each method of [`Store`] runs, on which
//! connections.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;

use super::{
    PgStore, begin, find, lanes, leader_cycle, membership, operate, orphans, renew, session,
    suspend, tap, timers,
};
use crate::hint::{Hint, Ready};
use crate::job::query::{JobFilter, JobView, LaneBacklog, LaneView, Sweepable, UnservedType};
use crate::job::scope::Services;
use crate::job::{Fence, Job, JobId, JobState, Lane, LockToken, LockedJob, NodeId};
use crate::lane::rule::LaneRule;
use crate::store::poison::{Found, StuckBatch, found_page, held_page, told_page};
use crate::store::transaction::{AfterCommit, JobTransaction};
use crate::store::{
    BatchOutcome, ClaimPage, Claimable, Claimed, CompletingTransaction, Completion, CycleOutcome,
    Failure, Fate, Handoff, LanePage, LeaderCycle, LockTerms, Locked, Marked, Membership,
    MovedPage, MovedTimers, NodeView, Operated, OperatedJobs, Origin, OrphanPage, OrphanQuery,
    Renewed, Result, SchemaStatus, SqlStore, Store, Suspended, SuspensionScope, TapOffer,
    TransactionId, check_rules, measured, schema_status,
};

#[async_trait]
impl Store for PgStore {
    fn name(&self) -> &'static str {
        "postgres"
    }

    async fn check(&self) -> Result<SchemaStatus> {
        self.run("check", || async {
            session::ensure_fit(&self.line, &self.renewals).await?;
            self.open_hot().await?;
            let (server, exists): (String, bool) = sqlx::query_as(
                "SELECT current_setting('server_version'), to_regclass('jobwire.schema_version') IS NOT NULL",
            )
            .fetch_one(&self.line.pool)
            .await?;
            let newest: Option<(i32, i32)> = if exists {
                sqlx::query_as(
                    "SELECT version, readable_by FROM jobwire.schema_version ORDER BY version DESC LIMIT 1",
                )
                .fetch_optional(&self.line.pool)
                .await?
            } else {
                None
            };
            Ok(schema_status(newest, server))
        })
        .await
    }

    async fn answers(&self) -> Result<()> {
        self.run("answers", || async {
            sqlx::query("SELECT").execute(&self.line.pool).await?;
            Ok(())
        })
        .await
    }

    async fn absence(&self) -> Option<String> {
        let ask = async {
            sqlx::query("SELECT").execute(&self.renewals.pool).await?;
            Ok(())
        };
        self.presence.absence(ask).await
    }

    async fn begin_locking(&self) -> Result<()> {
        self.run("begin_locking", || self.fences.begin(&self.line))
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
        // A late renewal is useless, so it must not wait as long as other statements.
        let deadline = self.line.within.min(lease);
        measured("renew", deadline, || {
            renew::on_a_living_line(&self.renewals, owner, lease, held)
        })
        .await
    }

    async fn unknown(
        &self,
        owner: NodeId,
        lease: Duration,
        known: &[Fence],
    ) -> Result<Vec<LockedJob>> {
        self.run("unknown", || {
            renew::unknown(&self.renewals.pool, owner, lease, known)
        })
        .await
    }

    fn outcome_within(&self) -> Duration {
        self.line.within
    }

    async fn run_alone(&self, owner: NodeId, held: &LockToken) -> Result<bool> {
        self.run("run_alone", || {
            renew::run_alone(&self.line.pool, owner, held)
        })
        .await
    }

    async fn clear_strike(&self, lost: &[LockToken]) -> Result<bool> {
        self.run("absolve", || renew::clear_strike(&self.renewals.pool, lost))
            .await
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
        let begun = begin::begin(&self.line).await?;
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
        let whole = self.run("move_due_timers", || {
            timers::move_due(&self.line.pool, at_most)
        });
        self.timers(whole).await
    }

    async fn take_due_timers(
        &self,
        terms: &LockTerms,
        lanes: &[Lane],
        at_most: i64,
    ) -> Result<MovedTimers> {
        let whole = self.run("move_due_timers", || async {
            self.fences.begin(&self.line).await?;
            timers::take_due(&self.hot, terms, lanes, at_most).await
        });
        self.timers(whole).await
    }

    async fn run_leader_cycle(&self, turn: &LeaderCycle) -> Result<CycleOutcome> {
        let line = &self.line;
        let whole = self.run("take_turn", || leader_cycle::take(line, turn, None));
        let found = |at_most| {
            let marked = move || async move {
                let rows = leader_cycle::marked(&line.pool, at_most).await?;
                Ok(Found::of(rows, at_most))
            };
            self.run("take_turn", marked).boxed()
        };
        let state = JobState::Executable;
        let began = std::time::Instant::now();
        found_page(self, "take_turn", state, whole, found, |these| {
            let part = async move {
                let turn = &turn.after(began.elapsed());
                let take = || leader_cycle::take(line, turn, Some(&these));
                self.run("take_turn", take).await
            };
            part.boxed()
        })
        .await
    }

    async fn unhinted(&self, at_most: i64) -> Result<Vec<Ready>> {
        let line = &self.line;
        let whole = self.run("unhinted", || leader_cycle::unhinted(&line.pool, at_most));
        let found = |at_most| {
            let find = move || async move {
                let rows = leader_cycle::find_unhinted(&line.pool, at_most).await?;
                Ok(Found::of(rows, at_most))
            };
            self.run("unhinted", find).boxed()
        };
        let state = JobState::Executable;
        found_page(self, "unhinted", state, whole, found, |these| {
            let part = async move {
                let hint = || leader_cycle::hint_these(line, &these);
                self.run("unhinted", hint).await
            };
            part.boxed()
        })
        .await
    }

    async fn tap(&self) -> Result<TapOffer> {
        self.open_tap().await
    }

    async fn mark_hinted(&self, jobs: &[JobId]) -> Result<Marked> {
        self.run("mark_hinted", || tap::mark(&self.line.pool, jobs))
            .await
    }

    async fn write_node(&self, node: &Membership) -> Result<()> {
        node.check()?;
        self.run("write_node", || membership::write(&self.line.pool, node))
            .await
    }

    async fn remove_node(&self, node: NodeId) -> Result<()> {
        self.run("remove_node", || membership::leave(&self.line.pool, node))
            .await
    }

    async fn remove_silent_nodes(&self, silent_for: Duration, heard: &[NodeId]) -> Result<u64> {
        self.run("remove_silent_nodes", || {
            membership::forget(&self.line.pool, silent_for, heard)
        })
        .await
    }

    async fn nodes(&self) -> Result<Vec<NodeView>> {
        self.run("nodes", || membership::read(&self.line.pool))
            .await
    }

    async fn resign(&self, node: NodeId) -> Result<()> {
        self.run("resign", || leader_cycle::resign(&self.line.pool, node))
            .await
    }

    async fn orphans(&self, query: &OrphanQuery) -> Result<OrphanPage> {
        let find = |query: OrphanQuery, these: Option<Vec<JobId>>| async move {
            let find = || orphans::find(&self.line, &query, these.as_deref());
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

    async fn sweepable(&self, services: &Services) -> Result<Sweepable> {
        self.run("sweepable", || {
            orphans::sweepable(&self.line.pool, services)
        })
        .await
    }

    async fn unserved_types(&self, services: &Services, limit: i64) -> Result<Vec<UnservedType>> {
        self.run("unserved_types", || {
            orphans::unserved_types(&self.line.pool, services, limit)
        })
        .await
    }

    async fn free_instances(&self) -> Result<Vec<Ready>> {
        self.run("free_instances", || orphans::free_instances(&self.line))
            .await
    }

    async fn committed(&self, transaction: &TransactionId) -> Result<Fate> {
        self.run("committed", || async {
            let status: Option<String> =
                sqlx::query_scalar("SELECT pg_xact_status($1::text::xid8)")
                    .bind(&transaction.0)
                    .fetch_one(&self.line.pool)
                    .await?;
            Ok(match status.as_deref() {
                Some("committed") => Fate::Committed,
                Some("aborted") => Fate::RolledBack,
                _ => Fate::Unknown,
            })
        })
        .await
    }

    async fn find(&self, filter: &JobFilter) -> Result<Vec<JobView>> {
        self.run("find", || find::find(&self.line.pool, filter))
            .await
    }

    async fn count(&self, filter: &JobFilter) -> Result<i64> {
        self.run("count", || find::count(&self.line.pool, filter))
            .await
    }

    async fn get(&self, id: JobId) -> Result<Option<(JobView, Job, Option<String>)>> {
        self.run("get", || find::get(&self.line.pool, id)).await
    }

    async fn delete(&self, id: JobId) -> Result<(Operated, Vec<Ready>)> {
        self.run("delete", || operate::delete(&self.line, id)).await
    }

    async fn delete_many(&self, ids: &[JobId]) -> Result<OperatedJobs> {
        let rows = async { Ok(ids.to_vec()) };
        let whole = self.delete_page(ids.to_vec());
        told_page("delete", whole, rows, |these| {
            self.delete_page(these).boxed()
        })
        .await
    }

    async fn retry(&self, id: JobId, retries: i32) -> Result<(Operated, Vec<Ready>)> {
        let retry = || operate::retry(&self.line.pool, std::slice::from_ref(&id), retries);
        let retried = self.run("retry", retry).await?;
        let of_it = retried.operated.first().map(|(_, operated)| *operated);
        Ok((of_it.unwrap_or(Operated::NotFound), retried.ready))
    }

    async fn retry_many(&self, ids: &[JobId], retries: i32) -> Result<OperatedJobs> {
        let pool = &self.line.pool;
        let rows = async { Ok(ids.to_vec()) };
        let whole = self.run("retry", || operate::retry(pool, ids, retries));
        told_page("retry", whole, rows, |these| {
            let part = async move {
                let retry = || operate::retry(pool, &these, retries);
                self.run("retry", retry).await
            };
            part.boxed()
        })
        .await
    }

    async fn strict_order(&self) -> Result<bool> {
        self.run("strict_order", || operate::strict_order(&self.line.pool))
            .await
    }

    async fn set_strict_order(&self, strict: bool) -> Result<()> {
        self.run("set_strict_order", || {
            operate::set_strict_order(&self.line.pool, strict)
        })
        .await
    }

    async fn suspend(&self, scope: &SuspensionScope) -> Result<Suspended> {
        let line = &self.line;
        let whole = self.run("suspend", || suspend::suspend(line, scope, None));
        let rows = self.run("suspend", || suspend::suspendable(&line.pool, scope));
        told_page("suspend", whole, rows, |these| {
            let part = async move {
                let suspend = || suspend::suspend(line, scope, Some(&these));
                self.run("suspend", suspend).await
            };
            part.boxed()
        })
        .await
    }

    async fn activate(&self, scope: &SuspensionScope) -> Result<Vec<Ready>> {
        let Some(mut ready) = self.end_suspension(scope).await? else {
            return Ok(Vec::new());
        };
        let waited = self.run("activate", || {
            suspend::waited(&self.line.pool, scope, &ready)
        });
        match waited.await {
            Ok(waited) => ready.extend(waited),
            // The suspension has ended regardless.
            Err(error) => tracing::warn!(
                %error,
                "jobs created during a suspension could not be hinted at its end; the sweeper will find them"
            ),
        }
        Ok(ready)
    }

    async fn lane_rules(&self) -> Result<Vec<LaneRule>> {
        self.run("lane_rules", || lanes::rules(&self.line.pool))
            .await
    }

    async fn set_lane_rules(&self, rules: &[LaneRule]) -> Result<()> {
        check_rules(rules)?;
        self.run("set_lane_rules", || lanes::set_rules(&self.line, rules))
            .await
    }

    async fn lanes(&self) -> Result<Vec<LaneView>> {
        self.run("lanes", || lanes::lanes(&self.line.pool)).await
    }

    async fn lanes_outside(&self, lanes: &[Lane], at_most: i64) -> Result<Vec<LaneBacklog>> {
        self.run("lanes_outside", || {
            lanes::outside(&self.line.pool, lanes, at_most)
        })
        .await
    }

    async fn move_lane(&self, page: &LanePage) -> Result<MovedPage> {
        let line = &self.line;
        let whole = self.run("move_lane", || lanes::move_page(line, page, None));
        let found = |_| {
            let page_ids = || async {
                let rows = lanes::page_ids(line, page).await?;
                Ok(Found::of(rows, i64::MAX))
            };
            self.run("move_lane", page_ids).boxed()
        };
        found_page(self, "move_lane", page.state, whole, found, |these| {
            let part = async move {
                let move_these = || lanes::move_page(line, page, Some(&these));
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
        // Each line waits for its busy connections no longer than one statement may take.
        self.hot.clear();
        for line in [&self.renewals, self.hot.line(), &self.line] {
            let _ = tokio::time::timeout(line.within, line.pool.close()).await;
        }
    }
}

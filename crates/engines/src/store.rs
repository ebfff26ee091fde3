//! The store of an engine: implements [`Store`] over the engine's own tables.
//!
//! With it, the whole machinery of Jobwire works for the engine's jobs: hints over a broker, batch
//! locks, renewal, lost leases, the sweeper, the fallback and the leader. Creating, changing and
//! suspending jobs stays the engine's affair; such methods fail and name its interface.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures_util::FutureExt;
use jobwire_core::hint::Ready;
use jobwire_core::job::query::{JobFilter, JobView, LaneBacklog, LaneView};
use jobwire_core::job::scope::Needs;
use jobwire_core::job::{LockToken, LockedJob};
use jobwire_core::store::answer::measured;
use jobwire_core::store::postgres::line::Line;
use jobwire_core::store::transaction::AfterCommit;
use jobwire_core::store::{
    BatchOutcome, ClaimPage, Claimable, Claimed, CompletingTransaction, Completion, CycleOutcome,
    CycleReport, Failure, Fate as TransactionFate, Handoff, LanePage, LeaderCycle, LockTerms,
    Locked, Marked, Membership, MovedPage, MovedTimers, NodeView, Operated, OperatedJobs,
    OrphanPage, OrphanQuery, Renewed, Rescued, SchemaStatus, Store, Suspended, SuspensionScope,
    TapOffer, TransactionId,
};
use jobwire_core::{Fence, Hint, Job, JobId, JobState, Lane, LaneRule, NodeId, StoreError};
use metrics::counter;
use sqlx::PgPool;
use tokio::time::Instant;

use crate::act::{self, Act};
use crate::activiti;
use crate::breaker::Breaker;
use crate::calls::Calls;
use crate::camunda::Camunda;
use crate::connection::Lines;
use crate::coordination::leader::{self, Lead};
use crate::coordination::{nodes, schema};
use crate::dialect::{Change, Dialect, Ended, Fate, Settled, Settling};
use crate::flowable;
use crate::http::{Answer, Rest};
use crate::id::engine_id;
use crate::options::{EngineOptions, Execution};
use crate::{activity, tap};
use crate::{locking, queries, settling, sweep};

/// How long after a tap stands the looks go on reporting: what committed before may become visible
/// a moment later.
const TAP_SETTLES: Duration = Duration::from_secs(5);

type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Jobs in the tables of an engine. Cheap to clone. See the [module](self).
#[derive(Clone)]
pub struct EngineStore(Arc<Inner>);

struct Inner {
    dialect: Box<dyn Dialect>,
    lines: Lines,
    options: EngineOptions,
    rest: Rest,
    calls: Calls,
    breaker: Breaker,
    /// An answer that may contain locks was lost since the last search for lost leases.
    in_doubt: AtomicBool,
    /// Since when a tap reports new jobs. Leader cycles then only remember what they saw.
    tapped: Mutex<Option<Instant>>,
    /// The node of this process that leads, and until when.
    leads: Mutex<Option<(NodeId, Instant)>>,
}

impl std::fmt::Debug for EngineStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EngineStore")
            .field("engine", &self.0.options.name)
            .finish_non_exhaustive()
    }
}

/// Notes a doubt unless the answer came.
struct Asked<'a>(&'a AtomicBool, bool);

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if self.1 {
            self.0.store(true, Ordering::SeqCst);
        }
    }
}

impl EngineStore {
    /// Connects to the database of a Flowable engine. Changes nothing.
    ///
    /// # Errors
    /// If the URL or an option can't be used, or the server refuses the connection.
    pub async fn flowable(database: &str, mut options: EngineOptions) -> Result<Self> {
        let lines = Lines::connect(database, &options).await?;
        if options.execution == Execution::Auto {
            options.execution = act::execution_by_version(&lines.rest.pool).await?;
        }
        let dialect = Box::new(Act::new(&flowable::FAMILY, &options));
        Self::on(lines, options, dialect)
    }

    /// Connects to the database of an Activiti engine. Changes nothing. The options begin with
    /// [`EngineOptions::activiti`].
    ///
    /// # Errors
    /// As [`flowable`](Self::flowable), and if the options ask for execution over REST, which
    /// Activiti does not have.
    pub async fn activiti(database: &str, mut options: EngineOptions) -> Result<Self> {
        if options.execution == Execution::Rest {
            return Err(StoreError::Config(
                "Activiti has no REST interface for jobs; set `engine_execute` to `endpoint`"
                    .to_owned(),
            ));
        }
        options.execution = Execution::Endpoint;
        let lines = Lines::connect(database, &options).await?;
        let dialect = Box::new(Act::new(&activiti::FAMILY, &options));
        Self::on(lines, options, dialect)
    }

    /// Connects to the database of a Camunda 7 engine, or of one that shares its schema. Changes
    /// nothing. The options begin with [`EngineOptions::camunda`].
    ///
    /// # Errors
    /// As [`flowable`](Self::flowable), and if the options ask for execution over the endpoint,
    /// which does not exist for Camunda.
    pub async fn camunda(database: &str, mut options: EngineOptions) -> Result<Self> {
        if options.execution == Execution::Endpoint {
            return Err(StoreError::Config(
                "the jobs of Camunda are executed over REST; set `engine_execute` to `rest`"
                    .to_owned(),
            ));
        }
        options.execution = Execution::Rest;
        let lines = Lines::connect(database, &options).await?;
        let dialect = Box::new(Camunda::new(&options));
        Self::on(lines, options, dialect)
    }

    fn on(lines: Lines, options: EngineOptions, dialect: Box<dyn Dialect>) -> Result<Self> {
        let rest = Rest::new(&options)?;
        Ok(Self(Arc::new(Inner {
            dialect,
            lines,
            options,
            rest,
            calls: Calls::default(),
            breaker: Breaker::default(),
            in_doubt: AtomicBool::new(false),
            tapped: Mutex::new(None),
            leads: Mutex::new(None),
        })))
    }

    /// Returns the options.
    #[must_use]
    pub fn options(&self) -> &EngineOptions {
        &self.0.options
    }

    /// Returns the types of the engine's jobs.
    #[must_use]
    pub fn types(&self) -> &'static [&'static str] {
        self.0.dialect.decoder().types
    }

    /// Returns a pool of connections to the engine's database, for statements that are not hot.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.0.lines.rest.pool
    }

    /// Checks that the tables are those of a supported engine. Changes nothing.
    ///
    /// # Errors
    /// [`StoreError::Config`] with what stands in the way, and as the database reports.
    pub async fn probe(&self) -> Result<()> {
        self.0.dialect.probe(self.pool()).await
    }

    /// Creates the schema `jobwire_engine`, in which nodes and the leader stand.
    ///
    /// # Errors
    /// As the database reports.
    pub async fn init(&self) -> Result<()> {
        schema::migrate(self.pool()).await
    }

    /// Hands everything back to the engine: clears all locks of Jobwire and removes its schema.
    /// Returns the number of jobs that were locked. No node may run meanwhile.
    ///
    /// # Errors
    /// [`StoreError::Config`] if a node lives, and as the database reports.
    pub async fn release_engine(&self) -> Result<u64> {
        if schema::exists(self.pool()).await? {
            let nodes = nodes::read(self.pool(), &self.0.options.name).await?;
            if let Some(node) = nodes.iter().find(|node| node.lives()) {
                return Err(StoreError::Config(format!(
                    "node {} on {} serves the engine; stop it first",
                    node.membership.id, node.membership.host
                )));
            }
        }
        let publication = tap::publication(self).await?;
        let dropped = publication.drop(self.address()).await;
        dropped.map_err(|error| StoreError::Config(error.to_string()))?;
        let released = self.0.dialect.release_all(self.pool()).await?;
        schema::remove(self.pool()).await?;
        Ok(released)
    }

    /// Asks the engine whether it answers: over REST for its version, and at the endpoint whether it
    /// is there.
    pub(crate) async fn ask_engine(&self) -> Answer {
        match self.0.options.execution {
            Execution::Endpoint => match self.0.rest.ask_endpoint().await {
                Answer::OtherMethod => Answer::Executed,
                Answer::Executed => Answer::Missing(String::new()),
                other => other,
            },
            _ => self.0.rest.get(&self.0.dialect.about()).await,
        }
    }

    /// Records whether a tap stands.
    pub(crate) fn tap_stands(&self, stands: bool) {
        let mut tapped = self.0.tapped.lock().unwrap_or_else(PoisonError::into_inner);
        *tapped = stands.then(Instant::now);
    }

    /// Returns whether a tap has reported all that became visible lately.
    fn is_tapped(&self) -> bool {
        let tapped = self.0.tapped.lock().unwrap_or_else(PoisonError::into_inner);
        tapped.is_some_and(|since| since.elapsed() > TAP_SETTLES)
    }

    /// Returns the address of the database, for the tap.
    pub(crate) fn address(&self) -> &jobwire_tap::Address {
        &self.0.lines.address
    }

    /// Creates the publication of the commit tap, with which new jobs are hinted within
    /// milliseconds. Needs the right CREATE on the database; the tables must belong to the role.
    ///
    /// # Errors
    /// [`StoreError::Config`] with the statement that a user with the rights can run.
    pub async fn create_tap(&self) -> Result<()> {
        let publication = tap::publication(self).await?;
        publication.create(self.address()).await.map_err(|error| {
            StoreError::Config(format!(
                "the publication of the commit tap cannot be created: {error}; let the owner of the tables run: {}",
                publication.create_statement()
            ))
        })
    }

    /// Returns what a commit tap lacks: what was found, the remedy, and whether it prevents the
    /// tap.
    pub(crate) async fn examine_tap(&self) -> Result<Vec<jobwire_tap::Finding>> {
        let publication = tap::publication(self).await?;
        let found = jobwire_tap::preflight(self.address(), &publication).await;
        found.map_err(|error| StoreError::Config(error.to_string()))
    }

    pub(crate) fn calls(&self) -> &Calls {
        &self.0.calls
    }

    pub(crate) fn breaker(&self) -> &Breaker {
        &self.0.breaker
    }

    /// Returns the node of this process that leads now.
    pub(crate) fn leading(&self) -> Option<NodeId> {
        let leads = self.0.leads.lock();
        let leads = *leads.unwrap_or_else(PoisonError::into_inner);
        leads
            .filter(|(_, until)| Instant::now() < *until)
            .map(|(node, _)| node)
    }

    fn set_leading(&self, leads: Option<(NodeId, Instant)>) {
        let mut known = self.0.leads.lock().unwrap_or_else(PoisonError::into_inner);
        *known = leads;
    }

    /// Returns the jobs that became visible since the last look of this process's leader.
    async fn look(&self, node: NodeId, report: bool) -> Result<Vec<Ready>> {
        let Inner {
            dialect, options, ..
        } = &*self.0;
        self.run("unhinted", &self.0.lines.rest, || {
            dialect.new_jobs(self.pool(), &options.name, node, report)
        })
        .await
    }

    /// Runs the watchdog, if it is allowed.
    async fn cancel_hung(&self) {
        if !self.0.options.watchdog {
            return;
        }
        match self.0.dialect.cancel_hung(self.pool()).await {
            Ok(0) => {}
            Ok(statements) => tracing::warn!(
                statements,
                "cancelled statements of the engine that waited for its own idle transactions; set `lock_timeout` for \
                 the engine's connections"
            ),
            Err(error) => {
                tracing::debug!(%error, "could not look for hung statements of the engine");
            }
        }
    }

    pub(crate) async fn still_ours(&self, id: JobId, owner: &str) -> Result<bool> {
        let line = &self.0.lines.rest;
        self.run("look_at_job", line, || {
            locking::still_ours(&line.pool, id, owner)
        })
        .await
    }

    /// Returns how an execution ended that the engine did not answer with success.
    pub(crate) async fn ended(&self, job: &Job, owner: &str) -> Result<Ended> {
        let (dialect, line) = (self.dialect(), &self.0.lines.rest);
        self.run("look_at_job", line, || {
            dialect.ended(&line.pool, job.id, owner, job.retries)
        })
        .await
    }

    pub(crate) fn dialect(&self) -> &dyn Dialect {
        &*self.0.dialect
    }

    /// Returns what the database's clock showed at `moment`.
    pub(crate) async fn clock_at(&self, moment: Instant) -> Result<DateTime<Utc>> {
        let now = activity::clock(self.pool()).await?;
        let ago = chrono::Duration::from_std(moment.elapsed()).unwrap_or(chrono::Duration::MAX);
        Ok(now.checked_sub_signed(ago).unwrap_or(now))
    }

    /// Runs one transition with a deadline, measures it, and retries it after a conflict between
    /// transactions.
    async fn run<T, F, Fut>(&self, statement: &'static str, line: &Line, transition: F) -> Result<T>
    where
        F: Fn() -> Fut + Send,
        Fut: Future<Output = Result<T>> + Send,
    {
        let deadline = line.within + Duration::from_secs(1);
        let answer = measured(statement, deadline, move || {
            line.answer(transition().boxed())
        })
        .await;
        self.0.lines.presence.note(&answer);
        answer
    }

    /// Runs a transition whose answer may contain locks.
    async fn run_locking<T, F, Fut>(&self, statement: &'static str, transition: F) -> Result<T>
    where
        F: Fn() -> Fut + Send,
        Fut: Future<Output = Result<T>> + Send,
    {
        let mut asked = Asked(&self.0.in_doubt, true);
        let answer = self.run(statement, &self.0.lines.hot, transition).await;
        asked.1 = answer.as_ref().is_err_and(|error| !error.changed_nothing());
        answer
    }

    async fn settle(
        &self,
        statement: &'static str,
        owner: NodeId,
        held: Vec<LockToken>,
        then: &Handoff,
    ) -> Result<BatchOutcome> {
        let (dialect, lines) = (self.dialect(), &self.0.lines);
        let jobs: Vec<Settling> = held
            .into_iter()
            .map(|held| Settling {
                unanswered: self.0.calls.is_open(held.fence),
                held,
            })
            .collect();
        let take = match then {
            Handoff::Take(terms) => Some(terms),
            Handoff::Hint => None,
        };
        let settled = self
            .run_locking(statement, || {
                settling::settle(dialect, &lines.hot.pool, owner, &jobs, take)
            })
            .await?;
        Ok(self.outcome(settled))
    }

    fn outcome(&self, settled: Settled) -> BatchOutcome {
        let mut outcome = BatchOutcome {
            next: settled.next,
            ready: settled.ready,
            timer: settled.timer,
            ..BatchOutcome::default()
        };
        for (id, fate) in settled.fates {
            counter!(
                "jobwire_engine_outcomes_total",
                "engine" => self.0.options.name.clone(), "outcome" => fate.as_str()
            )
            .increment(1);
            match fate {
                Fate::Lost => {}
                Fate::Busy => outcome.left.push(id),
                _ => outcome.applied.push(id),
            }
        }
        outcome
    }

    /// Returns the error of a method that stays the engine's affair.
    fn refuse<T>(&self, what: &str, instead: &str) -> Result<T> {
        Err(StoreError::Config(format!(
            "{what} of the engine `{}` is the engine's own affair; use {instead}",
            self.0.options.name
        )))
    }

    /// Asks the engine to change a job over REST, by its state.
    async fn operate(&self, id: JobId, change: Change, retries: i32) -> Result<Operated> {
        let Some((view, _, _)) = self.get(id).await? else {
            return Ok(Operated::NotFound);
        };
        if view.lock_owner.is_some() {
            return Ok(Operated::Running);
        }
        let Some(text) = engine_id(id) else {
            return Ok(Operated::NotFound);
        };
        if matches!((change, view.state), (Change::Retry, JobState::Suspended)) {
            return self.refuse("activating a job", "the activation of its process instance");
        }
        if self.0.options.execution == Execution::Endpoint {
            return self.refuse("changing a job", "its management service");
        }
        let Some(call) = self.0.dialect.change(change, view.state, &text, retries) else {
            // It is ready already.
            return Ok(Operated::Done);
        };
        match self.0.rest.call(call).await {
            Answer::Executed => Ok(Operated::Done),
            Answer::Missing(_) => Ok(Operated::NotFound),
            Answer::Refused(said)
            | Answer::Unusable(said)
            | Answer::Unsent(said)
            | Answer::Unanswered(said) => Err(StoreError::Config(format!(
                "the engine did not change job {text}: {said}"
            ))),
            Answer::GivenBack | Answer::OtherMethod => Err(StoreError::Config(format!(
                "the engine did not change job {text}: its REST interface is another one; check `engine_url`"
            ))),
        }
    }

    async fn operate_many(
        &self,
        ids: &[JobId],
        change: Change,
        retries: i32,
    ) -> Result<OperatedJobs> {
        let mut done = OperatedJobs::default();
        for id in ids {
            match self.operate(*id, change, retries).await {
                Ok(operated) => done.operated.push((*id, operated)),
                Err(error) if error.is_transient() => return Err(error),
                Err(error) => done.refused.push((*id, error.to_string())),
            }
        }
        Ok(done)
    }
}

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
        let Inner {
            dialect,
            lines,
            options,
            ..
        } = &*self.0;
        let (line, pool) = (&lines.rest, &lines.rest.pool);
        let sent = Instant::now();
        let lead = self
            .run("take_turn", line, || {
                leader::take(pool, &options.name, turn)
            })
            .await?;
        let (term, now, horizon, may_rescue) = match lead {
            Lead::Ours {
                term,
                now,
                horizon,
                may_rescue,
            } => (term, now, horizon, may_rescue),
            Lead::Theirs {
                leader,
                transport,
                remaining,
            } => {
                // The row names this node while one of its own statements has locked it.
                if leader != turn.node {
                    self.set_leading(None);
                }
                return Ok(CycleOutcome::Follows {
                    leader,
                    transport,
                    remaining,
                });
            }
        };
        self.set_leading(Some((turn.node, sent + turn.lease)));
        let mut report = CycleReport {
            term,
            now,
            horizon,
            ..CycleReport::default()
        };
        if may_rescue && turn.reset_at_most > 0 {
            let freed = self.run("rescue", line, || {
                dialect.free_expired(pool, turn.reset_at_most)
            });
            let freed = freed.await?;
            report.has_more = i64::try_from(freed.len()).is_ok_and(|n| n >= turn.reset_at_most);
            report
                .rescued
                .extend(freed.into_iter().map(|freed| Rescued {
                    needs: Needs::of(freed.job_type),
                    ready: freed.ready,
                    strikes: 0,
                    owner: freed.owner,
                }));
            let left = self.run("free_instances", line, || dialect.free_instances(pool));
            report.unhinted.extend(left.await?);
        }
        if turn.hint_at_most > 0 {
            let new = self.look(turn.node, !self.is_tapped()).await?;
            report.unhinted.extend(new);
            self.cancel_hung().await;
        }
        let backlog = self
            .run("backlog", line, || sweep::backlog(self.dialect(), pool))
            .await?;
        report.next_due = backlog.next_due;
        report.leased = backlog.leased;
        report.executable = backlog.executable;
        report.timers = backlog.timers;
        report.dead_letters = backlog.dead_letters;
        report.oldest_ready_at = backlog.oldest;
        Ok(CycleOutcome::Leads(Box::new(report)))
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

    async fn free_instances(&self) -> Result<Vec<Ready>> {
        let (dialect, line) = (self.dialect(), &self.0.lines.rest);
        self.run("free_instances", line, || {
            dialect.free_instances(&line.pool)
        })
        .await
    }

    async fn committed(&self, _: &TransactionId) -> Result<TransactionFate> {
        Ok(TransactionFate::Unknown)
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

    /// Flowable decides the number of attempts itself; over the endpoint only executions go. The leader finds the changed row and hints
    /// it.
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
        let backlog = sweep::backlog(self.dialect(), self.pool()).await?;
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
        let backlog = sweep::backlog(self.dialect(), self.pool()).await?;
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

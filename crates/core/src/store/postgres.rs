//! Jobs in PostgreSQL, in a schema of their own (`jobwire`).
//!
//! The statements live one file a transition, each as one readable block. How they stay out of each
//! other's way:
//!
//! * A **plain** job is locked by one statement: its row is row-locked with SKIP LOCKED (so that a
//!   concurrent completion or move is seen), then its lease is inserted or, where it has no owner, taken.
//! * An **exclusive** job is locked under its instance's row: first the instance rows, sorted; then, in
//!   a statement with a fresh snapshot, the first ready sibling. Whoever finishes does the same, so a
//!   release and a refusal can't miss each other.
//! * A guard names lease, owner and fence, and deletes the lease first: the turn that clears the owner in between
//!   changes that very row, so PostgreSQL checks the guard again and the former holder changes nothing.
//! * **Lock order**: instance rows, leases, job rows, each by key. Renewal and the leader's turn skip locked rows.

pub mod address;
mod aside;
mod begin;
mod claim;
mod complete;
mod decode;
pub mod examine;
mod exclusive;
mod fail;
mod fences;
mod hot;
mod insert;
mod lanes;
mod lately;
mod leader_cycle;
mod line;
mod lock;
mod membership;
mod operate;
mod orphans;
mod renew;
mod row_locks;
mod session;
mod sql;
mod suspend;
mod timers;

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::migrate::Migrator;
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::{Connection, PgConnection, Postgres};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::fences::Fences;
use self::hot::HotLine;
use self::lately::Lately;
use self::line::{Line, Suspicion};
use self::session::{Commits, Isolation, Plans};
use super::poison::{Activated, Found, Refusals, StuckBatch, found_page, held_page, told_page};
use super::presence::Presence;
use super::{
    ClaimPage, Claimable, Claimed, CompletingTransaction, Completion, Created, CycleOutcome,
    Failure, Fate, Handoff, LanePage, LeaderCycle, LockTerms, Locked, Membership, MovedPage,
    MovedTimers, NodeView, Operated, OperatedJobs, Origin, OrphanPage, OrphanQuery, Renewed,
    Result, SCHEMA_VERSION, SchemaStatus, Settled, SqlStore, Store, Suspended, SuspensionScope,
    TransactionId,
};
use crate::hint::{Hint, Ready};
use crate::job::new_job::NewJob;
use crate::job::query::{JobFilter, JobView, LaneBacklog, LaneView, Sweepable};
use crate::job::scope::Services;
use crate::job::{Fence, Job, JobId, JobState, Lane, LockToken, LockedJob, NodeId};
use crate::lane::rule::LaneRule;
use crate::store::error::StoreError;
use crate::store::transaction::{AfterCommit, JobTransaction};
use crate::telemetry::metrics as m;
use crate::transport::Plaintext;

static MIGRATOR: Migrator = sqlx::migrate!("../../migrations/postgres");

/// The migrations, with their history inside Jobwire's own schema. Newer ones in the database are
/// accepted here: [`Store::check`] decides by `schema_version` whether this program works with them.
#[must_use]
pub fn migrator() -> Migrator {
    Migrator {
        ignore_missing: true,
        table_name: "jobwire.migration".into(),
        create_schemas: vec!["jobwire".into()].into(),
        migrations: MIGRATOR.migrations.clone(),
        ..Migrator::DEFAULT
    }
}

/// How to use the database.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PgOptions {
    /// The most connections for jobs, at least 3; one more is kept for renewing leases. Default 8.
    pub max_connections: u32,
    /// The server ends a statement that takes longer; the client gives up two seconds later.
    /// Default 15 s.
    pub statement_timeout: Duration,
    /// How long to wait for a free connection. Default 10 s.
    pub acquire_timeout: Duration,
    /// The server ends a transaction of a node that asks nothing for so long, as when the node is frozen:
    /// what it locked could not be taken over else. A handler that runs inside the completing transaction
    /// must not pause longer between two of its statements. Creators' transactions are not limited.
    /// Give it the nodes' lease. Default 30 s, as that one's.
    pub idle_in_transaction_timeout: Duration,
    /// Whether a lock waits until the disk has it. Without, jobs start sooner by the time of one flush, and a crash of
    /// the server forgets the locks of its last half second, and the strikes that came with them: those jobs run again,
    /// and what their first runs say is refused, as where a lease has ended. Completions always wait, and so do the
    /// locks of exclusive jobs. Default true.
    pub durable_locks: bool,
    /// Where a connection may go without verified TLS: to this machine only, or anywhere, for networks that are trusted
    /// or encrypt by themselves. To another machine the URL's `sslmode` is `verify-full` where it names none, and a
    /// weaker one is refused unless this allows it. Default: this machine.
    pub plaintext: Plaintext,
}

impl Default for PgOptions {
    fn default() -> Self {
        Self {
            max_connections: 8,
            statement_timeout: Duration::from_secs(15),
            acquire_timeout: Duration::from_secs(10),
            idle_in_transaction_timeout: Duration::from_secs(30),
            durable_locks: true,
            plaintext: Plaintext::Loopback,
        }
    }
}

/// Jobs in PostgreSQL. Cheap to clone. See the [module](self).
#[derive(Clone)]
pub struct PgStore {
    /// Renewals never queue behind jobs.
    renewals: Line,
    /// Locks and plain completions: the same few statements, whose plans are kept.
    hot: HotLine,
    /// Everything else.
    line: Line,
    /// Something suspended was seen beside free jobs.
    suspended: Lately,
    /// The row of an instance was locked for longer than a lock statement waits.
    rows_stay_locked: Lately,
    /// Who may hold rows on a connection of `hot`: one connection stays free for locks and completions.
    row_turns: Option<Arc<Semaphore>>,
    /// Permits for transactions of applications and handlers on `line`. One connection has none: it stays free for the
    /// node.
    turns: Arc<Semaphore>,
    /// The longest silence in a transaction on `hot`.
    silence: Duration,
    fences: Arc<Fences>,
    /// Of creators' transactions, as the newest connection was told.
    isolation: Arc<Mutex<Isolation>>,
    refusals: Refusals,
    presence: Presence,
}

impl std::fmt::Debug for PgStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PgStore").finish_non_exhaustive()
    }
}

impl PgStore {
    /// Connect with default options.
    ///
    /// # Errors
    /// A URL that can't be read or leads to another machine without verified TLS, or what the server says.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_with(url, PgOptions::default()).await
    }

    /// Connect.
    ///
    /// # Errors
    /// A URL that can't be read or leads to another machine without verified TLS ([`PgOptions::plaintext`]), or what
    /// the server says.
    pub async fn connect_with(url: &str, options: PgOptions) -> Result<Self> {
        let connect = address::connect_options(url, options.plaintext)?;
        // Poolers refuse start-up parameters that they don't know, this one among them; we need it nowhere.
        let connect = connect.application_name("jobwire").extra_float_digits(None);
        let suspicion = Suspicion::default();
        let within = options.statement_timeout + Duration::from_secs(2);
        let silence = match options.idle_in_transaction_timeout {
            Duration::ZERO => row_locks::SILENCE,
            limit => limit.min(row_locks::SILENCE),
        };
        let (fences, isolation) = (Arc::<Fences>::default(), Arc::<Mutex<Isolation>>::default());
        let line = |size, plans, commits, silence| {
            let session: Arc<str> =
                session::settings(options.statement_timeout, silence, plans, commits).into();
            let (fences, told) = (fences.clone(), isolation.clone());
            let pool = PgPoolOptions::new()
                .after_connect(move |connection, _| {
                    let (session, fences, told) = (session.clone(), fences.clone(), told.clone());
                    Box::pin(async move {
                        let (server, isolation) = session::begin(connection, &session).await?;
                        *told.lock().unwrap_or_else(PoisonError::into_inner) = isolation;
                        fences.connected(connection, server).await
                    })
                })
                .max_connections(size)
                .acquire_timeout(options.acquire_timeout)
                // A ping before every statement would double the round trips; a broken connection
                // shows itself at its next statement, which is tried again.
                .test_before_acquire(false)
                .max_lifetime(None)
                .idle_timeout(None);
            Line {
                pool: suspicion.watch(pool).connect_lazy_with(connect.clone()),
                suspicion: suspicion.clone(),
                within,
            }
        };
        // Two lock and two complete. All but one may hold rows, for a tenth of a second: with one less, a drain with
        // row locks was a tenth slower.
        let hot = (options.max_connections / 2).clamp(1, 4);
        let rest = options.max_connections.max(hot + 2) - hot;
        let hot_commits = if options.durable_locks {
            Commits::AsConfigured
        } else {
            Commits::Soon
        };
        let store = Self {
            // One is enough, and is kept; the second steps in where the first one leads nowhere.
            renewals: line(
                2,
                Plans::Fresh,
                Commits::AsConfigured,
                options.idle_in_transaction_timeout,
            ),
            hot: HotLine::new(line(hot, Plans::Kept, hot_commits, silence), hot_commits),
            line: line(
                rest,
                Plans::Fresh,
                Commits::AsConfigured,
                options.idle_in_transaction_timeout,
            ),
            suspended: Lately::default(),
            rows_stay_locked: Lately::default(),
            turns: Arc::new(Semaphore::new(rest as usize - 1)),
            row_turns: (hot > 1).then(|| Arc::new(Semaphore::new(hot as usize - 1))),
            silence,
            fences,
            isolation,
            refusals: Refusals::default(),
            presence: Presence::default(),
        };
        // Say at once what is wrong with the address, the password or the server: the pool would try
        // again until its time has passed, and then no longer know.
        let first = async {
            let mut first = PgConnection::connect_with(&connect).await?;
            let (_, isolation) = session::begin(&mut first, "").await?;
            first.close().await?;
            Ok::<_, sqlx::Error>(isolation)
        };
        let isolation = tokio::time::timeout(options.acquire_timeout, first)
            .await
            .map_err(|_| StoreError::Timeout(options.acquire_timeout))??;
        *store.told_isolation() = isolation;
        Ok(store)
    }

    fn told_isolation(&self) -> std::sync::MutexGuard<'_, Isolation> {
        self.isolation
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection pool, for your own statements. A transaction that you begin on it is limited by
    /// [`PgOptions::idle_in_transaction_timeout`] and READ COMMITTED unless its BEGIN says otherwise; one of
    /// [`Client::begin`] has no such limit, and the isolation that is the database's default.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.line.pool
    }

    /// Connections that are open, and how many of them idle.
    #[must_use]
    pub fn connections(&self) -> (u32, usize) {
        let lines = [&self.renewals, self.hot.line(), &self.line];
        let open = lines.iter().map(|line| line.pool.size()).sum();
        let idle = [&self.renewals, &self.line].map(|line| line.pool.num_idle());
        (open, idle.iter().sum::<usize>() + self.hot.idle())
    }

    /// Bring the schema up to this program's version.
    ///
    /// # Errors
    /// What the database says; each migration is one transaction.
    pub async fn migrate(&self) -> Result<()> {
        migrator()
            .run(&self.line.pool)
            .await
            .map_err(|e| StoreError::Migration(Box::new(e)))
    }

    /// Take the schema back to a version; 0 removes everything.
    ///
    /// # Errors
    /// What the database says.
    pub async fn migrate_down(&self, version: i64) -> Result<()> {
        migrator()
            .undo(&self.line.pool, version)
            .await
            .map_err(|e| StoreError::Migration(Box::new(e)))
    }

    /// What locks and what completes is there from now on, however full the server becomes.
    async fn open_hot(&self) -> Result<()> {
        let locks = self.hot.lend().await?;
        if self.hot.line().pool.options().get_max_connections() > 1 {
            self.hot.lend().await?.keep();
        }
        locks.keep();
        Ok(())
    }

    /// Run one transition: with a deadline, measured, tried again where two transactions met.
    async fn run<T, F, Fut>(&self, statement: &'static str, transition: F) -> Result<T>
    where
        F: Fn() -> Fut + Send,
        Fut: Future<Output = Result<T>> + Send,
    {
        // The line's own deadline comes first: it suspects the connection before it is let go.
        let deadline = self.line.within + Duration::from_secs(1);
        let line = &self.line;
        // Boxed: it passes through several hands, and is many kilobytes large.
        let answer = super::measured(statement, deadline, move || {
            line.answer(transition().boxed())
        })
        .await;
        self.presence.note(&answer);
        answer
    }

    /// Move due timers by this statement, or, where it is refused, in parts and without locks.
    async fn timers(
        &self,
        whole: impl Future<Output = Result<MovedTimers>> + Send,
    ) -> Result<MovedTimers> {
        let (line, pool) = (&self.line, &self.line.pool);
        let statement = "move_due_timers";
        let found = |at_most| {
            let find =
                move || async move { Ok(Found::of(timers::due(pool, at_most).await?, at_most)) };
            self.run(statement, find).boxed()
        };
        found_page(self, statement, JobState::Timer, whole, found, |these| {
            let part = async move {
                let move_these = || timers::move_these(line, &these);
                self.run(statement, move_these).await
            };
            part.boxed()
        })
        .await
    }

    /// Delete these in one transaction; then, one by one, those whose rows somebody was working with.
    async fn delete_page(&self, ids: Vec<JobId>) -> Result<OperatedJobs> {
        let delete = || operate::delete_many(&self.line, &ids);
        let (mut deleted, busy) = self.run("delete", delete).await?;
        // The others are gone all the same. Where one is waited for in vain, the rest is not tried.
        let mut waited: Option<StoreError> = None;
        for id in busy {
            let error = match waited {
                Some(ref error) => error.to_string(),
                None => match self.delete(id).await {
                    Ok((operated, ready)) => {
                        deleted.operated.push((id, operated));
                        deleted.ready.extend(ready);
                        continue;
                    }
                    Err(error) => {
                        let reason = error.to_string();
                        waited = error.is_transient().then_some(error);
                        reason
                    }
                },
            };
            deleted.refused.push((id, error));
        }
        Ok(deleted)
    }

    /// End a suspension, or, where that is refused, bring its jobs back in parts first.
    async fn end_suspension(&self, scope: &SuspensionScope) -> Result<Option<Vec<Ready>>> {
        let (line, pool) = (&self.line, &self.line.pool);
        let whole = async move {
            let end = || suspend::activate(line, scope);
            Ok(Activated::AtOnce(self.run("activate", end).await?))
        };
        let found = |_| {
            let put_aside = || async {
                let rows = suspend::put_aside(pool, scope).await?;
                Ok(Found::of(rows, i64::MAX))
            };
            self.run("activate", put_aside).boxed()
        };
        let state = JobState::Suspended;
        let activated = found_page(self, "activate", state, whole, found, |these| {
            let part = async move {
                let bring_back = || suspend::bring_back(pool, scope, &these);
                Ok(Activated::InParts(self.run("activate", bring_back).await?))
            };
            part.boxed()
        });
        match activated.await? {
            Activated::AtOnce(ready) => Ok(ready),
            // The suspension ends in one transaction with the rows that are still put aside: it forgets none.
            Activated::InParts(mut ready) => {
                let end = || suspend::activate(line, scope);
                let rest = self.run("activate", end).await?;
                ready.extend(rest.into_iter().flatten());
                Ok(Some(ready))
            }
        }
    }
}

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
            Ok(super::schema_status(newest, server))
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
        // A renewal that comes late is worth nothing: it may not wait as long as other statements.
        let deadline = self.line.within.min(lease);
        super::measured("renew", deadline, || {
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
    ) -> Result<Settled> {
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

    async fn fail(&self, owner: NodeId, failed: &[Failure], then: &Handoff) -> Result<Settled> {
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

    async fn release(&self, owner: NodeId, held: &[LockToken]) -> Result<Settled> {
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
        self.run("find", || operate::find(&self.line.pool, filter))
            .await
    }

    async fn count(&self, filter: &JobFilter) -> Result<i64> {
        self.run("count", || operate::count(&self.line.pool, filter))
            .await
    }

    async fn get(&self, id: JobId) -> Result<Option<(JobView, Job, Option<String>)>> {
        self.run("get", || operate::get(&self.line.pool, id)).await
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
            // The suspension has ended all the same.
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
        super::check_rules(rules)?;
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
        // A connection that somebody still waits on is not waited for longer than that one may.
        self.hot.clear();
        for line in [&self.renewals, self.hot.line(), &self.line] {
            let _ = tokio::time::timeout(line.within, line.pool.close()).await;
        }
    }
}

#[async_trait]
impl SqlStore for PgStore {
    type Db = Postgres;

    fn deadline(&self) -> Duration {
        self.line.within
    }

    fn suspect_connections(&self) {
        self.line.suspect();
    }

    fn line_ends(&self) -> BoxFuture<'static, ()> {
        Box::pin(self.line.ends())
    }

    async fn hold_permit(&self) -> Result<Option<OwnedSemaphorePermit>> {
        let turn = self.turns.clone().acquire_owned();
        match tokio::time::timeout(self.line.pool.options().get_acquire_timeout(), turn).await {
            // The semaphore is never closed.
            Ok(turn) => Ok(turn.ok()),
            Err(_) => Err(sqlx::Error::PoolTimedOut.into()),
        }
    }

    async fn begin(&self) -> Result<sqlx::Transaction<'static, Postgres>> {
        let isolation = *self.told_isolation();
        begin::begin_creating(&self.line, isolation).await
    }

    async fn ensure_intact(&self, connection: &mut PgConnection) -> Result<()> {
        begin::ensure_intact(connection).await
    }

    async fn commit(&self, transaction: sqlx::Transaction<'static, Postgres>) -> Result<()> {
        Ok(begin::commit_intact(transaction).await?)
    }

    async fn insert(
        &self,
        connection: &mut PgConnection,
        jobs: Vec<NewJob>,
        origin: Origin,
    ) -> Result<Created> {
        let started = Instant::now();
        let created = insert::insert(connection, jobs, origin).await;
        metrics::histogram!(m::STATEMENT, "statement" => "insert")
            .record(started.elapsed().as_secs_f64());
        created
    }

    async fn next_of(&self, instances: &[String]) -> Result<Vec<Ready>> {
        self.run("next_of", || async {
            let mut connection = self.line.pool.acquire().await?;
            exclusive::next(&mut connection, instances).await
        })
        .await
    }

    async fn complete_in(
        &self,
        connection: &mut PgConnection,
        owner: NodeId,
        completion: &Completion,
        then: &Handoff,
    ) -> Result<Settled> {
        complete::complete_in(connection, owner, std::slice::from_ref(completion), then).await
    }
}

/// The newest version of the schema that this program brings.
const _: () = assert!(
    SCHEMA_VERSION == 3,
    "add the migration's row to schema_version"
);

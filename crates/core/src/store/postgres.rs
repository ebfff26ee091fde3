//! Jobs in PostgreSQL, in the schema `jobwire`.
//!
//! Each transition has its statements in one file. These rules keep concurrent statements apart:
//!
//! * A **plain** job is locked by one statement. It locks the row with SKIP LOCKED, so that it sees
//!   a concurrent completion or move. Then it inserts the lease, or takes one that has no owner.
//! * An **exclusive** job is locked under the row of its instance. The transaction locks the
//!   instance rows in sorted order; then a statement with a fresh snapshot selects the first ready
//!   sibling. The end of a job takes the same steps, so a release and a refusal can't miss each
//!   other.
//! * A guard names lease, owner and fence, and deletes the lease first. The leader cycle that
//!   clears the owner changes the same row, so PostgreSQL checks the guard again and the former
//!   holder changes nothing.
//! * **Lock order**: instance rows, leases, job rows, each by key. Renewal and the leader cycle
//!   skip locked rows.

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
#[doc(hidden)]
pub mod line;
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
use super::presence::{Address, Presence};
use super::{
    BatchOutcome, ClaimPage, Claimable, Claimed, CompletingTransaction, Completion, Created,
    CycleOutcome, Failure, Fate, Handoff, LanePage, LeaderCycle, LockTerms, Locked, Membership,
    MovedPage, MovedTimers, NodeView, Operated, OperatedJobs, Origin, OrphanPage, OrphanQuery,
    Renewed, Result, SCHEMA_VERSION, SchemaStatus, SqlStore, Store, Suspended, SuspensionScope,
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

static MIGRATOR: Migrator = sqlx::migrate!("migrations/postgres");

/// Returns the migrations, with their history in Jobwire's own schema. Newer migrations in the
/// database are accepted here: [`Store::check`] decides by `schema_version` whether this program
/// works with them.
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

/// Options for the use of the database.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PgOptions {
    /// Maximum number of connections for jobs, at least 3. One more is kept for renewing leases.
    /// Default 8.
    pub max_connections: u32,
    /// The time after which the server ends a statement. The client gives up two seconds later.
    /// Default 15 s.
    pub statement_timeout: Duration,
    /// The time to wait for a free connection. Default 10 s.
    pub acquire_timeout: Duration,
    /// The time after which the server ends an idle transaction of a node, such as a frozen node.
    /// Without this limit, the rows that the transaction locked could not be taken over. A handler
    /// that runs inside the completing transaction must not pause longer between two of its
    /// statements. Creators' transactions are not limited. Use the length of the nodes' lease.
    /// Default 30 s, the default lease.
    pub idle_in_transaction_timeout: Duration,
    /// Whether a lock waits until it is on disk. If false, a job starts earlier by the time of one
    /// flush, but a crash of the server loses the locks of its last half second and their strikes.
    /// Those jobs run again, and the outcomes of their first runs are refused, as after the end of
    /// a lease. Completions and the locks of exclusive jobs always wait. Default true.
    pub durable_locks: bool,
    /// Where connections without verified TLS are allowed: to this machine only, or anywhere, for
    /// networks that are trusted or encrypted. For another machine, `sslmode` is `verify-full` if
    /// the URL names none, and a weaker mode is refused unless this option allows it. Default: this
    /// machine.
    pub plaintext: Plaintext,
}

crate::setters! {
    PgOptions {
        max_connections: u32,
        statement_timeout: Duration,
        acquire_timeout: Duration,
        idle_in_transaction_timeout: Duration,
        durable_locks: bool,
        plaintext: Plaintext,
    }
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
    /// For renewals, which never queue behind jobs.
    renewals: Line,
    /// For locks and plain completions: few statements, whose plans are kept.
    hot: HotLine,
    /// For all other statements.
    line: Line,
    /// When a free job was last seen while any suspension existed.
    suspended: Lately,
    /// When a lock statement last timed out on the row of an instance.
    rows_stay_locked: Lately,
    /// Permits to hold rows on a connection of `hot`. One connection has none: it stays free for
    /// locks and completions.
    row_turns: Option<Arc<Semaphore>>,
    /// Permits for transactions of applications and handlers on `line`. One connection has none: it
    /// stays free for the node.
    turns: Arc<Semaphore>,
    /// The maximum idle time of a transaction on `hot`.
    silence: Duration,
    fences: Arc<Fences>,
    /// The default isolation of creators' transactions, as the newest connection reported it.
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
    /// Connects with default options.
    ///
    /// # Errors
    /// Fails if the URL can't be read, if it leads to another machine without verified TLS, or if
    /// the server refuses the connection.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_with(url, PgOptions::default()).await
    }

    /// Connects.
    ///
    /// # Errors
    /// Fails if the URL can't be read, if it leads to another machine without verified TLS
    /// ([`PgOptions::plaintext`]), or if the server refuses the connection.
    pub async fn connect_with(url: &str, options: PgOptions) -> Result<Self> {
        let connect = address::connect_options(url, options.plaintext)?;
        // Poolers refuse unknown start-up parameters, such as this one. Jobwire does not need it.
        let connect = connect.application_name("jobwire").extra_float_digits(None);
        let presence = Presence::of(match connect.get_socket() {
            Some(path) => Address::Socket(path.display().to_string()),
            None => Address::Tcp(connect.get_host().to_owned(), connect.get_port()),
        });
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
                // A ping before every statement would double the round trips. A broken connection
                // fails at its next statement, which is tried again.
                .test_before_acquire(false)
                .max_lifetime(None)
                .idle_timeout(None);
            Line {
                pool: suspicion.watch(pool).connect_lazy_with(connect.clone()),
                suspicion: suspicion.clone(),
                within,
            }
        };
        // Two connections lock and two complete. All but one may hold rows, each time for a tenth
        // of a second: with one fewer, a drain with row locks was a tenth slower.
        let hot = (options.max_connections / 2).clamp(1, 4);
        let rest = options.max_connections.max(hot + 2) - hot;
        let hot_commits = if options.durable_locks {
            Commits::AsConfigured
        } else {
            Commits::Soon
        };
        let store = Self {
            // One connection is enough and stays open. The second one is for when the first gets no
            // answer.
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
            presence,
        };
        // Report a wrong address or password, or an error of the server, at once. The pool would
        // retry until its timeout and lose the reason.
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

    /// Returns the connection pool, for your own statements. A transaction that you begin on it is
    /// limited by [`PgOptions::idle_in_transaction_timeout`], and is READ COMMITTED unless its
    /// BEGIN names another isolation. A transaction of [`Client::begin`](crate::Client::begin) has no
    /// such limit and has the default isolation of the database.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.line.pool
    }

    /// Returns the number of open connections, and how many of them are idle.
    #[must_use]
    pub fn connections(&self) -> (u32, usize) {
        let lines = [&self.renewals, self.hot.line(), &self.line];
        let open = lines.iter().map(|line| line.pool.size()).sum();
        let idle = [&self.renewals, &self.line].map(|line| line.pool.num_idle());
        (open, idle.iter().sum::<usize>() + self.hot.idle())
    }

    /// Migrates the schema to this program's version.
    ///
    /// # Errors
    /// Fails if the database refuses a migration. Each migration is one transaction.
    pub async fn migrate(&self) -> Result<()> {
        migrator()
            .run(&self.line.pool)
            .await
            .map_err(|e| StoreError::Migration(Box::new(e)))
    }

    /// Migrates the schema down to a version; 0 removes everything.
    ///
    /// # Errors
    /// Fails if the database refuses a migration.
    pub async fn migrate_down(&self, version: i64) -> Result<()> {
        migrator()
            .undo(&self.line.pool, version)
            .await
            .map_err(|e| StoreError::Migration(Box::new(e)))
    }

    /// Opens the connections for locks and completions. They stay open, even if the server runs out
    /// of connections later.
    async fn open_hot(&self) -> Result<()> {
        let locks = self.hot.lend().await?;
        if self.hot.line().pool.options().get_max_connections() > 1 {
            self.hot.lend().await?.keep();
        }
        locks.keep();
        Ok(())
    }

    /// Runs one transition with a deadline, measures it, and retries it after a conflict between
    /// transactions.
    async fn run<T, F, Fut>(&self, statement: &'static str, transition: F) -> Result<T>
    where
        F: Fn() -> Fut + Send,
        Fut: Future<Output = Result<T>> + Send,
    {
        // The line's own deadline comes first: it suspects the connection before the connection is
        // dropped.
        let deadline = self.line.within + Duration::from_secs(1);
        let line = &self.line;
        // Boxed: the future is moved several times and takes many kilobytes.
        let answer = super::measured(statement, deadline, move || {
            line.answer(transition().boxed())
        })
        .await;
        self.presence.note(&answer);
        answer
    }

    /// Moves due timers with the statement `whole`. If the database refuses it, moves them in parts
    /// and locks none of them.
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

    /// Deletes these jobs in one transaction, then, one by one, those whose rows were locked.
    async fn delete_page(&self, ids: Vec<JobId>) -> Result<OperatedJobs> {
        let delete = || operate::delete_many(&self.line, &ids);
        let (mut deleted, busy) = self.run("delete", delete).await?;
        // The other jobs are deleted already. After a transient error for one row, the rest is not
        // tried.
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

    /// Ends a suspension. If the database refuses that, brings its jobs back in parts first.
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
            // The suspension ends in the transaction that brings back the remaining rows, so it
            // leaves none.
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
        // Each line waits for its busy connections no longer than one statement may take.
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
    ) -> Result<BatchOutcome> {
        complete::complete_in(connection, owner, std::slice::from_ref(completion), then).await
    }
}

/// The schema version of this program's newest migration.
const _: () = assert!(
    SCHEMA_VERSION == 3,
    "add the migration's row to schema_version"
);

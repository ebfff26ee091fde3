//! The SQLite store, for one machine: an embedded node, tests, a first look.
//!
//! Each transition has its own file, with the same name as in the PostgreSQL store, and keeps the
//! same promises. The differences:
//!
//! * **One writer.** Every transition is a `BEGIN IMMEDIATE` transaction of a few plain statements
//!   over the one writing connection. Nothing changes between its first read and its last write, so
//!   there are no row locks, no skipped rows and no [`Busy`](super::Refusal::Busy). An open
//!   transaction of the application holds that connection, and all other transitions, renewals
//!   included, wait for it. Keep such transactions short.
//! * **The clock** is that of the machine, read once inside each transaction.
//! * **No transaction ids.** An error of COMMIT is final, and [`Store::committed`] cannot resolve
//!   it.
//! * **No notice from other processes** except a counter of commits: [`Store::data_version`].

mod aside;
mod claim;
mod complete;
mod decode;
mod exclusive;
mod fail;
mod insert;
mod lanes;
mod leader_cycle;
mod lock;
mod membership;
mod operate;
mod orphans;
mod renew;
mod sql;
mod suspend;
mod timers;

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::FutureExt;
use sqlx::migrate::Migrator;
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{Connection, Sqlite, SqliteConnection};

use super::poison::{Activated, Found, Refusals, StuckBatch, found_page, held_page, told_page};
use super::{
    BatchOutcome, ClaimPage, Claimable, Claimed, CompletingTransaction, Completion, Created,
    CycleOutcome, Failure, Fate, Handoff, LanePage, LeaderCycle, LockTerms, Locked, Membership,
    MovedPage, MovedTimers, NodeView, Operated, OperatedJobs, Origin, OrphanPage, OrphanQuery,
    ProcessLock, Renewed, Result, SCHEMA_VERSION, SchemaStatus, SqlStore, Store, Succession,
    Suspended, SuspensionScope, TransactionId,
};
use crate::hint::{Hint, Ready};
use crate::job::new_job::NewJob;
use crate::job::query::{JobFilter, JobView, LaneBacklog, LaneView, Sweepable, UnservedType};
use crate::job::scope::Services;
use crate::job::{Fence, Job, JobId, JobState, Lane, LockToken, LockedJob, NodeId};
use crate::lane::rule::LaneRule;
use crate::store::error::StoreError;
use crate::store::transaction::{AfterCommit, JobTransaction};
use crate::telemetry::metrics as m;

static MIGRATOR: Migrator = sqlx::migrate!("migrations/sqlite");

/// Returns the migrations, with their history in the table `jobwire_migration`. Newer migrations in
/// the database are accepted here: [`Store::check`] decides by `schema_version` whether this
/// program works with them.
#[must_use]
pub fn migrator() -> Migrator {
    Migrator {
        ignore_missing: true,
        table_name: "jobwire_migration".into(),
        migrations: MIGRATOR.migrations.clone(),
        ..Migrator::DEFAULT
    }
}

/// The options of a [`SqliteStore`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SqliteOptions {
    /// Number of read-only connections beside the writing one. Default 4.
    pub readers: u32,
    /// How long to wait for a writer of another process. Default 5 s.
    pub busy_timeout: Duration,
    /// Maximum time of a transition, including the wait for the writing connection. Default 15 s.
    pub deadline: Duration,
    /// Whether to create the file if it does not exist. Default true.
    pub create: bool,
}

crate::setters! {
    SqliteOptions {
        readers: u32,
        busy_timeout: Duration,
        deadline: Duration,
        create: bool,
    }
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            readers: 4,
            busy_timeout: Duration::from_secs(5),
            deadline: Duration::from_secs(15),
            create: true,
        }
    }
}

/// The SQLite store. Cheap to clone. See the [module](self).
#[derive(Clone)]
pub struct SqliteStore {
    writer: SqlitePool,
    readers: SqlitePool,
    /// A connection of its own, because `PRAGMA data_version` reports only commits of other
    /// connections. `None` in memory, where there are no others.
    watcher: Option<SqlitePool>,
    /// A file beside the database; `None` in memory.
    lock_file: Option<PathBuf>,
    deadline: Duration,
    refusals: Refusals,
}

impl std::fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteStore").finish_non_exhaustive()
    }
}

impl SqliteStore {
    /// Connects with default options. The URL is `sqlite:` and a path, or `sqlite::memory:` for a
    /// database that lives as long as the store. A missing file is created.
    ///
    /// # Errors
    /// [`StoreError::Config`] if the URL or the path is unusable.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_with(url, SqliteOptions::default()).await
    }

    /// Connects.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn connect_with(url: &str, options: SqliteOptions) -> Result<Self> {
        let connect = connect_options(url, options.create)?.busy_timeout(options.busy_timeout);
        let lock_file = (!is_in_memory(url)).then(|| {
            let mut path = connect.get_filename().to_path_buf().into_os_string();
            path.push("-node");
            PathBuf::from(path)
        });
        let pool = |size| {
            SqlitePoolOptions::new()
                .max_connections(size)
                .acquire_timeout(options.deadline)
                // A file does not break as a network connection does, and a database in memory
                // lives in its last connection.
                .test_before_acquire(false)
                .max_lifetime(None)
                .idle_timeout(None)
        };
        let in_memory = is_in_memory(url);
        let in_file = !in_memory;
        let writer = pool(1)
            // SQLite may end a transaction by itself (full disk, `OR ROLLBACK`). Then sqlx's own
            // ROLLBACK fails, and sqlx begins no other transaction on this connection. A file is
            // opened again; a database in memory has no other connection.
            .after_release(move |connection, _| {
                Box::pin(async move {
                    // The ping waits for a queued ROLLBACK.
                    connection.ping().await?;
                    Ok(!(in_file && connection.is_in_transaction()))
                })
            })
            .connect_lazy_with(connect.clone());
        let (readers, watcher) = if in_memory {
            (writer.clone(), None)
        } else {
            let connect = connect.pragma("query_only", "ON");
            (
                pool(options.readers.max(1)).connect_lazy_with(connect.clone()),
                Some(pool(1).connect_lazy_with(connect)),
            )
        };
        let store = Self {
            writer,
            readers,
            watcher,
            lock_file,
            deadline: options.deadline,
            refusals: Refusals::default(),
        };
        store.probe().await.map_err(|e| unusable(url, e))?;
        store.leap().await?;
        Ok(store)
    }

    /// Advances the fence sequence, so that fences never repeat (protocol rule 1): a power cut may
    /// have lost the last ones before they reached the disk. Waits for the disk once.
    async fn leap(&self) -> Result<(), sqlx::Error> {
        let mut writer = self.writer.acquire().await?;
        sqlx::raw_sql("PRAGMA synchronous = FULL")
            .execute(&mut *writer)
            .await?;
        let mut tx = writer.begin_with("BEGIN IMMEDIATE").await?;
        let exists: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'counter')",
        )
        .fetch_one(&mut *tx)
        .await?;
        if exists {
            sqlx::query("UPDATE counter SET value = value + ?1 WHERE name = 'fence_seq'")
                .bind(LEAP)
                .execute(&mut *tx)
                .await?;
        }
        tx.commit().await?;
        sqlx::raw_sql("PRAGMA synchronous = NORMAL")
            .execute(&mut *writer)
            .await?;
        Ok(())
    }

    /// Reports a problem with the path or the file at once. SQLite begins a writing transaction on
    /// a read-only file without an error, so this makes a write and rolls it back.
    async fn probe(&self) -> Result<(), sqlx::Error> {
        let mut tx = self.writer.begin_with("BEGIN IMMEDIATE").await?;
        sqlx::query("CREATE TABLE jobwire_may_write (undone INTEGER)")
            .execute(&mut *tx)
            .await?;
        tx.rollback().await
    }

    /// Returns the one writing connection, as a pool, for the application's own statements. While
    /// it is in use, no job is locked, renewed or completed.
    #[must_use]
    pub fn pool(&self) -> &SqlitePool {
        &self.writer
    }

    /// Migrates the schema to this program's version, entirely or not at all.
    ///
    /// # Errors
    /// [`StoreError::Migration`] if a migration fails, or the error of the database.
    pub async fn migrate(&self) -> Result<()> {
        // One transaction around all migrations: SQLite has no lock that separates two migrating
        // processes. (The public `run` would do, if its future over a connection were `Send`.)
        let mut tx = self.write().await?;
        migrator()
            .run_direct(None, &mut *tx, false)
            .await
            .map_err(|e| StoreError::Migration(Box::new(e)))?;
        Ok(tx.commit().await?)
    }

    /// Reverts the schema to a version; 0 removes everything. Each migration is one transaction.
    ///
    /// # Errors
    /// [`StoreError::Migration`] if a migration fails.
    pub async fn migrate_down(&self, version: i64) -> Result<()> {
        migrator()
            .undo(&self.writer, version)
            .await
            .map_err(|e| StoreError::Migration(Box::new(e)))
    }

    /// Opens a writing transaction. It waits for other writers here and not halfway, and nothing
    /// changes between its first read and its last write.
    ///
    /// # Errors
    /// [`StoreError::WriterBusy`] a little before the deadline of the transition, which could not
    /// name the cause.
    async fn write(&self) -> Result<sqlx::Transaction<'static, Sqlite>> {
        let within = self.deadline.mul_f32(0.9);
        match tokio::time::timeout(within, self.writer.begin_with("BEGIN IMMEDIATE")).await {
            Ok(Err(sqlx::Error::PoolTimedOut)) | Err(_) => Err(StoreError::WriterBusy(within)),
            Ok(begun) => Ok(begun?),
        }
    }

    /// Runs one transition with a deadline, measures it, and retries it after a conflict with
    /// another process.
    async fn run<T, F, Fut>(&self, statement: &'static str, transition: F) -> Result<T>
    where
        F: Fn() -> Fut + Send,
        Fut: Future<Output = Result<T>> + Send,
    {
        super::measured(statement, self.deadline, transition).await
    }

    /// Moves due timers and locks those that `take` allows. If the database refuses the page, moves
    /// it in parts and without locks.
    async fn timers(
        &self,
        at_most: i64,
        take: Option<(&LockTerms, &[Lane])>,
    ) -> Result<MovedTimers> {
        let statement = "move_due_timers";
        let whole = self.run(statement, || self.move_due(at_most, take, None));
        let found = |at_most| {
            let due = move || async move { Ok(Found::of(self.due(at_most).await?, at_most)) };
            self.run(statement, due).boxed()
        };
        found_page(self, statement, JobState::Timer, whole, found, |these| {
            let part = async move {
                let move_these = || self.move_due(i64::MAX, None, Some(&these));
                self.run(statement, move_these).await
            };
            part.boxed()
        })
        .await
    }
}

/// More fences than can be drawn before one of them reaches the disk.
const LEAP: i64 = 1 << 32;

const URL_FORM: &str = "write sqlite:jobs.db, sqlite:///var/lib/app/jobs.db or sqlite::memory:";

/// Returns whether the URL names a database in memory, which ends with its connection.
fn is_in_memory(url: &str) -> bool {
    let name = url
        .trim_start_matches("sqlite://")
        .trim_start_matches("sqlite:");
    let (path, parameters) = name.split_once('?').unwrap_or((name, ""));
    path == ":memory:" || parameters.split('&').any(|p| p == "mode=memory")
}

fn connect_options(url: &str, create: bool) -> Result<SqliteConnectOptions> {
    if !url.starts_with("sqlite:") {
        return Err(StoreError::Config(format!(
            "the database URL does not begin with `sqlite:`; {URL_FORM}"
        )));
    }
    let options: SqliteConnectOptions = url.parse().map_err(|e: sqlx::Error| {
        StoreError::Config(format!("the database URL can't be read: {e}; {URL_FORM}"))
    })?;
    let path = options.get_filename();
    if path == Path::new("") {
        return Err(StoreError::Config(format!(
            "the database URL names no file; {URL_FORM}"
        )));
    }
    if !is_in_memory(url) {
        if !create && !path.exists() {
            return Err(StoreError::Config(format!(
                "no such file: {}; correct the path of the database, or create the file with \
                 `SqliteOptions::create` (`jobwire migrate up`)",
                path.display()
            )));
        }
        let directory = path.parent().filter(|d| *d != Path::new(""));
        if let Some(directory) = directory.filter(|d| !d.is_dir()) {
            return Err(StoreError::Config(format!(
                "the database file can't be created: {} is not a directory; create it, or give another path",
                directory.display()
            )));
        }
        if path.is_dir() {
            return Err(StoreError::Config(format!(
                "{} is a directory; give the path of a file in it",
                path.display()
            )));
        }
        make_private(path);
    }
    Ok(options
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
        .foreign_keys(true))
}

/// Creates a missing file for this user alone, because payloads may be secrets. SQLite gives the
/// files beside it (`-wal`, `-shm`) the same permissions. If the creation fails, the first
/// statement reports the reason.
fn make_private(path: &Path) {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let _ = options.open(path);
}

/// Converts the error of the first statement, with a remedy if the path is the reason.
fn unusable(url: &str, error: sqlx::Error) -> StoreError {
    let code = error
        .as_database_error()
        .and_then(|e| e.code()?.parse::<i32>().ok())
        .map(|code| code & 0xff);
    let error = StoreError::from(error);
    let remedy = match code {
        Some(8) => "the file is read-only; allow this process to write it and its directory",
        Some(14) => "the file can't be opened; check the path and the permissions of its directory",
        Some(26) => "the file is not a SQLite database; give another path",
        _ => return error,
    };
    StoreError::Config(format!("{url}: {remedy}; SQLite says: {}", error.bare()))
}

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
            Ok(super::schema_status(newest, server))
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
        super::measured("renew", deadline, || self.renew_batch(owner, lease, held)).await
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
        self.run("find", || operate::find(&self.readers, filter))
            .await
    }

    async fn count(&self, filter: &JobFilter) -> Result<i64> {
        self.run("count", || operate::count(&self.readers, filter))
            .await
    }

    async fn get(&self, id: JobId) -> Result<Option<(JobView, Job, Option<String>)>> {
        self.run("get", || operate::get(&self.readers, id)).await
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
        super::check_rules(rules)?;
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

#[async_trait]
impl SqlStore for SqliteStore {
    type Db = Sqlite;

    fn deadline(&self) -> Duration {
        self.deadline
    }

    async fn begin(&self) -> Result<sqlx::Transaction<'static, Sqlite>> {
        tokio::time::timeout(self.deadline, self.write())
            .await
            .unwrap_or(Err(StoreError::Timeout(self.deadline)))
    }

    /// A failed statement is undone and leaves its transaction open, unless SQLite ends the
    /// transaction. Then `BEGIN` succeeds, and the owner of the connection rolls that transaction
    /// back.
    async fn ensure_intact(&self, connection: &mut SqliteConnection) -> Result<()> {
        match sqlx::raw_sql("BEGIN").execute(connection).await {
            Ok(_) => Err(StoreError::TransactionFailed),
            Err(_) => Ok(()),
        }
    }

    async fn commit(&self, mut transaction: sqlx::Transaction<'static, Sqlite>) -> Result<()> {
        self.ensure_intact(&mut transaction).await?;
        Ok(transaction.commit().await?)
    }

    async fn insert(
        &self,
        connection: &mut SqliteConnection,
        jobs: Vec<NewJob>,
        origin: Origin,
    ) -> Result<Created> {
        let started = Instant::now();
        let created = insert::insert(connection, jobs, origin).await;
        metrics::histogram!(m::STATEMENT, "statement" => "insert")
            .record(started.elapsed().as_secs_f64());
        created
    }

    async fn complete_in(
        &self,
        connection: &mut SqliteConnection,
        owner: NodeId,
        completion: &Completion,
        then: &Handoff,
    ) -> Result<BatchOutcome> {
        complete::complete_in(connection, owner, std::slice::from_ref(completion), then).await
    }
}

/// The newest schema version of this program.
const _: () = assert!(
    SCHEMA_VERSION == 3,
    "add the migration's row to schema_version"
);

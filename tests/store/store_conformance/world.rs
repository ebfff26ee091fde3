//! A database for each case, and short helpers.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::hint::Ready;
use jobwire_core::job::scope::Needs;
use jobwire_core::job::{LockToken, LockedJob};
use jobwire_core::store::attempts::AttemptsKept;
use jobwire_core::store::{
    BatchOutcome, Completion, Created, CycleOutcome, CycleReport, Destination, Failure, Handoff,
    LeaderCycle, LockTerms, Locked, Origin, Refusal, Release, RowTerms,
};
use jobwire_core::{
    Calendars, Hint, JobId, JobQuery, JobState, JobView, NewJob, NodeId, PgStore, SqlStore,
    SqliteStore, Store,
};
use jobwire_harness::{Scratch, shared};
use jobwire_simulation::simulation::{Database, MemoryStore};
use sqlx::AssertSqlSafe;

/// Longer than any case takes.
pub(super) const LEASE: Duration = Duration::from_secs(600);

/// A store whose internals a test can see.
pub(super) trait Bench: Store + Clone {
    /// Connects to an empty database. Returns its directory too, if it has one.
    async fn open() -> (Self, Option<Scratch>);
    /// Connects to a database with Jobwire's tables.
    async fn with_tables() -> (Self, Option<Scratch>) {
        let opened = Self::open().await;
        opened.0.up().await;
        opened
    }
    async fn up(&self);
    async fn create(&self, jobs: Vec<NewJob>) -> Created;
    /// Creates a job as a program in another language would.
    async fn create_by_sql(&self, job_type: &str) -> JobId;
    /// Sets the expiry of a job's lease to a second ago.
    async fn expire(&self, id: JobId);
    /// Makes a waiting job due since this many seconds.
    async fn make_due(&self, id: JobId, seconds_ago: u32);
    /// Makes jobs look ready for this many seconds more.
    async fn make_old(&self, seconds: u32);
    async fn rows(&self, table: &str) -> i64;
}

/// The leader where a test does not care which node leads.
pub(super) const LEADER: NodeId = NodeId::from_uuid(uuid::Uuid::from_u128(17));

/// A store with SQL access.
pub(super) trait SqlBench: Bench + SqlStore {
    async fn down_to(&self, version: i64);
    /// Runs a statement in which `{s}` is the schema prefix, `{now}` the time, and `{second}` one
    /// second.
    async fn execute(&self, sql: &str) -> u64 {
        self.try_execute(sql).await.unwrap()
    }
    async fn try_execute(&self, sql: &str) -> Result<u64, sqlx::Error>;
    async fn number(&self, sql: &str) -> i64;
    /// Returns all columns of all tables, as the database itself lists them.
    async fn columns(&self) -> Vec<(String, String)>;
    /// Runs a statement in a transaction.
    async fn execute_in(connection: &mut <Self::Db as sqlx::Database>::Connection, sql: &str);
    /// Returns the same database as another program sees it, which knows these calendars.
    fn knowing(&self, calendars: Calendars) -> Self;
    /// Sets a row aside as nodes and migrations do.
    async fn set_aside(&self, table: &str, id: JobId, reason: &str);

    async fn down(&self) {
        self.down_to(0).await;
    }

    /// Writes a row that no program should write: these columns with these values, written as SQL.
    async fn put(&self, table: &str, columns: &[(&str, &str)]) -> Result<JobId, sqlx::Error> {
        let id = JobId::generate();
        self.put_as(id, table, columns).await.map(|()| id)
    }

    async fn put_as(
        &self,
        id: JobId,
        table: &str,
        columns: &[(&str, &str)],
    ) -> Result<(), sqlx::Error> {
        let (quoted, number) = (format!("'{id}'"), format!("{}", id.uuid().as_u128() as u32));
        let mut row = vec![
            ("id", &*quoted),
            ("correlation_id", &*quoted),
            ("seq", &*number),
            ("type", "'work'"),
        ];
        if table == "timer_job" {
            row.push(("due_at", "{now} - {second}"));
        }
        row.retain(|(column, _)| columns.iter().all(|(other, _)| other != column));
        row.extend(columns);
        let (names, values): (Vec<_>, Vec<_>) = row.into_iter().unzip();
        let (names, values) = (names.join(", "), values.join(", "));
        let sql = format!("INSERT INTO {{s}}{table} ({names}) VALUES ({values})");
        self.try_execute(&sql).await.map(|_| ())
    }
}

macro_rules! by_sql {
    () => {
        async fn up(&self) {
            self.migrate().await.unwrap();
        }

        async fn create(&self, jobs: Vec<NewJob>) -> Created {
            let mut tx = self.begin().await.unwrap();
            let created = self.insert(&mut tx, jobs, Origin::Hook).await.unwrap();
            tx.commit().await.unwrap();
            created
        }

        async fn expire(&self, id: JobId) {
            let sql = format!(
                "UPDATE {{s}}job_lease SET expires_at = {{now}} - {{second}} WHERE job_id = '{id}'"
            );
            assert_eq!(self.execute(&sql).await, 1);
        }

        async fn make_due(&self, id: JobId, seconds_ago: u32) {
            let sql = format!(
                "UPDATE {{s}}timer_job SET due_at = {{now}} - {seconds_ago} * {{second}} WHERE id = '{id}'"
            );
            assert_eq!(self.execute(&sql).await, 1);
        }

        async fn make_old(&self, seconds: u32) {
            let sql = format!("UPDATE {{s}}job SET ready_at = ready_at - {seconds} * {{second}}");
            self.execute(&sql).await;
        }

        async fn rows(&self, table: &str) -> i64 {
            self.number(&format!("SELECT count(*) FROM {{s}}{table}"))
                .await
        }
    };
}

impl Bench for SqliteStore {
    async fn open() -> (Self, Option<Scratch>) {
        let scratch = Scratch::new();
        let url = format!("sqlite:{}", scratch.join("jobs.db").display());
        (
            jobwire_harness::world::patient_file(&url).await,
            Some(scratch),
        )
    }

    async fn create_by_sql(&self, job_type: &str) -> JobId {
        let id = JobId::generate();
        let mut tx = self.begin().await.unwrap();
        sqlx::query("UPDATE counter SET value = value + 1 WHERE name = 'job_seq'")
            .execute(&mut *tx)
            .await
            .unwrap();
        sqlx::query(
            "INSERT INTO job (id, seq, type, correlation_id)
             SELECT ?1, value, ?2, ?1 FROM counter WHERE name = 'job_seq'",
        )
        .bind(id.to_string())
        .bind(job_type)
        .execute(&mut *tx)
        .await
        .unwrap();
        tx.commit().await.unwrap();
        id
    }

    by_sql!();
}

impl SqlBench for SqliteStore {
    fn knowing(&self, calendars: Calendars) -> Self {
        self.clone().with_calendars(calendars)
    }

    async fn down_to(&self, version: i64) {
        self.migrate_down(version).await.unwrap();
    }

    async fn try_execute(&self, sql: &str) -> Result<u64, sqlx::Error> {
        let sql = sql
            .replace("{s}", "")
            .replace("{second}", "1000000")
            .replace("{now}", "CAST(unixepoch('subsec') * 1000000 AS INTEGER)");
        let done = sqlx::query(AssertSqlSafe(sql)).execute(self.pool()).await;
        done.map(|done| done.rows_affected())
    }

    async fn execute_in(connection: &mut sqlx::SqliteConnection, sql: &str) {
        let sql = sql.replace("{s}", "");
        let done = sqlx::query(AssertSqlSafe(sql)).execute(connection);
        done.await.unwrap();
    }

    async fn number(&self, sql: &str) -> i64 {
        let sql = sql.replace("{s}", "");
        let number = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(self.pool());
        number.await.unwrap()
    }

    async fn columns(&self) -> Vec<(String, String)> {
        let columns = "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c
             WHERE t.type = 'table' ORDER BY t.name, c.cid";
        let columns = sqlx::query_as(columns).fetch_all(self.pool());
        columns.await.unwrap()
    }

    async fn set_aside(&self, table: &str, id: JobId, reason: &str) {
        sqlx::query("INSERT INTO set_aside (source, id, reason) VALUES (?1, ?2, ?3)")
            .bind(table)
            .bind(id.to_string())
            .bind(reason)
            .execute(self.pool())
            .await
            .unwrap();
    }
}

impl Bench for PgStore {
    async fn open() -> (Self, Option<Scratch>) {
        let url = shared::postgres().await.create_database().await;
        (jobwire_harness::world::patient(&url).await, None)
    }

    async fn with_tables() -> (Self, Option<Scratch>) {
        (jobwire_harness::world::database().await, None)
    }

    async fn create_by_sql(&self, job_type: &str) -> JobId {
        let id = sqlx::query_scalar("SELECT jobwire.create_job(type => $1)")
            .bind(job_type)
            .fetch_one(self.pool());
        JobId::from_uuid(id.await.unwrap())
    }

    by_sql!();
}

impl SqlBench for PgStore {
    fn knowing(&self, calendars: Calendars) -> Self {
        self.clone().with_calendars(calendars)
    }

    async fn down_to(&self, version: i64) {
        self.migrate_down(version).await.unwrap();
    }

    async fn try_execute(&self, sql: &str) -> Result<u64, sqlx::Error> {
        let sql = sql
            .replace("{s}", "jobwire.")
            .replace("{second}", "interval '1 second'")
            .replace("{now}", "clock_timestamp()");
        let done = sqlx::query(AssertSqlSafe(sql)).execute(self.pool()).await;
        done.map(|done| done.rows_affected())
    }

    async fn execute_in(connection: &mut sqlx::PgConnection, sql: &str) {
        let sql = sql.replace("{s}", "jobwire.");
        let done = sqlx::query(AssertSqlSafe(sql)).execute(connection);
        done.await.unwrap();
    }

    async fn number(&self, sql: &str) -> i64 {
        let sql = sql.replace("{s}", "jobwire.");
        let number = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(self.pool());
        number.await.unwrap()
    }

    async fn columns(&self) -> Vec<(String, String)> {
        let columns =
            "SELECT c.table_name::text, c.column_name::text FROM information_schema.columns c
             JOIN information_schema.tables t USING (table_schema, table_name)
             WHERE c.table_schema = 'jobwire' AND t.table_type = 'BASE TABLE'
             ORDER BY c.table_name, c.ordinal_position";
        let columns = sqlx::query_as(columns).fetch_all(self.pool());
        columns.await.unwrap()
    }

    async fn set_aside(&self, table: &str, id: JobId, reason: &str) {
        sqlx::query("SELECT FROM jobwire.set_aside($1, ARRAY[$2], $3)")
            .bind(table)
            .bind(id.uuid())
            .bind(reason)
            .execute(self.pool())
            .await
            .unwrap();
    }
}

impl Bench for MemoryStore {
    async fn open() -> (Self, Option<Scratch>) {
        (MemoryStore::new(Database::real()), None)
    }

    async fn up(&self) {}

    async fn create(&self, jobs: Vec<NewJob>) -> Created {
        self.database().create(jobs, Origin::Hook).unwrap()
    }

    async fn create_by_sql(&self, job_type: &str) -> JobId {
        let job = NewJob::of(job_type, &17);
        let id = job.id();
        self.database().create(vec![job], Origin::Sql).unwrap();
        id
    }

    async fn expire(&self, id: JobId) {
        assert!(self.database().expire(id));
    }

    async fn make_due(&self, id: JobId, seconds_ago: u32) {
        let ago = Duration::from_secs(seconds_ago.into());
        assert!(self.database().make_due(id, ago));
    }

    async fn make_old(&self, seconds: u32) {
        self.database()
            .make_old(Duration::from_secs(seconds.into()));
    }

    async fn rows(&self, table: &str) -> i64 {
        self.database().rows(table).unwrap() as i64
    }
}

/// A store over an empty database with Jobwire's tables.
pub(super) struct World<S: Bench> {
    pub(super) store: S,
    _scratch: Option<Scratch>,
}

/// Returns a job of the type that every node here serves.
pub(super) fn work() -> NewJob {
    NewJob::of("work", &17)
}

/// Returns a job that no node here serves.
pub(super) fn unserved() -> NewJob {
    NewJob::of("unserved", &17)
}

/// Returns what a node would have to serve to run [`unserved`].
pub(super) fn needs_of_unserved() -> Needs {
    Needs {
        priority: Some(0),
        ..Needs::of("unserved")
    }
}

/// Returns the id of a new node.
pub(super) fn node() -> NodeId {
    NodeId::generate()
}

pub(super) fn terms(owner: NodeId) -> LockTerms {
    LockTerms {
        owner,
        lease: LEASE,
        types: vec!["work".to_owned(), "other-work".to_owned()].into(),
        scope: Arc::default(),
        rows: RowTerms::default(),
    }
}

pub(super) fn cycle(node: NodeId) -> LeaderCycle {
    LeaderCycle {
        node,
        lease: LEASE,
        transport: "in-process",
        reset_at_most: 100,
        clock: None,
        may_wait: Duration::ZERO,
        grace: Duration::ZERO,
        services: vec!["work".to_owned(), "other-work".to_owned()].into(),
        again_after: Duration::from_secs(30),
        hint_at_most: 100,
        attempts_kept: AttemptsKept::new(),
    }
}

pub(super) fn report(outcome: CycleOutcome) -> CycleReport {
    match outcome {
        CycleOutcome::Leads(report) => *report,
        follows @ CycleOutcome::Follows { .. } => panic!("{follows:?}"),
    }
}

pub(super) fn take(owner: NodeId) -> Handoff {
    Handoff::Take(terms(owner))
}

pub(super) fn done(job: &LockedJob) -> Completion {
    Completion {
        held: job.held(),
        next: None,
        has_traces: false,
        cancelled: false,
        attempt: None,
    }
}

pub(super) fn retry_after(job: &LockedJob, delay: Duration) -> Failure {
    Failure {
        held: job.held(),
        to: Destination::Retry {
            delay,
            since: None,
            retries: job.job.retries - 1,
            failures: job.job.failures + 1,
        },
        message: Some("no luck".to_owned()),
        stack: Some("at the first step".to_owned()),
        attempt: None,
    }
}

pub(super) fn give_up(job: &LockedJob) -> Failure {
    Failure {
        to: Destination::DeadLetter,
        ..retry_after(job, Duration::ZERO)
    }
}

pub(super) fn ids(ready: &[Ready]) -> Vec<JobId> {
    ready.iter().map(|r| r.hint.id).collect()
}

pub(super) fn job_ids(jobs: &[LockedJob]) -> Vec<JobId> {
    jobs.iter().map(|l| l.job.id).collect()
}

/// Returns the reason for which this job was refused.
pub(super) fn why(locked: &Locked, id: JobId) -> Option<Refusal> {
    locked
        .refused
        .iter()
        .find(|(refused, _)| *refused == id)
        .map(|(_, why)| *why)
}

impl<S: Bench> World<S> {
    pub(super) async fn open() -> Self {
        let (store, scratch) = S::with_tables().await;
        Self {
            store,
            _scratch: scratch,
        }
    }

    /// Uses an existing store.
    pub(super) fn over(store: S) -> Self {
        Self {
            store,
            _scratch: None,
        }
    }

    /// Connects without creating tables.
    pub(super) async fn empty() -> Self {
        let (store, scratch) = S::open().await;
        Self {
            store,
            _scratch: scratch,
        }
    }

    pub(super) async fn create(&self, jobs: Vec<NewJob>) -> Created {
        self.store.create(jobs).await
    }

    /// Creates jobs that are ready at once. Returns their hints in creation order.
    pub(super) async fn ready(&self, jobs: Vec<NewJob>) -> Vec<Hint> {
        let count = jobs.len();
        let hints: Vec<Hint> = self
            .create(jobs)
            .await
            .ready
            .into_iter()
            .map(|r| r.hint)
            .collect();
        assert_eq!(hints.len(), count);
        hints
    }

    pub(super) async fn one(&self, job: NewJob) -> Hint {
        self.ready(vec![job]).await.remove(0)
    }

    pub(super) async fn lock(&self, owner: NodeId, hints: &[Hint]) -> Locked {
        self.store.lock(&terms(owner), hints).await.unwrap()
    }

    /// Locks the job of a hint.
    pub(super) async fn hold(&self, owner: NodeId, hint: &Hint) -> LockedJob {
        let mut locked = self.lock(owner, std::slice::from_ref(hint)).await;
        assert_eq!(locked.jobs.len(), 1, "{:?}", locked.refused);
        locked.jobs.remove(0)
    }

    /// Returns the reason for which a hint is refused.
    pub(super) async fn refusal(&self, owner: NodeId, hint: &Hint) -> Option<Refusal> {
        let locked = self.lock(owner, std::slice::from_ref(hint)).await;
        assert!(locked.jobs.is_empty(), "{:?}", locked.jobs);
        why(&locked, hint.id)
    }

    pub(super) async fn complete(
        &self,
        owner: NodeId,
        job: &LockedJob,
        then: &Handoff,
    ) -> BatchOutcome {
        self.store
            .complete(owner, &[done(job)], then)
            .await
            .unwrap()
    }

    pub(super) async fn fail(&self, owner: NodeId, failure: Failure) -> BatchOutcome {
        let failed = self.store.fail(owner, &[failure], &Handoff::Hint).await;
        failed.unwrap()
    }

    pub(super) async fn release(&self, owner: NodeId, held: LockToken) -> BatchOutcome {
        let released = [Release::of_attempt(held)];
        self.store.release(owner, &released).await.unwrap()
    }

    pub(super) async fn expire(&self, id: JobId) {
        self.store.expire(id).await;
    }

    /// Lets the job's holder die: its lease expires, and the leader cycle ends it.
    pub(super) async fn die(&self, id: JobId) {
        self.expire(id).await;
        self.lead(LEADER).await;
    }

    pub(super) async fn make_due(&self, id: JobId, seconds_ago: u32) {
        self.store.make_due(id, seconds_ago).await;
    }

    pub(super) async fn make_old(&self, seconds: u32) {
        self.store.make_old(seconds).await;
    }

    pub(super) async fn rows(&self, table: &str) -> i64 {
        self.store.rows(table).await
    }

    pub(super) async fn view(&self, id: JobId) -> Option<JobView> {
        self.store.get(id).await.unwrap().map(|(view, _, _)| view)
    }

    pub(super) async fn state(&self, id: JobId) -> Option<JobState> {
        self.view(id).await.map(|view| view.state)
    }

    pub(super) async fn find(&self, filter: JobQuery) -> Vec<JobId> {
        let found = self.store.find(&filter).await.unwrap();
        assert_eq!(
            found.len() as i64,
            self.store.count(&filter).await.unwrap().min(filter.limit)
        );
        found.into_iter().map(|view| view.id).collect()
    }

    pub(super) async fn turn(&self, node: NodeId) -> CycleOutcome {
        self.store.run_leader_cycle(&cycle(node)).await.unwrap()
    }

    /// Runs a leader cycle of a node that leads.
    pub(super) async fn lead(&self, node: NodeId) -> CycleReport {
        report(self.turn(node).await)
    }

    /// Runs a leader cycle of a fleet that keeps the attempts of the type `work` for this time.
    pub(super) async fn lead_recording(&self, keep: Duration) -> CycleReport {
        let mut cycle = cycle(LEADER);
        cycle.attempts_kept.insert("work".to_owned(), keep);
        report(self.store.run_leader_cycle(&cycle).await.unwrap())
    }
}

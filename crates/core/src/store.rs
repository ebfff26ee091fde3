//! The store: where jobs live, and who decides who runs them.
//!
//! Every transition of a job's life is one method here, one statement or one transaction in an
//! implementation. A conformance suite (tests/) holds every implementation to the same behaviour.
//!
//! Three rules hold for all methods:
//! * **Guards name (id, owner, fence).** Whatever changes a locked job names all three; a caller
//!   whose lease ended changes nothing and gets the job back in no list.
//! * **Time is the database's.** Leases and due dates are written and compared by its clock.
//! * **Lock order** is instance rows sorted, then job rows sorted.

pub mod postgres;
mod rows;
pub mod sqlite;

use std::any::Any;
use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;
use uuid::Uuid;

use crate::commit_hook::CommitHook;
pub use crate::created::{Created, TransactionId};
pub use crate::error::StoreError;
use crate::hint::{Hint, Ready};
use crate::job::{Held, Job, JobId, JobState, Lane, LockedJob, NodeId, text_enum};
use crate::lane_rule::{self, LaneRule};
use crate::metrics as m;
use crate::new_job::NewJob;
use crate::query::{JobFilter, JobView, LaneBacklog, LaneView, Sweepable};

pub use rows::{HeldRows, RowHold, RowTerms};

/// Shorthand for this layer.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Under which terms a node locks jobs.
#[derive(Clone, Debug)]
pub struct LockTerms {
    /// The node.
    pub owner: NodeId,
    /// How long the lease lasts from the moment of the lock.
    pub lease: Duration,
    /// The handler types that the node serves; others are refused as [`Refusal::Unserved`].
    pub types: Arc<[String]>,
    /// Which of them may be held by row locks.
    pub rows: RowTerms,
}

text_enum! {
    /// Why a hinted job was not locked. All but [`Refusal::Busy`] settle the hint.
    Refusal {
        /// No such executable job: done, moved, deleted, or never there.
        Gone = "gone",
        /// Another lock on it lives.
        Locked = "locked",
        /// Another exclusive job of its instance runs; whoever finishes takes the next.
        InstanceHeld = "instance-held",
        /// The job, or what it belongs to, is suspended.
        Suspended = "suspended",
        /// No handler for its type on this node.
        Unserved = "unserved",
        /// Its row was busy for an instant: try again, here.
        Busy = "busy",
    }
}

/// What became of a batch of hints.
#[derive(Debug, Default)]
pub struct Locked {
    /// Ours to run now.
    pub jobs: Vec<LockedJob>,
    /// Ours, too, as long as a transaction lasts.
    pub rows: Option<HeldRows>,
    /// Each hinted job that is not in `jobs`, with the reason. For an exclusive hint the job taken may
    /// be another one of the same instance; the hinted id then stands in neither list.
    pub refused: Vec<(JobId, Refusal)>,
}

/// What a finished or given-back batch led to.
#[derive(Debug, Default)]
pub struct Settled {
    /// The jobs whose guard held: the change is committed. Whoever is missing here lost its lock.
    pub applied: Vec<JobId>,
    /// The next exclusive jobs of the instances that were released, locked for the same node.
    pub next: Vec<LockedJob>,
    /// Jobs that became ready and were not taken: to be hinted.
    pub ready: Vec<Ready>,
    /// The earliest due date that was written, if any.
    pub timer: Option<DateTime<Utc>>,
}

/// A job that is done.
#[derive(Clone, Debug)]
pub struct Completion {
    /// The proof.
    pub held: Held,
    /// The next occurrence of a repeating job, created in the same transaction. Boxed: few have one, and every
    /// completion is passed on several times.
    pub next: Option<Box<NewJob>>,
    /// An earlier attempt failed: its stack has to go too.
    pub failed_before: bool,
}

/// Where a failed or interrupted job goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Waits this long in the timer table, with so many attempts left.
    Retry {
        /// Time to wait.
        delay: Duration,
        /// Attempts left.
        retries: i32,
        /// Failures so far, this one included if it counts.
        failures: i32,
    },
    /// An operator decides.
    DeadLetter,
}

/// A job that did not finish.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The proof.
    pub held: Held,
    /// Where it goes.
    pub to: Destination,
    /// For people; `None` keeps the last message (a snooze is no failure).
    pub message: Option<String>,
    /// The stack or the chain of causes.
    pub stack: Option<String>,
}

/// What happens with an instance that is released.
#[derive(Clone, Debug)]
pub enum HandOver {
    /// Lock the next sibling for this node, in the same transaction.
    Take(LockTerms),
    /// Only say who is next: the node takes no more work.
    Hint,
}

/// Timers that were due.
#[derive(Debug, Default)]
pub struct MovedTimers {
    /// Executable now; to be hinted.
    pub ready: Vec<Ready>,
    /// The next due date.
    pub next_due: Option<DateTime<Utc>>,
    /// The database's clock.
    pub now: DateTime<Utc>,
}

/// What the leader asks of the database in one turn.
#[derive(Clone, Debug)]
pub struct Turn {
    /// Who asks.
    pub node: NodeId,
    /// How long it leads from now on.
    pub lease: Duration,
    /// The transport's name, for the record.
    pub transport: &'static str,
    /// Take up to so many expired locks off their owners; 0 only looks.
    pub reset_at_most: i64,
    /// Take none while the database's clock is outside (protocol rule 25).
    pub clock: Option<ClockWindow>,
    /// Hint up to so many jobs that nobody hinted yet (created by plain SQL).
    pub hint_at_most: i64,
}

/// What the database's clock may show, judging by what it showed before and the time since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockWindow {
    /// Not before.
    pub from: DateTime<Utc>,
    /// Not after.
    pub until: DateTime<Utc>,
}

/// What the database answered.
#[derive(Debug)]
pub enum TurnOutcome {
    /// The asking node leads.
    Leads(Box<TurnReport>),
    /// Another node does.
    Follows {
        /// The leader.
        leader: NodeId,
        /// Its transport.
        transport: String,
        /// How long its lease still lasts.
        remaining: Duration,
    },
}

/// What the leader learned in its turn.
#[derive(Debug, Default)]
pub struct TurnReport {
    /// Grows with every change of leader.
    pub term: i64,
    /// The database's clock when the turn began: what the turn itself marked became ready later.
    pub now: DateTime<Utc>,
    /// Jobs whose lock had expired; their owner is gone and they are to be hinted.
    pub expired: Vec<Ready>,
    /// Jobs that nobody hinted yet; to be hinted.
    pub unhinted: Vec<Ready>,
    /// The next due date.
    pub next_due: Option<DateTime<Utc>>,
    /// Jobs with a living lock.
    pub leased: i64,
    /// Executable jobs, exact up to [`COUNT_LIMIT`], an estimate beyond.
    pub executable: i64,
    /// Timers and waiting retries, likewise.
    pub timers: i64,
    /// Dead letters, likewise.
    pub dead_letters: i64,
    /// Since when the oldest executable job has been ready.
    pub oldest_ready_at: Option<DateTime<Utc>>,
}

/// Up to here a turn counts exactly.
pub const COUNT_LIMIT: i64 = 10_000;

/// The question after jobs whose hint was lost.
#[derive(Clone, Debug)]
pub struct OrphanQuery {
    /// Ready at or before this moment (the database's clock).
    pub ready_before: DateTime<Utc>,
    /// Types that some node serves; others are gated, not orphaned.
    pub types: Arc<[String]>,
    /// The lane asked after.
    pub lane: Lane,
    /// Go on behind this id.
    pub after: Option<JobId>,
    /// At most so many.
    pub limit: i64,
    /// Also look at ids from the future, of creators whose clocks run ahead: reads every row of the table.
    pub whole: bool,
    /// Write `ready_at` and count the hint, so that the row is not suspected again at once; otherwise
    /// only look (dry run).
    pub mark: bool,
}

/// What a node that hints don't reach takes from a lane (protocol rule 28).
#[derive(Clone, Debug)]
pub struct ClaimPage {
    /// The lane.
    pub lane: Lane,
    /// Go on behind this id.
    pub after: Option<JobId>,
    /// At most so many: the free slots.
    pub at_most: i64,
    /// Look at so many rows, however few of them can be taken.
    pub look_at: i64,
}

/// What was taken.
#[derive(Debug, Default)]
pub struct Claimed {
    /// Ours to run now.
    pub jobs: Vec<LockedJob>,
    /// Behind which id to go on; `None` where the lane was looked through to its end.
    pub after: Option<JobId>,
}

/// A page of jobs that change their lane.
#[derive(Clone, Debug)]
pub struct LanePage {
    /// The lane that they leave.
    pub from: Lane,
    /// The lane that they get.
    pub to: Lane,
    /// Those of this state; of executable ones the unlocked.
    pub state: JobState,
    /// Go on behind this id.
    pub after: Option<JobId>,
    /// At most so many.
    pub at_most: i64,
    /// Who hints what is ready: the caller, or a leader that finds it.
    pub origin: Origin,
}

/// What became of it.
#[derive(Debug, Default)]
pub struct MovedPage {
    /// Jobs that changed their lane.
    pub moved: u64,
    /// Those of them to hint; of an instance only the first ready one.
    pub ready: Vec<Ready>,
    /// Behind which id to go on; `None` where everything has been looked at.
    pub after: Option<JobId>,
}

/// Rows that a page looks at, however few of them are of its lane.
pub(crate) const LANE_SLICE: i64 = 20_000;

impl LanePage {
    /// Behind which id to go on, having found these among `seen` rows up to `last`.
    pub(crate) fn next(&self, found: &[Uuid], last: Option<Uuid>, seen: i64) -> Option<Uuid> {
        if i64::try_from(found.len()).is_ok_and(|n| n >= self.at_most) {
            found.last().copied()
        } else if seen >= LANE_SLICE {
            last
        } else {
            None
        }
    }
}

/// What a suspension names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SuspensionScope {
    /// One process instance.
    ProcessInstance(String),
    /// All instances of a definition.
    ProcessDefinition(String),
    /// One handler type (job definition).
    Type(String),
    /// One tenant.
    Tenant(String),
}

impl SuspensionScope {
    /// The word in the table, and the value.
    #[must_use]
    pub fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::ProcessInstance(v) => ("process_instance", v),
            Self::ProcessDefinition(v) => ("process_definition", v),
            Self::Type(v) => ("type", v),
            Self::Tenant(v) => ("tenant", v),
        }
    }
}

/// What became of a transaction whose COMMIT was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It committed.
    Committed,
    /// It did not.
    RolledBack,
    /// The database can't say (any more, or yet).
    Unknown,
}

/// What an operator's call did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operated {
    /// Done.
    Done,
    /// No such job.
    NotFound,
    /// The job runs; it has to finish or lose its lock first.
    Running,
}

/// Where jobs live. See the [module](self) for the rules; every method is one transition or question.
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// `postgres` or `sqlite`.
    fn name(&self) -> &'static str;

    /// Can the database be reached, and does its schema fit this program?
    async fn check(&self) -> Result<SchemaStatus>;

    /// Lock what a batch of hints names (protocol rules 6 to 12). The caller asks for no more than it
    /// has free slots.
    async fn lock(&self, terms: &LockTerms, hints: &[Hint]) -> Result<Locked>;

    /// Lock ready jobs of a lane without a hint, by the same gates and in the order of their ids: those
    /// that nobody else locks at this moment, so that nodes which claim at once take different ones.
    async fn claim(&self, terms: &LockTerms, page: &ClaimPage) -> Result<Claimed>;

    /// Push the end of these leases to `lease` from now. Returns those that were still held. One that ran
    /// out is revived where nobody has taken the job, its instance or the lock since: after a jump of the
    /// database's clock the holders live on.
    async fn renew(&self, owner: NodeId, lease: Duration, held: &[Held]) -> Result<Vec<JobId>>;

    /// Note that this job, whose earlier holders died, runs alone on its node from now on: if this one
    /// dies too, the job is to blame (protocol rule 26). False where the lock is gone.
    async fn run_alone(&self, owner: NodeId, held: &Held) -> Result<bool>;

    /// Take back one strike of each of these jobs: a node that lost its lock on it was not dead.
    async fn absolve(&self, jobs: &[JobId]) -> Result<()>;

    /// Delete what is done, create next occurrences, hand instances over.
    async fn complete(
        &self,
        owner: NodeId,
        done: &[Completion],
        then: &HandOver,
    ) -> Result<Settled>;

    /// Move what failed to the timer or the dead-letter table (or, where it has been suspended
    /// meanwhile, to the suspended one); hand instances over.
    async fn fail(&self, owner: NodeId, failed: &[Failure], then: &HandOver) -> Result<Settled>;

    /// Unlock without a trace: the jobs are ready again and to be hinted.
    async fn release(&self, owner: NodeId, held: &[Held]) -> Result<Settled>;

    /// Open the transaction in which a handler works and which completes its job.
    /// The hints of jobs that the handler creates leave through `hook`.
    async fn begin_completing(&self, hook: &CommitHook) -> Result<Box<dyn CompletingTransaction>>;

    /// Make due timers executable.
    async fn move_due_timers(&self, at_most: i64) -> Result<MovedTimers>;

    /// The leader's turn: lead (or learn who does), take locks off the dead, learn what there is.
    async fn take_turn(&self, turn: &Turn) -> Result<TurnOutcome>;

    /// Mark and return jobs that nobody hinted yet, without taking a turn.
    async fn unhinted(&self, at_most: i64) -> Result<Vec<Ready>>;

    /// A number that changes when another connection writes, where asking costs next to nothing
    /// (SQLite); `None` where the store has no such number.
    async fn data_version(&self) -> Result<Option<i64>> {
        Ok(None)
    }

    /// Stop leading.
    async fn resign(&self, node: NodeId) -> Result<()>;

    /// Jobs that are ready, unlocked and ungated although every hint sent before was decided; of an
    /// instance only the first sibling.
    async fn orphans(&self, query: &OrphanQuery) -> Result<Vec<Ready>>;

    /// Count what a sweep would look at, for people. Changes nothing; reads every executable job. A store
    /// need not offer it.
    async fn sweepable(&self, types: &[String]) -> Result<Sweepable> {
        let _ = types;
        Err(StoreError::Config(format!(
            "the store `{}` can't be asked what a sweep would do",
            self.name()
        )))
    }

    /// Free instances whose holder has neither a lease nor a row any more. Returns what became ready.
    async fn free_instances(&self) -> Result<Vec<Ready>>;

    /// What became of a transaction whose COMMIT was not answered?
    async fn committed(&self, transaction: &TransactionId) -> Result<Fate>;

    /// Jobs that match, of every state, oldest first.
    async fn find(&self, filter: &JobFilter) -> Result<Vec<JobView>>;

    /// How many match.
    async fn count(&self, filter: &JobFilter) -> Result<i64>;

    /// One job with its exception's stack.
    async fn get(&self, id: JobId) -> Result<Option<(JobView, Job, Option<String>)>>;

    /// Delete a job of any state that is not running.
    async fn delete(&self, id: JobId) -> Result<(Operated, Vec<Ready>)>;

    /// Make a dead letter, a waiting retry or a timer executable now, with so many attempts.
    async fn retry(&self, id: JobId, retries: i32) -> Result<(Operated, Vec<Ready>)>;

    /// Suspend: what runs goes on, everything else of the scope goes to the suspended table, now and
    /// when it is created or fails later. Returns how many jobs moved.
    async fn suspend(&self, scope: &SuspensionScope) -> Result<u64>;

    /// Activate what [`suspend`](Self::suspend) put aside. Returns what became ready.
    async fn activate(&self, scope: &SuspensionScope) -> Result<Vec<Ready>>;

    /// The rules for the lanes of jobs whose creator names none, in their order.
    async fn lane_rules(&self) -> Result<Vec<LaneRule>>;

    /// Replace them all at once. Jobs that exist keep their lanes.
    ///
    /// # Errors
    /// [`StoreError::InvalidRules`] before anything is changed.
    async fn set_lane_rules(&self, rules: &[LaneRule]) -> Result<()>;

    /// Every lane of which there are jobs, and how many. Reads all of them.
    async fn lanes(&self) -> Result<Vec<LaneView>>;

    /// Unlocked executable jobs in other lanes than these, by lane, the deepest first. Reads all of them.
    async fn lanes_outside(&self, lanes: &[Lane], at_most: i64) -> Result<Vec<LaneBacklog>>;

    /// Give a page of jobs another lane. See [`crate::lane_move`].
    async fn move_lane(&self, page: &LanePage) -> Result<MovedPage>;

    /// Close every connection.
    async fn close(&self);
}

/// The transaction that a handler works in and that completes its job: effects and completion commit
/// together or not at all.
#[async_trait]
pub trait CompletingTransaction: Send {
    /// The concrete [`JobTransaction`](crate::JobTransaction), for the handler.
    fn as_any(&mut self) -> &mut (dyn Any + Send);

    /// Complete the job and commit. Nothing is committed where the lock was lost.
    async fn complete(
        self: Box<Self>,
        owner: NodeId,
        completion: &Completion,
        then: &HandOver,
    ) -> Result<Settled>;

    /// Ready when the connection is not to be believed in any more: whatever the handler asks there may wait
    /// for ever. Never before an answer on a living connection would have come.
    fn line_ends(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    /// Undo everything.
    async fn roll_back(self: Box<Self>);
}

/// A store whose transactions a user can share: jobs are created inside them.
#[async_trait]
pub trait SqlStore: Store + Clone {
    /// The database.
    type Db: sqlx::Database;

    /// How long the database may take to answer before its answer counts as lost.
    fn deadline(&self) -> Duration;

    /// No answer came within it: connections that are open now are not used again.
    fn suspect_connections(&self) {}

    /// Ready when the connections that are open now were suspected, and have said nothing since.
    fn line_ends(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    /// Open a transaction that may write.
    async fn begin(&self) -> Result<sqlx::Transaction<'static, Self::Db>>;

    /// Insert jobs over a connection that is inside the caller's transaction.
    ///
    /// # Errors
    /// [`StoreError::InvalidJob`] before anything was written; else what the database said.
    async fn insert(
        &self,
        connection: &mut <Self::Db as sqlx::Database>::Connection,
        jobs: Vec<NewJob>,
        origin: Origin,
    ) -> Result<Created>;

    /// Complete one job over a connection inside the caller's transaction.
    async fn complete_in(
        &self,
        connection: &mut <Self::Db as sqlx::Database>::Connection,
        owner: NodeId,
        completion: &Completion,
        then: &HandOver,
    ) -> Result<Settled>;
}

text_enum! {
    /// Who hints a new job: the creating process, or somebody who finds it (protocol rule 20).
    Origin {
        /// The creating process, when its transaction has committed.
        Hook = "hook",
        /// The sweeper (later: the tap).
        Sql = "sql",
    }
}

/// Does the database's schema fit this program?
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SchemaStatus {
    /// It does.
    Ready {
        /// The schema's version.
        version: i32,
        /// The server's own version, for people.
        server: String,
    },
    /// No Jobwire tables, or older ones than this program works with.
    Outdated {
        /// What is there.
        found: i32,
        /// What this program brings.
        wanted: i32,
    },
    /// Written by a newer program that older ones can't work with.
    TooNew {
        /// What is there.
        found: i32,
        /// The oldest program that may still work with it.
        readable_by: i32,
        /// What this program knows.
        known: i32,
    },
}

/// The schema version that this program brings.
pub const SCHEMA_VERSION: i32 = 1;

/// The instances that a batch holds, sorted, each once.
fn instances<'a>(held: impl Iterator<Item = &'a Held>) -> Vec<String> {
    let mut names: Vec<String> = held.filter_map(|h| h.instance.clone()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// The instances whose holders were among `applied`: only those may be passed on.
fn released<'a>(held: impl Iterator<Item = &'a Held>, applied: &[JobId]) -> Vec<String> {
    let applied: HashSet<&JobId> = applied.iter().collect();
    instances(held.filter(|h| applied.contains(&h.id)))
}

/// Wait for an answer as long as it may take. The connection is suspected before it is let go.
pub(crate) async fn answer_within<T>(
    within: Duration,
    suspect: impl FnOnce(),
    question: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::pin!(question);
    match tokio::time::timeout(within, &mut question).await {
        Ok(answer) => answer,
        Err(_) => {
            suspect();
            Err(StoreError::Timeout(within))
        }
    }
}

/// Refuse rules that can't work.
fn check_rules(rules: &[LaneRule]) -> Result<()> {
    lane_rule::validate(rules).map_err(StoreError::InvalidRules)
}

/// Judge the newest row of `schema_version`.
fn schema_status(newest: Option<(i32, i32)>, server: String) -> SchemaStatus {
    match newest {
        Some((version, readable_by)) if readable_by > SCHEMA_VERSION => SchemaStatus::TooNew {
            found: version,
            readable_by,
            known: SCHEMA_VERSION,
        },
        Some((version, _)) if version >= SCHEMA_VERSION => SchemaStatus::Ready { version, server },
        older => SchemaStatus::Outdated {
            found: older.map_or(0, |(version, _)| version),
            wanted: SCHEMA_VERSION,
        },
    }
}

impl SchemaStatus {
    /// Go on, or say what to do.
    ///
    /// # Errors
    /// [`StoreError::Schema`] with the remedy.
    pub fn ready(&self) -> Result<()> {
        match self {
            Self::Ready { .. } => Ok(()),
            Self::Outdated { found: 0, .. } => Err(StoreError::Schema(
                "the database has no Jobwire tables; run `jobwire migrate up`".to_owned(),
            )),
            Self::Outdated { found, wanted } => Err(StoreError::Schema(format!(
                "the database has schema version {found}, this program needs {wanted}; run `jobwire migrate up`"
            ))),
            Self::TooNew {
                found,
                readable_by,
                known,
            } => Err(StoreError::Schema(format!(
                "the database has schema version {found}, written for programs that know version {readable_by} or \
                 newer; this one knows {known}: upgrade it"
            ))),
        }
    }
}

/// How often a transition is tried when two transactions met (deadlock, serialization failure).
const CONFLICT_ATTEMPTS: u32 = 4;

/// Run one transition: with a deadline, measured, tried again where two transactions met.
async fn measured<T, F, Fut>(
    statement: &'static str,
    deadline: Duration,
    transition: F,
) -> Result<T>
where
    F: Fn() -> Fut + Send,
    Fut: Future<Output = Result<T>> + Send,
{
    let mut attempt = 1;
    loop {
        let started = Instant::now();
        let result = tokio::time::timeout(deadline, transition())
            .await
            .unwrap_or(Err(StoreError::Timeout(deadline)));
        metrics::histogram!(m::STATEMENT, "statement" => statement)
            .record(started.elapsed().as_secs_f64());
        let Err(error) = result else { return result };
        let class = if error.is_conflict() {
            "conflict"
        } else if error.is_transient() {
            "transient"
        } else {
            "permanent"
        };
        metrics::counter!(m::STATEMENT_ERRORS, "statement" => statement, "class" => class)
            .increment(1);
        if !error.is_conflict() || attempt >= CONFLICT_ATTEMPTS {
            return Err(error);
        }
        tracing::debug!(statement, attempt, %error, "two transactions met; trying again");
        tokio::time::sleep(Duration::from_millis(u64::from(5 * attempt))).await;
        attempt += 1;
    }
}

//! What the leader asks of the database, and what it learns.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::hint::Ready;
use crate::job::scope::{Needs, Services};
use crate::job::{JobId, Lane, LockedJob, NodeId};

/// What the leader asks of the database in one turn.
#[derive(Clone, Debug)]
pub struct LeaderCycle {
    /// Who asks.
    pub node: NodeId,
    /// How long it leads from now on.
    pub lease: Duration,
    /// The transport's name, for the record.
    pub transport: &'static str,
    /// Clear the owners of up to so many expired leases; 0 clears none.
    pub reset_at_most: i64,
    /// Clear none while the database's clock is outside (protocol rule 25).
    pub clock: Option<ClockWindow>,
    /// Clear none while the server has been up for less: its holders may not have renewed yet since it came back.
    pub grace: Duration,
    /// What some node serves: other jobs, whose lease lost its owner, wait without a hint.
    pub services: Services,
    /// A job whose lease has had no owner for so long is hinted again, then at growing distances.
    pub again_after: Duration,
    /// Hint up to so many jobs that nobody hinted yet (created by plain SQL).
    pub hint_at_most: i64,
}

impl LeaderCycle {
    /// The same, asked so much later.
    pub(super) fn after(&self, passed: Duration) -> Self {
        let passed = chrono::Duration::from_std(passed).unwrap_or(chrono::Duration::MAX);
        let later = |at: DateTime<Utc>| at.checked_add_signed(passed).unwrap_or(at);
        Self {
            clock: self.clock.map(|clock| ClockWindow {
                from: later(clock.from),
                until: later(clock.until),
            }),
            ..self.clone()
        }
    }
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
pub enum CycleOutcome {
    /// The asking node leads.
    Leads(Box<CycleReport>),
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
pub struct CycleReport {
    /// Grows with every change of leader.
    pub term: i64,
    /// The database's clock when the turn began: what the turn itself marked became ready later.
    pub now: DateTime<Utc>,
    /// The transactions that had ended then.
    pub horizon: Option<Horizon>,
    /// Jobs whose lease has no owner any more, to be hinted first of all: since this turn, or since an earlier one and
    /// not locked again.
    pub rescued: Vec<Rescued>,
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
    /// The turn was cut: more could be marked at once.
    pub has_more: bool,
}

/// A job whose holder has died.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rescued {
    /// Its lane and hint.
    pub ready: Ready,
    /// What a node must serve to run it.
    pub needs: Needs,
    /// How many holders have died, by what is counted (protocol rule 26).
    pub strikes: i32,
    /// The holder whose lease this turn has ended.
    pub owner: Option<NodeId>,
}

/// Up to here a turn counts exactly.
pub const COUNT_LIMIT: i64 = 10_000;

/// All transactions before this one had ended. Of a database that gives every write a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Horizon(pub i64);

/// A row that has been ready for so long before the marker left is suspected whatever transaction wrote it: a transaction
/// that never ends keeps no lost hint from being found.
pub(super) const LONG_READY: Duration = Duration::from_secs(600);

/// The question after jobs whose hint was lost.
#[derive(Clone, Debug)]
pub struct OrphanQuery {
    /// Ready at or before this moment (the database's clock).
    pub ready_before: DateTime<Utc>,
    /// What some node serves; other jobs are gated, not orphaned.
    pub services: Services,
    /// Rows that were written by a transaction from this one on are not suspected, unless they have been ready for ten
    /// minutes: they may have been committed after the marker left, whatever they say of when they became ready.
    pub horizon: Option<Horizon>,
    /// The hints of these jobs are known to be on their way.
    pub held: Arc<[JobId]>,
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

impl OrphanQuery {
    /// Look at all rows of a lane that were ready then, at most so many in one page, and change none.
    #[must_use]
    pub fn new(
        lane: Lane,
        services: impl Into<Services>,
        ready_before: DateTime<Utc>,
        limit: i64,
    ) -> Self {
        Self {
            ready_before,
            services: services.into(),
            horizon: None,
            held: Arc::default(),
            lane,
            after: None,
            limit,
            whole: true,
            mark: false,
        }
    }
}

/// A page of jobs whose hint was lost.
#[derive(Debug, Default)]
pub struct OrphanPage {
    /// In the order of their ids; to be hinted.
    pub ready: Vec<Ready>,
    /// Behind which id to go on, where there may be more.
    pub next: Option<JobId>,
}

impl OrphanPage {
    /// The answer to a query for so many.
    pub(super) fn of(ready: Vec<Ready>, at_most: i64) -> Self {
        let is_full = i64::try_from(ready.len()).is_ok_and(|found| found >= at_most);
        let next = ready.last().map(|last| last.hint.id).filter(|_| is_full);
        Self { ready, next }
    }
}

/// Timers that were due.
#[derive(Debug, Default)]
pub struct MovedTimers {
    /// Executable now; to be hinted.
    pub ready: Vec<Ready>,
    /// Executable and locked by who asked; ours to run now.
    pub locked: Vec<LockedJob>,
    /// The next due date.
    pub next_due: Option<DateTime<Utc>>,
    /// The database's clock.
    pub now: DateTime<Utc>,
}

impl OrphanQuery {
    /// The smallest version-7 id of a moment a minute after the question's: behind it no row can be old
    /// enough, unless its creator's clock ran ahead by more than that.
    pub(crate) fn ceiling(&self) -> Uuid {
        if self.whole {
            return Uuid::max();
        }
        let millis = (self.ready_before.timestamp_millis() + 60_000)
            .max(0)
            .cast_unsigned();
        Uuid::from_u128(u128::from(millis) << 80)
    }
}

//! Arguments and results of the leader's statements.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::hint::Ready;
use crate::job::scope::{Needs, Services};
use crate::job::{JobId, Lane, LockedJob, NodeId};
use crate::store::attempts::AttemptsKept;

/// The arguments of a leader cycle.
#[derive(Clone, Debug)]
pub struct LeaderCycle {
    /// The node that asks.
    pub node: NodeId,
    /// The time for which the node leads from now on.
    pub lease: Duration,
    /// The transport's name, for the record.
    pub transport: &'static str,
    /// Maximum number of expired leases whose owners are cleared; 0 clears none.
    pub reset_at_most: i64,
    /// The expected window of the database's clock. While the clock is outside, no owner is cleared
    /// (protocol rule 25).
    pub clock: Option<ClockWindow>,
    /// The longest wait for a connection after which the cycle still clears owners. The database may
    /// have been away during a longer one.
    pub may_wait: Duration,
    /// The minimum time since the server's start. Before that no owner is cleared, because holders
    /// may not have renewed yet.
    pub grace: Duration,
    /// The services of the fleet. Other jobs whose lease lost its owner wait without a hint.
    pub services: Services,
    /// The time after which a job whose lease has no owner is hinted again; after that, at growing
    /// intervals.
    pub again_after: Duration,
    /// Maximum number of unhinted jobs to hint.
    pub hint_at_most: i64,
    /// The types whose attempts are recorded. An attempt of such a type whose lease this cycle ends
    /// gets a row.
    pub attempts_kept: AttemptsKept,
}

impl LeaderCycle {
    /// Returns the arguments of the same cycle for a connection that came after `waited`.
    pub(super) fn behind(&self, waited: Duration) -> Self {
        if waited <= self.may_wait {
            self.after(waited)
        } else {
            self.clone()
        }
    }

    /// Returns the arguments of the same cycle, `passed` later.
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

/// The times that the database's clock may show, given an earlier reading and the time since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockWindow {
    /// The earliest time.
    pub from: DateTime<Utc>,
    /// The latest time.
    pub until: DateTime<Utc>,
}

/// The result of a leader cycle.
#[derive(Debug)]
pub enum CycleOutcome {
    /// The asking node leads.
    Leads(Box<CycleReport>),
    /// Another node leads.
    Follows {
        /// The leader.
        leader: NodeId,
        /// Its transport.
        transport: String,
        /// The rest of its lease.
        remaining: Duration,
        /// The database's clock at the start of the cycle.
        now: DateTime<Utc>,
    },
}

/// The data that a leader cycle reads.
#[derive(Debug, Default)]
pub struct CycleReport {
    /// The term, which grows with every change of leader.
    pub term: i64,
    /// The database's clock at the start of the cycle. Jobs that the cycle marks became ready
    /// later.
    pub now: DateTime<Utc>,
    /// The transactions that had ended by `now`.
    pub horizon: Option<Horizon>,
    /// Jobs whose lease has no owner, to hint before all others. This cycle has cleared the owner,
    /// or an earlier cycle has and no node has locked the job since.
    pub rescued: Vec<Rescued>,
    /// Jobs that have never had a hint. The caller hints them.
    pub unhinted: Vec<Ready>,
    /// Jobs whose lease has expired and that an operator had cancelled. They were deleted.
    pub cancelled: Vec<JobId>,
    /// Jobs that waited for the instances of the cancelled ones. The caller hints them.
    pub freed: Vec<Ready>,
    /// The next due date.
    pub next_due: Option<DateTime<Utc>>,
    /// The next due date of a periodic job.
    pub next_periodic: Option<DateTime<Utc>>,
    /// Number of jobs with a valid lease.
    pub leased: i64,
    /// Number of executable jobs, exact up to [`COUNT_LIMIT`]. Beyond it an estimate, or
    /// `COUNT_LIMIT` + 1.
    pub executable: i64,
    /// Number of timers and waiting retries, at most [`COUNT_LIMIT`] + 1.
    pub timers: i64,
    /// Number of dead letters, at most [`COUNT_LIMIT`] + 1.
    pub dead_letters: i64,
    /// The time since which the oldest executable job has been ready.
    pub oldest_ready_at: Option<DateTime<Utc>>,
    /// The number of suspensions and pauses by the word of their scope ([`Gate::WORDS`](crate::store::Gate::WORDS)), without
    /// zeros.
    pub suspensions: BTreeMap<String, i64>,
    /// Whether the cycle freed permits of limits, so that jobs may wait for them in vain.
    pub freed_permits: bool,
    /// Whether a batch is open.
    pub has_batches: bool,
    /// Whether there are jobs to [announce](crate::Store::announce_noted).
    pub has_noted: bool,
    /// Whether the database's clock was outside of the window, so that the cycle cleared no owner.
    pub clock_outside: bool,
    /// Whether the cycle was cut short, so that another one can mark more jobs at once.
    pub has_more: bool,
}

/// Jobs that operations made ready in processes that publish no hints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announced {
    /// The jobs to hint.
    pub ready: Vec<Ready>,
    /// Whether more jobs may be noted.
    pub more: bool,
}

/// A job whose holder has died.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rescued {
    /// Its lane and hint.
    pub ready: Ready,
    /// The properties that a node must serve to run it.
    pub needs: Needs,
    /// Number of holders that died and count (protocol rule 26).
    pub strikes: i32,
    /// The holder whose lease this cycle has ended.
    pub owner: Option<NodeId>,
}

/// Number up to which a leader cycle counts exactly.
pub const COUNT_LIMIT: i64 = 10_000;

/// The number of a transaction before which all transactions had ended. Only for a database that
/// numbers every write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Horizon(pub i64);

/// The time after which a ready row is suspected even if its transaction may still be open. So a
/// transaction that never ends hides no lost hint.
pub(super) const LONG_READY: Duration = Duration::from_secs(600);

/// A query for jobs whose hint was lost.
#[derive(Clone, Debug)]
pub struct OrphanQuery {
    /// The jobs were ready at or before this time, by the database's clock.
    pub ready_before: DateTime<Utc>,
    /// The services of the fleet. Other jobs are gated, not orphaned.
    pub services: Services,
    /// The first transaction whose rows are not suspected, unless they have been ready for ten
    /// minutes. Such rows became ready before the marker left, but may have been committed later.
    pub horizon: Option<Horizon>,
    /// The time that is added after the second hint of a job; it doubles with each further one, six
    /// times at most. Default: 5 s. Zero if earlier hints are gone for certain.
    pub back_off: Duration,
    /// Jobs whose hints are known to be on their way.
    pub held: Arc<[JobId]>,
    /// The lane of the jobs.
    pub lane: Lane,
    /// Continue after this id.
    pub after: Option<JobId>,
    /// Maximum number of jobs.
    pub limit: i64,
    /// Whether to look at ids from the future, too, of creators whose clocks run ahead. Reads every
    /// row of the table.
    pub whole: bool,
    /// Whether to write `ready_at` and count the hint, so that the row is not suspected again at
    /// once. If false, the query changes nothing (dry run).
    pub mark: bool,
}

/// The usual [`OrphanQuery::back_off`].
pub(crate) const BACK_OFF: Duration = Duration::from_secs(5);

impl OrphanQuery {
    /// Returns a query for all rows of a lane that were ready then, at most `limit` in one page. It
    /// changes none of them.
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
            back_off: BACK_OFF,
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
    /// The jobs to hint, in the order of their ids.
    pub ready: Vec<Ready>,
    /// The id after which to continue, if there may be more.
    pub next: Option<JobId>,
}

impl OrphanPage {
    /// Returns the page of a query for `at_most` jobs.
    pub(super) fn of(ready: Vec<Ready>, at_most: i64) -> Self {
        let is_full = i64::try_from(ready.len()).is_ok_and(|found| found >= at_most);
        let next = ready.last().map(|last| last.hint.id).filter(|_| is_full);
        Self { ready, next }
    }
}

/// Timers that were due.
#[derive(Debug, Default)]
pub struct MovedTimers {
    /// Jobs that are executable now. The caller hints them.
    pub ready: Vec<Ready>,
    /// Jobs that are executable and locked for the caller, which runs them now.
    pub locked: Vec<LockedJob>,
    /// The next due date.
    pub next_due: Option<DateTime<Utc>>,
    /// The database's clock.
    pub now: DateTime<Utc>,
}

impl OrphanQuery {
    /// Returns the smallest version-7 id of a moment one minute after `ready_before`. A row with a
    /// larger id is too young, unless its creator's clock ran ahead by more than a minute.
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

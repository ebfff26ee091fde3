//! Whether the configured zone is that of the engine's JVM.
//!
//! The engine's `StrongUuidGenerator` puts the moment of creation into each id, in UTC. The row has
//! the same moment as a local time of the JVM. So one row shows by how much the engine's clock
//! differs from the configured zone, whatever the age of the row and the clock of the machine. The
//! newest of the known rows decide, by majority: older ones may be from a time when the JVM had another zone.
//! A node knows the rows at both ends of the tables, and one job of each batch that it has locked.
//!
//! A node reads the tables at its start, and the leader once a minute. While no row has voted, a
//! node reads them before each statement that depends on the zone, so the first timer of a new engine is
//! judged by its own row.
//!
//! | the engine's clock | what would go wrong | what the bridge does |
//! | --- | --- | --- |
//! | agrees | | |
//! | is behind the zone | timers start early, and locks of living engine nodes look expired | a due date, or a lock of an engine node, counts as past only if it is past in every zone |
//! | is ahead of the zone | timers start late, locks of dead engine nodes are cleared late, and an engine node that polls may take a lock of Jobwire for expired | reports it |
//!
//! A row has no vote if its id has no time (a number, or a random UUID), or if the difference of its
//! two times is not one of zones: zones differ by a multiple of 15 minutes. Rows with forged times can
//! only delay timers and the rescue from engine nodes; ready jobs run.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use jobwire_core::{Job, StoreError};
use sqlx::PgPool;
use tokio::time::Instant;
use uuid::Uuid;

use crate::finding::Finding;
use crate::id::engine_id;

/// The zone in which the day ends last. A time that is past there is past in every zone.
const LAST: &str = "Etc/GMT+12";
/// The number of rows that decide.
const VOTES: usize = 9;
/// The step in which zones differ, in seconds.
const QUARTER: i64 = 900;
/// The largest difference of two zones, in quarters of an hour.
const MOST: i64 = 26 * 4;
/// The seconds within which the engine writes both times of a row.
const TOGETHER: i64 = 30;
/// The difference of clocks for which a time in the future is allowed.
const SKEW: chrono::Duration = chrono::Duration::minutes(1);
/// The pause between two reads of the rows.
const EVERY: Duration = Duration::from_secs(60);
/// The pause after a read of rows without a vote.
const WITHOUT_VOTE: Duration = Duration::from_secs(1);

/// The zone in which a lock with this owner is compared with the clock: `$1` for a lock of Jobwire,
/// which writes it in the configured zone.
macro_rules! zone_of_lock {
    ($owner:literal, $judged:literal) => {
        concat!(
            "(CASE WHEN starts_with(",
            $owner,
            ", 'jobwire:') THEN $1::text ELSE ",
            $judged,
            "::text END)"
        )
    };
}
pub(crate) use zone_of_lock;

/// The local time with which a lock with this owner is compared.
macro_rules! now_of_lock {
    ($owner:literal, $judged:literal) => {
        concat!(
            "(clock_timestamp() AT TIME ZONE ",
            $crate::zone::zone_of_lock!($owner, $judged),
            ")"
        )
    };
}
pub(crate) use now_of_lock;

/// True if the owner is a node of Jobwire that has written its row lately.
macro_rules! owner_lives {
    ($owner:literal) => {
        concat!(
            "EXISTS (SELECT FROM jobwire_engine.node n
            WHERE n.id::text = split_part(",
            $owner,
            ", ':', 2) AND n.seen_at > clock_timestamp() - interval '90 seconds')"
        )
    };
}
pub(crate) use owner_lives;

/// True if the holder of a lock that ended at `$until` may be dead, or has lost the lock.
///
/// While the configured zone seems to be wrong, every lock of a living node of Jobwire stays: it may have
/// been written in another zone. Otherwise such a lock stays while its end is less than five minutes
/// ahead in another zone. Zones differ by multiples of 15 minutes, so such an end is 10 to 15 minutes
/// past, or a multiple of 15 minutes more. A lock that its node has lost leaves this range after five
/// minutes at most.
macro_rules! may_be_lost {
    ($until:literal, $owner:literal, $judged:literal) => {
        concat!(
            "((",
            $judged,
            "::text = $1::text AND (CASE WHEN ",
            $crate::zone::is_moment!($until),
            " THEN extract(epoch FROM (clock_timestamp() AT TIME ZONE $1) - ",
            $until,
            ")::bigint % 900 >= 600 END) IS NOT TRUE) OR NOT ",
            $crate::zone::owner_lives!($owner),
            ")"
        )
    };
}
pub(crate) use may_be_lost;

/// True if a local time is in the years 1 to 9998. PostgreSQL cannot convert the ends of its range in each
/// zone, nor subtract its infinities, and this program cannot read them: a statement with such a row
/// would fail.
macro_rules! is_moment {
    ($($local:literal),+) => {
        concat!(
            "(",
            $($local,)+
            " >= '0001-01-01' AND ",
            $($local,)+
            " < '9999-01-01')"
        )
    };
}
pub(crate) use is_moment;

/// The moment of a local time in the zone `$1`. NULL if it [is none](is_moment).
macro_rules! moment_of {
    ($($local:literal),+) => {
        concat!(
            "CASE WHEN ",
            $crate::zone::is_moment!($($local),+),
            " THEN ",
            $($local,)+
            " AT TIME ZONE $1 END"
        )
    };
}
pub(crate) use moment_of;

/// The moment at which a lock with this owner ended. NULL if it is none: then no transaction began
/// before it.
macro_rules! end_of_lock {
    ($until:literal, $owner:literal, $judged:literal) => {
        concat!(
            "CASE WHEN ",
            $crate::zone::is_moment!($until),
            " THEN ",
            $until,
            " AT TIME ZONE ",
            $crate::zone::zone_of_lock!($owner, $judged),
            " END"
        )
    };
}
pub(crate) use end_of_lock;

/// Selects the id, the time and the database's clock of rows with the local time `written`. Leaves out
/// the hour that the clocks show twice when summer time ends. `$1`: the zone.
macro_rules! stamps {
    ($($rows:tt)+) => {
        concat!(
            "
SELECT id_, written AT TIME ZONE $1, clock_timestamp() FROM (",
            $($rows)+,
            ") r
WHERE written > '1970-01-01' AND written < '9999-01-01'
    AND written <> ((written AT TIME ZONE $1) - interval '1 hour') AT TIME ZONE $1"
        )
    };
}
pub(crate) use stamps;

/// Selects rows at both ends of a table: new rows stand at its end, or in the space of deleted ones. A
/// block has at most 291 rows, so the limit leaves out none of the last blocks.
macro_rules! ends {
    ($columns:literal, $table:literal) => {
        concat!(
            "(SELECT ",
            $columns,
            " FROM ",
            $table,
            " LIMIT 500) UNION ALL (SELECT ",
            $columns,
            " FROM ",
            $table,
            " WHERE ctid >= (SELECT format('(%s,0)', greatest(pg_relation_size('",
            $table,
            "') / current_setting('block_size')::bigint - 3, 0))::tid) LIMIT 1000)"
        )
    };
}
pub(crate) use ends;

/// Returns the moment in an id of the engine.
fn moment(id: &str) -> Option<DateTime<Utc>> {
    // A prefix names the kind of row: `JOB-`.
    let uuid = id.get(id.len().checked_sub(36)?..)?;
    let (seconds, nanos) = Uuid::try_parse(uuid).ok()?.get_timestamp()?.to_unix();
    DateTime::from_timestamp(i64::try_from(seconds).ok()?, nanos)
}

/// Returns by how many quarters of an hour the engine's clock was ahead of the configured zone when
/// it wrote a row: negative if it was behind. `made` is the moment in the id, `written` the row's
/// time, read in the zone. `None` if the row has no vote.
fn difference(made: DateTime<Utc>, written: DateTime<Utc>, now: DateTime<Utc>) -> Option<i64> {
    let seconds = (written - made).num_seconds();
    let quarters = (seconds + QUARTER / 2).div_euclid(QUARTER);
    let together = (seconds - quarters * QUARTER).abs() <= TOGETHER && quarters.abs() <= MOST;
    // A job that the engine moves to another table keeps its id and gets a new time. So only a time
    // in the future shows that the engine's clock is ahead. An id cannot be younger than now.
    let is_sure = made <= now + SKEW && (quarters <= 0 || written > now + SKEW);
    (together && is_sure).then_some(quarters)
}

/// The votes of the newest rows, the newest one first. Plain logic.
#[derive(Debug, Default)]
struct Votes(Vec<(DateTime<Utc>, i64)>);

impl Votes {
    /// Enters the vote of a row.
    fn enter(&mut self, made: DateTime<Utc>, quarters: i64) {
        // A row that is known keeps its vote.
        if let Err(at) = self.0.binary_search_by(|(known, _)| made.cmp(known)) {
            self.0.insert(at, (made, quarters));
            self.0.truncate(VOTES);
        }
    }

    /// Returns the difference that most of them show; 0 if the zone is right, or if there is no
    /// majority.
    fn decide(&self) -> i64 {
        let said = |side: i64| {
            let of_side = self.0.iter().filter(move |(_, q)| q.signum() == side);
            of_side.map(|(_, quarters)| *quarters)
        };
        let most = [-1, 1]
            .into_iter()
            .find(|side| said(*side).count() * 2 > self.0.len());
        most.and_then(|side| said(side).next()).unwrap_or_default()
    }
}

/// The configured zone, and the votes of the engine's rows. See the [module](self).
#[derive(Debug)]
pub(crate) struct Zone {
    name: String,
    votes: Mutex<Votes>,
    /// By how many quarters of an hour the engine's clock is ahead.
    ahead: AtomicI64,
    /// The time of the next read of the rows.
    next: Mutex<Option<Instant>>,
    /// The end of the pause after a read of rows without a vote.
    silent_until: Mutex<Option<Instant>>,
}

impl Zone {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            votes: Mutex::default(),
            ahead: AtomicI64::new(0),
            next: Mutex::default(),
            silent_until: Mutex::default(),
        }
    }

    /// Returns the configured zone, in which Jobwire writes.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the zone in which due dates, and locks of engine nodes, count as past.
    pub(crate) fn judged(&self) -> &str {
        match self.ahead.load(Ordering::Relaxed) {
            ..=-1 => LAST,
            _ => &self.name,
        }
    }

    /// Notes a row with the id of the engine and its time, read in the zone.
    pub(crate) fn note(&self, id: &str, written: DateTime<Utc>, now: DateTime<Utc>) {
        let Some(made) = moment(id) else {
            return;
        };
        let Some(quarters) = difference(made, written, now) else {
            return;
        };
        let mut votes = self.votes();
        votes.enter(made, quarters);
        self.ahead.store(votes.decide(), Ordering::Relaxed);
    }

    /// Notes a job that this node has locked.
    pub(crate) fn note_job(&self, job: &Job) {
        let now = Utc::now();
        // Jobwire writes the time of a timer that it makes executable. A time in the future is left to
        // the read of the rows, which leaves out the hour that the clocks show twice.
        if job.due_at.is_some() || job.created_at > now + SKEW {
            return;
        }
        if let Some(id) = engine_id(job.id) {
            self.note(&id, job.created_at, now);
        }
    }

    /// A poisoned lock means that a thread panicked between whole operations.
    fn votes(&self) -> MutexGuard<'_, Votes> {
        self.votes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a row has voted.
    fn is_known(&self) -> bool {
        !self.votes().0.is_empty()
    }

    /// Returns whether the rows are to be read now, and begins the pause until the next read.
    pub(crate) fn begins_read(&self) -> bool {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let begins = next.is_none_or(|next| now >= next);
        if begins {
            *next = Some(now + EVERY);
        }
        begins
    }

    /// Reads rows of the engine while none has voted. Precedes each statement that depends on the
    /// zone. An engine without a time in its ids is read once a second. `stamps` is the dialect's
    /// statement.
    pub(crate) async fn learn(
        &self,
        stamps: &'static str,
        pool: &PgPool,
    ) -> Result<(), StoreError> {
        if self.must_learn() {
            self.read(stamps, pool).await?;
        }
        Ok(())
    }

    /// Reads rows of the engine, and notes their votes.
    pub(crate) async fn read(&self, stamps: &'static str, pool: &PgPool) -> Result<(), StoreError> {
        let rows: Vec<(String, DateTime<Utc>, DateTime<Utc>)> = sqlx::query_as(stamps)
            .bind(self.name())
            .fetch_all(pool)
            .await?;
        for (id, written, now) in &rows {
            self.note(id, *written, *now);
        }
        self.has_read(rows.len());
        Ok(())
    }

    /// Returns whether the rows are to be read before a statement that depends on the zone.
    fn must_learn(&self) -> bool {
        !self.is_known() && self.silence().is_none_or(|until| Instant::now() >= until)
    }

    /// Records that this number of rows was read while none had voted.
    fn has_read(&self, rows: usize) {
        if rows > 0 && !self.is_known() {
            *self.silence() = Some(Instant::now() + WITHOUT_VOTE);
        }
    }

    fn silence(&self) -> MutexGuard<'_, Option<Instant>> {
        let silent_until = self.silent_until.lock();
        silent_until.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the problem of a wrong zone, with its remedy.
    pub(crate) fn problem(&self) -> Option<String> {
        let ahead = self.ahead.load(Ordering::Relaxed);
        let (side, effect) = match ahead {
            0 => return None,
            ..=-1 => (
                "behind",
                "until then due dates and locks of engine nodes count as past only when they are past in every zone, so \
                 timers and the takeover from dead engine nodes are late",
            ),
            1.. => (
                "ahead of",
                "until then timers and the takeover from dead engine nodes are late, and an engine node that polls may \
                 take a lock of Jobwire for expired",
            ),
        };
        Some(format!(
            "the engine's clock is {} h {} min {side} the zone `{}`, by the ids and times of its newest rows; set \
             `engine_zone` to the zone of the engine's JVM, and restart; {effect}",
            ahead.abs() / 4,
            ahead.abs() % 4 * 15,
            self.name
        ))
    }

    /// Returns the finding for the operator; `None` if no row has voted.
    pub(crate) fn finding(&self) -> Option<Finding> {
        let about = "zone";
        match self.problem() {
            Some(problem) => Some(Finding::wrong(about, problem)),
            None => self.is_known().then(|| {
                let found = format!(
                    "the engine's newest rows agree with the zone `{}`",
                    self.name
                );
                Finding::fine(about, found)
            }),
        }
    }
}

#[cfg(test)]
mod tests;

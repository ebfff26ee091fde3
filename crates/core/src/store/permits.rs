//! Permits: at most a number of jobs with one key run at once in the fleet, or start in a period.
//!
//! A limit has a name and a size, and its jobs have keys. The permits of a key are as many as the
//! size. A node **borrows** permits of a key, one for each job that it runs, and sometimes some to
//! spare. The promise is that the sum of the borrowed permits never exceeds the size: permits are
//! granted under the row lock of the key, and messages have no part in it.
//!
//! A node names the absolute number of permits that it **keeps** of each key, so a repeated request
//! changes nothing, and an unanswered one is corrected by the next. It keeps no more than the
//! database knows of.
//!
//! A job that gets no permit is **parked**: the transaction that refuses it ends its lease and
//! writes a row of `waiting_job`. If the job has strikes, its lease stays without an owner. Whatever
//! frees permits **wakes** as many waiting jobs, in creation order, and returns them to be hinted. A
//! permit is reserved for a woken job for five seconds, so that no later job takes it. Rows of jobs
//! that no node may lock are deleted before. Claims and the sweeper pass a waiting job over. If no
//! node has used its key for ten minutes, they take it like any other.
//!
//! The waiting jobs of a **fair** limit have turns in place of the creation order, as in start-time fair
//! queueing (Goyal, Vin, Cheng: Start-time Fair Queuing, 1996). The turn of a job is two behind the last
//! waiting job with its fair key. Without such a job, it is one behind the first waiting job of all, so it
//! passes over all but the first round of the others. An empty queue begins at the creation order of its
//! first job. The turns go by the number of starts, not by the time for which jobs run.
//!
//! A permit of a **rate** is in use until it has **cooled down**: a cool-down after the start of its job.
//! The node that holds it measures that time and reuses it, or gives it back when it is cold. It **hands
//! over** permits that cool down when it ends, and those that cool down for long. Each becomes a row of
//! its own, which belongs to no node and expires when the permit is cold.
//!
//! A node borrows for five minutes at most and renews each minute. So a row that expires later than a
//! loan and a cool-down from now, and that has not changed for that long by the monotonic clock of a
//! node that looks, is in use by no node, whatever its date says. Such a row of a **lasting** permit is
//! deleted. No date decides this alone: after the database's clock was set back, the rows of living nodes
//! expire as late, until they are renewed.
//!
//! The leader cycle frees the permits of a node that died when its row has expired and no lease names
//! the node. The row of a node expires a cool-down after the end of its trust, so every start under its
//! permits has cooled down by then. The leader frees handed over permits by the same statement.

pub(super) mod cooling;
pub(super) mod share;

use std::time::Duration;

use crate::hint::Ready;
use crate::job::scope::Needs;
use crate::job::text::storable;
use crate::job::{JobId, LockToken, NodeId};

pub use cooling::Cooling;

/// The time for which a permit is reserved for a woken job. Then its hint counts as lost or as
/// refused, and any job of the key may take the permit.
pub(super) const RESERVED: Duration = Duration::from_secs(5);
/// The longest time for which a node borrows permits. It renews them once a minute at least, also if its
/// leases are longer.
pub const LONGEST_LOAN: Duration = Duration::from_secs(300);
/// Maximum number of permits that one look for lasting permits returns.
pub(super) const LASTING: i64 = 1_000;
/// Maximum number of keys that one query for stalled keys returns.
pub(super) const STALLED: i64 = 1_000;
/// Maximum number of waiting jobs that a statement counts for a key.
pub(super) const COUNTED: i64 = 1_000;

/// Maximum length of a name or key, in bytes. Longer ones are cut.
const TEXT_BYTES: usize = 512;

/// Returns a text as names and keys have it, so that every database stores it: without NUL, and not too
/// long.
pub(crate) fn fitting(text: String) -> String {
    storable(text, TEXT_BYTES)
}

/// The jobs that a limit counts together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PermitKey {
    /// The name of the limit.
    pub limit: String,
    /// The key, for example a tenant; empty if the limit has only one.
    pub key: String,
}

/// A locked job that needs a permit.
#[derive(Clone, Debug)]
pub struct Asking {
    /// The lock token.
    pub held: LockToken,
    /// The type, for the row of a job that waits.
    pub job_type: String,
    /// The creation order.
    pub seq: i64,
    /// The key by which the jobs of a fair limit take turns.
    pub fair_key: Option<String>,
}

/// The request of a node for one key.
#[derive(Clone, Debug)]
pub struct KeyRequest {
    /// The key.
    pub key: PermitKey,
    /// The size of the limit: the number of permits of each key.
    pub size: i32,
    /// The number of permits that the node keeps. It gives the others back.
    pub keep: i32,
    /// Maximum number of permits to borrow beside those of the asking jobs, if no job waits.
    pub spare: i32,
    /// The time for which a permit stays in use after the start of its job. Zero: until its end.
    pub cool_down: Duration,
    /// The permits that cool down and that the node keeps no longer.
    pub cooling: Vec<Cooling>,
    /// The jobs that need a permit.
    pub asking: Vec<Asking>,
}

/// A request of a node for permits of some keys.
#[derive(Clone, Debug)]
pub struct PermitRequest {
    pub(super) node: NodeId,
    pub(super) lease: Duration,
    /// The rows of the keys are probably locked.
    pub(super) impatient: bool,
    /// Sorted by key, each key once.
    pub(super) keys: Vec<KeyRequest>,
}

impl PermitRequest {
    /// Creates a request. Each key occurs at most once. `lease` is the time for which the node
    /// borrows.
    #[must_use]
    pub fn new(node: NodeId, lease: Duration, mut keys: Vec<KeyRequest>) -> Self {
        keys.sort_by(|a, b| a.key.cmp(&b.key));
        for of in &mut keys {
            of.size = of.size.max(1);
            of.keep = of.keep.max(0);
            of.spare = of.spare.max(0);
            for cooling in &mut of.cooling {
                cooling.number = cooling.number.max(0);
            }
        }
        Self {
            node,
            lease,
            impatient: false,
            keys,
        }
    }

    /// Returns the requests for the keys, sorted by key.
    #[must_use]
    pub fn keys(&self) -> &[KeyRequest] {
        &self.keys
    }

    /// Waits for a locked row for a quarter of a second only.
    #[must_use]
    pub fn impatient(mut self) -> Self {
        self.impatient = true;
        self
    }

    /// Returns the asking jobs of all keys.
    pub(super) fn asking(&self) -> impl Iterator<Item = &Asking> {
        self.keys.iter().flat_map(|of| &of.asking)
    }
}

/// The answer for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyAnswer {
    /// The key.
    pub key: PermitKey,
    /// The number of permits that the node has borrowed now.
    pub number: i32,
    /// The jobs that have a permit now.
    pub granted: Vec<JobId>,
    /// Whether jobs of the key wait: the node gives permits back as soon as it can.
    pub contended: bool,
}

/// The answer to a request for permits. An asking job that is neither granted nor parked has lost
/// its lock.
#[derive(Clone, Debug, Default)]
pub struct PermitAnswer {
    /// One answer for each key.
    pub keys: Vec<KeyAnswer>,
    /// The jobs whose leases were ended. They wait for a permit, or were
    /// [`cancelled`](Self::cancelled).
    pub parked: Vec<JobId>,
    /// Those of `parked` that an operator had cancelled, so that they were deleted.
    pub cancelled: Vec<JobId>,
    /// Jobs to hint: woken ones, and the siblings of parked ones.
    pub ready: Vec<Ready>,
    /// The woken ones of `ready`, with the properties that a node must serve to run them.
    pub woken: Vec<(JobId, Needs)>,
}

/// A job that waits for a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingJob {
    /// The job.
    pub id: JobId,
    /// The key of the permit.
    pub key: PermitKey,
}

/// A key whose waiting jobs could run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StalledKey {
    /// The key.
    pub key: PermitKey,
    /// The size of its limit, as the last node named it.
    pub size: i32,
}

/// A permit that expires later than a node would borrow it, or keep it cooling down, and for which jobs
/// wait. Its node never wrote it, or the database's clock was set back since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastingPermit {
    /// The name of the limit.
    pub limit: String,
    /// The contents of the row, which change when a node renews it.
    pub row: String,
}

/// The jobs of a type that wait for a permit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingType {
    /// The type.
    pub job_type: String,
    /// The number of its waiting jobs.
    pub jobs: i64,
}

/// True if the job waits for a permit of a key that is in use. `$waiting` and `$key` are the names
/// of the tables. A key counts as unused if no node has named it from `$since` to `$now`.
macro_rules! waits {
    ($t:literal, $waiting:literal, $key:literal, $since:literal, $now:literal) => {
        concat!(
            "EXISTS (SELECT 1 FROM ",
            $waiting,
            " w JOIN ",
            $key,
            " k ON k.limit_name = w.limit_name AND k.key = w.key WHERE w.job_id = ",
            $t,
            ".id AND w.woken_at IS NULL AND k.used_at BETWEEN ",
            $since,
            " AND ",
            $now,
            ")"
        )
    };
}
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(super) use waits;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_fits_every_database() {
        assert_eq!(fitting("a\0b".to_owned()), "a\u{fffd}b");
        let long = "ä".repeat(TEXT_BYTES);
        assert_eq!(fitting(long), "ä".repeat(TEXT_BYTES / 2));
        let odd = format!("x{}", "ä".repeat(TEXT_BYTES));
        assert_eq!(fitting(odd).len(), TEXT_BYTES - 1);
    }
}

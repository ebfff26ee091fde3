//! A hint that waits for a slot, how it arrived, and earlier tries.

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use crate::hint::Hint;
use crate::lane::start_order::Place;
use crate::transport::Ticket;

/// A hint that waits for a slot.
pub(super) struct Waiting {
    pub(super) hint: Hint,
    pub(super) of: Arrival,
}

/// The arrival of a hint, and earlier tries to lock its job.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    /// The position of the lane in the setting.
    pub(super) lane: usize,
    /// The ticket of the message; `None` for an own hint.
    pub(super) ticket: Option<Ticket>,
    pub(super) received_at: DateTime<Utc>,
    /// The time of the hint's publication by the publisher's clock, if it is known.
    pub(super) published_at: Option<DateTime<Utc>>,
    /// Whether the job's holder has died.
    pub(super) rescued: bool,
    /// Whether a permit is reserved for the job.
    pub(super) woken: bool,
    /// Whether the hint was forwarded by a node that does not serve the job.
    pub(super) forwarded: bool,
    pub(super) tried: Tried,
    /// The time since which every try found no free slot of the type, if the last one did.
    pub(super) full_since: Option<Instant>,
    /// The place of the job in the node's start order, once it is known.
    pub(super) rank: Ranked,
}

/// The last tries to lock the job of a hint.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tried {
    /// None was made.
    Never,
    /// Every try since then found the row busy, or a job that this node does not serve and could not
    /// forward yet.
    Busy(Instant),
    /// The database refused to lock this job alone, when this number of statements had locked jobs.
    Refused(u64),
}

/// The known place of a job in the start order. Hints with a smaller value come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ranked {
    /// The place of the job.
    At(Place),
    /// The job was not ready when its place was read; the lock will tell.
    Nowhere,
    /// The place was not read yet.
    Unread,
}

impl Arrival {
    /// Returns whether the hint was set aside because its type had no free slot.
    pub(super) fn is_full(&self) -> bool {
        self.full_since.is_some()
    }
}

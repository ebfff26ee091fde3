//! The permits of one key on this node.
//!
//! A permit of a concurrency limit is in use until its job ends. One of a rate is in use until it has
//! cooled down after the start of its job, by the monotonic clock.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::cooling::CoolingQueue;
use super::{Extent, GATHER, IDLE};
use crate::store::permits::Cooling;

/// The divisor of a limit's size that gives the permits that a node borrows to spare.
const SPARE: i32 = 8;
/// The cool-down above which the database keeps permits that cool down, and not the node: so none of
/// them is lost with the node.
const LONG: Duration = Duration::from_secs(60);

/// The size of a limit, and how long its permits cool down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The number of permits of each key.
    pub(crate) size: i32,
    /// The time for which a permit stays in use after the start of its job. Zero for a concurrency
    /// limit: until the end of the job.
    pub(crate) cool_down: Duration,
}

impl Terms {
    /// Returns whether permits cool down.
    pub(crate) fn is_rate(self) -> bool {
        !self.cool_down.is_zero()
    }
}

/// The end of the trust in an answer, by both clocks.
#[derive(Clone, Copy, Debug)]
pub(in crate::worker) struct TrustedUntil {
    monotonic: Instant,
    wall: DateTime<Utc>,
}

impl TrustedUntil {
    /// Returns the end of a trust that begins now.
    pub(in crate::worker) fn after(time: Duration) -> Self {
        Self {
            monotonic: Instant::now() + time,
            wall: Utc::now() + time,
        }
    }

    pub(super) fn is_over(self) -> bool {
        Instant::now() >= self.monotonic || Utc::now() >= self.wall
    }
}

/// A key that is sent in a request of its own, because a request with it was refused: its row may
/// be locked by another transaction, and must not stop the other keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct Apart {
    /// The time before which it is not sent.
    pub(super) from: Instant,
    /// The pause after the next refusal.
    pub(super) backoff: Duration,
    /// The number of refused requests with no other key.
    pub(super) refusals: u32,
}

/// The permits of one key.
pub(super) struct Borrowed {
    pub(super) terms: Terms,
    /// The number of borrowed permits.
    pub(super) number: i32,
    /// The number of permits in use: of jobs that run or are about to start, and those that cool
    /// down. Larger than `number` only if the node has lost permits whose jobs have lost their
    /// leases, too.
    pub(super) used: i32,
    /// Those of `used` that cool down.
    pub(super) cooling: CoolingQueue,
    /// The permits that the request under way hands over to the database.
    handed: Option<CoolingQueue>,
    /// The end of the time for which the node trusts the permits.
    pub(super) until: TrustedUntil,
    /// The smallest number of free permits since the window began.
    pub(super) least_free: i32,
    /// When the window ends.
    pub(super) window_ends: Instant,
    /// Jobs of the key wait in the database.
    pub(super) contended: bool,
    /// The database may have another number than this node, or the row expires too soon.
    pub(super) unsure: bool,
    /// The cool-down of the last request.
    asked_for: Duration,
    pub(super) apart: Option<Apart>,
}

impl Borrowed {
    /// Returns the state of a key of which the node has borrowed nothing.
    pub(super) fn nothing(terms: Terms, now: Instant) -> Self {
        Self {
            terms,
            number: 0,
            used: 0,
            cooling: CoolingQueue::default(),
            handed: None,
            until: TrustedUntil::after(Duration::ZERO),
            least_free: 0,
            window_ends: now + IDLE,
            contended: false,
            unsure: false,
            asked_for: terms.cool_down,
            apart: None,
        }
    }

    pub(super) fn free(&self) -> i32 {
        (self.number - self.used).max(0)
    }

    /// Frees the permits that have cooled down.
    pub(super) fn cool(&mut self, now: Instant) {
        self.used -= self.cooling.take_cold(now);
    }

    pub(super) fn begin_window(&mut self, now: Instant) {
        self.least_free = self.free();
        self.window_ends = now + IDLE;
    }

    /// Takes a free permit, if a job may start under it without a request. The row of this node must
    /// not expire before the permit has cooled down.
    pub(super) fn take_free(&mut self, cool_down: Duration) -> bool {
        if !self.cooling.is_empty() {
            self.cool(Instant::now());
        }
        let is_covered = cool_down <= self.terms.cool_down;
        let takes = self.free() > 0 && !self.contended && is_covered && !self.until.is_over();
        if takes {
            self.used += 1;
            self.least_free = self.least_free.min(self.free());
        }
        takes
    }

    /// Returns when the task has to look at this key, if nothing changes. The permits of a window that
    /// has ended wait for those of other keys.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let gives = if self.free() > 0 {
            Some(if self.contended {
                now
            } else {
                self.window_ends + GATHER
            })
        } else if self.terms.is_rate() && self.used > 0 && !self.contended {
            // Free permits of a rate go back, too. No job waits for this one.
            let cold = self.cooling.last_end().unwrap_or(now);
            Some(cold.max(now + IDLE))
        } else {
            None
        };
        let hands = (self.keeps_no_cooling() && !self.cooling.is_empty())
            .then_some(self.window_ends + GATHER);
        let cools = if self.contended {
            self.cooling.next_end()
        } else {
            None
        };
        let due = [gives, hands, cools].into_iter().flatten().min();
        match self.apart {
            Some(apart) if self.unsure => Some(apart.from),
            Some(apart) => due.map(|due| due.max(apart.from)),
            None if self.unsure => Some(now),
            None => due,
        }
    }

    /// Returns whether the database keeps the permits that cool down.
    fn keeps_no_cooling(&self) -> bool {
        self.terms.cool_down > LONG
    }

    /// Returns the number of permits to give back, or `None` if there is nothing to send.
    pub(super) fn to_give_back(&self, extent: Extent, asks: bool, now: Instant) -> Option<i32> {
        let gives_all = self.contended || extent == Extent::Back || self.until.is_over();
        let back = if gives_all || asks {
            self.free()
        } else if now >= self.window_ends {
            (self.least_free - self.margin()).clamp(0, self.free())
        } else {
            0
        };
        let may_hand =
            extent == Extent::Back || (self.keeps_no_cooling() && now >= self.window_ends);
        let hands = may_hand && !self.cooling.is_empty();
        (asks || back > 0 || hands || extent == Extent::All || self.unsure).then_some(back)
    }

    /// Returns the number of free permits to keep beyond a window: of a rate, half of those that were in
    /// use at once. The number of starts varies, and without these permits a key would send two requests
    /// in each window. A key without use keeps none.
    fn margin(&self) -> i32 {
        if !self.terms.is_rate() {
            return 0;
        }
        let most_used = self.number.saturating_sub(self.least_free);
        (most_used / 2).clamp(0, self.spare())
    }

    /// Gives `back` permits back, and hands those over to the database that cool down there. The
    /// node counts them no more, so no job starts under them meanwhile.
    pub(super) fn part_with(&mut self, back: i32, extent: Extent, now: Instant) -> Vec<Cooling> {
        self.number = self.number.max(self.used) - back;
        self.asked_for = self.terms.cool_down;
        let hands = extent == Extent::Back || self.keeps_no_cooling();
        let mut handed = Vec::new();
        if hands && !self.cooling.is_empty() {
            let queue = std::mem::take(&mut self.cooling);
            handed = queue.rests(self.terms.cool_down, now);
            self.used -= queue.number();
            self.number -= queue.number();
            self.handed = Some(queue);
        }
        self.begin_window(now);
        handed
    }

    /// Records that the last request has taken effect: the database has the permits that it handed
    /// over.
    pub(super) fn took_effect(&mut self) {
        self.handed = None;
        self.unsure = self.terms.cool_down > self.asked_for;
    }

    /// Begins the cool-down of a permit. If it is longer than that of the row of this node, the row
    /// expires too soon, and is written anew at once.
    pub(super) fn begin_to_cool(&mut self, cool_down: Duration, now: Instant) {
        if cool_down > self.terms.cool_down {
            // The job asked before a handler of the same key with other terms.
            self.terms.cool_down = cool_down;
            self.unsure = true;
        }
        self.cooling.push(cool_down, now);
    }

    /// Takes back what the last request handed over, since its answer is missing. The permits are in
    /// use until they are cold, so that the next request hands them over again. They do not count as
    /// borrowed: the database may have taken them over, so no job may start under them afterwards.
    pub(super) fn take_back(&mut self) {
        if let Some(mut queue) = self.handed.take() {
            self.used += queue.number();
            queue.append(&mut self.cooling);
            self.cooling = queue;
        }
        self.unsure = true;
    }

    /// Returns the number of permits to borrow beside those of the asking jobs: no more than a rate
    /// gives in a second, since those that a node that dies has to spare are missing for long.
    pub(super) fn spare(&self) -> i32 {
        let spare = self.terms.size / SPARE;
        if !self.terms.is_rate() {
            return spare;
        }
        let in_a_second = i64::from(self.terms.size) * 1_000_000_000
            / i64::try_from(self.terms.cool_down.as_nanos()).unwrap_or(i64::MAX);
        i32::try_from(in_a_second).map_or(spare, |of| spare.min(of))
    }
}

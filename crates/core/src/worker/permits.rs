//! The permits that this node has borrowed, and the jobs that ask for one.
//!
//! A job of a type with a [limit](crate::Limit) starts under a permit of its key and gives it back
//! when its handler has ended. Permits that are free here go to the next job of the key without a
//! statement. Permits that were free for [`IDLE`] go back. While jobs of the key wait in the database,
//! every permit goes back at the end of its job, so that the first of them gets it.
//!
//! The node trusts its permits for a window that starts before the statement that wrote them, by its
//! monotonic clock and by its wall clock: the monotonic one stands still while a machine sleeps. So a
//! job that starts under a permit has a lease, and the permit had not expired when that lease was
//! committed: the leader, which looks whether the permit is free, sees the lease.
//!
//! [`permit_exchange`](crate::worker::permit_exchange) has the task that sends the requests, one at a
//! time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::store::permits::{Asking, KeyAnswer, KeyRequest, PermitKey, StalledKey};

/// The time after which permits that were free all the time go back.
const IDLE: Duration = Duration::from_secs(1);
/// The divisor of a limit's size that gives the permits that a node borrows to spare.
const SPARE: i32 = 8;

/// The bounds of the pause of a key whose request is refused although it has no other key.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);
/// The number of such refusals after which no job waits for the key on this node.
const REFUSALS: u32 = 3;

/// The permits of a node.
#[derive(Default)]
pub(crate) struct Permits {
    book: Mutex<Book>,
    /// Wakes the task that sends requests.
    pub(super) wakes: Notify,
}

#[derive(Default)]
struct Book {
    keys: HashMap<PermitKey, Borrowed>,
    asks: Vec<Ask>,
    /// A request is under way, or its answer was lost.
    in_doubt: bool,
    /// The last round had one key that is sent apart.
    was_apart: bool,
    /// The last round left keys for the next one.
    has_more: bool,
}

/// A key that is sent in a request of its own, because a request with it was refused: its row may
/// be locked by another transaction, and must not stop the other keys.
#[derive(Clone, Copy, Debug)]
struct Apart {
    /// The time before which it is not sent.
    from: Instant,
    /// The pause after the next refusal.
    backoff: Duration,
    /// The number of refused requests with no other key.
    refusals: u32,
}

/// The end of the trust in an answer, by both clocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrustedUntil {
    monotonic: Instant,
    wall: DateTime<Utc>,
}

impl TrustedUntil {
    /// Returns the end of a trust that begins now.
    pub(super) fn after(time: Duration) -> Self {
        Self {
            monotonic: Instant::now() + time,
            wall: Utc::now() + time,
        }
    }

    fn is_over(self) -> bool {
        Instant::now() >= self.monotonic || Utc::now() >= self.wall
    }
}

/// The permits of one key.
struct Borrowed {
    size: i32,
    /// The number of borrowed permits.
    number: i32,
    /// The number of jobs that run under them. Larger than `number` only if the node has lost
    /// permits whose jobs have lost their leases, too.
    used: i32,
    /// The end of the time for which the node trusts the permits.
    until: TrustedUntil,
    /// The smallest number of free permits since the window began.
    least_free: i32,
    /// When the window ends.
    window_ends: Instant,
    /// Jobs of the key wait in the database.
    contended: bool,
    /// The database may have another number than this node.
    unsure: bool,
    apart: Option<Apart>,
}

impl Borrowed {
    fn free(&self) -> i32 {
        (self.number - self.used).max(0)
    }

    fn begin_window(&mut self, now: Instant) {
        self.least_free = self.free();
        self.window_ends = now + IDLE;
    }

    /// Returns when permits of this key go back, if nothing changes.
    fn due(&self) -> Option<Instant> {
        let due = if self.free() == 0 {
            None
        } else if self.contended {
            Some(Instant::now())
        } else {
            Some(self.window_ends)
        };
        match self.apart {
            Some(apart) if self.unsure => Some(apart.from),
            Some(apart) => due.map(|due| due.max(apart.from)),
            None => due,
        }
    }

    /// Returns the number of permits to give back, or `None` if there is nothing to send.
    fn to_give_back(&self, extent: Extent, asks: bool, now: Instant) -> Option<i32> {
        let gives_all = self.contended || extent == Extent::Back || self.until.is_over();
        let back = if gives_all || asks {
            self.free()
        } else if now >= self.window_ends {
            self.least_free.min(self.free())
        } else {
            0
        };
        (asks || back > 0 || extent == Extent::All || self.unsure).then_some(back)
    }
}

/// A job that asks for a permit.
pub(crate) struct Ask {
    key: PermitKey,
    size: i32,
    pub(super) job: Asking,
    pub(super) reply: oneshot::Sender<Answered>,
}

/// The answer to a job.
pub(crate) enum Answered {
    /// The job may start.
    Granted(Permit),
    /// The job waits in the database, and its lease has ended. If an operator had cancelled it, it
    /// is deleted.
    Parked,
    /// The lock of the job is lost.
    Lost,
    /// The database refuses the requests of the key, perhaps because of this job.
    Refused,
    /// The answer of the database was lost.
    Unknown,
}

/// A permit, which goes back to the node when it is dropped.
pub(crate) struct Permit {
    pub(super) permits: Arc<Permits>,
    pub(super) key: PermitKey,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.give_back(&self.key);
    }
}

/// The requests of one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    /// The permits that jobs ask for, and those that go back.
    Due,
    /// All keys of this node, to renew them.
    All,
    /// All keys of this node, to give everything back.
    Back,
}

/// The request of one round of the task.
pub(super) struct Round {
    pub(super) keys: Vec<KeyRequest>,
    pub(super) asks: Vec<Ask>,
}

impl Permits {
    /// Returns a permit that is free here, or the receiver of the answer of the database.
    pub(crate) fn ask(
        self: &Arc<Self>,
        key: PermitKey,
        size: i32,
        job: Asking,
    ) -> Result<Permit, oneshot::Receiver<Answered>> {
        let mut book = self.lock();
        if let Some(of) = book.keys.get_mut(&key)
            && of.free() > 0
            && !of.contended
            && !of.until.is_over()
        {
            of.used += 1;
            of.least_free = of.least_free.min(of.free());
            drop(book);
            let permits = self.clone();
            return Ok(Permit { permits, key });
        }
        let (reply, answer) = oneshot::channel();
        let apart = book.keys.get(&key).and_then(|of| of.apart);
        if apart.is_some_and(|apart| apart.refusals >= REFUSALS && Instant::now() < apart.from) {
            let _ = reply.send(Answered::Refused);
            return Err(answer);
        }
        book.asks.push(Ask {
            key,
            size,
            job,
            reply,
        });
        drop(book);
        self.wakes.notify_one();
        Err(answer)
    }

    fn give_back(&self, key: &PermitKey) {
        let mut book = self.lock();
        let Some(of) = book.keys.get_mut(key) else {
            return;
        };
        of.used -= 1;
        let is_first = of.free() == 1;
        let wakes = of.contended || is_first;
        drop(book);
        if wakes {
            self.wakes.notify_one();
        }
    }

    /// Takes what is to be sent now, and names `stalled` keys.
    pub(super) fn begin(&self, extent: Extent, stalled: Vec<StalledKey>) -> Round {
        let now = Instant::now();
        let mut book = self.lock();
        let mut asks = std::mem::take(&mut book.asks);
        // Jobs that were asked to stop meanwhile are released by themselves.
        asks.retain(|ask| !ask.reply.is_closed());
        let mut asking: HashMap<PermitKey, Vec<Asking>> = HashMap::new();
        for ask in &asks {
            let of = book.keys.entry(ask.key.clone());
            let of = of.or_insert_with(|| unknown(ask.size, now));
            of.size = ask.size;
            let jobs = asking.entry(ask.key.clone()).or_default();
            jobs.push(ask.job.clone());
        }
        for StalledKey { key, size } in stalled {
            book.keys
                .entry(key)
                .or_insert_with(|| unknown(size, now))
                .unsure = true;
        }
        let mut due = Vec::new();
        for (key, of) in &mut book.keys {
            match of.to_give_back(extent, asking.contains_key(key), now) {
                Some(back) => due.push((key.clone(), back)),
                None if now >= of.window_ends => of.begin_window(now),
                None => {}
            }
        }
        let sent = book.choose(due, extent, now);
        let mut keys = Vec::with_capacity(sent.len());
        for (key, back) in sent {
            let Some(of) = book.keys.get_mut(&key) else {
                continue;
            };
            let asking = asking.remove(&key).unwrap_or_default();
            // Given back before the statement: no job starts under them meanwhile.
            of.number = of.number.max(of.used) - back;
            of.begin_window(now);
            keys.push(KeyRequest {
                key,
                size: of.size,
                keep: of.number,
                spare: if asking.is_empty() {
                    0
                } else {
                    of.size / SPARE
                },
                asking,
            });
        }
        // The jobs of the other keys ask in a later round.
        let (left, asks) = asks
            .into_iter()
            .partition(|ask| asking.contains_key(&ask.key));
        book.asks = left;
        book.in_doubt = !keys.is_empty();
        Round { keys, asks }
    }

    /// Records the answer for a key. `until` is the end of the trust in it.
    pub(super) fn answered(&self, answer: &KeyAnswer, until: TrustedUntil) {
        let now = Instant::now();
        let mut book = self.lock();
        let Some(of) = book.keys.get_mut(&answer.key) else {
            return;
        };
        of.number = answer.number;
        // Each granted job gives its permit back, even if it is no longer there.
        of.used += i32::try_from(answer.granted.len()).unwrap_or(i32::MAX);
        of.until = until;
        of.contended = answer.contended;
        of.unsure = false;
        of.apart = None;
        of.begin_window(now);
        if of.number == 0 && of.used == 0 {
            book.keys.remove(&answer.key);
        }
    }

    /// Records that the request for these keys has failed.
    pub(super) fn failed(&self, keys: &[KeyRequest]) {
        let mut book = self.lock();
        for of in keys {
            if let Some(of) = book.keys.get_mut(&of.key) {
                of.unsure = true;
            }
        }
    }

    /// Records that the database has refused the request for these keys: each is sent in a request
    /// of its own now.
    /// Returns whether no job waits for their key any more.
    pub(super) fn refused(&self, keys: &[KeyRequest]) -> bool {
        let mut hopeless = false;
        let now = Instant::now();
        let mut book = self.lock();
        for request in keys {
            let Some(of) = book.keys.get_mut(&request.key) else {
                continue;
            };
            let apart = of.apart.unwrap_or(Apart {
                from: now,
                backoff: FIRST_BACKOFF,
                refusals: 0,
            });
            of.apart = Some(if keys.len() == 1 {
                let refusals = apart.refusals.saturating_add(1);
                hopeless = refusals >= REFUSALS;
                Apart {
                    from: now + apart.backoff,
                    backoff: (apart.backoff * 2).min(LONGEST_BACKOFF),
                    refusals,
                }
            } else {
                Apart { from: now, ..apart }
            });
        }
        hopeless
    }

    /// Returns whether the last round left keys for the next one.
    pub(super) fn has_more(&self) -> bool {
        self.lock().has_more
    }

    /// Puts jobs back that still ask. Keeps the order.
    pub(super) fn ask_again(&self, mut asks: Vec<Ask>) {
        let mut book = self.lock();
        asks.append(&mut book.asks);
        book.asks = asks;
    }

    pub(super) fn certain(&self) {
        self.lock().in_doubt = false;
    }

    pub(super) fn is_in_doubt(&self) -> bool {
        self.lock().in_doubt
    }

    /// Returns when the next permits go back, if nothing changes.
    pub(super) fn due(&self) -> Option<Instant> {
        let book = self.lock();
        book.keys.values().filter_map(Borrowed::due).min()
    }

    pub(super) fn is_empty(&self) -> bool {
        let book = self.lock();
        book.keys.is_empty() && book.asks.is_empty()
    }

    /// Locks the book. A poisoned lock means that a thread panicked between whole operations; the
    /// book is still right.
    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Book {
    /// Chooses the keys of one request among those that are due: one that is sent apart, or all
    /// others. Both have their turns.
    fn choose(
        &mut self,
        due: Vec<(PermitKey, i32)>,
        extent: Extent,
        now: Instant,
    ) -> Vec<(PermitKey, i32)> {
        let from = |key: &PermitKey| self.keys.get(key)?.apart.map(|apart| apart.from);
        let (apart, mut together): (Vec<_>, Vec<_>) =
            due.into_iter().partition(|(key, _)| from(key).is_some());
        let ready = |(key, _): &&(PermitKey, i32)| {
            extent == Extent::Back || from(key).is_some_and(|from| from <= now)
        };
        let next = apart.iter().filter(ready);
        let next = next.min_by_key(|(key, _)| from(key)).cloned();
        let others_first = extent == Extent::Back || self.was_apart;
        let takes_apart = next.is_some() && (together.is_empty() || !others_first);
        let ready = apart.iter().filter(ready).count();
        let has_more = if takes_apart {
            ready > 1 || !together.is_empty()
        } else {
            ready > 0
        };
        let passed_over = if takes_apart {
            std::mem::take(&mut together)
        } else {
            Vec::new()
        };
        for (key, _) in apart.iter().chain(&passed_over) {
            if let Some(of) = self.keys.get_mut(key) {
                of.unsure = true;
            }
        }
        self.was_apart = takes_apart;
        self.has_more = has_more;
        match next {
            Some(next) if takes_apart => vec![next],
            _ => together,
        }
    }
}

/// Returns the state of a key of which the node has borrowed nothing.
fn unknown(size: i32, now: Instant) -> Borrowed {
    Borrowed {
        size,
        number: 0,
        used: 0,
        until: TrustedUntil::after(Duration::ZERO),
        least_free: 0,
        window_ends: now + IDLE,
        contended: false,
        unsure: false,
        apart: None,
    }
}

#[cfg(test)]
mod tests;

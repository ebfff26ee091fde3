//! The permits that this node has borrowed, and the jobs that ask for one.
//!
//! A job of a type with a [limit](crate::Limit) starts under a permit of its key and gives it back
//! when its handler has ended, or, if the limit is a rate, a cool-down after it has started. Permits
//! that are free here go to the next job of the key without a statement. Permits that were free for
//! [`IDLE`] go back; of a rate, half as many as were in use meanwhile stay. While jobs of the key wait
//! in the database, every permit goes back when it is free, so that the first of them gets it.
//!
//! The node trusts its permits for a window that starts before the statement that wrote them, by its
//! monotonic clock and by its wall clock: the monotonic one stands still while a machine sleeps. So a
//! job that starts under a permit has a lease, and the permit had not expired when that lease was
//! committed: the leader, which looks whether the permit is free, sees the lease. A permit of a rate
//! expires a cool-down later, so every start under it has cooled down by then.
//!
//! [`permit_exchange`](crate::worker::permit_exchange) has the task that sends the requests, one at a
//! time.

mod borrowed;
mod cooling;
mod lasting;
mod permit;
mod turns;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

pub(crate) use self::borrowed::Terms;
pub(super) use self::borrowed::TrustedUntil;
use self::borrowed::{Apart, Borrowed};
pub(super) use self::lasting::LastingPermits;
pub(crate) use self::permit::{Answered, Ask, Permit};
use crate::store::permits::{Asking, KeyAnswer, KeyRequest, PermitKey, StalledKey};

/// The time after which permits that were free all the time go back.
const IDLE: Duration = Duration::from_secs(1);

/// The time for which permits that go back wait for those of other keys, to go with them.
const GATHER: Duration = Duration::from_millis(50);

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
    /// Whether permits were freed in the database, so that jobs may wait for them in vain.
    pub(super) freed: AtomicBool,
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
    /// When the task looks at the keys next, if nothing wakes it. The past: it is awake.
    looks_at: Option<Instant>,
}

impl Book {
    /// Returns whether the task has to be woken for a key that is due at `due`: the task looks later.
    /// So an ended job wakes it once for each deadline, however many keys and jobs there are.
    fn is_sooner(&mut self, due: Option<Instant>) -> bool {
        let is_sooner = match (due, self.looks_at) {
            (Some(due), Some(looks_at)) => due < looks_at,
            (due, None) => due.is_some(),
            (None, Some(_)) => false,
        };
        if is_sooner {
            self.looks_at = due;
        }
        is_sooner
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
    /// The request is for a key that is sent apart.
    pub(super) is_apart: bool,
}

impl Permits {
    /// Returns a permit that is free here, or the receiver of the answer of the database.
    pub(crate) fn ask(
        self: &Arc<Self>,
        key: PermitKey,
        terms: Terms,
        job: Asking,
    ) -> Result<Permit, oneshot::Receiver<Answered>> {
        let mut book = self.lock();
        let mut apart = None;
        if let Some(of) = book.keys.get_mut(&key) {
            if of.take_free(terms.cool_down) {
                drop(book);
                return Ok(Permit::new(self.clone(), key, terms));
            }
            apart = of.apart;
        }
        let (reply, answer) = oneshot::channel();
        if apart.is_some_and(|apart| apart.refusals >= REFUSALS && Instant::now() < apart.from) {
            let _ = reply.send(Answered::Refused);
            return Err(answer);
        }
        book.asks.push(Ask {
            key,
            terms,
            job,
            reply,
        });
        drop(book);
        self.wakes.notify_one();
        Err(answer)
    }

    /// Drops all questions of jobs, since the node ends.
    pub(super) fn refuse_asks(&self) {
        let asks = std::mem::take(&mut self.lock().asks);
        drop(asks);
    }

    /// Takes a permit back under which no job runs any more, or none has started.
    pub(super) fn give_back(&self, key: &PermitKey) {
        let mut book = self.lock();
        let Some(of) = book.keys.get_mut(key) else {
            return;
        };
        of.used -= 1;
        let due = of.due(Instant::now());
        let wakes = book.is_sooner(due);
        drop(book);
        if wakes {
            self.wakes.notify_one();
        }
    }

    /// Begins the cool-down of a permit under which a job has started.
    fn started(&self, key: &PermitKey, cool_down: Duration) {
        let now = Instant::now();
        let mut book = self.lock();
        let Some(of) = book.keys.get_mut(key) else {
            return;
        };
        of.begin_to_cool(cool_down, now);
        let due = of.due(now);
        let wakes = book.is_sooner(due);
        drop(book);
        if wakes {
            self.wakes.notify_one();
        }
    }

    /// Returns whether the node still trusts its permits of this key.
    fn trusts(&self, key: &PermitKey) -> bool {
        let book = self.lock();
        book.keys.get(key).is_some_and(|of| !of.until.is_over())
    }

    /// Looks for jobs that wait although permits are free: the leader has freed some.
    pub(crate) fn were_freed(&self) {
        self.freed.store(true, Ordering::Relaxed);
        self.wakes.notify_one();
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
            let of = of.or_insert_with(|| Borrowed::nothing(ask.terms, now));
            // Handlers of one key may have other terms. The row of this node must not expire before
            // its permits have cooled down.
            of.cool(now);
            let jobs = asking.entry(ask.key.clone()).or_default();
            let longest = if of.cooling.is_empty() && jobs.is_empty() {
                Duration::ZERO
            } else {
                of.terms.cool_down
            };
            of.terms = Terms {
                size: ask.terms.size,
                cool_down: ask.terms.cool_down.max(longest),
            };
            jobs.push(ask.job.clone());
        }
        for StalledKey { key, size } in stalled {
            let cool_down = Duration::ZERO;
            let terms = Terms { size, cool_down };
            let of = book.keys.entry(key);
            of.or_insert_with(|| Borrowed::nothing(terms, now)).unsure = true;
        }
        let mut due = Vec::new();
        for (key, of) in &mut book.keys {
            of.cool(now);
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
            let cooling = of.part_with(back, extent, now);
            keys.push(KeyRequest {
                key,
                size: of.terms.size,
                keep: of.number,
                spare: if asking.is_empty() { 0 } else { of.spare() },
                cool_down: of.terms.cool_down,
                cooling,
                asking,
            });
        }
        // The jobs of the other keys ask in a later round.
        let (left, asks) = asks
            .into_iter()
            .partition(|ask| asking.contains_key(&ask.key));
        book.asks = left;
        book.in_doubt = !keys.is_empty();
        let is_apart = book.was_apart;
        Round {
            keys,
            asks,
            is_apart,
        }
    }

    /// Records the answer for a key. `until` is the end of the trust in it.
    pub(super) fn answered(&self, answer: &KeyAnswer, until: TrustedUntil) {
        let now = Instant::now();
        let mut book = self.lock();
        let Some(of) = book.keys.get_mut(&answer.key) else {
            return;
        };
        of.took_effect();
        of.number = answer.number;
        // Each granted job gives its permit back, even if it is no longer there.
        of.used += i32::try_from(answer.granted.len()).unwrap_or(i32::MAX);
        of.until = until;
        of.contended = answer.contended;
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
                of.take_back();
            }
        }
    }

    /// Takes back what a request has handed over whose task died.
    pub(super) fn recover(&self) {
        let mut book = self.lock();
        book.keys.values_mut().for_each(Borrowed::take_back);
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

    /// Returns when the next permits go back, if nothing changes. The task sleeps until then at the
    /// latest.
    pub(super) fn due(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut book = self.lock();
        book.looks_at = book.keys.values().filter_map(|of| of.due(now)).min();
        book.looks_at
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

#[cfg(test)]
mod tests;

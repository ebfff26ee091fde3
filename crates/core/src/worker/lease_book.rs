//! The lease book: the locks that this node holds, and until when it may trust them.
//!
//! The database's clock decides. Locally a lease is trusted for a monotonic window that starts *before*
//! the statement that wrote it was sent, so the node always stops trusting before the database does.
//!
//! * Only leases held longer than a third of their length are [renewed](crate::worker::renewal): short jobs cost nothing.
//! * A job whose lease can't be renewed is asked to stop one sixth of the lease before it ends. Its outcome is still
//!   accepted as long as the leader has not ended the lease.
//! * While renewals fail, the node takes no new work ([`LeaseBook::healthy`]).
//! * Statements whose answers tell of new leases are tracked in [`under_way`](crate::worker::under_way).

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use metrics::{Gauge, counter, gauge};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::job::{Fence, JobId, LockToken, LockedJob};
use crate::store::Renewed;
use crate::telemetry::metrics as m;
use crate::worker::under_way::UnderWay;

/// The most lost locks whose strikes are to be taken back; of further ones the strikes stay.
const MOST_LOST: usize = 10_000;

struct Entry {
    held: LockToken,
    renewed: Instant,
    hold: Hold,
    /// A holder of this job has died before.
    struck: bool,
    lease: Arc<Lease>,
}

/// By what a job is held.
#[derive(Clone, Copy)]
enum Hold {
    /// A lease, which is renewed.
    Lease,
    /// A row lock, which lasts as long as its transaction may be silent.
    Row(Duration),
}

/// What a running job sees of its lease.
#[derive(Default)]
pub(crate) struct Lease {
    /// Asks the job to stop.
    pub(crate) stop: Signal,
    /// The lease is gone: nothing that the job does counts any more.
    pub(crate) lost: Signal,
}

impl Lease {
    fn lose(&self) {
        self.stop.give();
        self.lost.give();
    }
}

/// A token that is made when somebody gives the signal or wants to wait for it. Most jobs end before either, and two
/// tokens for each, with what their clones count under a lock, were a twentieth of what a node spends on a job.
#[derive(Default)]
pub(crate) struct Signal(OnceLock<CancellationToken>);

impl Signal {
    /// Ready from when the signal was given.
    pub(crate) fn token(&self) -> &CancellationToken {
        self.0.get_or_init(CancellationToken::new)
    }

    pub(crate) fn give(&self) {
        self.token().cancel();
    }

    pub(crate) fn is_given(&self) -> bool {
        self.0.get().is_some_and(CancellationToken::is_cancelled)
    }
}

/// Everything that a node holds.
pub(crate) struct LeaseBook {
    entries: Mutex<BTreeMap<JobId, Entry>>,
    /// Jobs with a strike among them.
    struck: watch::Sender<usize>,
    under_way: Mutex<UnderWay>,
    /// Lost locks: a strike may have been counted against each, although this node lives.
    lost: Mutex<Vec<LockToken>>,
    length: Duration,
    healthy: AtomicBool,
    in_flight: Gauge,
}

impl LeaseBook {
    pub(crate) fn new(length: Duration) -> Self {
        let in_flight = gauge!(m::JOBS_IN_FLIGHT);
        in_flight.set(0.0);
        Self {
            entries: Mutex::default(),
            struck: watch::Sender::new(0),
            under_way: Mutex::default(),
            lost: Mutex::default(),
            length,
            healthy: AtomicBool::new(true),
            in_flight,
        }
    }

    /// A poisoned lock means that a thread panicked between whole operations; the map is still right.
    fn entries(&self) -> MutexGuard<'_, BTreeMap<JobId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Taken after `entries` where both are.
    pub(crate) fn under_way(&self) -> MutexGuard<'_, UnderWay> {
        self.under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// It is time to ask which leases name this node.
    pub(crate) fn wants_look(&self) -> bool {
        self.under_way().wants_look(Instant::now())
    }

    /// Leases may name this node that it does not know of.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.under_way().in_doubt()
    }

    /// How long a lease lasts.
    pub(crate) fn length(&self) -> Duration {
        self.length
    }

    /// A job that was locked by a statement, which was sent at `sent`, starts. `None` where the answer is so late that
    /// the lease was seen to otherwise.
    pub(crate) fn hold(&self, held: LockToken, strikes: i32, sent: Instant) -> Option<Arc<Lease>> {
        // One step: a look in between would not know this lease.
        let mut entries = self.entries();
        if !self.under_way().starts(held.fence) {
            tracing::warn!(job = %held.id, fence = %held.fence, "a locked job was not started in time; it is not started now");
            return None;
        }
        Some(self.note(&mut entries, held, sent, Hold::Lease, strikes > 0))
    }

    /// A look at the database begins. Returns the fences that this node knows of; `None` where another look is open.
    pub(crate) fn begin_look(&self) -> Option<Vec<Fence>> {
        let entries = self.entries();
        let expected = self
            .under_way()
            .begin_look(Instant::now(), self.length / 3)?;
        let held = entries.values().map(|entry| entry.held.fence);
        Some(held.chain(expected).collect())
    }

    /// The look that was sent then has been answered. Returns the statements to be waited for before it ends.
    pub(crate) fn looked(&self, sent: Instant) -> u64 {
        self.under_way().looked(sent)
    }

    /// The look is over. Returns those of the leases that it found of which no answer told; their jobs are expected to
    /// start.
    pub(crate) fn end_look(&self, unknown: Vec<LockedJob>) -> Vec<LockedJob> {
        self.under_way().end_look(unknown)
    }

    /// The jobs of these do not start here after all.
    pub(crate) fn do_not_expect(&self, held: &[LockToken]) {
        let mut under_way = self.under_way();
        for held in held {
            under_way.starts(held.fence);
        }
    }

    /// A handler has run under this lock, and what became of its outcome is unknown: no other handler runs under it.
    pub(crate) fn note_used(&self, held: &LockToken) {
        self.under_way().note_used(held.fence);
    }

    /// This lock is lost. If its loss was counted as this node's death, that is to be taken back.
    pub(crate) fn note_lost(&self, held: LockToken) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        if lost.len() < MOST_LOST {
            lost.push(held);
        }
    }

    /// Strikes are to be taken back.
    pub(crate) fn has_lost(&self) -> bool {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        !lost.is_empty()
    }

    /// The lost locks whose strikes are to be taken back.
    pub(crate) fn lost(&self) -> Vec<LockToken> {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.clone()
    }

    /// The strikes of the first so many lost locks have been taken back.
    pub(crate) fn absolved(&self, count: usize) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let count = count.min(lost.len());
        lost.drain(..count);
    }

    /// The row of a job was locked by a statement that was sent at `sent`, for so long at most.
    pub(crate) fn hold_row(&self, held: LockToken, sent: Instant, at_most: Duration) -> Arc<Lease> {
        self.note(&mut self.entries(), held, sent, Hold::Row(at_most), false)
    }

    /// Row locks became leases, by a statement that was sent at `sent`.
    pub(crate) fn leased(&self, held: &[LockToken], sent: Instant) {
        let mut entries = self.entries();
        for held in held {
            if let Some(entry) = entries.get_mut(&held.id)
                && entry.held.fence == held.fence
            {
                entry.renewed = sent;
                entry.hold = Hold::Lease;
            }
        }
    }

    /// These locks are known to be gone; what runs under them is asked to stop.
    pub(crate) fn lose<'a>(&self, held: impl Iterator<Item = &'a LockToken>) {
        let entries = self.entries();
        for held in held {
            if let Some(entry) = entries.get(&held.id)
                && entry.held.fence == held.fence
            {
                entry.lease.lose();
            }
        }
    }

    /// How long a lock lasts from when it was last written.
    fn lasts(&self, entry: &Entry) -> Duration {
        match entry.hold {
            Hold::Lease => self.length,
            Hold::Row(at_most) => at_most,
        }
    }

    fn note(
        &self,
        entries: &mut BTreeMap<JobId, Entry>,
        held: LockToken,
        sent: Instant,
        hold: Hold,
        struck: bool,
    ) -> Arc<Lease> {
        self.under_way().is_known(held.fence);
        let lease = Arc::<Lease>::default();
        let entry = Entry {
            held,
            renewed: sent,
            hold,
            struck,
            lease: lease.clone(),
        };
        let former = entries.insert(entry.held.id, entry);
        self.count_struck(former.as_ref(), struck);
        self.in_flight.set(entries.len() as f64);
        lease
    }

    /// A former entry is gone; a new one may have a strike.
    fn count_struck(&self, former: Option<&Entry>, struck: bool) {
        let less = usize::from(former.is_some_and(|entry| entry.struck));
        let more = usize::from(struck);
        if less != more {
            self.struck
                .send_modify(|count| *count = (*count + more).saturating_sub(less));
        }
    }

    /// The handler has ended: its job does not count among those that may take a node down.
    pub(crate) fn has_run(&self, held: &LockToken) {
        let mut entries = self.entries();
        let entry = entries.get_mut(&held.id);
        if let Some(entry) = entry.filter(|e| e.held.fence == held.fence && e.struck) {
            entry.struck = false;
            self.struck
                .send_modify(|count| *count = count.saturating_sub(1));
        }
    }

    /// How many jobs with a strike are held, and have not run.
    pub(crate) fn struck(&self) -> watch::Receiver<usize> {
        self.struck.subscribe()
    }

    /// The job's outcome is committed, or its lock is known to be gone. Another lock on the same job,
    /// taken meanwhile, stays.
    pub(crate) fn forget(&self, held: &LockToken) {
        let mut entries = self.entries();
        if entries
            .get(&held.id)
            .is_some_and(|e| e.held.fence == held.fence)
        {
            let former = entries.remove(&held.id);
            self.count_struck(former.as_ref(), false);
        }
        self.in_flight.set(entries.len() as f64);
    }

    /// May this lock still be believed in?
    pub(crate) fn trusts(&self, held: &LockToken) -> bool {
        self.entries()
            .get(&held.id)
            .is_some_and(|e| e.held.fence == held.fence && e.renewed.elapsed() < self.lasts(e))
    }

    /// Ask a job to stop.
    pub(crate) fn cancel(&self, id: JobId) -> bool {
        self.entries().get(&id).is_some_and(|e| {
            e.lease.stop.give();
            true
        })
    }

    /// How many jobs are held.
    pub(crate) fn len(&self) -> usize {
        self.entries().len()
    }

    /// Renewals work, so new work may be taken.
    pub(crate) fn healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    /// Renewals work, or do not.
    pub(crate) fn set_healthy(&self, healthy: bool) {
        self.healthy.store(healthy, Ordering::Relaxed);
    }

    /// LockToken for longer than a third of the lease since the last renewal.
    pub(crate) fn due(&self) -> Vec<LockToken> {
        self.entries()
            .values()
            .filter(|e| {
                let due = matches!(e.hold, Hold::Lease) && e.renewed.elapsed() >= self.length / 3;
                due && !e.lease.lost.is_given()
            })
            .map(|e| e.held.clone())
            .collect()
    }

    /// What became of a renewal that was sent then. A busy lease stays due.
    pub(crate) fn renewed(&self, asked: &[LockToken], answer: &Renewed, sent: Instant) {
        let renewed: HashSet<_> = answer.renewed.iter().collect();
        let busy: HashSet<_> = answer.busy.iter().collect();
        let mut entries = self.entries();
        for held in asked {
            let Some(entry) = entries.get_mut(&held.id) else {
                continue;
            };
            if entry.held.fence != held.fence {
                continue;
            }
            if renewed.contains(&held.id) {
                entry.renewed = sent;
            } else if !busy.contains(&held.id) {
                counter!(m::LEASES_LOST).increment(1);
                tracing::warn!(job = %held.id, fence = %held.fence, "the lease was lost while the job ran; it is asked to stop");
                entry.lease.lose();
            }
        }
    }

    /// Jobs whose lease is about to end are asked to stop; those whose lease has ended are lost.
    pub(crate) fn expire(&self) {
        for (id, entry) in self.entries().iter() {
            let (age, lasts) = (entry.renewed.elapsed(), self.lasts(entry));
            if age >= lasts && !entry.lease.lost.is_given() {
                counter!(m::LEASES_LOST).increment(1);
                tracing::warn!(job = %id, fence = %entry.held.fence, "the lease ended before it could be renewed");
                entry.lease.lose();
            } else if age >= lasts * 5 / 6 && !entry.lease.stop.is_given() {
                tracing::warn!(job = %id, fence = %entry.held.fence, "the lease can't be renewed; the job is asked to stop");
                entry.lease.stop.give();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Fence;

    /// As after the answer of a lock statement.
    fn hold(book: &LeaseBook, held: LockToken, sent: Instant) -> Arc<Lease> {
        book.under_way().expect(held.fence, Instant::now());
        book.hold(held, 0, sent).expect("it was expected")
    }

    #[test]
    fn a_lease_that_was_seen_to_otherwise_is_not_started() {
        let book = LeaseBook::new(Duration::from_secs(10));
        let late = held(1);
        assert!(book.hold(late.clone(), 0, Instant::now()).is_none());
        assert!(!book.trusts(&late));
    }

    fn held(fence: i64) -> LockToken {
        LockToken {
            id: JobId::generate(),
            fence: Fence(fence),
            instance: None,
        }
    }

    /// It gets its lease later, which a look that began before may see.
    #[test]
    fn a_row_that_is_held_while_a_look_is_open_is_known_to_it() {
        let book = LeaseBook::new(Duration::from_secs(10));
        assert!(book.begin_look().is_some());
        let row = held(7);
        book.hold_row(row.clone(), Instant::now(), Duration::from_secs(1));
        book.forget(&row);
        assert!(book.under_way().knows(Fence(7)));
        assert!(!book.under_way().knows(Fence(8)));
    }

    #[test]
    fn trust_starts_before_the_statement_and_ends_with_the_lease() {
        let book = LeaseBook::new(Duration::from_secs(10));
        let fresh = held(1);
        hold(&book, fresh.clone(), Instant::now());
        assert!(book.trusts(&fresh));
        let stale = held(2);
        let sent = Instant::now() - Duration::from_secs(11);
        let lease = hold(&book, stale.clone(), sent);
        assert!(!book.trusts(&stale));
        book.expire();
        assert!(lease.stop.is_given() && lease.lost.is_given());
    }

    #[test]
    fn a_job_is_asked_to_stop_before_its_lease_ends() {
        let book = LeaseBook::new(Duration::from_secs(12));
        let sent = Instant::now() - Duration::from_secs(11);
        let lease = hold(&book, held(1), sent);
        book.expire();
        assert!(lease.stop.is_given() && !lease.lost.is_given());
    }

    #[test]
    fn jobs_with_a_strike_are_counted_while_they_are_held() {
        let book = LeaseBook::new(Duration::from_secs(10));
        let struck = held(1);
        for fence in [1, 2] {
            let again = LockToken {
                fence: Fence(fence),
                ..struck.clone()
            };
            book.under_way().expect(again.fence, Instant::now());
            book.hold(again, 1, Instant::now())
                .expect("it was expected");
            assert_eq!(*book.struck().borrow(), 1);
        }
        hold(&book, held(3), Instant::now());
        assert_eq!(*book.struck().borrow(), 1);
        book.forget(&struck);
        book.has_run(&struck);
        assert_eq!(*book.struck().borrow(), 1, "another lock on it is held");
        book.forget(&LockToken {
            fence: Fence(2),
            ..struck
        });
        assert_eq!(*book.struck().borrow(), 0);
    }

    #[test]
    fn an_old_lock_does_not_forget_a_newer_one_on_the_same_job() {
        let book = LeaseBook::new(Duration::from_secs(10));
        let old = held(1);
        let new = LockToken {
            fence: Fence(2),
            ..old.clone()
        };
        hold(&book, new.clone(), Instant::now());
        book.forget(&old);
        assert!(book.trusts(&new) && !book.trusts(&old));
    }

    #[test]
    fn a_lease_that_was_not_renewed_is_lost_unless_its_row_was_busy() {
        let book = LeaseBook::new(Duration::from_secs(9));
        let (kept, gone, busy) = (held(1), held(2), held(3));
        let sent = Instant::now() - Duration::from_secs(4);
        hold(&book, kept.clone(), sent);
        let lease = hold(&book, gone.clone(), sent);
        let waits = hold(&book, busy.clone(), sent);
        assert_eq!(book.due().len(), 3);
        let answer = Renewed {
            renewed: vec![kept.id],
            busy: vec![busy.id],
        };
        book.renewed(&[kept.clone(), gone, busy.clone()], &answer, Instant::now());
        assert!(lease.lost.is_given());
        assert!(!waits.lost.is_given());
        assert_eq!(book.due(), [busy], "it is renewed again soon");
    }
}

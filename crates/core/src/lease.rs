//! Leases: what this node holds, until when it may believe so, and the task that renews.
//!
//! The database's clock decides. Locally a lease is trusted for a monotonic window that starts *before*
//! the statement that wrote it was sent, so the node always stops trusting before the database does.
//!
//! * Only leases held longer than a third of their length are renewed: short jobs cost nothing.
//! * A job whose lease can't be renewed is asked to stop one sixth of the lease before it ends, and its
//!   completion is refused by the database afterwards.
//! * While renewals fail, the node takes no new work ([`LeaseBook::healthy`]).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use metrics::{Gauge, counter, gauge};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::job::{Held, JobId, NodeId};
use crate::metrics as m;
use crate::store::Store;

struct Entry {
    held: Held,
    renewed: Instant,
    hold: Hold,
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

/// A token that is made when somebody gives the signal or wants to wait for it. Most jobs end before either, and two tokens
/// for each, with what their clones count under a lock, were a twentieth of what a node spends on a job.
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
            length,
            healthy: AtomicBool::new(true),
            in_flight,
        }
    }

    /// A poisoned lock means that a thread panicked between whole operations; the map is still right.
    fn entries(&self) -> MutexGuard<'_, BTreeMap<JobId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A job was locked by a statement that was sent at `sent`.
    pub(crate) fn hold(&self, held: Held, sent: Instant) -> Arc<Lease> {
        self.note(held, sent, Hold::Lease)
    }

    /// The row of a job was locked by a statement that was sent at `sent`, for so long at most.
    pub(crate) fn hold_row(&self, held: Held, sent: Instant, at_most: Duration) -> Arc<Lease> {
        self.note(held, sent, Hold::Row(at_most))
    }

    /// Row locks became leases, by a statement that was sent at `sent`.
    pub(crate) fn leased(&self, held: &[Held], sent: Instant) {
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
    pub(crate) fn lose<'a>(&self, held: impl Iterator<Item = &'a Held>) {
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

    fn note(&self, held: Held, sent: Instant, hold: Hold) -> Arc<Lease> {
        let lease = Arc::<Lease>::default();
        let mut entries = self.entries();
        entries.insert(
            held.id,
            Entry {
                held,
                renewed: sent,
                hold,
                lease: lease.clone(),
            },
        );
        self.in_flight.set(entries.len() as f64);
        lease
    }

    /// The job's outcome is committed, or its lock is known to be gone. Another lock on the same job,
    /// taken meanwhile, stays.
    pub(crate) fn forget(&self, held: &Held) {
        let mut entries = self.entries();
        if entries
            .get(&held.id)
            .is_some_and(|e| e.held.fence == held.fence)
        {
            entries.remove(&held.id);
        }
        self.in_flight.set(entries.len() as f64);
    }

    /// May this lock still be believed in?
    pub(crate) fn trusts(&self, held: &Held) -> bool {
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

    /// Held for longer than a third of the lease since the last renewal.
    fn due(&self) -> Vec<Held> {
        self.entries()
            .values()
            .filter(|e| {
                let due = matches!(e.hold, Hold::Lease) && e.renewed.elapsed() >= self.length / 3;
                due && !e.lease.lost.is_given()
            })
            .map(|e| e.held.clone())
            .collect()
    }

    fn renewed(&self, asked: &[Held], renewed: &[JobId], sent: Instant) {
        let renewed: std::collections::HashSet<_> = renewed.iter().collect();
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
            } else {
                counter!(m::LEASES_LOST).increment(1);
                tracing::warn!(job = %held.id, fence = %held.fence, "the lease was lost while the job ran; it is asked to stop");
                entry.lease.lose();
            }
        }
    }

    /// Jobs whose lease is about to end are asked to stop; those whose lease has ended are lost.
    fn expire(&self) {
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

/// Renew until told to stop. Nothing held costs no statement.
pub(crate) async fn renew_all(
    book: Arc<LeaseBook>,
    store: Arc<dyn Store>,
    owner: NodeId,
    stop: CancellationToken,
) {
    let pace = (book.length / 12).max(Duration::from_millis(20));
    let mut ticks = tokio::time::interval(pace);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut renewal: Option<tokio::task::JoinHandle<bool>> = None;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        // Looked at on every tick, also while a renewal hangs.
        book.expire();
        if let Some(running) = &renewal {
            if !running.is_finished() {
                continue;
            }
            if let Some(done) = renewal.take() {
                let ok = done.await.unwrap_or(false);
                book.healthy.store(ok, Ordering::Relaxed);
            }
        }
        let due = book.due();
        if due.is_empty() {
            if book.len() == 0 {
                book.healthy.store(true, Ordering::Relaxed);
            }
            continue;
        }
        let (book, store) = (book.clone(), store.clone());
        renewal = Some(tokio::spawn(async move {
            let sent = Instant::now();
            match store.renew(owner, book.length, &due).await {
                Ok(renewed) => {
                    counter!(m::LEASES_RENEWED).increment(renewed.len() as u64);
                    book.renewed(&due, &renewed, sent);
                    true
                }
                Err(error) => {
                    tracing::warn!(leases = due.len(), %error, "leases could not be renewed; no new work until they can");
                    false
                }
            }
        }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Fence;

    fn held(fence: i64) -> Held {
        Held {
            id: JobId::generate(),
            fence: Fence(fence),
            instance: None,
        }
    }

    #[test]
    fn trust_starts_before_the_statement_and_ends_with_the_lease() {
        let book = LeaseBook::new(Duration::from_secs(10));
        let fresh = held(1);
        book.hold(fresh.clone(), Instant::now());
        assert!(book.trusts(&fresh));
        let stale = held(2);
        let sent = Instant::now() - Duration::from_secs(11);
        let lease = book.hold(stale.clone(), sent);
        assert!(!book.trusts(&stale));
        book.expire();
        assert!(lease.stop.is_given() && lease.lost.is_given());
    }

    #[test]
    fn a_job_is_asked_to_stop_before_its_lease_ends() {
        let book = LeaseBook::new(Duration::from_secs(12));
        let sent = Instant::now() - Duration::from_secs(11);
        let lease = book.hold(held(1), sent);
        book.expire();
        assert!(lease.stop.is_given() && !lease.lost.is_given());
    }

    #[test]
    fn an_old_lock_does_not_forget_a_newer_one_on_the_same_job() {
        let book = LeaseBook::new(Duration::from_secs(10));
        let old = held(1);
        let new = Held {
            fence: Fence(2),
            ..old.clone()
        };
        book.hold(new.clone(), Instant::now());
        book.forget(&old);
        assert!(book.trusts(&new) && !book.trusts(&old));
    }

    #[test]
    fn what_was_not_renewed_is_lost() {
        let book = LeaseBook::new(Duration::from_secs(9));
        let (kept, gone) = (held(1), held(2));
        let sent = Instant::now() - Duration::from_secs(4);
        book.hold(kept.clone(), sent);
        let lease = book.hold(gone.clone(), sent);
        assert_eq!(book.due().len(), 2);
        book.renewed(&[kept.clone(), gone], &[kept.id], Instant::now());
        assert!(lease.lost.is_given());
        assert!(book.due().is_empty());
    }
}

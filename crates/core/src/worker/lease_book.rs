//! The lease book: the locks that this node holds, and the time until which it trusts them.
//!
//! The database's clock decides. The node trusts a lease for a window of its monotonic clock that
//! starts *before* it sent the statement that wrote the lease. So the node stops trusting the lease
//! before the database does.
//!
//! * Only leases held longer than a third of their length are [renewed](crate::worker::renewal), so
//!   a short job costs no renewal.
//! * A job whose lease cannot be renewed is asked to stop one sixth of the lease before the end of
//!   the lease. Its outcome is accepted as long as the leader has not ended the lease.
//! * While renewals fail, the node takes no new work ([`LeaseBook::healthy`]).
//! * Statements whose answers contain new leases are tracked in
//!   [`under_way`](crate::worker::under_way).

mod lease;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet, btree_map};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use metrics::{Gauge, counter};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::job::progress::Progress;
use crate::job::{Fence, JobId, LockToken, LockedJob};
use crate::store::Renewed;
use crate::telemetry::metrics as m;
use crate::worker::under_way::UnderWay;
pub(crate) use lease::Lease;

/// Maximum number of lost locks whose strikes are taken back. The strikes of further locks stay.
const MOST_LOST: usize = 10_000;

struct Entry {
    held: LockToken,
    renewed: Instant,
    hold: Hold,
    /// An earlier holder of this job has died.
    struck: bool,
    /// The time at which someone said that the job is cancelled, or the machine had slept. A renewal
    /// that is sent later asks the database.
    asked: Option<Instant>,
    lease: Arc<Lease>,
}

/// The kind of a lock.
#[derive(Clone, Copy)]
enum Hold {
    /// By a lease, which is renewed.
    Lease,
    /// By a row lock, which lasts as long as its transaction may be silent.
    Row(Duration),
}

/// All locks that a node holds.
pub(crate) struct LeaseBook {
    entries: Mutex<BTreeMap<JobId, Entry>>,
    /// The number of held jobs with a strike.
    struck: watch::Sender<usize>,
    under_way: Mutex<UnderWay>,
    /// Lost locks. A strike may have been counted for each of them, although this node lives.
    lost: Mutex<Vec<LockToken>>,
    length: Duration,
    healthy: AtomicBool,
    in_flight: Gauge,
    /// Wakes the renewal for locks that are [`asked`](Entry::asked) about.
    asked: Notify,
}

impl LeaseBook {
    pub(crate) fn new(length: Duration, in_flight: Gauge) -> Self {
        in_flight.set(0.0);
        Self {
            entries: Mutex::default(),
            struck: watch::Sender::new(0),
            under_way: Mutex::default(),
            lost: Mutex::default(),
            length,
            healthy: AtomicBool::new(true),
            in_flight,
            asked: Notify::new(),
        }
    }

    /// Locks the map. A poisoned lock means that a thread panicked between whole operations; the
    /// map is still right.
    fn entries(&self) -> MutexGuard<'_, BTreeMap<JobId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the statements under way. When both are locked, `entries` is locked first.
    pub(crate) fn under_way(&self) -> MutexGuard<'_, UnderWay> {
        self.under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether it is time to look for leases that name this node.
    pub(crate) fn wants_look(&self) -> bool {
        self.under_way().wants_look(Instant::now())
    }

    /// Returns whether the database may hold leases of this node that are not in the book.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.under_way().in_doubt()
    }

    /// Returns the length of a lease.
    pub(crate) fn length(&self) -> Duration {
        self.length
    }

    /// Enters the lease of a job that starts now; the statement that locked it was sent at `sent`.
    /// Returns `None` if the answer came so late that the lease was adopted or released otherwise.
    pub(crate) fn hold(&self, held: LockToken, strikes: i32, sent: Instant) -> Option<Arc<Lease>> {
        // Both change in one step: a look that begins in between would not know this lease.
        let mut entries = self.entries();
        if !self.under_way().starts(held.fence) {
            tracing::warn!(
                job = %held.id,
                fence = %held.fence,
                "the answer to a lock came too late; the job does not start under this lease"
            );
            return None;
        }
        Some(self.note(&mut entries, held, sent, Hold::Lease, strikes > 0))
    }

    /// Begins a look at the database. Returns the fences that this node knows, or `None` while
    /// another look is open.
    pub(crate) fn begin_look(&self) -> Option<Vec<Fence>> {
        let entries = self.entries();
        let expected = self
            .under_way()
            .begin_look(Instant::now(), self.length / 3)?;
        let held = entries.values().map(|entry| entry.held.fence);
        Some(held.chain(expected).collect())
    }

    /// Records the answer to the look that was sent at `sent`. Returns the last statement that must
    /// be answered before the look ends.
    pub(crate) fn looked(&self, sent: Instant) -> u64 {
        self.under_way().looked(sent)
    }

    /// Ends the look. Returns the found leases that no answer contained; their jobs are expected to
    /// start.
    pub(crate) fn end_look(&self, unknown: Vec<LockedJob>) -> Vec<LockedJob> {
        self.under_way().end_look(unknown)
    }

    /// Records that these jobs do not start here after all.
    pub(crate) fn do_not_expect(&self, held: &[LockToken]) {
        let mut under_way = self.under_way();
        for held in held {
            under_way.starts(held.fence);
        }
    }

    /// Records that a handler has run under this lock and that its outcome is unknown. No other
    /// handler runs under it.
    pub(crate) fn note_used(&self, held: &LockToken) {
        self.under_way().note_used(held.fence);
    }

    /// Records that this lock is lost. A strike that was counted for this loss is taken back later.
    pub(crate) fn note_lost(&self, held: LockToken) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        if lost.len() < MOST_LOST {
            lost.push(held);
        }
    }

    /// Returns whether strikes are to be taken back.
    pub(crate) fn has_lost(&self) -> bool {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        !lost.is_empty()
    }

    /// Returns the lost locks whose strikes are to be taken back.
    pub(crate) fn lost(&self) -> Vec<LockToken> {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.clone()
    }

    /// Removes the first `count` lost locks, whose strikes have been taken back.
    pub(crate) fn strikes_cleared(&self, count: usize) {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let count = count.min(lost.len());
        lost.drain(..count);
    }

    /// Enters a row lock, which lasts for `at_most`; the statement that took it was sent at `sent`.
    pub(crate) fn hold_row(&self, held: LockToken, sent: Instant, at_most: Duration) -> Arc<Lease> {
        let lease = self.note(&mut self.entries(), held, sent, Hold::Row(at_most), false);
        lease.by_row.store(true, Ordering::Relaxed);
        lease
    }

    /// Records that these row locks became leases, by a statement that was sent at `sent`.
    pub(crate) fn leased(&self, held: &[LockToken], sent: Instant) {
        let mut entries = self.entries();
        for held in held {
            if let Some(entry) = entries.get_mut(&held.id)
                && entry.held.fence == held.fence
            {
                entry.renewed = sent;
                entry.hold = Hold::Lease;
                entry.lease.by_row.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Marks these locks as lost and asks their jobs to stop.
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

    /// Returns the time that a lock lasts after it was last written.
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
        let (id, fence) = (held.id, held.fence);
        let entry = Entry {
            held,
            renewed: sent,
            hold,
            struck,
            asked: None,
            lease: lease.clone(),
        };
        let former = entries.insert(id, entry);
        if let Some(former) = former.as_ref().filter(|former| former.held.fence != fence) {
            // The leader has ended this lock, and this node has taken the job again before it knew.
            former.lease.lose();
        }
        self.count_struck(former.as_ref(), struck);
        self.in_flight.set(entries.len() as f64);
        lease
    }

    /// Updates the number of struck jobs after `former` was removed and an entry with or without a
    /// strike was added.
    fn count_struck(&self, former: Option<&Entry>, struck: bool) {
        let less = usize::from(former.is_some_and(|entry| entry.struck));
        let more = usize::from(struck);
        if less != more {
            self.struck
                .send_modify(|count| *count = (*count + more).saturating_sub(less));
        }
    }

    /// Records that the handler has ended. Its job can no longer kill the node.
    pub(crate) fn has_run(&self, held: &LockToken) {
        let mut entries = self.entries();
        let entry = entries.get_mut(&held.id);
        if let Some(entry) = entry.filter(|e| e.held.fence == held.fence && e.struck) {
            entry.struck = false;
            self.struck
                .send_modify(|count| *count = count.saturating_sub(1));
        }
    }

    /// Returns the number of held jobs with a strike whose handlers have not ended.
    pub(crate) fn struck(&self) -> usize {
        *self.struck.borrow()
    }

    /// Returns a receiver of the number of [struck](Self::struck) jobs.
    pub(crate) fn watch_struck(&self) -> watch::Receiver<usize> {
        self.struck.subscribe()
    }

    /// Removes a lock whose outcome is committed or which is lost. A newer lock on the same job
    /// stays.
    pub(crate) fn forget(&self, held: &LockToken) {
        let mut entries = self.entries();
        if let btree_map::Entry::Occupied(entry) = entries.entry(held.id)
            && entry.get().held.fence == held.fence
        {
            let former = entry.remove();
            self.count_struck(Some(&former), false);
        }
        self.in_flight.set(entries.len() as f64);
    }

    /// Returns whether this lock was renewed after `moment`.
    pub(crate) fn renewed_since(&self, held: &LockToken, moment: Instant) -> bool {
        self.entries()
            .get(&held.id)
            .is_some_and(|e| e.held.fence == held.fence && e.renewed > moment)
    }

    /// Returns whether this lock is still trusted.
    pub(crate) fn trusts(&self, held: &LockToken) -> bool {
        self.entries()
            .get(&held.id)
            .is_some_and(|e| e.held.fence == held.fence && e.renewed.elapsed() < self.lasts(e))
    }

    /// Asks a job to stop, on the word of a control message. The next renewal, which begins at once,
    /// asks the database whether the job was cancelled. Returns false if the book has no lock on it.
    pub(crate) fn cancel(&self, id: JobId) -> bool {
        let known = self.entries().get_mut(&id).is_some_and(|entry| {
            entry.asked = Some(Instant::now());
            entry.lease.told.store(true, Ordering::Relaxed);
            entry.lease.stop.give();
            true
        });
        if known {
            self.asked.notify_one();
        }
        known
    }

    /// Makes all leases due, so that the next renewal asks the database about each.
    pub(crate) fn ask_about_all(&self) {
        let now = Instant::now();
        for entry in self.entries().values_mut() {
            entry.asked = Some(now);
        }
    }

    /// Waits until [`cancel`](Self::cancel) is called. Cancel-safe.
    pub(crate) async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Returns the number of held jobs.
    pub(crate) fn len(&self) -> usize {
        self.entries().len()
    }

    /// Returns whether renewals work, so that new work may be taken.
    pub(crate) fn healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    /// Sets whether renewals work.
    pub(crate) fn set_healthy(&self, healthy: bool) {
        self.healthy.store(healthy, Ordering::Relaxed);
    }

    /// Returns the leases that were last renewed more than a third of their length ago, or that are
    /// asked about.
    pub(crate) fn due(&self) -> Vec<LockToken> {
        self.entries()
            .values()
            .filter(|e| {
                let old = e.renewed.elapsed() >= self.length / 3;
                let due = matches!(e.hold, Hold::Lease) && (old || e.asked.is_some());
                due && !e.lease.lost.is_given()
            })
            .map(|e| e.held.clone())
            .collect()
    }

    /// Takes the progress of the leased jobs whose handlers have reported another one since.
    pub(crate) fn take_progress(&self) -> Vec<(LockToken, Progress)> {
        let entries = self.entries();
        let leased = entries
            .values()
            .filter(|e| matches!(e.hold, Hold::Lease) && !e.lease.lost.is_given());
        leased
            .filter_map(|e| Some((e.held.clone(), e.lease.signs.get()?.take_unwritten()?)))
            .collect()
    }

    /// Gives progress back that could not be written.
    pub(crate) fn progress_not_written(&self, reports: Vec<(LockToken, Progress)>) {
        let entries = self.entries();
        for (held, progress) in reports {
            if let Some(entry) = entries.get(&held.id)
                && entry.held.fence == held.fence
            {
                entry.lease.signs().not_written(progress);
            }
        }
    }

    /// Records the answer to a renewal that was sent at `sent`. A busy lease stays due.
    pub(crate) fn renewed(&self, asked: &[LockToken], answer: &Renewed, sent: Instant) {
        let renewed: HashSet<_> = answer.renewed.iter().collect();
        let busy: HashSet<_> = answer.busy.iter().collect();
        let cancelled: HashSet<_> = answer.cancelled.iter().collect();
        let mut entries = self.entries();
        for held in asked {
            let Some(entry) = entries.get_mut(&held.id) else {
                continue;
            };
            if entry.held.fence != held.fence {
                continue;
            }
            if cancelled.contains(&held.id) {
                entry.lease.cancelled.give();
                entry.lease.stop.give();
            }
            if renewed.contains(&held.id) {
                entry.renewed = sent;
                // The answer to a renewal that was sent before is older than the question.
                entry.asked.take_if(|since| *since <= sent);
            } else if busy.contains(&held.id) {
                continue;
            } else if entry.lease.may_be_complete() {
                // The commit of the outcome tells whether the lease was lost.
                entry.lease.lose();
            } else {
                counter!(m::LEASES_LOST).increment(1);
                tracing::warn!(
                    job = %held.id,
                    fence = %held.fence,
                    "the lease was lost while the job ran; the job is asked to stop"
                );
                entry.lease.lose();
            }
        }
    }

    /// Asks jobs whose leases are about to end to stop, and marks ended leases as lost.
    pub(crate) fn expire(&self) {
        for (id, entry) in self.entries().iter() {
            let (age, lasts) = (entry.renewed.elapsed(), self.lasts(entry));
            if age >= lasts && !entry.lease.lost.is_given() {
                counter!(m::LEASES_LOST).increment(1);
                // The job was asked to stop before, with a warning.
                if !entry.lease.stop.is_given() {
                    tracing::warn!(
                        job = %id,
                        fence = %entry.held.fence,
                        "the lease ended before it could be renewed"
                    );
                }
                entry.lease.lose();
            } else if age >= lasts * 5 / 6 && !entry.lease.stop.is_given() {
                tracing::warn!(
                    job = %id,
                    fence = %entry.held.fence,
                    "the lease could not be renewed and ends soon; the job is asked to stop"
                );
                entry.lease.stop.give();
            }
        }
    }
}

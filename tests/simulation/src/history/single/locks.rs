//! Locks: at most one at a time, each with a higher fence than the previous one.

use super::{Invariant, Place, Single};
use crate::history::{Entry, Micros};
use jobwire_core::{Fence, NodeId};

/// A lock that has not been given up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lock {
    pub(super) owner: NodeId,
    pub(super) fence: Fence,
    pub(super) at: Micros,
    pub(super) began: Micros,
    pub(super) expires_at: Micros,
    /// The time at which the expiry was written.
    pub(super) written_at: Micros,
    /// The time at which the leader cycle ended it.
    pub(super) taken_off: Option<Micros>,
}

/// The end of a lock that did not expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Completed,
    Released,
    Other,
}

impl Single<'_> {
    /// Ends a lock that its holder did not give up: it counts until the leader cycle ended it.
    pub(super) fn abandon(&mut self, lock: Lock) {
        let until = lock.taken_off.unwrap_or(lock.expires_at);
        self.expired_locks += 1;
        self.hold(lock, until);
        self.becomes_ready(until);
    }

    pub(super) fn hold(&mut self, lock: Lock, until: Micros) {
        self.instances.held(
            self.job,
            self.creation.as_deref(),
            lock.fence,
            lock.began,
            lock.at,
            until,
        );
    }

    pub(super) fn locked(
        &mut self,
        entry: &Entry,
        owner: NodeId,
        fence: Fence,
        expires_at: Micros,
    ) {
        self.counts().locks += 1;
        if self.ready_since == entry.visible {
            self.counts().timer_locks += 1;
        }
        self.expect(Place::Executable, "it was locked");
        if let Some(lock) = self.lock.take() {
            if lock.taken_off.is_none() {
                self.violation(
                    Invariant::I4,
                    format!(
                        "lock {fence} was granted while lock {} had an owner",
                        lock.fence
                    ),
                );
            }
            let late = (entry.at - lock.expires_at).max(0);
            let calendar = &self.limits.calendar;
            let rare = self.is_rare();
            let disturbed = rare || calendar.is_disturbed(lock.written_at, entry.at);
            let calm = !rare && calendar.is_calm(lock.at);
            self.report.takeover(self.job, late, disturbed, calm);
            self.abandon(lock);
        }
        self.not_ready(entry.at);
        let became_a_lease = fence == self.highest && self.by_row.contains(&(owner, fence));
        if fence <= self.highest && !became_a_lease {
            let highest = self.highest;
            self.violation(
                Invariant::I6,
                format!("lock {fence} after lock {highest}: fences must grow"),
            );
        }
        self.highest = self.highest.max(fence);
        if self.due.is_some_and(|due| entry.at < due) {
            self.violation(Invariant::I10, "it was locked before its due date");
        }
        self.lock = Some(Lock {
            owner,
            fence,
            at: entry.at,
            began: entry.began,
            expires_at,
            written_at: entry.at,
            taken_off: None,
        });
    }

    /// Records a row lock. The row lock excludes a lease that is older and still there. A newer
    /// lease was written after the row lock had been lost.
    pub(super) fn row_held(&mut self, owner: NodeId, fence: Fence) {
        self.counts().row_locks += 1;
        if let Some(lock) = self.lock
            && lock.fence < fence
        {
            self.violation(
                Invariant::I4,
                format!(
                    "its row was held with {fence} while lease {} was there",
                    lock.fence
                ),
            );
        }
        self.by_row.push((owner, fence));
        self.highest = self.highest.max(fence);
    }

    pub(super) fn renewed(
        &mut self,
        entry: &Entry,
        owner: NodeId,
        fence: Fence,
        expires_at: Micros,
    ) {
        self.counts().renewals += 1;
        match &mut self.lock {
            Some(lock)
                if lock.owner == owner && lock.fence == fence && lock.taken_off.is_none() =>
            {
                lock.expires_at = expires_at;
                lock.written_at = entry.at;
            }
            _ => self.violation(
                Invariant::I4,
                format!("a node renewed lock {fence}, which it no longer held"),
            ),
        }
    }

    pub(super) fn taken_off(&mut self, entry: &Entry, fence: Fence) {
        match &mut self.lock {
            Some(lock) if lock.fence == fence => {
                lock.taken_off = Some(entry.at);
                // A jump of the clock ends no lease: the lease lasts as long as it would have
                // without the jump.
                let jumped = (self.limits.calendar).jumped_alone(lock.written_at, entry.at);
                if entry.at < lock.expires_at + jumped {
                    self.violation(
                        Invariant::I4,
                        format!("the sweeper reset lock {fence} before it had expired"),
                    );
                }
            }
            _ => self.violation(
                Invariant::I4,
                format!("the sweeper reset lock {fence}, which had no holder"),
            ),
        }
    }

    /// Ends a lock by a change of its holder. Every such change must name the current lock.
    pub(super) fn give_up(&mut self, entry: &Entry, owner: NodeId, fence: Fence, end: End) {
        self.ended.push((fence, end));
        self.struck.clear();
        match self.lock.take() {
            Some(lock) if lock.owner == owner && lock.fence == fence => {
                if lock.taken_off.is_some() {
                    self.violation(
                        Invariant::I4,
                        format!("lock {fence} was used after the sweeper had reset it"),
                    );
                }
                // No guard names a time: the lock counted until now, even if its lease had expired.
                self.hold(lock, entry.at);
            }
            other => {
                let held = other.map_or("none".to_owned(), |lock| lock.fence.to_string());
                self.violation(
                    Invariant::I4,
                    format!("lock {fence} changed the job, but the current lock is {held}"),
                );
                self.lock = other;
            }
        }
    }
}

//! The transitions of a holder: renew, complete, fail, release and the handoff.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::hint::Ready;
use jobwire_core::job::{LockToken, LockedJob};
use jobwire_core::store::{
    BatchOutcome, Completion, Destination, Failure, Handoff, Origin, Refusal, Release, Renewed,
    StoreError,
};
use jobwire_core::{Fence, NodeId};

use super::{Bug, Database, ready, span};
use crate::history::{Event, Waits};

/// Returns the instances of these locks, sorted, each once.
fn instances<'a>(held: impl Iterator<Item = &'a LockToken>) -> Vec<String> {
    let mut names: Vec<String> = held.filter_map(|held| held.instance.clone()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

impl Database {
    fn owns(&self, owner: NodeId, held: &LockToken) -> bool {
        let lease = self.leases.get(&held.id);
        lease.is_some_and(|lease| lease.owner == Some(owner) && lease.fence == held.fence)
    }

    pub(in crate::simulation) fn renew(
        &mut self,
        owner: NodeId,
        lease: Duration,
        held: &[LockToken],
    ) -> Renewed {
        let mut answer = Renewed::default();
        for held in held {
            let now = self.now();
            let ours = if self.has(Bug::RenewsWithoutFence) {
                self.is_locked(held.id)
            } else if self.has(Bug::RenewsWithoutOwner) {
                let lease = self.leases.get(&held.id);
                lease.is_some_and(|lease| lease.fence == held.fence)
            } else {
                self.owns(owner, held)
            };
            let Some(row) = self.leases.get_mut(&held.id).filter(|_| ours) else {
                continue;
            };
            row.owner = Some(owner);
            row.expires_at = now + span(lease);
            let expires_at = row.expires_at.timestamp_micros();
            let fence = held.fence;
            self.record(
                held.id,
                Event::Renewed {
                    owner,
                    fence,
                    expires_at,
                },
            );
            answer.renewed.push(held.id);
        }
        answer
    }

    pub(in crate::simulation) fn unknown(
        &mut self,
        owner: NodeId,
        lease: Duration,
        known: &[Fence],
    ) -> Vec<LockedJob> {
        let now = self.now();
        let ours = self.leases.iter().filter_map(|(id, lease)| {
            let unknown = lease.owner == Some(owner) && !known.contains(&lease.fence);
            let row = self.executable.get(id).filter(|_| unknown)?;
            Some(LockedJob {
                job: Arc::new(row.job.clone()),
                fence: lease.fence,
                strikes: lease.strikes,
                locked_at: now,
            })
        });
        let mut ours: Vec<LockedJob> = ours.collect();
        ours.sort_unstable_by_key(|locked| locked.job.seq);
        let held: Vec<LockToken> = ours.iter().map(LockedJob::held).collect();
        self.renew(owner, lease, &held);
        ours
    }

    pub(in crate::simulation) fn run_alone(&mut self, owner: NodeId, held: &LockToken) -> bool {
        let ours = self.owns(owner, held);
        if let Some(lease) = self.leases.get_mut(&held.id).filter(|_| ours) {
            lease.alone = true;
        }
        ours
    }

    /// Returns whether no strike for these locks can follow.
    pub(in crate::simulation) fn clear_strike(&mut self, lost: &[LockToken]) -> bool {
        for held in lost {
            if let Some(lease) = self.leases.get_mut(&held.id)
                && lease.struck == Some(held.fence)
            {
                lease.strikes -= 1;
                lease.struck = None;
            }
        }
        let is_held = |held: &LockToken| {
            let lease = self.leases.get(&held.id);
            lease.is_some_and(|lease| lease.fence == held.fence && lease.owner.is_some())
        };
        !lost.iter().any(is_held)
    }

    pub(in crate::simulation) fn complete(
        &mut self,
        owner: NodeId,
        done: &[Completion],
        then: &Handoff,
    ) -> Result<BatchOutcome, StoreError> {
        let mut settled = BatchOutcome::default();
        let mut next = Vec::new();
        for completion in done {
            let held = &completion.held;
            let ours = self.has(Bug::CompletesWithoutFence) || self.owns(owner, held);
            let unguarded = self.has(Bug::FollowsUpWithoutGuard);
            if !ours || !self.executable.contains_key(&held.id) {
                next.extend(completion.next.as_deref().cloned().filter(|_| unguarded));
                continue;
            }
            self.leases.remove(&held.id);
            self.executable.remove(&held.id);
            self.stacks.remove(&held.id);
            let fence = held.fence;
            self.record(held.id, Event::Completed { owner, fence });
            settled.applied.push(held.id);
            next.extend(completion.next.as_deref().cloned());
        }
        if !next.is_empty() {
            let created = self.create(next, Origin::Hook)?;
            settled.ready.extend(created.ready);
            settled.timer = created.timer;
        }
        self.pass_on(done.iter().map(|done| &done.held), then, &mut settled);
        Ok(settled)
    }

    pub(in crate::simulation) fn fail(
        &mut self,
        owner: NodeId,
        failed: &[Failure],
        then: &Handoff,
    ) -> BatchOutcome {
        let mut settled = BatchOutcome::default();
        for failure in failed {
            let id = failure.held.id;
            let fence = failure.held.fence;
            let now = self.now();
            if !self.owns(owner, &failure.held) {
                continue;
            }
            self.leases.remove(&id);
            let Some(mut row) = self.executable.remove(&id) else {
                continue;
            };
            settled.applied.push(id);
            let aside = self.is_suspended(&row.job);
            let job = &mut row.job;
            job.revision += 1;
            job.ready_at = now;
            job.exception_message = failure.message.clone().or(job.exception_message.take());
            if let Some(stack) = &failure.stack {
                self.stacks.insert(id, stack.clone());
            }
            let again = match &failure.to {
                Destination::Retry {
                    delay,
                    since,
                    retries,
                    failures,
                } => {
                    let due = since.map_or(now, |date| date.min(now)) + span(*delay);
                    Some((due, *retries, *failures))
                }
                Destination::RetryAt {
                    due_at,
                    retries,
                    failures,
                } => Some(((*due_at).max(now), *retries, *failures)),
                Destination::DeadLetter => None,
            };
            match again {
                Some((due, retries, failures)) => {
                    job.due_at = Some(due);
                    (job.retries, job.failures) = (retries, failures);
                    let to = if aside {
                        self.suspended.insert(id, row);
                        Waits::Suspended
                    } else {
                        let first = settled.timer.map_or(due, |first| first.min(due));
                        settled.timer = Some(first);
                        self.timers.insert(id, row);
                        Waits::Timer(due.timestamp_micros())
                    };
                    self.record(
                        id,
                        Event::Failed {
                            owner,
                            fence,
                            retries,
                            to,
                        },
                    );
                }
                None => {
                    (job.retries, job.failures) = (0, job.failures + 1);
                    self.dead.insert(id, row);
                    self.record(id, Event::DeadLettered { owner, fence });
                }
            }
        }
        self.pass_on(failed.iter().map(|failed| &failed.held), then, &mut settled);
        settled
    }

    pub(in crate::simulation) fn release(
        &mut self,
        owner: NodeId,
        released: &[Release],
    ) -> BatchOutcome {
        let mut settled = BatchOutcome::default();
        for Release { held, started } in released {
            let guarded = self.owns(owner, held);
            let there = self.leases.contains_key(&held.id);
            let ends = guarded || (there && self.has(Bug::ReleasesWithoutGuard));
            if !ends {
                continue;
            }
            let lease = self.leases.get_mut(&held.id);
            if let Some(lease) = lease.filter(|lease| !started && lease.strikes > 0) {
                lease.owner = None;
                lease.alone = false;
            } else {
                self.leases.remove(&held.id);
            }
            let Some(ready) = self.mark(held.id) else {
                continue;
            };
            let fence = held.fence;
            self.record(held.id, Event::Released { owner, fence });
            settled.applied.push(held.id);
            if ready.hint.instance.is_none() {
                settled.ready.push(ready);
            }
        }
        let held = released.iter().map(|released| &released.held);
        self.pass_on(held, &Handoff::Hint, &mut settled);
        settled
    }

    fn pass_on<'a>(
        &mut self,
        held: impl Iterator<Item = &'a LockToken>,
        then: &Handoff,
        settled: &mut BatchOutcome,
    ) {
        let names = instances(held.filter(|held| settled.applied.contains(&held.id)));
        if self.has(Bug::ForgetsTheHandOver) {
            return self.leave(&names);
        }
        let (next, ready) = self.handoff(&names, then);
        settled.next = next;
        settled.ready.extend(ready);
    }

    /// Frees the instances whose lease has no owner.
    fn leave(&mut self, names: &[String]) {
        for name in names {
            if !self.is_held(name) {
                self.doors.remove(name);
            }
        }
    }

    /// Takes the next sibling of each instance, or returns it to be hinted.
    pub(super) fn handoff(
        &mut self,
        names: &[String],
        then: &Handoff,
    ) -> (Vec<LockedJob>, Vec<Ready>) {
        match then {
            Handoff::Take(terms) => {
                let (mut taken, mut left) = (Vec::new(), Vec::new());
                for (name, result) in self.take_first(terms, names) {
                    match result {
                        Ok(job) => taken.push(job),
                        Err(Refusal::Unserved | Refusal::Busy) => left.push(name),
                        Err(_) => {}
                    }
                }
                let ready = self.next(&left);
                (taken, ready)
            }
            Handoff::Hint => {
                self.leave(names);
                (Vec::new(), self.next(names))
            }
        }
    }

    /// Returns the next job of each of these instances that is not held.
    pub(super) fn next(&mut self, names: &[String]) -> Vec<Ready> {
        let mut next = Vec::new();
        for name in names.iter().filter(|name| !self.is_held(name)) {
            let siblings = self.siblings(name);
            let first = siblings.into_iter().find(|row| !self.is_locked(row.job.id));
            next.extend(first.map(|row| ready(&row.job)));
        }
        next
    }
}

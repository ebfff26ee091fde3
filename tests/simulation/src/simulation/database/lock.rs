//! Locks: plain jobs, instances, claiming.

use std::collections::BTreeMap;
use std::sync::Arc;

use jobwire_core::hint::Hint;
use jobwire_core::job::LockedJob;
use jobwire_core::store::{ClaimOf, ClaimPage, Claimable, Claimed, LockTerms, Locked, Refusal};
use jobwire_core::{Job, JobId};

use super::{Bug, Database, Door, Lease, span};
use crate::history::Event;

/// Hints by instance.
pub(in crate::simulation) type Instances = BTreeMap<String, Vec<JobId>>;

impl Database {
    /// Takes the lease of a job that is not locked.
    fn lease(&mut self, terms: &LockTerms, job: Job) -> LockedJob {
        let fence = if self.has(Bug::FenceCountsAttempts) {
            jobwire_core::Fence::new(i64::from(job.failures) + 1)
        } else {
            self.next_fence()
        };
        let now = self.now();
        let before = self.leases.get(&job.id);
        let strikes = before.map_or(0, |lease| lease.strikes);
        let struck = before.and_then(|lease| lease.struck);
        let lease = Lease {
            owner: Some(terms.owner),
            fence,
            locked_at: now,
            expires_at: now + span(terms.lease),
            strikes,
            alone: false,
            struck,
        };
        self.leases.insert(job.id, lease);
        self.record(
            job.id,
            Event::Locked {
                owner: terms.owner,
                fence,
                expires_at: lease.expires_at.timestamp_micros(),
            },
        );
        LockedJob {
            job: Arc::new(job),
            fence,
            strikes,
            locked_at: now,
        }
    }

    /// The first statement: locks plain jobs, and collects the instances of exclusive ones.
    pub(in crate::simulation) fn lock_plain(
        &mut self,
        terms: &LockTerms,
        hints: &[Hint],
    ) -> (Locked, Instances) {
        let mut locked = Locked::default();
        let mut instances = Instances::new();
        let mut plain: Vec<JobId> = Vec::new();
        for hint in hints {
            match &hint.instance {
                Some(instance) => instances.entry(instance.clone()).or_default().push(hint.id),
                None => plain.push(hint.id),
            }
        }
        plain.sort_unstable();
        plain.dedup();
        let mut ours: Vec<Job> = Vec::new();
        for id in plain {
            let Some(row) = self.executable.get(&id) else {
                locked.refused.push((id, Refusal::Gone));
                continue;
            };
            let held = self.is_locked(id) && !self.takes_owned(id);
            let why = if held {
                Refusal::Locked
            } else if self.is_suspended(&row.job) {
                Refusal::Suspended
            } else if row.job.exclusive {
                let instance = row.job.process_instance.clone().unwrap_or_default();
                instances.entry(instance).or_default().push(id);
                continue;
            } else if serves(terms, &row.job) {
                ours.push(row.job.clone());
                continue;
            } else {
                locked.unserved.push((id, row.job.needs()));
                Refusal::Unserved
            };
            locked.refused.push((id, why));
        }
        ours.sort_unstable_by_key(|job| job.seq);
        locked.jobs = ours.into_iter().map(|job| self.lease(terms, job)).collect();
        (locked, instances)
    }

    /// Returns whether a seeded bug takes this lease although it has an owner.
    fn takes_owned(&self, id: JobId) -> bool {
        let expired = |lease: &Lease| lease.expires_at <= self.clock.shown();
        self.has(Bug::TakesLivingLeases)
            || (self.has(Bug::LocksWhatHasExpired) && self.leases.get(&id).is_some_and(expired))
    }

    /// The second transaction: tries these instances.
    pub(in crate::simulation) fn lock_instances(
        &mut self,
        terms: &LockTerms,
        mut instances: Instances,
        locked: &mut Locked,
    ) {
        let names: Vec<String> = instances.keys().cloned().collect();
        for (name, result) in self.take_first(terms, &names) {
            let hinted = instances.remove(&name).unwrap_or_default();
            match result {
                Ok(job) => {
                    let others = hinted.into_iter().filter(|id| *id != job.job.id);
                    let others = others.map(|id| (id, Refusal::InstanceHeld));
                    locked.refused.extend(others);
                    locked.jobs.push(job);
                }
                Err(why) => {
                    let first = self.first_free(&name).filter(|_| why == Refusal::Unserved);
                    let unserved = first.map(Job::needs);
                    for id in hinted {
                        let needs = unserved.clone();
                        locked.unserved.extend(needs.map(|needs| (id, needs)));
                        locked.refused.push((id, why));
                    }
                }
            }
        }
    }

    /// Locks the first ready job of each instance that is not held.
    pub(super) fn take_first(
        &mut self,
        terms: &LockTerms,
        names: &[String],
    ) -> Vec<(String, Result<LockedJob, Refusal>)> {
        let mut tried = Vec::with_capacity(names.len());
        for name in names {
            tried.push((name.clone(), self.take_first_of(terms, name)));
        }
        // In the order of the statement's result: the locked ones by creation order, then the
        // others.
        tried.sort_by_key(|(_, result)| result.as_ref().map_or(i64::MAX, |job| job.job.seq));
        tried
    }

    /// Returns the first ready job of an instance.
    fn first_free(&self, name: &str) -> Option<&Job> {
        let siblings = self.siblings(name);
        let mut free = siblings
            .into_iter()
            .filter(|row| !self.is_locked(row.job.id) || self.takes_owned(row.job.id));
        free.next().map(|row| &row.job)
    }

    fn take_first_of(&mut self, terms: &LockTerms, name: &str) -> Result<LockedJob, Refusal> {
        let held = match self.doors.get(name) {
            None => false,
            Some(door) => match self.leases.get(&door.job) {
                // A later lock on the holder's job does not hold the instance.
                Some(lease) if lease.fence != door.fence => false,
                Some(lease) => lease.owner.is_some() && !self.takes_owned(door.job),
                None => false,
            },
        };
        if held && !self.has(Bug::SkipsTheInstance) {
            return Err(Refusal::InstanceHeld);
        }
        let Some(job) = self.first_free(name).cloned() else {
            self.doors.remove(name);
            return Err(Refusal::Gone);
        };
        if !serves(terms, &job) {
            self.doors.remove(name);
            return Err(Refusal::Unserved);
        }
        let taken = self.lease(terms, job);
        let door = Door {
            job: taken.job.id,
            fence: taken.fence,
        };
        self.doors.insert(name.to_owned(), door);
        Ok(taken)
    }

    /// Locks ready jobs of a lane without hints.
    pub(in crate::simulation) fn claim(&mut self, terms: &LockTerms, page: &ClaimPage) -> Claimed {
        let Claimable { hints, after } = self.claimable(terms, page);
        let (mut locked, instances) = self.lock_plain(terms, &hints);
        self.lock_instances(terms, instances, &mut locked);
        locked.jobs.sort_by_key(|locked| locked.job.id);
        Claimed {
            jobs: locked.jobs,
            after,
            ..Claimed::default()
        }
    }

    pub(in crate::simulation) fn claimable(
        &self,
        terms: &LockTerms,
        page: &ClaimPage,
    ) -> Claimable {
        let at_most = usize::try_from(page.at_most).unwrap_or(0);
        let (looked, slice_end) = match page.of {
            ClaimOf::Rescued { after } | ClaimOf::Suspects { after } => {
                let suspects = matches!(page.of, ClaimOf::Suspects { .. });
                let ownerless =
                    |lease: &Lease| lease.owner.is_none() && (lease.strikes >= 2) == suspects;
                let leases = self.leases.iter();
                let rescued = leases.filter(|(_, lease)| ownerless(lease));
                let ids = rescued.map(|(id, _)| *id);
                let behind = ids.filter(|id| after.is_none_or(|after| *id > after));
                (behind.collect(), None)
            }
            ClaimOf::Next { after, look_at } => {
                let look_at = usize::try_from(look_at.max(1)).unwrap_or(usize::MAX);
                let ids = self.executable.keys().copied();
                let behind = ids.filter(|id| after.is_none_or(|after| *id > after));
                let mut looked: Vec<JobId> = behind.take(look_at).collect();
                let end = looked.last().copied().filter(|_| looked.len() == look_at);
                looked.retain(|id| self.leases.get(id).is_none_or(|lease| lease.strikes == 0));
                (looked, end)
            }
        };
        let mut hints: Vec<Hint> = Vec::new();
        for id in looked {
            let Some(row) = self.executable.get(&id) else {
                continue;
            };
            let job = &row.job;
            let free = job.lane == page.lane
                && serves(terms, job)
                && !self.is_locked(id)
                && !self.is_suspended(job)
                && self.is_first(job);
            if free && hints.len() < at_most {
                hints.push(Hint {
                    instance: job.exclusive_instance().map(str::to_owned),
                    ..Hint::new(id)
                });
            }
        }
        let full = hints.len() >= at_most;
        let after = if full {
            hints.last().map(|hint| hint.id)
        } else {
            slice_end
        };
        Claimable { hints, after }
    }
}

/// Returns whether the node serves the job: its type, and whether it is in the node's scope.
fn serves(terms: &LockTerms, job: &Job) -> bool {
    terms.types.contains(&job.job_type) && terms.scope.takes(&job.needs())
}

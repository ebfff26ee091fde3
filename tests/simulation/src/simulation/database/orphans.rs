//! Orphans, and instances without a holder.

use jobwire_core::hint::Ready;
use jobwire_core::store::{Handoff, OrphanPage, OrphanQuery};
use jobwire_core::{Job, JobId};

use super::{Bug, Database, Row, ready};
use crate::history::Event;

impl Database {
    /// Returns whether the job is the first of its instance and the instance is not held.
    pub(super) fn is_first(&self, job: &Job) -> bool {
        let Some(instance) = job.exclusive_instance() else {
            return true;
        };
        let first = self.siblings(instance).first().map(|row| row.job.seq);
        first == Some(job.seq) && !self.is_held(instance)
    }

    pub(in crate::simulation) fn orphans(&mut self, query: &OrphanQuery) -> OrphanPage {
        if self.has(Bug::NeverLooksForOrphans) {
            return OrphanPage::default();
        }
        let gates = !self.has(Bug::HintsGatedJobs);
        let waited = |row: &Row| {
            let doublings = (row.hints - 1).clamp(0, 6);
            let backed_off = chrono::Duration::seconds(5 * ((1 << doublings) - 1));
            row.job.ready_at <= query.ready_before - backed_off && !query.held.contains(&row.job.id)
        };
        let lost = self.executable.iter().filter(|(id, row)| {
            let job = &row.job;
            query.after.is_none_or(|after| **id > after)
                && job.lane == query.lane
                && query.services.serve(&job.needs())
                && waited(row)
                && !self.is_locked(**id)
                && !self.is_suspended(job)
                && (!gates || self.is_first(job))
        });
        let lost: Vec<JobId> = lost
            .map(|(id, _)| *id)
            .take(usize::try_from(query.limit).unwrap_or(0))
            .collect();
        let is_full = i64::try_from(lost.len()).is_ok_and(|found| found >= query.limit);
        let next = lost.last().copied().filter(|_| is_full);
        let ready = lost.into_iter().filter_map(|id| {
            if query.mark {
                self.record(id, Event::Rehinted);
                self.mark(id)
            } else {
                self.executable.get(&id).map(|row| ready(&row.job))
            }
        });
        OrphanPage {
            ready: ready.collect(),
            next,
        }
    }

    pub(in crate::simulation) fn free_instances(&mut self) -> Vec<Ready> {
        let left_over = self.doors.iter().filter(|(_, door)| {
            let lease = self.leases.get(&door.job);
            lease.is_none_or(|lease| lease.fence != door.fence)
        });
        let names: Vec<String> = left_over.map(|(name, _)| name.clone()).collect();
        self.handoff(&names, &Handoff::Hint).1
    }
}

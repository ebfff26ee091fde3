//! Operations and queries of operators.

use jobwire_core::hint::Ready;
use jobwire_core::job::query::JobFacts;
use jobwire_core::store::{Operated, SuspensionScope};
use jobwire_core::{Job, JobId, JobQuery, JobState, JobView};

use super::{Database, Row, belongs, scope};
use crate::history::Event;

impl Database {
    pub(in crate::simulation) fn delete(&mut self, id: JobId) -> (Operated, Vec<Ready>) {
        if self.is_locked(id) {
            return (Operated::Running, Vec::new());
        }
        let Some((state, row)) = self.row(id) else {
            return (Operated::NotFound, Vec::new());
        };
        let instance = row.job.exclusive_instance().map(str::to_owned);
        self.table(state).remove(&id);
        self.leases.remove(&id);
        self.stacks.remove(&id);
        self.record(id, Event::Deleted);
        let names: Vec<String> = instance
            .into_iter()
            .filter(|name| state == JobState::Executable && !self.is_held(name))
            .collect();
        let ready = self.next(&names);
        (Operated::Done, ready)
    }

    pub(in crate::simulation) fn retry(
        &mut self,
        id: JobId,
        retries: i32,
    ) -> (Operated, Vec<Ready>) {
        if self.is_locked(id) {
            return (Operated::Running, Vec::new());
        }
        let Some((state, _)) = self.row(id) else {
            return (Operated::NotFound, Vec::new());
        };
        if state == JobState::Executable {
            if let Some(row) = self.executable.get_mut(&id) {
                give_attempts(&mut row.job, retries);
            }
            return (Operated::Done, self.mark(id).into_iter().collect());
        }
        if state == JobState::Suspended {
            return (Operated::NotFound, Vec::new());
        }
        let Some(mut row) = self.table(state).remove(&id) else {
            return (Operated::NotFound, Vec::new());
        };
        give_attempts(&mut row.job, retries);
        row.job.due_at = None;
        self.record(id, Event::Revived { retries });
        let hints = row.hints + 1;
        (Operated::Done, vec![self.make_executable(row, hints)])
    }

    fn table(&mut self, state: JobState) -> &mut std::collections::BTreeMap<JobId, Row> {
        match state {
            JobState::Timer => &mut self.timers,
            JobState::Suspended => &mut self.suspended,
            JobState::DeadLetter => &mut self.dead,
            _ => &mut self.executable,
        }
    }

    pub(in crate::simulation) fn suspend(&mut self, of: &SuspensionScope) -> (u64, Vec<Ready>) {
        let (kind, value) = scope(of);
        self.suspensions.insert((kind, value.clone()));
        let concerned = |row: &&Row| belongs(&row.job, kind, &value);
        let executable = self.executable.values().filter(concerned);
        let executable = executable.filter(|row| !self.is_locked(row.job.id));
        let timers = self.timers.values().filter(concerned);
        let left = executable
            .clone()
            .filter_map(|row| row.job.exclusive_instance());
        let left: Vec<String> = left.map(str::to_owned).collect();
        let ids: Vec<JobId> = executable.chain(timers).map(|row| row.job.id).collect();
        for id in &ids {
            let row = self.executable.remove(id).or(self.timers.remove(id));
            if let Some(row) = row {
                self.leases.remove(id);
                self.suspended.insert(*id, row);
                self.record(*id, Event::Suspended);
            }
        }
        (ids.len() as u64, self.next(&left))
    }

    pub(in crate::simulation) fn activate(&mut self, of: &SuspensionScope) -> Vec<Ready> {
        let (kind, value) = scope(of);
        if !self.suspensions.remove(&(kind, value.clone())) {
            return Vec::new();
        }
        let now = self.now();
        let back = self.suspended.values();
        let back = back.filter(|row| belongs(&row.job, kind, &value));
        let back = back.filter(|row| !self.is_suspended(&row.job));
        let back: Vec<JobId> = back.map(|row| row.job.id).collect();
        let mut ready = Vec::new();
        for id in &back {
            let Some(row) = self.suspended.remove(id) else {
                continue;
            };
            let timer = row.job.due_at.is_some_and(|due| due > now);
            self.record(*id, Event::Activated { timer });
            if timer {
                self.timers.insert(*id, row);
            } else {
                let hints = row.hints + 1;
                ready.push(self.make_executable(row, hints));
            }
        }
        // Jobs created during the suspension wait in the executable table.
        let waited = self.executable.values();
        let waited = waited.filter(|row| belongs(&row.job, kind, &value));
        let waited = waited.filter(|row| !back.contains(&row.job.id));
        let waited = waited.filter(|row| !self.is_suspended(&row.job));
        let waited = waited.filter(|row| !self.is_locked(row.job.id));
        let waited: Vec<JobId> = waited.map(|row| row.job.id).collect();
        ready.extend(waited.into_iter().filter_map(|id| self.mark(id)));
        ready
    }

    pub(in crate::simulation) fn get(
        &mut self,
        id: JobId,
    ) -> Option<(JobView, Job, Option<String>)> {
        let (state, row) = self.row(id)?;
        let stack = self.stacks.get(&id).cloned();
        Some((self.view(state, row), row.job.clone(), stack))
    }

    /// Returns all jobs that match, in the order of the query, from its cursor on.
    pub(in crate::simulation) fn find(&mut self, query: &JobQuery) -> Vec<JobView> {
        let now = self.now();
        let tables = [
            (JobState::Executable, &self.executable),
            (JobState::Timer, &self.timers),
            (JobState::Suspended, &self.suspended),
            (JobState::DeadLetter, &self.dead),
        ];
        let rows = tables
            .into_iter()
            .flat_map(|(state, table)| table.values().map(move |row| (state, row)));
        let mut found: Vec<JobView> = rows
            .map(|(state, row)| (self.view(state, row), row))
            .filter(|(view, row)| {
                query.matches(&JobFacts {
                    view,
                    job: &row.job,
                    unique_key: None,
                    is_covered: self.is_suspended(&row.job),
                    now,
                })
            })
            .map(|(view, _)| view)
            .filter(|view| {
                query
                    .after
                    .as_ref()
                    .is_none_or(|after| after.is_before(view))
            })
            .collect();
        found.sort_unstable_by(|one, other| query.sort.compare(one, other));
        found
    }

    fn view(&self, state: JobState, row: &Row) -> JobView {
        let job = &row.job;
        let lease = self
            .leases
            .get(&job.id)
            .filter(|lease| lease.owner.is_some());
        JobView {
            id: job.id,
            state,
            seq: job.seq,
            kind: job.kind,
            job_type: job.job_type.clone(),
            process_instance: job.process_instance.clone(),
            execution: job.execution.clone(),
            process_definition: job.process_definition.clone(),
            element: job.element.clone(),
            tenant: job.tenant.clone(),
            lane: job.lane.clone(),
            hints: Some(row.hints),
            priority: job.priority,
            exclusive: job.exclusive,
            retries: job.retries,
            failures: job.failures,
            due_at: job.due_at,
            created_at: job.created_at,
            ready_at: job.ready_at,
            correlation_id: job.correlation_id,
            exception_message: job.exception_message.clone(),
            lock_owner: lease
                .and_then(|lease| lease.owner)
                .map(|owner| owner.uuid()),
            lock_expires_at: lease.map(|lease| lease.expires_at),
            locked_at: lease.map(|lease| lease.locked_at),
            fence: lease.map(|lease| lease.fence.number()),
            cancelled_at: None,
            gate: None,
            progress: None,
            checkpoint_at: None,
            tags: job.tags(),
        }
    }
}

/// Gives a job `retries` attempts. The rest of its total counts as failures; if `retries` exceeds
/// the total, there are none.
fn give_attempts(job: &mut Job, retries: i32) {
    let all = job.retries.saturating_add(job.failures);
    job.failures = all.saturating_sub(retries).max(0);
    job.retries = retries;
}

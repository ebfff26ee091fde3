//! Gives existing jobs the priority of an override.
//!
//! The jobs of a job definition are changed page by page, each in a transaction of its own, as
//! [`Change::SetPriority`] does it: a ready job whose lane the rules chose is hinted in its new lane.
//! A job with a more specific override keeps its priority. The next page follows when most hints
//! have left. A running job is not changed. A cascade that was
//! interrupted is continued by another one.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::job::JobId;
use crate::job::query::{JobFilter, JobView};
use crate::lane::priority::{JobDefinition, PriorityScope};
use crate::producer::commit_hook::{Cause, CommitHook};
use crate::store::{Change, Operated, Store, StoreError};

/// Maximum number of jobs that one list names. Each list reads all jobs.
const LISTED: usize = 10_000;
/// Maximum number of jobs in one transaction.
const PAGE: usize = 500;
/// The number of waiting hints below which the next page follows.
const FEW: usize = 10_000;
/// The pause between two looks at the waiting hints, and the time after which the rest is left to
/// the sweeper.
const LOOK: Duration = Duration::from_millis(10);
const PATIENCE: Duration = Duration::from_secs(30);

/// The priority that the existing jobs of a definition get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityCascade {
    /// The jobs.
    pub definition: JobDefinition,
    /// Their new priority.
    pub priority: i64,
}

/// The result of a cascade.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PriorityCascaded {
    /// The number of jobs that got the priority.
    pub changed: u64,
    /// The number of jobs that kept theirs because they were running.
    pub running: u64,
    /// The jobs that could not be changed, and why.
    pub refused: Vec<(JobId, String)>,
}

impl PriorityCascade {
    /// Changes the jobs that have another priority, and publishes hints through `hook`. With a
    /// [disconnected](CommitHook::disconnected) hook, the sweeper finds the jobs that changed their
    /// lane.
    ///
    /// # Errors
    /// A database error. The jobs that were changed by then stay changed.
    pub async fn run(
        &self,
        store: &dyn Store,
        hook: &CommitHook,
    ) -> Result<PriorityCascaded, StoreError> {
        let mut filter = JobFilter::default()
            .job_type(&self.definition.job_type)
            .priority_other_than(self.priority);
        filter.process_definition = self.definition.process_definition.clone();
        filter.element = self.definition.element.clone();
        let others = self.more_specific(store).await?;
        let keeps = |view: &JobView| others.iter().any(|other| covers(other, view));
        let mut done = PriorityCascaded::default();
        let mut seen: HashSet<JobId> = HashSet::new();
        loop {
            // Those that keep their priority are listed again.
            let limit = LISTED + seen.len();
            filter.limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let found = store.find(&filter).await?;
            let is_last = found.len() < limit;
            let (kept, found): (Vec<_>, Vec<_>) = found.into_iter().partition(keeps);
            seen.extend(kept.iter().map(|view| view.id));
            let ids = found.iter().map(|view| view.id);
            let ids: Vec<JobId> = ids.filter(|id| !seen.contains(id)).collect();
            for page in ids.chunks(PAGE) {
                self.change(store, hook, page, &mut done, &mut seen).await?;
                room(hook).await;
            }
            if is_last {
                return Ok(done);
            }
        }
    }

    /// Returns the overrides of jobs of this definition that come before its own.
    async fn more_specific(&self, store: &dyn Store) -> Result<Vec<JobDefinition>, StoreError> {
        let rules = store.priority_rules().await?;
        let overrides = rules.into_iter().filter_map(|rule| match rule.scope {
            PriorityScope::Override(definition) => Some(definition),
            _ => None,
        });
        let own = specificity(&self.definition);
        Ok(overrides
            .filter(|other| other.job_type == self.definition.job_type && specificity(other) > own)
            .collect())
    }

    /// Changes these jobs, and adds those that keep their priority to `kept`.
    async fn change(
        &self,
        store: &dyn Store,
        hook: &CommitHook,
        page: &[JobId],
        done: &mut PriorityCascaded,
        kept: &mut HashSet<JobId>,
    ) -> Result<(), StoreError> {
        let change = Change::SetPriority(self.priority);
        let changed = store.change_many(page, &change).await?;
        hook.publish(Cause::Operator, changed.ready);
        for (id, operated) in changed.operated {
            match operated {
                Operated::Done => done.changed += 1,
                Operated::Running if kept.insert(id) => done.running += 1,
                _ => {}
            }
        }
        for (id, why) in changed.refused {
            if kept.insert(id) {
                done.refused.push((id, why));
            }
        }
        Ok(())
    }
}

/// The order of overrides: one with an element comes before one with a process definition only.
fn specificity(definition: &JobDefinition) -> (bool, bool) {
    let has_process_definition = definition.process_definition.is_some();
    (definition.element.is_some(), has_process_definition)
}

/// Returns whether an override of the job's type is one of this job.
fn covers(definition: &JobDefinition, job: &JobView) -> bool {
    let fits = |of: &Option<String>, its: &Option<String>| of.is_none() || of == its;
    fits(&definition.element, &job.element)
        && fits(&definition.process_definition, &job.process_definition)
}

/// Waits until few hints wait, or [`PATIENCE`] is over.
async fn room(hook: &CommitHook) {
    let until = Instant::now() + PATIENCE;
    while hook.buffered() > FEW && Instant::now() < until {
        tokio::time::sleep(LOOK).await;
    }
}

//! Gives existing jobs the priority of an override.
//!
//! The jobs of a job definition are changed page by page, each in a transaction of its own, as
//! [`Change::SetPriority`] does it: a ready job whose lane the rules chose is hinted in its new lane, and
//! one that stays in its lane if nodes take ranges of priorities.
//! A job with a more specific override keeps its priority. A running job is not changed. The cascade goes
//! through the jobs once, in the order of their ids: a job that is created meanwhile gets its priority by
//! the override. A cascade that was interrupted is continued by another one.

use crate::job::JobId;
use crate::job::query::{JobCursor, JobQuery, JobSort, JobView, SortBy};
use crate::lane::priority::{JobDefinition, PriorityScope};
use crate::producer::commit_hook::CommitHook;
use crate::producer::hint_room::room;
use crate::store::{Change, Operated, Store, StoreError};

/// Maximum number of jobs in one list. A list may read far in a table with few jobs of the definition.
const LISTED: i64 = 10_000;
/// Maximum number of jobs in one transaction.
const PAGE: usize = 500;

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
        let mut filter = JobQuery::default()
            .job_type(&self.definition.job_type)
            .priority_other_than(self.priority);
        if let Some(definition) = &self.definition.process_definition {
            filter = filter.process_definition(definition);
        }
        if let Some(element) = &self.definition.element {
            filter = filter.element(element);
        }
        let overrides = self.more_specific(store).await?;
        let is_excepted = |view: &JobView| {
            let (definition, element) = (view.process_definition.as_ref(), view.element.as_ref());
            overrides.iter().any(|of| of.covers(definition, element))
        };
        filter.sort = JobSort::ascending(SortBy::Id);
        filter.limit = LISTED;
        let mut done = PriorityCascaded::default();
        loop {
            let found = store.find(&filter).await?;
            let Some(last) = found.last() else {
                return Ok(done);
            };
            filter.after = Some(JobCursor::after(last, filter.sort));
            let changes = found.iter().filter(|view| !is_excepted(view));
            let ids: Vec<JobId> = changes.map(|view| view.id).collect();
            for page in ids.chunks(PAGE) {
                self.change(store, hook, page, &mut done).await?;
                // Without room, the sweeper publishes the hints of the rest.
                room(hook).await;
            }
        }
    }

    /// Returns the overrides of jobs of this definition that come before its own.
    async fn more_specific(&self, store: &dyn Store) -> Result<Vec<JobDefinition>, StoreError> {
        let own = PriorityScope::Override(self.definition.clone()).place();
        let rules = store.priority_rules().await?.into_iter();
        let scopes = rules.map(|rule| rule.scope);
        let earlier = scopes.filter(|scope| scope.place() < own);
        Ok(earlier
            .filter_map(|scope| match scope {
                PriorityScope::Override(of) if of.job_type == self.definition.job_type => Some(of),
                _ => None,
            })
            .collect())
    }

    /// Changes these jobs, and counts them.
    async fn change(
        &self,
        store: &dyn Store,
        hook: &CommitHook,
        page: &[JobId],
        done: &mut PriorityCascaded,
    ) -> Result<(), StoreError> {
        let change = Change::SetPriority(self.priority);
        let changed = store.change_many(page, &change).await?;
        hook.operated(store, changed.ready).await;
        for (_, operated) in changed.operated {
            match operated {
                Operated::Done => done.changed += 1,
                Operated::Running => done.running += 1,
                _ => {}
            }
        }
        done.refused.extend(changed.refused);
        Ok(())
    }
}

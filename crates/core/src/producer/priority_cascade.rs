//! Gives existing jobs a priority: those of a job definition, that of its override, and the members of a
//! batch.
//!
//! The jobs are changed page by page, each page in a transaction of its own, as
//! [`Change::SetPriority`] does it: a ready job whose lane the rules chose is hinted in its new lane, and
//! one that stays in its lane if nodes take ranges of priorities.
//! A running job is not changed. The cascade goes through the jobs once, in the order of their ids. A
//! cascade that was interrupted is continued by another one.
//!
//! - Of a definition, a job with a more specific override keeps its priority, and a job that is created
//!   meanwhile gets its priority by the override.
//! - A batch has no rule: a member that is added meanwhile or later keeps the priority that it was created
//!   with. The batches inside the batch are changed, too, as they are cancelled with it.

use std::collections::HashSet;

use crate::job::query::{JobCursor, JobQuery, JobSort, JobView, SortBy};
use crate::job::{BatchId, JobId};
use crate::lane::priority::{JobDefinition, PriorityScope};
use crate::producer::commit_hook::CommitHook;
use crate::producer::hint_room::room;
use crate::store::{Change, Operated, Store, StoreError};

/// Maximum number of jobs in one list. A list may read far in a table with few jobs of the definition.
const LISTED: i64 = 10_000;
/// Maximum number of jobs in one transaction.
const PAGE: usize = 500;

/// Maximum number of members of a batch in one list.
const MEMBERS: i64 = 1_000;

/// The jobs of a cascade.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CascadeScope {
    /// The jobs of a definition, except those with a more specific override.
    Definition(JobDefinition),
    /// The members of a batch, and those of the batches inside it.
    Batch(BatchId),
}

/// The priority that existing jobs get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PriorityCascade {
    /// The jobs.
    pub scope: CascadeScope,
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
        let mut done = PriorityCascaded::default();
        match &self.scope {
            CascadeScope::Definition(definition) => {
                let filter = of_definition(definition);
                let excepted = more_specific(store, definition).await?;
                self.cascade(store, hook, filter, &excepted, &mut done)
                    .await?;
            }
            CascadeScope::Batch(batch) => {
                for batch in with_those_inside(store, *batch).await? {
                    let filter = JobQuery::default().batch(batch);
                    self.cascade(store, hook, filter, &[], &mut done).await?;
                }
            }
        }
        Ok(done)
    }

    /// Changes the jobs that match, except those of these definitions.
    async fn cascade(
        &self,
        store: &dyn Store,
        hook: &CommitHook,
        filter: JobQuery,
        excepted: &[JobDefinition],
        done: &mut PriorityCascaded,
    ) -> Result<(), StoreError> {
        let mut filter = filter.priority_other_than(self.priority);
        let is_excepted = |view: &JobView| {
            let (definition, element) = (view.process_definition.as_ref(), view.element.as_ref());
            excepted.iter().any(|of| of.covers(definition, element))
        };
        filter.sort = JobSort::ascending(SortBy::Id);
        filter.limit = LISTED;
        loop {
            let found = store.find(&filter).await?;
            let Some(last) = found.last() else {
                return Ok(());
            };
            filter.after = Some(JobCursor::after(last, filter.sort));
            let changes = found.iter().filter(|view| !is_excepted(view));
            let ids: Vec<JobId> = changes.map(|view| view.id).collect();
            for page in ids.chunks(PAGE) {
                self.change(store, hook, page, done).await?;
                // Without room, the sweeper publishes the hints of the rest.
                room(hook).await;
            }
        }
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

fn of_definition(definition: &JobDefinition) -> JobQuery {
    let mut filter = JobQuery::default().job_type(&definition.job_type);
    if let Some(name) = &definition.process_definition {
        filter = filter.process_definition(name);
    }
    if let Some(element) = &definition.element {
        filter = filter.element(element);
    }
    filter
}

/// Returns the overrides of jobs of this definition that come before its own.
async fn more_specific(
    store: &dyn Store,
    definition: &JobDefinition,
) -> Result<Vec<JobDefinition>, StoreError> {
    let own = PriorityScope::Override(definition.clone()).place();
    let rules = store.priority_rules().await?.into_iter();
    let scopes = rules.map(|rule| rule.scope);
    let earlier = scopes.filter(|scope| scope.place() < own);
    Ok(earlier
        .filter_map(|scope| match scope {
            PriorityScope::Override(of) if of.job_type == definition.job_type => Some(of),
            _ => None,
        })
        .collect())
}

/// Returns this batch and the batches inside it, each once: by SQL, batches may be inside each other in
/// a circle.
async fn with_those_inside(store: &dyn Store, batch: BatchId) -> Result<Vec<BatchId>, StoreError> {
    let (mut seen, mut left) = (HashSet::from([batch]), vec![batch]);
    let mut all = Vec::new();
    while let Some(batch) = left.pop() {
        all.push(batch);
        let mut after = None;
        loop {
            let page = store.batch_members(batch, after, MEMBERS).await?;
            let Some(last) = page.jobs.last() else { break };
            after = Some(*last);
            let inside = page.inner.into_iter();
            left.extend(inside.filter(|inner| seen.insert(*inner)));
        }
    }
    Ok(all)
}

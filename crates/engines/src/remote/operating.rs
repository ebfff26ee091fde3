//! Queries and changes of jobs by operators. The engine makes the changes by its own rules.

use jobwire_core::job::query::{JobFilter, JobView};
use jobwire_core::store::{Operated, OperatedJobs};
use jobwire_core::{Job, JobId, JobState};

use super::wire::{Change, Changed, Find, Jobs};
use super::{EndpointStore, Result};
use crate::decode::OTHER;
use crate::id::engine_id;

/// A change of a job by an operator.
#[derive(Clone, Copy)]
pub(super) enum Wish {
    Delete,
    Retry(i32),
}

/// Maximum number of jobs of each state in a list or a count. The endpoint bounds its answer.
const MOST_FOUND: i64 = 1_000;

impl EndpointStore {
    /// Returns the jobs that match. The endpoint filters by state, id, instance and type, and reads
    /// at most [`MOST_FOUND`] of each state. The other filters apply here.
    pub(super) async fn list(&self, filter: &JobFilter) -> Result<Vec<(JobView, Job)>> {
        self.0.options.check_filter(filter)?;
        let ids = filter.id.into_iter();
        let ids: Vec<JobId> = ids
            .chain(filter.correlation_id.map(JobId::from_uuid))
            .collect();
        let is_open = |lane: &String| lane == self.0.options.lane.as_str();
        if ids.windows(2).any(|pair| pair[0] != pair[1])
            || !filter.lane.as_ref().is_none_or(is_open)
        {
            return Ok(Vec::new());
        }
        let find = Find {
            states: filter.states.iter().copied().map(word).collect(),
            ids: ids
                .first()
                .map(|id| engine_id(*id).into_iter().collect::<Vec<_>>()),
            instance: filter.process_instance.clone(),
            // A type without a handler stands for many types.
            handler: filter.job_type.clone().filter(|name| name != OTHER),
            limit: MOST_FOUND,
        };
        let found: Jobs = self.0.client.ask("find", "find", &find).await?;
        let views = found.jobs.iter();
        let mut views: Vec<(JobView, Job)> = views
            .filter_map(|row| self.0.decoder.view(row))
            .filter(|(view, _)| is_wanted(filter, view))
            .collect();
        views.sort_by_key(|(view, _)| (view.seq, view.id));
        Ok(views)
    }

    /// Changes a job through the engine.
    pub(super) async fn change(&self, id: JobId, wish: Wish) -> Result<Operated> {
        let Some(row) = self.row(id).await? else {
            return Ok(Operated::NotFound);
        };
        if row.owner.is_some() || row.locked_until.is_some() {
            return Ok(Operated::Running);
        }
        if matches!(wish, Wish::Retry(_)) && row.state() == JobState::Suspended {
            return self
                .0
                .options
                .refuse("activating a job", "the activation of its process instance");
        }
        let (operation, retries) = match wish {
            Wish::Delete => ("delete", 1),
            Wish::Retry(retries) => ("retry", retries.max(1)),
        };
        let change = Change {
            id: row.id,
            retries,
        };
        let changed: Changed = self.0.client.ask(operation, operation, &change).await?;
        Ok(if changed.found {
            Operated::Done
        } else {
            Operated::NotFound
        })
    }

    pub(super) async fn change_many(&self, ids: &[JobId], wish: Wish) -> Result<OperatedJobs> {
        let mut done = OperatedJobs::default();
        for id in ids {
            match self.change(*id, wish).await {
                Ok(operated) => done.operated.push((*id, operated)),
                Err(error) if error.is_transient() && error.changed_nothing() => {
                    return Err(error);
                }
                Err(error) => done.refused.push((*id, error.to_string())),
            }
        }
        Ok(done)
    }
}

/// Returns the name of a state in the contract.
fn word(state: JobState) -> &'static str {
    match state {
        JobState::Executable => "job",
        JobState::DeadLetter => "dead letter",
        other => other.as_str(),
    }
}

/// Returns whether a job passes the filters that the endpoint does not apply.
fn is_wanted(filter: &JobFilter, view: &JobView) -> bool {
    let is = |wanted: &Option<String>, has: Option<&str>| {
        wanted.as_deref().is_none_or(|wanted| has == Some(wanted))
    };
    let is_locked = view.lock_owner.is_some() || view.lock_expires_at.is_some();
    is(&filter.job_type, Some(&view.job_type))
        && is(
            &filter.process_definition,
            view.process_definition.as_deref(),
        )
        && is(&filter.element, view.element.as_deref())
        && is(&filter.tenant, view.tenant.as_deref())
        && filter.locked.is_none_or(|locked| locked == is_locked)
        && filter
            .with_exception
            .is_none_or(|failed| failed == view.exception_message.is_some())
        && filter
            .due_before
            .is_none_or(|moment| view.due_at.is_some_and(|due| due < moment))
}

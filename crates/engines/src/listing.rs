//! A query for an engine's jobs, in two parts: the conditions of its statement, and those that are
//! decided in memory.

use chrono::{DateTime, Utc};
use jobwire_core::job::query::{JobFacts, JobQuery, JobView, TextField, TextMatch};
use jobwire_core::{Job, JobId, JobState, StoreError};

/// Maximum number of jobs that a query reads to decide conditions in memory.
pub(crate) const MOST_READ: i64 = 10_000;

/// The conditions of a statement.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// The ids: all of them must be one. The correlation id of a job is its id.
    pub(crate) ids: Vec<JobId>,
    pub(crate) job_type: Option<String>,
    pub(crate) instance: Option<String>,
    pub(crate) definition: Option<String>,
    pub(crate) element: Option<String>,
    pub(crate) tenant: Option<String>,
    pub(crate) lane: Option<String>,
    pub(crate) locked: Option<bool>,
    pub(crate) with_exception: Option<bool>,
    pub(crate) due_before: Option<DateTime<Utc>>,
    pub(crate) states: Vec<&'static str>,
    /// The conditions that are decided in memory, with order and page.
    pub(crate) rest: JobQuery,
}

impl Listing {
    /// Splits a query.
    pub(crate) fn of(query: &JobQuery) -> Self {
        let mut rest = query.clone();
        let asked: &[JobState] = match query.states.as_slice() {
            [] => JobState::ALL,
            states => states,
        };
        let mut of = Self {
            states: asked.iter().map(|state| state.as_str()).collect(),
            ids: rest
                .correlation_id
                .take()
                .map(JobId::from_uuid)
                .into_iter()
                .collect(),
            locked: rest.locked.take(),
            with_exception: rest.with_exception.take(),
            due_before: rest.due_before.take(),
            ..Self::default()
        };
        rest.states.clear();
        if let Some([id]) = rest.ids.as_deref() {
            of.ids.push(*id);
            rest.ids = None;
        }
        rest.texts.retain(|(field, matches)| {
            let place = match field {
                TextField::Type => &mut of.job_type,
                TextField::Instance => &mut of.instance,
                TextField::Definition => &mut of.definition,
                TextField::Element => &mut of.element,
                TextField::Tenant => &mut of.tenant,
                TextField::Lane => &mut of.lane,
                _ => return true,
            };
            match matches {
                TextMatch::OneOf(texts) if texts.len() == 1 && place.is_none() => {
                    *place = texts.first().cloned();
                    false
                }
                _ => true,
            }
        });
        of.rest = rest;
        of
    }

    /// Returns whether the statement decides everything.
    pub(crate) fn is_whole(&self) -> bool {
        let page = JobQuery::default()
            .offset(self.rest.offset)
            .limit(self.rest.limit);
        self.rest == page
    }

    /// Returns whether the statement decides all conditions.
    pub(crate) fn has_all_conditions(&self) -> bool {
        let mut rest = self.rest.clone();
        (rest.sort, rest.after) = (JobQuery::default().sort, None);
        (rest.offset, rest.limit) = (JobQuery::default().offset, JobQuery::default().limit);
        rest == JobQuery::default()
    }

    /// Returns the error for a query that would have to read too many jobs.
    pub(crate) fn too_many() -> StoreError {
        StoreError::Config(format!(
            "more than {MOST_READ} jobs of the engine would have to be read for these filters and \
             this order; name an instance, a type or a state as well"
        ))
    }
}

/// Returns the jobs that fulfil the conditions, in the order of the query, from its cursor on.
pub(crate) fn selected(query: &JobQuery, found: Vec<(JobView, Job)>) -> Vec<(JobView, Job)> {
    let now = Utc::now();
    let mut found = found;
    found.retain(|(view, job)| {
        let of = JobFacts {
            view,
            job,
            unique_key: None,
            is_covered: false,
            now,
        };
        query.matches(&of)
            && query
                .after
                .as_ref()
                .is_none_or(|after| after.is_before(view))
    });
    found.sort_by(|(one, _), (other, _)| query.sort.compare(one, other));
    found
}

/// Returns the page of the jobs in the order of the query.
pub(crate) fn page(query: &JobQuery, found: Vec<(JobView, Job)>) -> Vec<(JobView, Job)> {
    let offset = usize::try_from(query.offset).unwrap_or(0);
    let limit = usize::try_from(query.limit.min(JobQuery::MAX_LIMIT)).unwrap_or(0);
    found.into_iter().skip(offset).take(limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_split_and_nothing_is_lost() {
        let id = JobId::generate();
        let plain = JobQuery::default()
            .id(id)
            .states([JobState::Timer])
            .job_type("timer")
            .tenant("a")
            .locked(false)
            .offset(7);
        let of = Listing::of(&plain);
        assert!(of.is_whole() && of.has_all_conditions());
        assert_eq!((of.ids, of.states), (vec![id], vec!["timer"]));
        assert_eq!(
            (of.job_type.as_deref(), of.tenant.as_deref()),
            (Some("timer"), Some("a"))
        );
        assert_eq!((of.locked, of.rest.offset), (Some(false), 7));

        let twice = Listing::of(&JobQuery::default().instance("a").instance("b"));
        assert_eq!(twice.instance.as_deref(), Some("a"));
        assert_eq!(twice.rest, JobQuery::default().instance("b"));
        let sorted = JobQuery::default().sort("due".parse().unwrap());
        let sorted = Listing::of(&sorted);
        assert!(!sorted.is_whole() && sorted.has_all_conditions());
        let like = Listing::of(&JobQuery::default().tenant_like("a%"));
        assert!(!like.is_whole() && !like.has_all_conditions());
    }
}

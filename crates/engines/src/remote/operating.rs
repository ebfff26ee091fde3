//! Queries and changes of jobs by operators. The engine makes the changes by its own rules.

use jobwire_core::hint::Ready;
use jobwire_core::job::query::{JobQuery, JobView};
use jobwire_core::store::{Operated, OperatedJobs};
use jobwire_core::{Job, JobId, JobState};

use super::wire::{Find, Found};
use super::{EndpointStore, Result};
use crate::changing::{self, Change};
use crate::decode::OTHER;
use crate::id::engine_id;
use crate::listing::{Listing, selected};
use crate::row::EngineRow;

/// Maximum number of jobs of a page. The endpoint bounds its answer.
const PAGE: i64 = 1_000;
/// Maximum number of ids in one question.
const MOST_IDS: usize = 500;
/// Maximum number of jobs of each state in a list or a count.
const MOST_FOUND: usize = 10_000;

impl EndpointStore {
    /// Returns the jobs that match, in the order of the query. The endpoint filters by state, id,
    /// instance and type. The other filters apply here, to at most [`MOST_FOUND`] jobs of each state,
    /// in the order of their ids.
    pub(super) async fn list(&self, query: &JobQuery) -> Result<Vec<(JobView, Job)>> {
        self.0.parts.options.check_filter(query)?;
        let of = Listing::of(query);
        let is_open = |lane: &String| lane == self.0.parts.options.lane.as_str();
        if of.ids.windows(2).any(|pair| pair[0] != pair[1]) || !of.lane.as_ref().is_none_or(is_open)
        {
            return Ok(Vec::new());
        }
        let ids = match of.ids.first() {
            Some(id) => Some(std::slice::from_ref(id)),
            None => query.ids.as_deref().filter(|ids| ids.len() <= MOST_IDS),
        };
        let find = Find {
            states: query.states.iter().copied().map(word).collect(),
            ids: ids.map(|ids| ids.iter().filter_map(|id| engine_id(*id)).collect()),
            instance: of.instance,
            // A type without a handler stands for many types.
            handler: of.job_type.filter(|name| name != OTHER),
            after: None,
            // One more than a page has: the answer tells whether it is cut.
            limit: PAGE + 1,
        };
        let found = self.pages(find).await?;
        let views = found.iter();
        let views = views.filter_map(|row| self.0.decoder.view(row)).collect();
        Ok(selected(query, views))
    }

    /// Returns the jobs of all pages.
    async fn pages(&self, find: Find) -> Result<Vec<EngineRow>> {
        let client = &self.0.client;
        let first: Found = client.ask("find", "find", &find).await?;
        if !first.cut {
            return Ok(first.jobs);
        }
        // A page continues one table, so each state has pages of its own.
        let mut found = Vec::new();
        for state in Pages::of(first.jobs) {
            let mut pages = state;
            while let Some(after) = pages.next() {
                let next = Find {
                    states: vec![pages.state],
                    after: Some(after),
                    ..find.clone()
                };
                pages.add(client.ask("find", "find", &next).await?);
            }
            if pages.is_cut {
                tracing::warn!(
                    state = pages.state,
                    read = pages.jobs.len(),
                    "the engine has more jobs of this state than are listed and counted; name an instance or a type"
                );
            }
            found.extend(pages.jobs);
        }
        Ok(found)
    }

    /// Changes a job through the engine.
    pub(super) async fn change(&self, id: JobId, change: Change) -> Result<Operated> {
        let Some(row) = self.row(id).await? else {
            return Ok(Operated::NotFound);
        };
        if row.owner.is_some() || row.locked_until.is_some() {
            return Ok(Operated::Running);
        }
        if matches!(change, Change::Retry(_)) && row.state() == JobState::Suspended {
            return self
                .0
                .parts
                .options
                .refuse("activating a job", "the activation of its process instance");
        }
        let (operation, request) = (change.operation(), change.request(&row.id));
        let said: changing::Found = self.0.client.ask(operation, operation, &request).await?;
        Ok(if said.found {
            Operated::Done
        } else {
            Operated::NotFound
        })
    }

    /// Returns the hint of a retried job, unless the engine's hook publishes the hint. If the
    /// endpoint does not answer, there is none, and the sweeper finds the job.
    pub(super) async fn retried(&self, id: JobId, operated: Operated) -> Option<Ready> {
        if operated != Operated::Done || !self.0.served.keeps_rows() {
            return None;
        }
        let row = self.row(id).await.ok().flatten()?;
        let is_ready = row.state() == JobState::Executable && row.owner.is_none();
        self.ready(&row).filter(|_| is_ready)
    }

    pub(super) async fn change_many(&self, ids: &[JobId], change: Change) -> Result<OperatedJobs> {
        let mut done = OperatedJobs::default();
        for id in ids {
            match self.change(*id, change).await {
                Ok(operated) => {
                    done.operated.push((*id, operated));
                    if matches!(change, Change::Retry(_)) {
                        done.ready.extend(self.retried(*id, operated).await);
                    }
                }
                Err(error) if error.is_transient() && error.changed_nothing() => {
                    return Err(error);
                }
                Err(error) => done.refused.push((*id, error.to_string())),
            }
        }
        Ok(done)
    }
}

/// The pages of one state.
struct Pages {
    state: &'static str,
    jobs: Vec<EngineRow>,
    /// Whether there may be more jobs.
    is_cut: bool,
    /// Whether the endpoint continues a list.
    has_pages: bool,
}

impl Pages {
    /// Returns the first page of each state.
    fn of(jobs: Vec<EngineRow>) -> Vec<Self> {
        let mut states: Vec<Self> = Vec::new();
        for job in jobs {
            let state = word(job.state());
            match states.iter_mut().find(|pages| pages.state == state) {
                Some(pages) => pages.jobs.push(job),
                None => states.push(Self {
                    state,
                    jobs: vec![job],
                    is_cut: false,
                    has_pages: true,
                }),
            }
        }
        for pages in &mut states {
            pages.is_cut = i64::try_from(pages.jobs.len()).is_ok_and(|jobs| jobs >= PAGE);
        }
        states
    }

    /// Returns the id after which the next page begins.
    fn next(&self) -> Option<String> {
        let has_more = self.is_cut && self.has_pages && self.jobs.len() < MOST_FOUND;
        let last = self.jobs.last().filter(|_| has_more)?;
        Some(last.id.clone())
    }

    /// Adds a page. An endpoint without pages repeats the first one.
    fn add(&mut self, page: Found) {
        let is_repeated = page.jobs.first().is_some_and(|first| {
            let mut known = self.jobs.iter();
            known.any(|job| job.id == first.id)
        });
        if is_repeated {
            // The list stays cut.
            self.has_pages = false;
            return;
        }
        self.is_cut = page.cut;
        self.jobs.extend(page.jobs);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn row(state: &str, id: usize) -> EngineRow {
        EngineRow {
            state: state.to_owned(),
            id: format!("{id:05}"),
            ..EngineRow::default()
        }
    }

    fn page(from: usize, cut: bool) -> Found {
        let jobs = (from..from + 1_000).map(|id| row("timer", id));
        Found {
            jobs: jobs.collect(),
            cut,
        }
    }

    #[test]
    fn a_state_is_read_page_by_page_up_to_a_bound() {
        let mut first = page(0, true).jobs;
        first.push(row("job", 1));
        let mut states = Pages::of(first);
        let jobs = states.pop().expect("two states");
        assert_eq!((jobs.state, jobs.next()), ("job", None));
        let mut timers = states.pop().expect("two states");
        assert_eq!(timers.next().as_deref(), Some("00999"));
        timers.add(page(1_000, false));
        assert_eq!((timers.next(), timers.is_cut), (None, false));
        let mut many = Pages::of(page(0, true).jobs).remove(0);
        for from in 1..10 {
            assert!(many.next().is_some());
            many.add(page(from * 1_000, true));
        }
        assert_eq!((many.next(), many.is_cut), (None, true));
    }

    #[test]
    fn an_endpoint_without_pages_ends_the_list() {
        let mut pages = Pages::of(page(0, true).jobs).remove(0);
        pages.add(page(0, true));
        assert_eq!((pages.next(), pages.is_cut), (None, true));
        assert_eq!(pages.jobs.len(), 1_000);
    }
}

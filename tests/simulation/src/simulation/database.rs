//! The database, in memory: the tables, and each transition as one atomic step.
//!
//! It follows `crates/core/src/store/postgres` statement by statement, and the store conformance
//! suite tests it for the same behaviour. It records its transitions for the
//! [checker](crate::history::Checker).

mod finish;
mod leader_cycle;
mod lock;
mod meddle;
mod nodes;
mod operate;
mod orphans;
mod periodic;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use jobwire_core::hint::{Hint, Ready};
use jobwire_core::store::{Created, Gate, NodeView, Origin, StoreError, SuspensionScope};
use jobwire_core::{Fence, Job, JobId, JobState, Lane, NewJob, NodeId};

use super::bug::Bug;
use super::clock::DatabaseClock;
use super::trace::Trace;
use crate::history::{Creation, Entry, Event, Outcome, Place, Series};

/// A job in one of the tables.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) job: Job,
    pub(super) hints: i32,
}

/// A row of the lease table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lease {
    pub(super) owner: Option<NodeId>,
    pub(super) fence: Fence,
    pub(super) locked_at: DateTime<Utc>,
    pub(super) expires_at: DateTime<Utc>,
    pub(super) strikes: i32,
    /// The job runs alone on its node, as recorded in the row.
    pub(super) alone: bool,
    /// The lock for which the last strike was counted.
    pub(super) struck: Option<Fence>,
}

impl Lease {
    /// Removes the dead owner.
    pub(super) fn clear(&mut self) {
        let counts = self.strikes < 2 || self.alone;
        self.strikes += i32::from(counts);
        self.struck = counts.then_some(self.fence);
        self.owner = None;
        self.alone = false;
    }
}

/// A row of the instance table: the holder of the instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Door {
    pub(super) job: JobId,
    pub(super) fence: Fence,
}

#[derive(Clone, Debug)]
pub(super) struct Leader {
    pub(super) node: NodeId,
    pub(super) term: i64,
    pub(super) transport: String,
    pub(super) expires_at: DateTime<Utc>,
}

/// The database that the nodes of a simulation share.
#[derive(Debug)]
pub struct Database {
    pub(super) clock: DatabaseClock,
    pub(super) bug: Option<Bug>,
    pub(super) executable: BTreeMap<JobId, Row>,
    pub(super) timers: BTreeMap<JobId, Row>,
    pub(super) suspended: BTreeMap<JobId, Row>,
    pub(super) dead: BTreeMap<JobId, Row>,
    pub(super) leases: BTreeMap<JobId, Lease>,
    pub(super) doors: BTreeMap<String, Door>,
    pub(super) stacks: BTreeMap<JobId, String>,
    pub(super) suspensions: BTreeSet<(&'static str, String)>,
    pub(super) leader: Option<Leader>,
    nodes: BTreeMap<NodeId, NodeView>,
    schedules: periodic::Schedules,
    seq: i64,
    fence: i64,
    pub(super) history: Vec<Entry>,
    trace: Arc<Trace>,
}

impl Database {
    /// Returns empty tables with this machine's clock.
    #[must_use]
    pub fn real() -> Database {
        Database::new(DatabaseClock::real(), None, Arc::default())
    }

    /// Returns empty tables with a clock that follows tokio's time.
    #[must_use]
    pub fn simulated() -> Database {
        Database::new(DatabaseClock::simulated(), None, Arc::default())
    }

    pub(super) fn new(clock: DatabaseClock, bug: Option<Bug>, trace: Arc<Trace>) -> Database {
        Database {
            clock,
            bug,
            executable: BTreeMap::new(),
            timers: BTreeMap::new(),
            suspended: BTreeMap::new(),
            dead: BTreeMap::new(),
            leases: BTreeMap::new(),
            doors: BTreeMap::new(),
            stacks: BTreeMap::new(),
            suspensions: BTreeSet::new(),
            leader: None,
            nodes: BTreeMap::new(),
            schedules: BTreeMap::new(),
            seq: 0,
            fence: 0,
            history: Vec::new(),
            trace,
        }
    }

    pub(super) fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    pub(super) fn now(&mut self) -> DateTime<Utc> {
        self.clock.now()
    }

    pub(super) fn record(&mut self, job: JobId, event: Event) {
        let at = self.clock.now().timestamp_micros();
        self.trace.happened(job, &event);
        let number = self.history.len() as u64;
        self.history.push(Entry::at(at, number, job, event));
    }

    pub(super) fn next_fence(&mut self) -> Fence {
        self.fence += 1;
        Fence::new(self.fence)
    }

    /// Creates jobs in a transaction that commits at once.
    ///
    /// # Errors
    /// If one of them is invalid. Then no job is created.
    pub fn create(&mut self, jobs: Vec<NewJob>, origin: Origin) -> Result<Created, StoreError> {
        let now = self.now();
        let mut rows = Vec::with_capacity(jobs.len());
        for job in jobs {
            let id = job.id();
            let made = job.into_job(self.seq + 1, now, Lane::default());
            rows.push(made.map_err(|source| StoreError::InvalidJob { id, source })?);
            self.seq += 1;
        }
        let mut created = Created::default();
        for job in rows {
            let due = job.due_at.filter(|due| *due > now);
            self.record(
                job.id,
                Event::Created(Arc::new(creation(&job, due.is_some()))),
            );
            if let Some(due) = due {
                created.timer = Some(created.timer.map_or(due, |first| first.min(due)));
                self.timers.insert(job.id, Row { job, hints: 0 });
            } else {
                created.ready.push(ready(&job));
                let hints = i32::from(origin == Origin::Hook);
                self.executable.insert(job.id, Row { job, hints });
            }
        }
        Ok(created)
    }

    /// Returns whether the job's lease has an owner.
    pub(super) fn is_locked(&self, id: JobId) -> bool {
        let lease = self.leases.get(&id);
        lease.is_some_and(|lease| lease.owner.is_some())
    }

    /// Returns whether the lease that holds this instance has an owner.
    pub(super) fn is_held(&self, instance: &str) -> bool {
        self.doors.get(instance).is_some_and(|door| {
            let lease = self.leases.get(&door.job);
            lease.is_some_and(|lease| lease.fence == door.fence && lease.owner.is_some())
        })
    }

    pub(super) fn is_suspended(&self, job: &Job) -> bool {
        self.suspensions
            .iter()
            .any(|(scope, value)| belongs(job, scope, value))
    }

    /// Returns the exclusive jobs of an instance that are not suspended, in creation order.
    pub(super) fn siblings(&self, instance: &str) -> Vec<&Row> {
        let mut rows: Vec<&Row> = self
            .executable
            .values()
            .filter(|row| row.job.exclusive_instance() == Some(instance))
            .filter(|row| !self.is_suspended(&row.job))
            .collect();
        rows.sort_unstable_by_key(|row| row.job.seq);
        rows
    }

    /// Returns the job's row and its table.
    pub(super) fn row(&self, id: JobId) -> Option<(JobState, &Row)> {
        let tables = [
            (JobState::Executable, &self.executable),
            (JobState::Timer, &self.timers),
            (JobState::Suspended, &self.suspended),
            (JobState::DeadLetter, &self.dead),
        ];
        let mut found = tables
            .into_iter()
            .filter_map(|(state, table)| Some((state, table.get(&id)?)));
        found.next()
    }

    /// Records the place of every job, at the end of a run.
    pub(super) fn record_places(&mut self) {
        let places = [
            (Place::Executable, &self.executable),
            (Place::Timer, &self.timers),
            (Place::Suspended, &self.suspended),
            (Place::DeadLetter, &self.dead),
        ];
        let found: Vec<(JobId, Place)> = places
            .into_iter()
            .flat_map(|(place, table)| table.keys().map(move |id| (*id, place)))
            .collect();
        for (id, place) in found {
            self.record(id, Event::Found(place));
        }
    }

    /// Moves a waiting row to the executable table.
    pub(super) fn make_executable(&mut self, mut row: Row, hints: i32) -> Ready {
        row.job.revision += 1;
        row.job.ready_at = self.now();
        row.hints = hints;
        let hint = ready(&row.job);
        self.executable.insert(row.job.id, row);
        hint
    }

    /// Makes a job ready anew, for one more hint.
    pub(super) fn mark(&mut self, id: JobId) -> Option<Ready> {
        let now = self.now();
        let row = self.executable.get_mut(&id)?;
        row.job.ready_at = now;
        row.hints += 1;
        Some(ready(&row.job))
    }
}

/// Returns a job's hint.
pub(super) fn ready(job: &Job) -> Ready {
    Ready {
        lane: job.lane.clone(),
        hint: Hint {
            instance: job.exclusive_instance().map(str::to_owned),
            job_type: (!job.exclusive).then(|| job.job_type.clone()),
            trace_parent: job.trace_parent.clone(),
            ..Hint::new(job.id)
        },
    }
}

pub(super) fn belongs(job: &Job, scope: &str, value: &str) -> bool {
    match Gate::parse(scope, value.to_owned()) {
        Some(Gate::Suspension(SuspensionScope::Element {
            definition,
            element,
        })) => {
            return job.process_definition == Some(definition) && job.element == Some(element);
        }
        Some(Gate::Suspension(SuspensionScope::DefinitionKey(key))) => {
            return key.covers(job.process_definition.as_deref(), job.tenant.as_deref());
        }
        _ => {}
    }
    let field = match scope {
        "process_instance" => job.process_instance.as_deref(),
        "process_definition" => job.process_definition.as_deref(),
        "type" => Some(job.job_type.as_str()),
        "tenant" => job.tenant.as_deref(),
        _ => None,
    };
    field == Some(value)
}

pub(super) fn scope(scope: &SuspensionScope) -> (&'static str, String) {
    let (kind, value) = scope.parts();
    (kind, value.into_owned())
}

/// Returns the creation of a new job, for the checker.
fn creation(job: &Job, waits: bool) -> Creation {
    let repeat = job.repeat.as_deref();
    let repeat = repeat.and_then(|text| jobwire_core::job::repeat::Repeat::parse(text).ok());
    let series = repeat.and_then(|repeat| {
        Some(Series {
            id: job.correlation_id,
            left: repeat.times?,
            every: i64::try_from(repeat.interval()?.as_micros()).ok()?,
        })
    });
    Creation {
        instance: job.process_instance.as_deref().map(Arc::from),
        exclusive: job.exclusive,
        order: job.seq,
        due: job.due_at.map(|due| due.timestamp_micros()),
        waits,
        retries: job.retries,
        outcome: Outcome::Committed,
        parent: None,
        children: 0,
        transactional: job.job_type == super::handler::TRANSACTIONAL,
        timeout: job.job_type == super::handler::TIMED,
        series,
        rare: false,
    }
}

pub(super) fn span(length: Duration) -> chrono::Duration {
    chrono::Duration::from_std(length).unwrap_or(chrono::Duration::days(36_600))
}

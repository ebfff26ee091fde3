//! Asking after jobs: the filter, and the row that lists and consoles show.

use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use crate::job::{Job, JobId, JobKind, JobState, Lane};

/// Which jobs to list. Everything given must match; nothing given matches all.
#[derive(Clone, Debug)]
pub struct JobFilter {
    /// Only this job.
    pub id: Option<JobId>,
    /// Only of these states; empty means all.
    pub states: Vec<JobState>,
    /// Only of this handler type.
    pub job_type: Option<String>,
    /// Only of this process instance.
    pub process_instance: Option<String>,
    /// Only of this process definition.
    pub process_definition: Option<String>,
    /// Only of this element.
    pub element: Option<String>,
    /// Only of this tenant.
    pub tenant: Option<String>,
    /// Only of this lane.
    pub lane: Option<String>,
    /// Only with this correlation id.
    pub correlation_id: Option<Uuid>,
    /// Only jobs with (or without) a living lock.
    pub locked: Option<bool>,
    /// Only jobs that failed at least once, or never.
    pub with_exception: Option<bool>,
    /// Only jobs due before this moment.
    pub due_before: Option<DateTime<Utc>>,
    /// Skip so many.
    pub offset: i64,
    /// At most so many.
    pub limit: i64,
}

impl JobFilter {
    /// Only of these states.
    #[must_use]
    pub fn states(mut self, states: impl IntoIterator<Item = JobState>) -> Self {
        self.states = states.into_iter().collect();
        self
    }

    /// Only of this handler type.
    #[must_use]
    pub fn job_type(mut self, job_type: impl Into<String>) -> Self {
        self.job_type = Some(job_type.into());
        self
    }

    /// Only of this process instance.
    #[must_use]
    pub fn instance(mut self, instance: impl Into<String>) -> Self {
        self.process_instance = Some(instance.into());
        self
    }

    /// Only of this tenant.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// Skip this many.
    #[must_use]
    pub fn offset(mut self, offset: i64) -> Self {
        self.offset = offset;
        self
    }

    /// At most this many. Default: 100.
    #[must_use]
    pub fn limit(mut self, limit: i64) -> Self {
        self.limit = limit;
        self
    }
}

impl Default for JobFilter {
    fn default() -> Self {
        Self {
            id: None,
            states: Vec::new(),
            job_type: None,
            process_instance: None,
            process_definition: None,
            element: None,
            tenant: None,
            lane: None,
            correlation_id: None,
            locked: None,
            with_exception: None,
            due_before: None,
            offset: 0,
            limit: 100,
        }
    }
}

/// One line of a job list.
#[derive(Clone, Debug, Serialize)]
pub struct JobView {
    /// The job.
    pub id: JobId,
    /// The table it lives in.
    pub state: JobState,
    /// Creation order.
    pub seq: i64,
    /// What made it.
    pub kind: JobKind,
    /// The handler type.
    #[serde(rename = "type")]
    pub job_type: String,
    /// The process instance.
    pub process_instance: Option<String>,
    /// The process definition.
    pub process_definition: Option<String>,
    /// The element.
    pub element: Option<String>,
    /// The tenant.
    pub tenant: Option<String>,
    /// The lane of its hints.
    pub lane: Lane,
    /// Larger is more urgent.
    pub priority: i64,
    /// At most one of its instance at a time.
    pub exclusive: bool,
    /// Attempts left.
    pub retries: i32,
    /// Attempts that failed.
    pub failures: i32,
    /// Not before.
    pub due_at: Option<DateTime<Utc>>,
    /// When it was created.
    pub created_at: DateTime<Utc>,
    /// When it last became ready.
    pub ready_at: DateTime<Utc>,
    /// Shared by all occurrences of a repeating job.
    pub correlation_id: Uuid,
    /// The last failure.
    pub exception_message: Option<String>,
    /// Who holds it.
    pub lock_owner: Option<Uuid>,
    /// Until when.
    pub lock_expires_at: Option<DateTime<Utc>>,
    /// Since when.
    pub locked_at: Option<DateTime<Utc>>,
    /// The token of the lock.
    pub fence: Option<i64>,
}

/// A job with all that its row holds.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobDetails {
    /// State, lock and counters.
    pub view: JobView,
    /// Payload, policies and routing data.
    pub job: Job,
    /// The stack of the last failure.
    pub stack: Option<String>,
}

/// What waits and runs in a lane.
#[derive(Clone, Debug, Serialize)]
pub struct LaneView {
    /// The lane.
    pub lane: Lane,
    /// Executable jobs that nobody holds.
    pub ready: i64,
    /// Executable jobs with a living lock.
    pub running: i64,
    /// Timers and waiting retries.
    pub timers: i64,
    /// Suspended jobs.
    pub suspended: i64,
    /// Dead letters.
    pub dead_letters: i64,
    /// Since when the oldest of the ready ones has been ready.
    pub oldest_ready_at: Option<DateTime<Utc>>,
    /// Nodes that hold jobs of it.
    pub nodes: i64,
}

/// What a sweep looks at, counted: executable jobs by why they do not run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sweepable {
    /// The database's clock.
    pub now: DateTime<Utc>,
    /// Their holder's lease has ended: the next turn takes the lock off and hints them.
    pub expired: i64,
    /// Nobody hinted them yet (created by plain SQL, or moved to another lane): the next turn does.
    pub unhinted: i64,
    /// Instances that name a holder without a lease: the next leader frees them.
    pub left_over_instances: i64,
    /// Hinted and unlocked, and nothing is in their way: their hints are on the way, or lost.
    pub ready: i64,
    /// Exclusive ones behind an older sibling, or whose instance is held: hinted by whoever releases it.
    pub instance_held: i64,
    /// They, or what they belong to, are suspended.
    pub suspended: i64,
    /// No living node serves their type.
    pub unserved: i64,
    /// They run.
    pub running: i64,
}

/// How many jobs wait in a lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LaneBacklog {
    /// The lane.
    pub lane: Lane,
    /// Jobs.
    pub jobs: i64,
}

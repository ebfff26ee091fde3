//! Job queries: the filter, and the rows that lists and consoles show.

use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use crate::job::gate::Gate;
use crate::job::progress::ProgressView;
use crate::job::{Job, JobId, JobKind, JobState, Lane};

/// The condition of a job list. All given fields must match; the default matches all jobs.
///
/// ```
/// use jobwire_core::{JobFilter, JobState};
///
/// let of_order = JobFilter::default().states([JobState::Timer]).instance("order-17").limit(10);
/// # assert_eq!(of_order.limit, 10);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
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
    /// Only of this category.
    pub category: Option<String>,
    /// Only with all of these tags.
    pub tags: Vec<String>,
    /// Only of this lane.
    pub lane: Option<String>,
    /// Only with this correlation id.
    pub correlation_id: Option<Uuid>,
    /// Only jobs with (or without) a lock.
    pub locked: Option<bool>,
    /// Only jobs that failed at least once, or never.
    pub with_exception: Option<bool>,
    /// Only jobs due before this moment.
    pub due_before: Option<DateTime<Utc>>,
    /// Only jobs of another priority than this one.
    pub priority_other_than: Option<i64>,
    /// The number of jobs to skip.
    pub offset: i64,
    /// The maximum number of jobs.
    pub limit: i64,
}

impl JobFilter {
    /// Limits the list to this job.
    #[must_use]
    pub fn id(mut self, id: JobId) -> Self {
        self.id = Some(id);
        self
    }

    /// Limits the list to these states.
    #[must_use]
    pub fn states(mut self, states: impl IntoIterator<Item = JobState>) -> Self {
        self.states = states.into_iter().collect();
        self
    }

    /// Limits the list to this handler type.
    #[must_use]
    pub fn job_type(mut self, job_type: impl Into<String>) -> Self {
        self.job_type = Some(job_type.into());
        self
    }

    /// Limits the list to this process instance.
    #[must_use]
    pub fn instance(mut self, instance: impl Into<String>) -> Self {
        self.process_instance = Some(instance.into());
        self
    }

    /// Limits the list to this process definition.
    #[must_use]
    pub fn process_definition(mut self, definition: impl Into<String>) -> Self {
        self.process_definition = Some(definition.into());
        self
    }

    /// Limits the list to this element.
    #[must_use]
    pub fn element(mut self, element: impl Into<String>) -> Self {
        self.element = Some(element.into());
        self
    }

    /// Limits the list to this tenant.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// Limits the list to this category.
    #[must_use]
    pub fn category(mut self, category: impl Into<String>) -> Self {
        self.category = Some(category.into());
        self
    }

    /// Limits the list to jobs with this tag, beside those given before. Reads the custom values of
    /// all jobs that the other conditions leave.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.push(tag.into());
        self
    }

    /// Limits the list to this lane.
    #[must_use]
    pub fn lane(mut self, lane: impl Into<String>) -> Self {
        self.lane = Some(lane.into());
        self
    }

    /// Limits the list to this correlation id.
    #[must_use]
    pub fn correlation_id(mut self, id: Uuid) -> Self {
        self.correlation_id = Some(id);
        self
    }

    /// Limits the list to jobs with a lock, or to jobs without one.
    #[must_use]
    pub fn locked(mut self, locked: bool) -> Self {
        self.locked = Some(locked);
        self
    }

    /// Limits the list to jobs that failed at least once, or to jobs that never failed.
    #[must_use]
    pub fn with_exception(mut self, failed: bool) -> Self {
        self.with_exception = Some(failed);
        self
    }

    /// Limits the list to jobs that are due before this moment.
    #[must_use]
    pub fn due_before(mut self, moment: DateTime<Utc>) -> Self {
        self.due_before = Some(moment);
        self
    }

    /// Limits the list to jobs of another priority than this one.
    #[must_use]
    pub fn priority_other_than(mut self, priority: i64) -> Self {
        self.priority_other_than = Some(priority);
        self
    }

    /// Skips this many jobs.
    #[must_use]
    pub fn offset(mut self, offset: i64) -> Self {
        self.offset = offset;
        self
    }

    /// Limits the list to this many jobs. Default: 100.
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
            category: None,
            tags: Vec::new(),
            lane: None,
            correlation_id: None,
            locked: None,
            with_exception: None,
            due_before: None,
            priority_other_than: None,
            offset: 0,
            limit: 100,
        }
    }
}

/// A row of a job list.
#[derive(Clone, Debug, Serialize)]
pub struct JobView {
    /// The job.
    pub id: JobId,
    /// The state, which is the table that holds the job.
    pub state: JobState,
    /// The creation order.
    pub seq: i64,
    /// The kind of the job.
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
    /// The [tags](crate::NewJob::tag).
    pub tags: Vec<String>,
    /// The lane of its hints.
    pub lane: Lane,
    /// The number of times that the job became ready or was hinted again. `None` for the job of an
    /// engine.
    pub hints: Option<i32>,
    /// The priority. Larger is more urgent.
    pub priority: i64,
    /// Whether the job excludes others of its instance.
    pub exclusive: bool,
    /// The attempts left.
    pub retries: i32,
    /// The number of failed attempts.
    pub failures: i32,
    /// The earliest start.
    pub due_at: Option<DateTime<Utc>>,
    /// The time of creation.
    pub created_at: DateTime<Utc>,
    /// The time at which the job last became ready.
    pub ready_at: DateTime<Utc>,
    /// The id that all occurrences of a repeating job share.
    pub correlation_id: Uuid,
    /// The message of the last failure.
    pub exception_message: Option<String>,
    /// The node that holds the job.
    pub lock_owner: Option<Uuid>,
    /// The expiry of the lease.
    pub lock_expires_at: Option<DateTime<Utc>>,
    /// The time of the lock.
    pub locked_at: Option<DateTime<Utc>>,
    /// The fence of the lock.
    pub fence: Option<i64>,
    /// The time at which an operator cancelled the running job, whose handler has not ended yet.
    pub cancelled_at: Option<DateTime<Utc>>,
    /// The suspension or pause because of which a ready job is not locked. `None` in other states,
    /// and while the job is locked.
    pub gate: Option<Gate>,
    /// The last progress that a handler of the job has reported. Also of an earlier attempt.
    pub progress: Option<ProgressView>,
    /// The time at which a handler last saved a checkpoint of the job.
    pub checkpoint_at: Option<DateTime<Utc>>,
}

/// A job with all data of its row.
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

/// The numbers of jobs in a lane.
#[derive(Clone, Debug, Serialize)]
pub struct LaneView {
    /// The lane.
    pub lane: Lane,
    /// Executable jobs without a lock.
    pub ready: i64,
    /// Executable jobs with a lock.
    pub running: i64,
    /// Timers and waiting retries.
    pub timers: i64,
    /// Suspended jobs.
    pub suspended: i64,
    /// Dead letters.
    pub dead_letters: i64,
    /// The time at which the oldest ready job became ready.
    pub oldest_ready_at: Option<DateTime<Utc>>,
    /// The number of nodes that hold jobs of the lane.
    pub nodes: i64,
}

/// The executable jobs by the reason why they do not run, as a sweep sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sweepable {
    /// The database's clock.
    pub now: DateTime<Utc>,
    /// Jobs whose lease has expired. The next leader cycle resets it and hints them.
    pub expired: i64,
    /// Jobs without a hint (created by plain SQL, or moved to another lane). The next leader cycle
    /// hints them.
    pub unhinted: i64,
    /// Instances that name a holder without a lease. The next leader frees them.
    pub left_over_instances: i64,
    /// Hinted, unlocked jobs that could run. Their hints are on the way, or lost.
    pub ready: i64,
    /// Exclusive jobs behind an older sibling, or in a held instance. The release of the instance
    /// hints them.
    pub instance_held: i64,
    /// Ready jobs of a scope that is suspended or paused.
    pub suspended: i64,
    /// Jobs that no living node serves.
    pub unserved: i64,
    /// Running jobs.
    pub running: i64,
}

/// The number of executable jobs of a type that no living node takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UnservedType {
    /// The type.
    #[serde(rename = "type")]
    pub job_type: String,
    /// The number of jobs.
    pub jobs: i64,
}

impl UnservedType {
    /// Creates the answer of a store for one type.
    #[must_use]
    pub fn new(job_type: String, jobs: i64) -> Self {
        Self { job_type, jobs }
    }
}

/// The number of jobs that wait in a lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LaneBacklog {
    /// The lane.
    pub lane: Lane,
    /// The number of jobs.
    pub jobs: i64,
}

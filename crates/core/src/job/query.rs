//! Job queries: conditions, order and pages, and the rows that lists and consoles show.

pub(crate) mod check;
mod conditions;
mod cursor;
pub(crate) mod cursor_text;
mod job_query;
mod matching;
mod sort;
mod text_match;
mod unserved;

use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use crate::job::gate::Gate;
use crate::job::progress::ProgressView;
use crate::job::{Job, JobId, JobKind, JobState, Lane};

pub(crate) use check::MAX_CUSTOM_DEPTH;
pub use check::{InvalidQuery, MAX_QUERY_VALUES};
pub(crate) use conditions::conditions;
pub(crate) use cursor::CursorKey;
pub use cursor::{BadCursor, JobCursor};
pub use job_query::JobQuery;
pub use matching::JobFacts;
pub use sort::{JobSort, SortBy};
pub(crate) use text_match::LikePattern;
pub use text_match::{TextField, TextMatch};
pub use unserved::{UnservedScope, UnservedType};

/// A page of a list of jobs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct JobPage {
    /// The jobs.
    pub jobs: Vec<JobView>,
    /// The place at which the next page begins, for [`JobQuery::after`]. `None` if this page has fewer
    /// jobs than the limit, so it is the last one.
    pub next: Option<JobCursor>,
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
    /// The execution.
    pub execution: Option<String>,
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
    /// Jobs in a lane that no living node receives.
    pub unreceived: i64,
    /// Running jobs.
    pub running: i64,
    /// Jobs that wait for a permit of a [limit](crate::Limit). They are hinted when one is free.
    pub waiting: i64,
}

/// The number of occurrences without a date ([`Pending`](crate::job::repeat::Pending)) that wait for a
/// node that knows their business calendar.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PendingJobs {
    /// The name of the calendar.
    pub calendar: String,
    /// The number of jobs.
    pub jobs: i64,
    /// The creation of the first of them.
    pub since: DateTime<Utc>,
}

/// The number of jobs that wait in a lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LaneBacklog {
    /// The lane.
    pub lane: Lane,
    /// The number of jobs.
    pub jobs: i64,
}

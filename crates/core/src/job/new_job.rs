//! A job to be created, and the checks that it must pass.
//!
//! ```
//! use jobwire_core::NewJob;
//! use std::time::Duration;
//!
//! let job = NewJob::of("send-invoice", &serde_json::json!({ "order": 17 }))
//!     .instance("order-17")
//!     .delay(Duration::from_secs(60))
//!     .retry_policy_text("PT10M,PT17M,PT20M");
//! assert!(job.validate().is_ok());
//! ```

mod checks;
mod due_in;

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::job::args::JobArgs;
use crate::job::duration;
use crate::job::repeat::Repeat;
use crate::job::retry::RetryPolicy;
use crate::job::unique::UniqueKey;
use crate::job::{BatchId, Job, JobId, JobKind, Lane};

pub use crate::job::invalid_job::InvalidJob;
pub(crate) use checks::MAX_COUNT;
pub use checks::{MAX_FIELD_BYTES, MAX_PAYLOAD_BYTES};

/// The attempts of a job for which neither `retries` nor a policy gives a number.
pub const DEFAULT_RETRIES: i32 = 3;
/// The attempts of a [history job](NewJob::history) for which neither `retries` nor a policy gives
/// a number.
pub const HISTORY_RETRIES: i32 = 10;

/// A job to be created. Options and their defaults:
///
/// | option | meaning | default |
/// | --- | --- | --- |
/// | [`instance`](Self::instance) | process instance; makes the job exclusive in it | none |
/// | [`exclusive`](Self::exclusive) / [`concurrent`](Self::concurrent) | at most one of an instance at a time | exclusive if an instance is given |
/// | [`due`](Self::due) / [`delay`](Self::delay) | earliest start | at once |
/// | [`due_in_calendar`](Self::due_in_calendar) | earliest start, in working time | at once |
/// | [`max_attempts`](Self::max_attempts) | attempts | 3 |
/// | [`retry_policy`](Self::retry_policy) | wait between attempts | the type's, or 10 s |
/// | [`repeat`](Self::repeat) | run again | once |
/// | [`priority`](Self::priority) | larger is more urgent | by the [rules](crate::lane::priority), or 0 |
/// | [`unique`](Self::unique) | at most one job has the key | no key |
/// | [`batch`](Self::batch) | the batch that it belongs to | none |
/// | [`tag`](Self::tag) | a label for lists | none |
/// | [`history`](Self::history) | writes history, apart from the business | no |
/// | [`lane`](Self::lane) | queue or topic of its hints | by the [rules](crate::LaneRule), or `default` |
#[derive(Clone, Debug)]
#[must_use = "a NewJob does nothing until it is created in a transaction"]
pub struct NewJob {
    pub(crate) id: JobId,
    pub(crate) job_type: String,
    pub(crate) payload: Result<Box<RawValue>, String>,
    pub(crate) process_instance: Option<String>,
    pub(crate) execution: Option<String>,
    pub(crate) process_definition: Option<String>,
    pub(crate) element: Option<String>,
    pub(crate) tenant: Option<String>,
    pub(crate) category: Option<String>,
    pub(crate) deployment: Option<String>,
    pub(crate) priority: Option<i64>,
    pub(crate) exclusive: Option<bool>,
    pub(crate) retries: Option<i32>,
    pub(crate) retry_policy: Option<String>,
    pub(crate) due_at: Option<DateTime<Utc>>,
    /// A time from the creation, which becomes `due_at`.
    pub(crate) due_in: Option<String>,
    pub(crate) repeat: Option<String>,
    pub(crate) repeat_until: Option<DateTime<Utc>>,
    pub(crate) correlation_id: Option<Uuid>,
    pub(crate) lane: Option<Lane>,
    /// Whether the lane was named, of a copy.
    pub(crate) lane_named: Option<bool>,
    pub(crate) custom_values: Option<Box<RawValue>>,
    /// Tags that are not in the custom values yet.
    pub(crate) tags: Vec<String>,
    pub(crate) trace_parent: Option<String>,
    pub(crate) is_history: bool,
    pub(crate) unique: Option<UniqueKey>,
    pub(crate) batch: Option<BatchId>,
    /// The job copies a row, so its values are valid and are not checked again.
    pub(crate) is_copy: bool,
}

macro_rules! text_options {
    ($($(#[$doc:meta])* $name:ident => $field:ident),+ $(,)?) => {
        $($(#[$doc])* pub fn $name(mut self, value: impl Into<String>) -> Self {
            self.$field = Some(value.into());
            self
        })+
    };
}

impl NewJob {
    /// Creates a typed job. A payload that does not serialise is reported when the job is created.
    pub fn new<A: JobArgs>(args: &A) -> Self {
        Self::of(A::TYPE, args)
    }

    /// Creates a job of a type with any serialisable payload. A payload that does not serialise is
    /// reported when the job is created.
    pub fn of(job_type: impl Into<String>, payload: &(impl Serialize + ?Sized)) -> Self {
        Self::raw(
            job_type,
            serde_json::value::to_raw_value(payload).map_err(|e| e.to_string()),
        )
    }

    /// Creates a job whose payload is already JSON text.
    pub fn with_json(job_type: impl Into<String>, payload: Box<RawValue>) -> Self {
        Self::raw(job_type, Ok(payload))
    }

    fn raw(job_type: impl Into<String>, payload: Result<Box<RawValue>, String>) -> Self {
        Self {
            id: JobId::generate(),
            job_type: job_type.into(),
            payload,
            process_instance: None,
            execution: None,
            process_definition: None,
            element: None,
            tenant: None,
            category: None,
            deployment: None,
            priority: None,
            exclusive: None,
            retries: None,
            retry_policy: None,
            due_at: None,
            due_in: None,
            repeat: None,
            repeat_until: None,
            correlation_id: None,
            lane: None,
            lane_named: None,
            custom_values: None,
            tags: Vec::new(),
            trace_parent: None,
            is_history: false,
            unique: None,
            batch: None,
            is_copy: false,
        }
    }

    text_options! {
        /// Sets the process instance. The job is exclusive in it, unless it is
        /// [`concurrent`](Self::concurrent).
        instance => process_instance,
        /// Sets the execution within the instance.
        execution => execution,
        /// Sets the process definition.
        process_definition => process_definition,
        /// Sets the element (activity) of the definition.
        element => element,
        /// Sets the tenant.
        tenant => tenant,
        /// Sets the category.
        category => category,
        /// Sets the deployment.
        deployment => deployment,
        /// Sets the waits between attempts as text, for example `30s`, `R5/PT5M` or
        /// `PT10M,PT17M,PT20M`. Text that is not a [policy](crate::job::retry) is reported when the
        /// job is created.
        retry_policy_text => retry_policy,
        /// Repeats the job by a text, for example `R3/PT10M` for three occurrences, ten minutes
        /// apart, or `0 2 * * *[Europe/Berlin]` for each night at 2:00 in Berlin. Text that is not a
        /// [repetition](crate::job::repeat) is reported when the job is created.
        repeat_text => repeat,
        /// Sets the earliest start to a time from the creation, as text: `PT8H`, or
        /// `PT8H[calendar=berlin-office]` for eight hours of the working time of a
        /// [business calendar](crate::calendar). Other text is reported when the job is created.
        due_in_text => due_in,
        /// Sets the W3C trace context.
        trace_parent => trace_parent,
    }

    /// Makes this a history job: it is created in the business transaction and worked off apart. It
    /// has 10 attempts unless [`max_attempts`](Self::max_attempts) or a policy gives a number, the
    /// lane `history` unless [`lane`](Self::lane) names one, and is not exclusive unless
    /// [`exclusive`](Self::exclusive) says so. The rules of lanes do not apply to it. It can't
    /// repeat. See [`Handlers::group`](crate::Handlers::group) for handlers that write the history
    /// of many jobs at once.
    pub fn history(mut self) -> Self {
        self.is_history = true;
        let lane = || Lane(Lane::HISTORY.to_owned());
        self.lane.get_or_insert_with(lane);
        self
    }

    /// Gives the job a key that at most one job has at a time. If another job has it, the creation
    /// of this one creates nothing and returns the id of that job. See [`UniqueKey`] for the states
    /// in which a job has its key, and for periods. A job that repeats can't have a key.
    pub fn unique(mut self, key: impl Into<UniqueKey>) -> Self {
        self.unique = Some(key.into());
        self
    }

    /// Adds the job to an open [batch](crate::Batch), which does not end before this job has. A job
    /// that repeats can't be in a batch. If the job is not created, because another one has its
    /// [unique key](Self::unique), the batch does not wait for that one. The custom values name the
    /// batch as `$batch`.
    ///
    /// The creation fails with [`StoreError::BatchEnded`](crate::StoreError::BatchEnded) if the batch
    /// is not open.
    pub fn batch(mut self, batch: BatchId) -> Self {
        self.batch = Some(batch);
        self
    }

    /// Returns the id of the job.
    #[must_use]
    pub fn id(&self) -> JobId {
        self.id
    }

    /// Lets at most one exclusive job of the instance run at a time. Default if an instance is
    /// given.
    pub fn exclusive(mut self) -> Self {
        self.exclusive = Some(true);
        self
    }

    /// Lets the job run beside other jobs of its instance.
    pub fn concurrent(mut self) -> Self {
        self.exclusive = Some(false);
        self
    }

    /// Sets the earliest start.
    pub fn due(mut self, at: DateTime<Utc>) -> Self {
        self.due_at = Some(at);
        self
    }

    /// Sets the earliest start to this time from now.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.due_at = chrono::Duration::from_std(delay)
            .ok()
            .and_then(|d| Utc::now().checked_add_signed(d))
            .or(Some(DateTime::<Utc>::MAX_UTC));
        self
    }

    /// Sets the earliest start to this much working time from the creation, by a
    /// [business calendar](crate::calendar) of the creating program. The count begins with the next
    /// working time. A job that is created where the calendar is unknown is refused.
    pub fn due_in_calendar(self, calendar: &str, working: Duration) -> Self {
        let working = duration::seconds(working);
        self.due_in_text(format!("PT{working}S[calendar={calendar}]"))
    }

    /// Sets the number of attempts before the job becomes a dead letter. Columns, SQL and JSON call
    /// it `retries`, as the engines do.
    pub fn max_attempts(mut self, attempts: i32) -> Self {
        self.retries = Some(attempts);
        self
    }

    /// Sets the waits between attempts.
    pub fn retry_policy(mut self, policy: RetryPolicy) -> Self {
        self.retry_policy = Some(policy.to_string());
        self
    }

    /// Repeats the job.
    pub fn repeat(mut self, repeat: Repeat) -> Self {
        self.repeat = Some(repeat.to_string());
        self
    }

    /// Sets the time after which a repeating job has no occurrence. A job without
    /// [`repeat`](Self::repeat) is refused with it: it does not expire.
    pub fn repeat_until(mut self, at: DateTime<Utc>) -> Self {
        self.repeat_until = Some(at);
        self
    }

    /// Sets the priority. Larger is more urgent. Only an [override](crate::lane::priority) of the
    /// job's definition goes before it.
    pub fn priority(mut self, priority: i64) -> Self {
        self.priority = Some(priority);
        self
    }

    /// Sets the lane of the job's hints. It overrides the [rules](crate::LaneRule).
    pub fn lane(mut self, lane: impl Into<String>) -> Self {
        self.lane = Some(Lane(lane.into()));
        self
    }

    /// Sets an id that related jobs share. Default: the job's own id.
    pub fn correlation_id(mut self, id: Uuid) -> Self {
        self.correlation_id = Some(id);
        self
    }

    /// Sets custom values that travel with the job.
    pub fn custom_values(mut self, values: Box<RawValue>) -> Self {
        self.custom_values = Some(values);
        self
    }

    /// Adds a tag: a free label of 1 to 128 bytes, by which lists can be filtered. A job has at most
    /// 32. They are the array `$tags` of its custom values, also for plain SQL.
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.push(tag.into());
        self
    }

    /// Adds [tags](Self::tag).
    pub fn tags<T: Into<String>>(mut self, tags: impl IntoIterator<Item = T>) -> Self {
        self.tags.extend(tags.into_iter().map(Into::into));
        self
    }

    /// Returns the row of the job: numbered `seq`, created at `now` by the store's clock, in lane
    /// `ruled` unless the job names one.
    ///
    /// # Errors
    /// The same as those of [`validate`](Self::validate).
    pub fn into_job(
        mut self,
        seq: i64,
        now: DateTime<Utc>,
        ruled: Lane,
    ) -> Result<Job, InvalidJob> {
        self.complete()?;
        Ok(Job {
            id: self.id,
            seq,
            revision: 1,
            kind: self.kind(),
            lane_named: self.lane_is_named(),
            exclusive: self.is_exclusive(),
            retries: self.attempts(),
            failures: 0,
            job_type: self.job_type,
            payload: self.payload.unwrap_or_default(),
            process_instance: self.process_instance,
            execution: self.execution,
            process_definition: self.process_definition,
            element: self.element,
            tenant: self.tenant,
            category: self.category,
            deployment: self.deployment,
            priority: self.priority.unwrap_or_default(),
            retry_policy: self.retry_policy,
            due_at: self.due_at,
            repeat: self.repeat,
            repeat_until: self.repeat_until,
            correlation_id: self.correlation_id.unwrap_or(self.id.0),
            created_at: now,
            ready_at: now,
            lane: self.lane.unwrap_or(ruled),
            exception_message: None,
            custom_values: self.custom_values,
            trace_parent: self.trace_parent,
            unreadable: None,
        })
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        let default = self.process_instance.is_some() && !self.is_history;
        self.exclusive.unwrap_or(default)
    }

    /// Returns whether the creator named the lane. The lane of a history job does not depend on the
    /// rules, so it counts as named.
    pub(crate) fn lane_is_named(&self) -> Option<bool> {
        if self.is_copy {
            self.lane_named
        } else {
            Some(self.lane.is_some())
        }
    }

    pub(crate) fn kind(&self) -> JobKind {
        if self.is_history {
            JobKind::History
        } else if self.due_at.is_some() || self.repeat.is_some() {
            JobKind::Timer
        } else {
            JobKind::Message
        }
    }

    /// Returns the number of attempts: `retries`, or the count of an `R5/…` retry policy, or
    /// [`DEFAULT_RETRIES`], or [`HISTORY_RETRIES`].
    pub(crate) fn attempts(&self) -> i32 {
        let default = if self.is_history {
            HISTORY_RETRIES
        } else {
            DEFAULT_RETRIES
        };
        self.retries.unwrap_or_else(|| {
            self.retry_policy
                .as_deref()
                .and_then(|p| RetryPolicy::parse(p).ok())
                .and_then(|p| p.attempts())
                .unwrap_or(default)
        })
    }
}

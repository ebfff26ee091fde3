//! The query for jobs: conditions, order and page.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::job::query::{JobCursor, JobSort, JobView, SortBy, TextField, TextMatch, conditions};
use crate::job::{BatchId, JobId, JobKind, JobState, NodeId, tags};

/// A query for jobs of every state. All given conditions must hold; the default matches all jobs,
/// sorts them by creation, and returns the first 100.
///
/// ```
/// use jobwire_core::{JobQuery, JobSort, JobState, SortBy};
///
/// let overdue = JobQuery::default()
///     .states([JobState::Executable, JobState::Timer])
///     .definition_key("invoice")
///     .tenant_like("eu-%")
///     .locked(false)
///     .sort(JobSort::ascending(SortBy::Due))
///     .limit(50);
/// # assert!(overdue.check().is_ok());
/// ```
///
/// Times are compared with the database's clock. A condition on a text can be repeated: then all of
/// them must hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct JobQuery {
    /// Only these jobs. An empty list matches nothing. Default: all jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ids: Option<Vec<JobId>>,
    /// Only with this correlation id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<Uuid>,
    /// Only of these states; empty means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<JobState>,
    /// Only of these kinds; empty means all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<JobKind>,
    /// The conditions on texts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub texts: Vec<(TextField, TextMatch)>,
    /// Only the job that last took this unique key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unique_key: Option<String>,
    /// Only members of this batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchId>,
    /// Only jobs whose custom values contain this JSON object, as `@>` of PostgreSQL's `jsonb`
    /// compares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom_values: Option<Value>,
    /// Only of this priority or a larger one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_priority: Option<i64>,
    /// Only of this priority or a smaller one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_priority: Option<i64>,
    /// Only jobs of another priority than this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_other_than: Option<i64>,
    /// Only jobs due before this moment. A job without a due date does not match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_before: Option<DateTime<Utc>>,
    /// Only jobs due after this moment. A job without a due date does not match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_after: Option<DateTime<Utc>>,
    /// Only jobs created before this moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_before: Option<DateTime<Utc>>,
    /// Only jobs created after this moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_after: Option<DateTime<Utc>>,
    /// Only jobs that failed at least once, or never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub with_exception: Option<bool>,
    /// Only jobs with attempts left, or without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries_left: Option<bool>,
    /// Only jobs with (or without) a lock. An expired lock counts until the leader ends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub locked: Option<bool>,
    /// Only jobs that this node holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_owner: Option<NodeId>,
    /// Only jobs whose lock has expired, or has not. A job without a lock does not match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lock_expired: Option<bool>,
    /// Only exclusive jobs, or only others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exclusive: Option<bool>,
    /// Only jobs that are due and not locked: executable jobs, and timers whose date has come. A
    /// suspension or a pause may still cover them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub executable: bool,
    /// Only suspended jobs: those in the suspended table, and executable jobs and timers that a
    /// suspension covers. `false`: only the others, dead letters included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspended: Option<bool>,
    /// Only jobs that fulfil all conditions of at least one of these queries, which have no order, no
    /// page and no such list of their own. Empty: no such condition.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub any_of: Vec<JobQuery>,
    /// The order. Default: by creation.
    #[serde(skip)]
    pub sort: JobSort,
    /// Only jobs behind this place.
    #[serde(skip)]
    pub after: Option<JobCursor>,
    /// The number of jobs to skip. Large numbers are slow; a cursor is not.
    #[serde(skip)]
    pub offset: i64,
    /// The maximum number of jobs, at most 100,000. Default: 100.
    #[serde(skip, default = "default_limit")]
    pub limit: i64,
}

const fn default_limit() -> i64 {
    100
}

impl Default for JobQuery {
    fn default() -> Self {
        Self {
            ids: None,
            correlation_id: None,
            states: Vec::new(),
            kinds: Vec::new(),
            texts: Vec::new(),
            unique_key: None,
            batch: None,
            custom_values: None,
            min_priority: None,
            max_priority: None,
            priority_other_than: None,
            due_before: None,
            due_after: None,
            created_before: None,
            created_after: None,
            with_exception: None,
            retries_left: None,
            locked: None,
            lock_owner: None,
            lock_expired: None,
            exclusive: None,
            executable: false,
            suspended: None,
            any_of: Vec::new(),
            sort: JobSort::default(),
            after: None,
            offset: 0,
            limit: default_limit(),
        }
    }
}

macro_rules! exact_texts {
    ($($(#[$doc:meta])* $name:ident = $field:ident,)+) => {
        $($(#[$doc])*
        #[must_use]
        pub fn $name(self, $name: impl Into<String>) -> Self {
            self.text(TextField::$field, TextMatch::one_of([$name]))
        })+
    };
}

impl JobQuery {
    /// The largest [`limit`](Self::limit) of a page.
    pub const MAX_LIMIT: i64 = 100_000;

    /// Only this job.
    #[must_use]
    pub fn id(self, id: JobId) -> Self {
        self.ids([id])
    }

    /// Only these jobs.
    #[must_use]
    pub fn ids(mut self, ids: impl IntoIterator<Item = JobId>) -> Self {
        self.ids = Some(ids.into_iter().collect());
        self
    }

    /// Only of these states.
    #[must_use]
    pub fn states(mut self, states: impl IntoIterator<Item = JobState>) -> Self {
        self.states = states.into_iter().collect();
        self
    }

    /// Only of these kinds: messages, timers or history jobs.
    #[must_use]
    pub fn kinds(mut self, kinds: impl IntoIterator<Item = JobKind>) -> Self {
        self.kinds = kinds.into_iter().collect();
        self
    }

    /// Adds a condition on a text.
    #[must_use]
    pub fn text(mut self, field: TextField, matches: TextMatch) -> Self {
        self.texts.push((field, matches));
        self
    }

    exact_texts! {
        /// Only of this handler type.
        job_type = Type,
        /// Only of this process instance.
        instance = Instance,
        /// Only of this execution.
        execution = Execution,
        /// Only of this process definition.
        process_definition = Definition,
        /// Only of this element.
        element = Element,
        /// Only of this tenant.
        tenant = Tenant,
        /// Only of this category.
        category = Category,
        /// Only of this deployment.
        deployment = Deployment,
        /// Only of this lane.
        lane = Lane,
    }

    /// Only of these handler types.
    #[must_use]
    pub fn job_types<T: Into<String>>(self, types: impl IntoIterator<Item = T>) -> Self {
        self.text(TextField::Type, TextMatch::one_of(types))
    }

    /// Only of these elements.
    #[must_use]
    pub fn elements<T: Into<String>>(self, elements: impl IntoIterator<Item = T>) -> Self {
        self.text(TextField::Element, TextMatch::one_of(elements))
    }

    /// Only of these process instances.
    #[must_use]
    pub fn instances<T: Into<String>>(self, instances: impl IntoIterator<Item = T>) -> Self {
        self.text(TextField::Instance, TextMatch::one_of(instances))
    }

    /// Only jobs without a process instance.
    #[must_use]
    pub fn without_instance(self) -> Self {
        self.text(TextField::Instance, TextMatch::Missing)
    }

    /// Only of a process definition with this key, of any version: the definition is the key, or the
    /// key with a colon and anything behind it (`invoice:3:4711`).
    #[must_use]
    pub fn definition_key(self, key: impl Into<String>) -> Self {
        self.text(TextField::Definition, TextMatch::Key(key.into()))
    }

    /// Only of tenants that match a pattern ([`TextMatch::Like`]).
    #[must_use]
    pub fn tenant_like(self, pattern: impl Into<String>) -> Self {
        self.text(TextField::Tenant, TextMatch::Like(pattern.into()))
    }

    /// Only jobs without a tenant.
    #[must_use]
    pub fn without_tenant(self) -> Self {
        self.text(TextField::Tenant, TextMatch::Missing)
    }

    /// Only of categories that match a pattern ([`TextMatch::Like`]).
    #[must_use]
    pub fn category_like(self, pattern: impl Into<String>) -> Self {
        self.text(TextField::Category, TextMatch::Like(pattern.into()))
    }

    /// Only jobs whose last failure has exactly this message.
    #[must_use]
    pub fn exception_message(self, message: impl Into<String>) -> Self {
        let matches = TextMatch::one_of([message]);
        self.text(TextField::ExceptionMessage, matches)
    }

    /// Only jobs whose last failure has a message that matches a pattern ([`TextMatch::Like`]).
    #[must_use]
    pub fn exception_like(self, pattern: impl Into<String>) -> Self {
        self.text(TextField::ExceptionMessage, TextMatch::Like(pattern.into()))
    }

    /// Only the job that last took this [unique key](crate::UniqueKey).
    #[must_use]
    pub fn unique_key(mut self, key: impl Into<String>) -> Self {
        self.unique_key = Some(key.into());
        self
    }

    /// Only jobs with this [tag](crate::NewJob::tag), beside those given before: a condition on the
    /// custom values.
    #[must_use]
    pub fn tag(mut self, tag: impl Into<String>) -> Self {
        let values = self.custom_values.take();
        self.custom_values = Some(tags::wanted(values, tag.into()));
        self
    }

    conditions! {
        /// Only members of this [batch](crate::Batch).
        batch: BatchId,
        /// Only with this correlation id.
        correlation_id: Uuid,
        /// Only jobs whose custom values contain this JSON object: each of its fields, with the same
        /// value; of an array, each element; of an object inside it, each field. Jobs without custom
        /// values do not match.
        custom_values: Value,
        /// Only of this priority or a larger one.
        min_priority: i64,
        /// Only of this priority or a smaller one.
        max_priority: i64,
        /// Only jobs of another priority than this one.
        priority_other_than: i64,
        /// Only jobs due before this moment.
        due_before: DateTime<Utc>,
        /// Only jobs due after this moment.
        due_after: DateTime<Utc>,
        /// Only jobs created before this moment.
        created_before: DateTime<Utc>,
        /// Only jobs created after this moment.
        created_after: DateTime<Utc>,
        /// Only jobs that failed at least once, or only jobs that never failed.
        with_exception: bool,
        /// Only jobs with attempts left, or only jobs without.
        retries_left: bool,
        /// Only jobs with a lock, or only jobs without one.
        locked: bool,
        /// Only jobs that this node holds.
        lock_owner: NodeId,
        /// Only jobs whose lock has expired, or only jobs whose lock has not.
        lock_expired: bool,
        /// Only exclusive jobs, or only others.
        exclusive: bool,
        /// Only suspended jobs, or only active ones.
        suspended: bool,
        /// Continues a list behind this place.
        after: JobCursor,
    }

    /// Only jobs that fulfil all conditions of at least one of these queries, beside the conditions of
    /// this one: what the engines' queries write between `or()` and `endOr()`.
    ///
    /// ```
    /// use jobwire_core::{JobQuery, JobState};
    ///
    /// let to_look_at = JobQuery::default().tenant("acme").any_of([
    ///     JobQuery::default().states([JobState::DeadLetter]),
    ///     JobQuery::default().with_exception(true).min_priority(10),
    /// ]);
    /// # assert!(to_look_at.check().is_ok());
    /// ```
    #[must_use]
    pub fn any_of(mut self, queries: impl IntoIterator<Item = Self>) -> Self {
        self.any_of = queries.into_iter().collect();
        self
    }

    /// Only jobs that are due and not locked.
    #[must_use]
    pub fn executable(mut self) -> Self {
        self.executable = true;
        self
    }

    /// Sets the order.
    #[must_use]
    pub fn sort(mut self, sort: JobSort) -> Self {
        self.sort = sort;
        self
    }

    /// Skips this many jobs.
    #[must_use]
    pub fn offset(mut self, offset: i64) -> Self {
        self.offset = offset;
        self
    }

    /// Returns at most this many jobs. Default: 100.
    #[must_use]
    pub fn limit(mut self, limit: i64) -> Self {
        self.limit = limit;
        self
    }

    /// Returns the place at which the next page begins, behind a page of this query. `None` if the page
    /// has fewer jobs than the limit, so it is the last one.
    #[must_use]
    pub fn next_page(&self, page: &[JobView]) -> Option<JobCursor> {
        let limit = self.limit.min(Self::MAX_LIMIT);
        let is_full = i64::try_from(page.len()).is_ok_and(|found| found >= limit);
        let last = page.last().filter(|_| is_full)?;
        Some(JobCursor::after(last, self.sort))
    }

    /// Returns whether jobs are sorted by creation, without a cursor.
    #[must_use]
    pub fn has_default_order(&self) -> bool {
        self.sort == JobSort::ascending(SortBy::Creation) && self.after.is_none()
    }
}

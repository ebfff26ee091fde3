//! The query for recorded attempts: conditions, order and page.

use chrono::{DateTime, Utc};

use super::{AttemptCursor, AttemptOutcome, AttemptSort, AttemptView};
use crate::job::query::{TextMatch, conditions};
use crate::job::{JobId, NodeId};

/// A text of a recorded attempt that a query can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttemptField {
    /// The handler type.
    Type,
    /// The process instance.
    Instance,
    /// The tenant.
    Tenant,
}

impl AttemptField {
    /// Returns the column of the table `attempt`.
    #[must_use]
    pub const fn column(self) -> &'static str {
        match self {
            Self::Type => "type",
            Self::Instance => "process_instance",
            Self::Tenant => "tenant",
        }
    }
}

/// A query for recorded attempts. All given conditions must hold; the default matches all attempts,
/// and returns the latest 100.
///
/// ```
/// use jobwire_core::TextMatch;
/// use jobwire_core::store::attempts::{AttemptField, AttemptOutcome, AttemptQuery, AttemptSort};
///
/// let failed = AttemptQuery::default()
///     .job_types(["send-invoice", "send-reminder"])
///     .text(AttemptField::Tenant, TextMatch::Like("eu-%".to_owned()))
///     .outcomes([AttemptOutcome::Retry, AttemptOutcome::DeadLetter])
///     .started_after("2027-01-31T08:00:00Z".parse()?)
///     .sort(AttemptSort::Oldest)
///     .limit(50);
/// assert!(failed.check().is_ok());
/// # Ok::<(), jobwire_core::chrono::ParseError>(())
/// ```
///
/// The order is that of the key of the table, so a page that many rows match is quick. An index finds
/// the attempts of jobs. The other conditions are compared row by row: a query that few rows match
/// reads up to all of them.
///
/// A condition on a text can be repeated: then all of them must hold.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AttemptQuery {
    /// Only attempts of these jobs. An empty list matches nothing. Default: of all jobs.
    pub ids: Option<Vec<JobId>>,
    /// The conditions on texts.
    pub texts: Vec<(AttemptField, TextMatch)>,
    /// Only with these outcomes; empty means all.
    pub outcomes: Vec<AttemptOutcome>,
    /// Only attempts of this node.
    pub node: Option<NodeId>,
    /// Only attempts that started after this moment.
    pub started_after: Option<DateTime<Utc>>,
    /// Only attempts that started before this moment.
    pub started_before: Option<DateTime<Utc>>,
    /// The order. Default: the latest first.
    pub sort: AttemptSort,
    /// Only attempts behind this place.
    pub after: Option<AttemptCursor>,
    /// The maximum number of attempts, at most 10,000. Default: 100.
    pub limit: i64,
}

impl Default for AttemptQuery {
    fn default() -> Self {
        Self {
            ids: None,
            texts: Vec::new(),
            outcomes: Vec::new(),
            node: None,
            started_after: None,
            started_before: None,
            sort: AttemptSort::Newest,
            after: None,
            limit: 100,
        }
    }
}

impl AttemptQuery {
    /// The largest [`limit`](Self::limit) of a page. A row may have a stack of 1 MiB.
    pub const MAX_LIMIT: i64 = 10_000;

    /// Only attempts of this job, which may be gone.
    #[must_use]
    pub fn id(self, id: JobId) -> Self {
        self.ids([id])
    }

    /// Only attempts of these jobs, which may be gone.
    #[must_use]
    pub fn ids(mut self, ids: impl IntoIterator<Item = JobId>) -> Self {
        self.ids = Some(ids.into_iter().collect());
        self
    }

    /// Adds a condition on a text.
    #[must_use]
    pub fn text(mut self, field: AttemptField, matches: TextMatch) -> Self {
        self.texts.push((field, matches));
        self
    }

    /// Only of this handler type.
    #[must_use]
    pub fn job_type(self, job_type: impl Into<String>) -> Self {
        self.job_types([job_type])
    }

    /// Only of these handler types.
    #[must_use]
    pub fn job_types<T: Into<String>>(self, types: impl IntoIterator<Item = T>) -> Self {
        self.text(AttemptField::Type, TextMatch::one_of(types))
    }

    /// Only of this process instance.
    #[must_use]
    pub fn instance(self, instance: impl Into<String>) -> Self {
        self.instances([instance])
    }

    /// Only of these process instances.
    #[must_use]
    pub fn instances<T: Into<String>>(self, instances: impl IntoIterator<Item = T>) -> Self {
        self.text(AttemptField::Instance, TextMatch::one_of(instances))
    }

    /// Only attempts of jobs without a process instance.
    #[must_use]
    pub fn without_instance(self) -> Self {
        self.text(AttemptField::Instance, TextMatch::Missing)
    }

    /// Only of this tenant.
    #[must_use]
    pub fn tenant(self, tenant: impl Into<String>) -> Self {
        self.text(AttemptField::Tenant, TextMatch::one_of([tenant]))
    }

    /// Only of tenants that match a pattern ([`TextMatch::Like`]).
    #[must_use]
    pub fn tenant_like(self, pattern: impl Into<String>) -> Self {
        self.text(AttemptField::Tenant, TextMatch::Like(pattern.into()))
    }

    /// Only attempts of jobs without a tenant.
    #[must_use]
    pub fn without_tenant(self) -> Self {
        self.text(AttemptField::Tenant, TextMatch::Missing)
    }

    /// Only with these outcomes.
    #[must_use]
    pub fn outcomes(mut self, outcomes: impl IntoIterator<Item = AttemptOutcome>) -> Self {
        self.outcomes = outcomes.into_iter().collect();
        self
    }

    conditions! {
        /// Only attempts of this node.
        node: NodeId,
        /// Only attempts that started after this moment, by the database's clock.
        started_after: DateTime<Utc>,
        /// Only attempts that started before this moment, by the database's clock.
        started_before: DateTime<Utc>,
        /// Continues a list behind this place.
        after: AttemptCursor,
    }

    /// Sets the order.
    #[must_use]
    pub fn sort(mut self, sort: AttemptSort) -> Self {
        self.sort = sort;
        self
    }

    /// Returns at most this many attempts. Default: 100.
    #[must_use]
    pub fn limit(mut self, limit: i64) -> Self {
        self.limit = limit;
        self
    }

    /// Returns the place at which the next page begins, behind a page of this query. `None` if the page
    /// has fewer attempts than the limit, so it is the last one.
    #[must_use]
    pub fn next_page(&self, page: &[AttemptView]) -> Option<AttemptCursor> {
        let limit = self.limit.min(Self::MAX_LIMIT);
        let is_full = i64::try_from(page.len()).is_ok_and(|found| found >= limit);
        let last = page.last().filter(|_| is_full)?;
        Some(AttemptCursor::after(last, self.sort))
    }
}

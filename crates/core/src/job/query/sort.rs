//! The order of a list of jobs.

use std::cmp::Ordering;

use crate::job::query::{CursorKey, JobView};
use crate::job::text_enum;

text_enum! {
    /// The field by which a list is sorted.
    SortBy {
        /// The order of creation. The default.
        Creation = "creation",
        /// The id.
        Id = "id",
        /// The due date.
        Due = "due",
        /// The time of creation.
        Created = "created",
        /// The priority.
        Priority = "priority",
        /// The attempts left.
        Retries = "retries",
        /// The process instance.
        Instance = "instance",
        /// The process definition.
        Definition = "definition",
        /// The tenant.
        Tenant = "tenant",
        /// The handler type.
        Type = "type",
        // A cursor holds the position in this list, so new fields come last.
        /// The execution.
        Execution = "execution",
        /// The key of the process definition: the definition up to its first colon.
        DefinitionKey = "definition-key",
    }
}

/// The order of a list. Jobs that are equal in the field are sorted by their ids, in the same
/// direction. Jobs without a value come last in both directions. Texts are sorted by their bytes.
///
/// ```
/// use jobwire_core::{JobQuery, JobSort};
///
/// let urgent_first = JobQuery::default().sort("priority:desc".parse::<JobSort>()?);
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobSort {
    /// The field.
    pub by: SortBy,
    /// Whether the largest values come first.
    pub descending: bool,
}

impl Default for JobSort {
    fn default() -> Self {
        Self::ascending(SortBy::Creation)
    }
}

impl JobSort {
    /// Sorts the smallest values first.
    #[must_use]
    pub const fn ascending(by: SortBy) -> Self {
        Self {
            by,
            descending: false,
        }
    }

    /// Sorts the largest values first.
    #[must_use]
    pub const fn descending(by: SortBy) -> Self {
        Self {
            by,
            descending: true,
        }
    }

    /// Returns the value of a job in the field.
    #[must_use]
    pub(crate) fn key(self, view: &JobView) -> CursorKey {
        let text = |text: &Option<String>| text.clone().map_or(CursorKey::Missing, CursorKey::Text);
        match self.by {
            SortBy::Creation => CursorKey::Number(view.seq),
            SortBy::Id => CursorKey::Missing,
            SortBy::Due => view.due_at.map_or(CursorKey::Missing, |due| {
                CursorKey::Number(due.timestamp_micros())
            }),
            SortBy::Created => CursorKey::Number(view.created_at.timestamp_micros()),
            SortBy::Priority => CursorKey::Number(view.priority),
            SortBy::Retries => CursorKey::Number(view.retries.into()),
            SortBy::Instance => text(&view.process_instance),
            SortBy::Definition => text(&view.process_definition),
            SortBy::Tenant => text(&view.tenant),
            SortBy::Type => CursorKey::Text(view.job_type.clone()),
            SortBy::Execution => text(&view.execution),
            SortBy::DefinitionKey => {
                let key = |of: &str| of.split(':').next().unwrap_or(of).to_owned();
                let key = view.process_definition.as_deref().map(key);
                key.map_or(CursorKey::Missing, CursorKey::Text)
            }
        }
    }

    /// Compares two jobs.
    #[must_use]
    pub fn compare(self, one: &JobView, other: &JobView) -> Ordering {
        let (first, second) = (self.key(one), self.key(other));
        self.compare_keys((&first, one.id.uuid()), (&second, other.id.uuid()))
    }

    pub(crate) fn compare_keys(
        self,
        (first, id): (&CursorKey, uuid::Uuid),
        (second, other): (&CursorKey, uuid::Uuid),
    ) -> Ordering {
        let directed = |order: Ordering| match self.descending {
            true => order.reverse(),
            false => order,
        };
        let by_key = match (first, second) {
            (CursorKey::Number(a), CursorKey::Number(b)) => directed(a.cmp(b)),
            (CursorKey::Text(a), CursorKey::Text(b)) => directed(a.as_bytes().cmp(b.as_bytes())),
            (CursorKey::Missing, CursorKey::Missing) => Ordering::Equal,
            (CursorKey::Missing, _) => Ordering::Greater,
            (_, CursorKey::Missing) => Ordering::Less,
            // A field has values of one type.
            _ => Ordering::Equal,
        };
        by_key.then_with(|| directed(id.cmp(&other)))
    }
}

impl std::fmt::Display for JobSort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.descending {
            true => write!(f, "{}:desc", self.by),
            false => write!(f, "{}", self.by),
        }
    }
}

impl std::str::FromStr for JobSort {
    type Err = String;

    /// Reads `due`, `due:asc` or `due:desc`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (by, direction) = text.split_once(':').unwrap_or((text, "asc"));
        let by = SortBy::parse(by);
        let descending = match direction {
            "asc" => Some(false),
            "desc" => Some(true),
            _ => None,
        };
        let (Some(by), Some(descending)) = (by, descending) else {
            let known: Vec<&str> = SortBy::ALL.iter().map(|by| by.as_str()).collect();
            return Err(format!(
                "write one of {}, with `:desc` behind it for the largest first",
                known.join(", ")
            ));
        };
        Ok(Self { by, descending })
    }
}

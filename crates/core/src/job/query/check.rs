//! The check of a query before it is asked.

use std::fmt;

use serde_json::Value;

use crate::job::query::text_match::LikePattern;
use crate::job::query::{JobQuery, TextMatch};

/// Maximum number of ids, types or tenants that one condition names.
pub const MAX_QUERY_VALUES: usize = 10_000;
/// Maximum number of queries of which a job must match one.
const MAX_ANY_OF: usize = 16;
/// Maximum length of a text in a condition, in bytes. No field of a job but the message of a failure
/// is longer.
const MAX_TEXT_BYTES: usize = 4_096;
/// Maximum depth of the custom values that a query asks for.
pub(crate) const MAX_CUSTOM_DEPTH: usize = 8;
/// Maximum number of values in them.
const MAX_CUSTOM_VALUES: usize = 64;

/// A query that can't be asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("query for {list}: `{field}` {problem}; {remedy}")]
pub struct InvalidQuery {
    /// What the query asks for: `jobs` or `attempts`.
    pub list: &'static str,
    /// The condition.
    pub field: &'static str,
    /// The problem.
    pub problem: String,
    /// The remedy.
    pub remedy: &'static str,
}

/// Refuses a query for jobs.
pub(crate) fn refuse(
    field: &'static str,
    problem: impl Into<String>,
    remedy: &'static str,
) -> Result<(), InvalidQuery> {
    Err(InvalidQuery {
        list: "jobs",
        field,
        problem: problem.into(),
        remedy,
    })
}

impl JobQuery {
    /// Checks that the query can be asked. Every store does so first.
    ///
    /// # Errors
    /// [`InvalidQuery`]: a cursor of another order, a list or a text that is too long, a pattern
    /// that ends in a backslash, or custom values that are no object.
    pub fn check(&self) -> Result<(), InvalidQuery> {
        many("ids", self.ids.as_ref().map_or(0, Vec::len))?;
        for (field, matches) in &self.texts {
            text_match(field.column(), matches)?;
        }
        if let Some(key) = &self.unique_key {
            text("unique_key", key)?;
        }
        if let Some(values) = &self.custom_values {
            let remedy = "give an object such as {\"order\": 17}";
            if !values.is_object() {
                return refuse("custom_values", "is not a JSON object", remedy);
            }
            let mut left = MAX_CUSTOM_VALUES;
            if !is_small(values, MAX_CUSTOM_DEPTH, &mut left) {
                let problem = format!(
                    "has more than {MAX_CUSTOM_VALUES} values, more than {MAX_CUSTOM_DEPTH} levels, \
                     a text of more than {MAX_TEXT_BYTES} bytes, or a NUL character"
                );
                return refuse("custom_values", problem, "ask for fewer and plainer values");
            }
        }
        if self.any_of.len() > MAX_ANY_OF {
            let problem = format!("has {} queries, more than {MAX_ANY_OF}", self.any_of.len());
            return refuse("any_of", problem, "ask in parts");
        }
        for query in &self.any_of {
            let page = Self::default();
            let is_plain = query.any_of.is_empty()
                && (query.sort, &query.after) == (page.sort, &page.after)
                && (query.offset, query.limit) == (page.offset, page.limit);
            if !is_plain {
                let problem = "has a query with an order, a page, or an `any_of` of its own";
                return refuse("any_of", problem, "give conditions only, one level deep");
            }
            query.check()?;
        }
        same_order(self.after.as_ref().map(|after| after.sort), self.sort)
    }
}

/// Checks that a cursor is one of a list of this order.
pub(crate) fn same_order<T: fmt::Display + PartialEq>(
    cursor: Option<T>,
    sort: T,
) -> Result<(), InvalidQuery> {
    match cursor {
        Some(of) if of != sort => {
            let problem = format!(
                "is a cursor of a list that is sorted by `{of}`, and this one is sorted by `{sort}`"
            );
            refuse("after", problem, "keep the order from page to page")
        }
        _ => Ok(()),
    }
}

/// Checks the number of values that a condition names.
pub(crate) fn many(field: &'static str, values: usize) -> Result<(), InvalidQuery> {
    if values <= MAX_QUERY_VALUES {
        return Ok(());
    }
    let problem = format!("names {values} values, more than {MAX_QUERY_VALUES}");
    refuse(field, problem, "ask in parts")
}

/// Checks the condition on a text.
pub(crate) fn text_match(field: &'static str, matches: &TextMatch) -> Result<(), InvalidQuery> {
    many(field, matches.texts().len())?;
    matches
        .texts()
        .iter()
        .try_for_each(|one| text(field, one))?;
    if let TextMatch::Like(pattern) = matches
        && LikePattern::parse(pattern).is_none()
    {
        let remedy = "write `\\\\` for a backslash";
        return refuse(field, "has a pattern that ends in a backslash", remedy);
    }
    Ok(())
}

fn text(field: &'static str, text: &str) -> Result<(), InvalidQuery> {
    if text.len() > MAX_TEXT_BYTES {
        let problem = format!("has {} bytes, more than {MAX_TEXT_BYTES}", text.len());
        return refuse(field, problem, "shorten it");
    }
    if text.contains('\0') {
        return refuse(field, "contains a NUL character", "leave it out");
    }
    Ok(())
}

/// Returns whether a JSON value has at most `depth` levels and `left` values, and texts that a
/// database takes.
fn is_small(value: &Value, depth: usize, left: &mut usize) -> bool {
    let Some(fewer) = left.checked_sub(1) else {
        return false;
    };
    *left = fewer;
    let fits = |text: &str| text.len() <= MAX_TEXT_BYTES && !text.contains('\0');
    match value {
        Value::Object(fields) => fields
            .iter()
            .all(|(name, value)| depth > 0 && fits(name) && is_small(value, depth - 1, left)),
        Value::Array(values) => values
            .iter()
            .all(|value| depth > 0 && is_small(value, depth - 1, left)),
        Value::String(text) => fits(text),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::job::JobId;
    use crate::job::query::{JobCursor, JobSort, SortBy};

    #[test]
    fn a_query_that_can_not_be_asked_is_refused_with_its_field() {
        let query = JobQuery::default;
        let deep = (0..=MAX_CUSTOM_DEPTH).fold(json!(1), |inner, _| json!({ "a": inner }));
        let cursor = JobCursor {
            sort: JobSort::ascending(SortBy::Due),
            key: crate::job::query::CursorKey::Missing,
            id: JobId::generate(),
        };
        let many = vec![JobId::generate(); MAX_QUERY_VALUES + 1];
        for (wrong, field) in [
            (query().ids(many), "ids"),
            (query().tenant_like("a\\"), "tenant"),
            (
                query().exception_like("x".repeat(5_000)),
                "exception_message",
            ),
            (query().instance("a\0"), "process_instance"),
            (query().unique_key("\0"), "unique_key"),
            (query().custom_values(json!([1])), "custom_values"),
            (query().custom_values(json!({ "a": "\0" })), "custom_values"),
            (
                query().custom_values(json!({ "a": vec![1; 100] })),
                "custom_values",
            ),
            (query().custom_values(deep), "custom_values"),
            (query().after(cursor.clone()), "after"),
        ] {
            assert_eq!(wrong.check().map_err(|e| e.field), Err(field));
        }
        let right = query()
            .tenant_like("a\\\\")
            .custom_values(json!({ "a": { "b": [1, "x", null] } }))
            .sort(JobSort::ascending(SortBy::Due))
            .after(cursor);
        assert_eq!(right.check(), Ok(()));
    }
}

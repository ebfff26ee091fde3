//! The check of a query for attempts before it is asked.

use std::ops::RangeInclusive;

use chrono::Datelike;

use super::AttemptQuery;
use crate::job::query::InvalidQuery;
use crate::job::query::check::{many, refuse, same_order, text_match};

/// The years that both databases and all their readers know.
const YEARS: RangeInclusive<i32> = 1..=9_999;

impl AttemptQuery {
    /// Checks that the query can be asked. Every store does so first.
    ///
    /// # Errors
    /// [`InvalidQuery`]: a cursor of another order, a list or a text that is too long, a pattern
    /// that ends in a backslash, a date out of the years 1 to 9999, or a range without a moment
    /// in it.
    pub fn check(&self) -> Result<(), InvalidQuery> {
        let list = "attempts";
        self.checked()
            .map_err(|error| InvalidQuery { list, ..error })
    }

    fn checked(&self) -> Result<(), InvalidQuery> {
        many("ids", self.ids.as_ref().map_or(0, Vec::len))?;
        for (field, matches) in &self.texts {
            text_match(field.column(), matches)?;
        }
        for (field, moment) in [
            ("started_after", self.started_after),
            ("started_before", self.started_before),
        ] {
            if let Some(moment) = moment.filter(|moment| !YEARS.contains(&moment.year())) {
                let problem = format!("is {moment}, out of the years 1 to 9999");
                return refuse(field, problem, "give a date in them, or leave it out");
            }
        }
        if let (Some(after), Some(before)) = (self.started_after, self.started_before)
            && after >= before
        {
            let problem = format!("is {before}, not later than `started_after`, {after}");
            return refuse("started_before", problem, "give a later date");
        }
        same_order(self.after.map(|after| after.sort), self.sort)
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta, Utc};

    use super::super::{AttemptCursor, AttemptSort};
    use super::*;
    use crate::job::query::MAX_QUERY_VALUES;
    use crate::job::{Fence, JobId};

    #[test]
    fn a_query_for_attempts_that_can_not_be_asked_is_refused_with_its_field() {
        let query = AttemptQuery::default;
        let oldest = AttemptCursor {
            sort: AttemptSort::Oldest,
            fence: Fence::new(1),
        };
        let many = vec![JobId::generate(); MAX_QUERY_VALUES + 1];
        let now = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let reversed = query().started_after(now).started_before(now);
        for (wrong, field) in [
            (query().ids(many), "ids"),
            (query().job_types(vec!["a"; 10_001]), "type"),
            (query().job_type("x".repeat(5_000)), "type"),
            (query().instance("a\0"), "process_instance"),
            (query().tenant_like("a\\"), "tenant"),
            (
                query().started_after(DateTime::<Utc>::MIN_UTC),
                "started_after",
            ),
            (
                query().started_before(DateTime::<Utc>::MAX_UTC),
                "started_before",
            ),
            (reversed, "started_before"),
            (query().after(oldest), "after"),
        ] {
            let refused = wrong.check().unwrap_err();
            assert_eq!(refused.field, field);
            let said = refused.to_string();
            assert!(said.starts_with("query for attempts: `"), "{said}");
        }
        let right = query()
            .started_after(now)
            .started_before(now + TimeDelta::microseconds(1))
            .tenant_like("a\\\\")
            .sort(AttemptSort::Oldest)
            .after(oldest);
        assert_eq!(right.check(), Ok(()));
    }
}

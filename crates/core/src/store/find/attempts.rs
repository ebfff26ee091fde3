//! The statement of a query for recorded attempts.
//!
//! The order is that of the key, so a page that many rows match is read from where it begins, without
//! a sort. An index finds the attempts of jobs. The other conditions are compared row by row: an index
//! for them would cost each recorded attempt another write, and a million rows are read in 0.1 to 0.2 s.

use super::{Dialect, Part, Statement, Value};
use crate::store::attempts::{AttemptField, AttemptQuery, AttemptSort};

/// Returns the statement of a page: `head` selects from the table `a`. `None` if no attempt can be on
/// it.
pub(crate) fn page(
    dialect: &'static Dialect,
    query: &AttemptQuery,
    head: &'static str,
) -> Option<Vec<Part>> {
    let limit = query.limit.clamp(0, AttemptQuery::MAX_LIMIT);
    let mut it = Statement {
        dialect,
        query,
        parts: vec![Part::Sql(head), Part::Sql(" WHERE true")],
    };
    it.names();
    it.start();
    it.place();
    it.sql(" LIMIT ").bind(Value::Number(limit));
    (limit > 0).then_some(it.parts)
}

impl Statement<'_, AttemptQuery> {
    fn names(&mut self) {
        let query = self.query;
        match query.ids.as_deref() {
            Some([id]) => {
                self.sql(" AND a.job_id = ").bind(Value::Id(id.uuid()));
            }
            Some(ids) => {
                let ids = ids.iter().map(|id| id.uuid()).collect();
                self.sql(" AND a.job_id").one_of(Value::Ids(ids));
            }
            None => {}
        }
        for (field, matches) in &query.texts {
            self.text(column(*field), matches);
        }
        if !query.outcomes.is_empty() {
            let outcomes = query.outcomes.iter().map(|of| of.as_str().to_owned());
            self.sql(" AND a.outcome");
            self.one_of(Value::Texts(outcomes.collect()));
        }
        if let Some(node) = query.node {
            self.sql(" AND a.node = ").bind(Value::Id(node.uuid()));
        }
    }

    fn start(&mut self) {
        for (condition, moment) in [
            (" AND a.started_at > ", self.query.started_after),
            (" AND a.started_at < ", self.query.started_before),
        ] {
            if let Some(moment) = moment {
                self.sql(condition).bind(Value::Moment(moment));
            }
        }
    }

    /// Adds the condition of the cursor, and the order.
    fn place(&mut self) {
        let (further, order) = match self.query.sort {
            AttemptSort::Newest => (" AND a.fence < ", " ORDER BY a.fence DESC"),
            AttemptSort::Oldest => (" AND a.fence > ", " ORDER BY a.fence"),
        };
        if let Some(after) = self.query.after {
            let fence = after.fence.number();
            self.sql(further).bind(Value::Number(fence));
        }
        self.sql(order);
    }
}

const fn column(field: AttemptField) -> &'static str {
    match field {
        AttemptField::Type => "a.type",
        AttemptField::Instance => "a.process_instance",
        AttemptField::Tenant => "a.tenant",
    }
}

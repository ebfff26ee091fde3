//! The statements of queries for jobs and recorded attempts, for both databases.
//!
//! A statement is a list of constant texts and bound values. No text of a caller can come into it.
//! Each table of jobs is asked with the conditions, the order and the limit of its own, and the results are
//! merged: a database sorts no more than a page of each table, and reads what stands beside a job
//! (lease, progress, gate) for the jobs of the page only.

pub(super) mod attempts;
mod conditions;
mod custom_values;
mod texts;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::job::JobState;
use crate::job::query::{CursorKey, JobQuery, LikePattern, SortBy};
use crate::store::sql::suspends;

/// The columns of a job that a list reads.
macro_rules! view_columns {
    () => {
        "j.id, j.seq, j.kind, j.type, j.process_instance, j.execution, j.process_definition, \
         j.element, j.tenant, j.category, j.priority, j.exclusive, j.retries, j.failures, j.due_at, \
         j.correlation_id, j.created_at, j.lane, j.exception_message, j.custom_values, j.ready_at, \
         j.hints"
    };
}
pub(super) use view_columns;

/// A bound value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Number(i64),
    Real(f64),
    Moment(DateTime<Utc>),
    Id(Uuid),
    Ids(Vec<Uuid>),
    Text(String),
    Texts(Vec<String>),
    /// The time of the statement.
    Now,
}

/// A part of a statement.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    Sql(&'static str),
    Bind(Value),
}

/// The texts that differ between the databases.
#[derive(Debug)]
pub(super) struct Dialect {
    /// The table of each state, as ` FROM table j`, with the select of its columns.
    pub(super) tables: [(JobState, Table); 4],
    /// The condition that the id of a job can be read.
    pub(super) has_id: &'static str,
    pub(super) leases: &'static str,
    pub(super) suspensions: &'static str,
    pub(super) unique_jobs: &'static str,
    pub(super) unique_dead_letters: &'static str,
    pub(super) batch_members: &'static str,
    /// Around a bound set: `= ANY(` and `)`.
    pub(super) any_of: (&'static str, &'static str),
    /// Around a bound pattern.
    pub(super) like: (&'static str, &'static str),
    /// Returns a pattern in the form of `like`.
    pub(super) pattern: fn(&LikePattern) -> String,
    /// Behind a text that is compared with another one: the order of bytes.
    pub(super) by_bytes: &'static str,
    /// The key of a job's definition.
    pub(super) definition_key: &'static str,
    pub(super) custom_values: CustomValues,
    /// Behind the time of the statement: the longest lease.
    pub(super) plus_longest_lease: &'static str,
}

/// The way in which custom values are compared.
#[derive(Clone, Copy, Debug)]
pub(super) enum CustomValues {
    /// By an operator of the database, around the bound object.
    Operator(&'static str, &'static str),
    /// Field by field.
    Fields,
}

/// The table of a state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Table {
    /// `SELECT … FROM table j`.
    pub(super) select: &'static str,
    /// `SELECT 1 FROM table j`.
    pub(super) select_one: &'static str,
}

/// A statement that is being built.
#[derive(Debug)]
pub(super) struct Statement<'q, Q = JobQuery> {
    dialect: &'static Dialect,
    query: &'q Q,
    parts: Vec<Part>,
}

impl<Q> Statement<'_, Q> {
    fn sql(&mut self, text: &'static str) -> &mut Self {
        self.parts.push(Part::Sql(text));
        self
    }

    fn bind(&mut self, value: Value) -> &mut Self {
        self.parts.push(Part::Bind(value));
        self
    }
}

/// Returns the statement of a page: `head` selects from the merged tables `j`, and `joins` joins
/// what stands beside a job. `None` if no job can match.
pub(super) fn page(
    dialect: &'static Dialect,
    query: &JobQuery,
    head: &'static str,
    joins: &'static str,
) -> Option<Vec<Part>> {
    let limit = query.limit.clamp(0, JobQuery::MAX_LIMIT);
    let offset = query.offset.max(0);
    let mut it = Statement {
        dialect,
        query,
        parts: vec![Part::Sql(head), Part::Sql(" FROM (")],
    };
    let mut is_first = true;
    for (state, table) in &dialect.tables {
        if !query.may_match(*state) {
            continue;
        }
        it.sql(if is_first { "" } else { " UNION ALL " });
        is_first = false;
        it.sql("SELECT * FROM (").sql(table.select);
        it.conditions(*state);
        it.place(*state);
        it.order(Some(*state)).sql(" LIMIT ");
        it.bind(Value::Number(offset.saturating_add(limit)));
        it.sql(") b");
    }
    it.sql(") j").sql(joins).order(None);
    it.sql(" LIMIT ").bind(Value::Number(limit));
    it.sql(" OFFSET ").bind(Value::Number(offset));
    (!is_first && limit > 0).then_some(it.parts)
}

/// Returns the statement that counts the jobs, up to `at_most`. `None` if no job can match.
pub(super) fn count(
    dialect: &'static Dialect,
    query: &JobQuery,
    at_most: Option<i64>,
) -> Option<Vec<Part>> {
    let mut it = Statement {
        dialect,
        query,
        parts: vec![Part::Sql("SELECT count(*) FROM (")],
    };
    let mut is_first = true;
    for (state, table) in &dialect.tables {
        if !query.may_match(*state) {
            continue;
        }
        it.sql(if is_first { "" } else { " UNION ALL " });
        is_first = false;
        it.sql(table.select_one);
        it.conditions(*state);
    }
    if let Some(at_most) = at_most {
        it.sql(" LIMIT ").bind(Value::Number(at_most.max(0)));
    }
    it.sql(") c");
    (!is_first).then_some(it.parts)
}

impl Statement<'_> {
    /// Adds the condition of the cursor for the table of a state.
    fn place(&mut self, state: JobState) {
        let Some(after) = &self.query.after else {
            return;
        };
        let is_id = self.query.sort.by == SortBy::Id;
        let (column, is_nullable) = self.column(Some(state));
        let (further, id) = (
            if self.query.sort.descending {
                " < "
            } else {
                " > "
            },
            Value::Id(after.id.uuid()),
        );
        let key = match &after.key {
            CursorKey::Missing if is_id => {
                self.sql(" AND j.id").sql(further).bind(id);
                return;
            }
            // Jobs without a value come last.
            CursorKey::Missing => {
                self.sql(" AND ").sql(column).sql(" IS NULL AND j.id");
                self.sql(further).bind(id);
                return;
            }
            CursorKey::Number(micros) if self.is_moment() => {
                let moment = DateTime::from_timestamp_micros(*micros);
                Value::Moment(moment.unwrap_or_default())
            }
            CursorKey::Number(number) => Value::Number(*number),
            CursorKey::Text(text) => Value::Text(text.clone()),
        };
        let by_bytes = self.by_bytes();
        if !is_nullable {
            // One comparison of rows, for which a database can use an index.
            self.sql(" AND (").sql(column).sql(by_bytes).sql(", j.id)");
            self.sql(further).sql("(").bind(key).sql(", ").bind(id);
            self.sql(")");
            return;
        }
        self.sql(" AND (").sql(column).sql(by_bytes).sql(further);
        self.bind(key.clone()).sql(" OR ").sql(column);
        self.sql(" IS NULL OR ").sql(column).sql(" = ").bind(key);
        self.sql(" AND j.id").sql(further).bind(id).sql(")");
    }

    /// Adds the order of the table of a state, or of the merged tables.
    fn order(&mut self, state: Option<JobState>) -> &mut Self {
        let descending = self.query.sort.descending;
        let direction = if descending { " DESC" } else { "" };
        let by_bytes = self.by_bytes();
        self.sql(" ORDER BY ");
        if self.query.sort.by != SortBy::Id {
            let (column, is_nullable) = self.column(state);
            self.sql(column).sql(by_bytes).sql(direction);
            self.sql(if is_nullable { " NULLS LAST, " } else { ", " });
        }
        self.sql("j.id").sql(direction)
    }

    fn is_moment(&self) -> bool {
        matches!(self.query.sort.by, SortBy::Due | SortBy::Created)
    }

    fn by_bytes(&self) -> &'static str {
        match self.query.sort.by {
            SortBy::Instance
            | SortBy::Execution
            | SortBy::Definition
            | SortBy::DefinitionKey
            | SortBy::Tenant
            | SortBy::Type => self.dialect.by_bytes,
            _ => "",
        }
    }

    /// Returns the column of the sort, and whether it may have no value in the table of a state, or in any.
    fn column(&self, state: Option<JobState>) -> (&'static str, bool) {
        match self.query.sort.by {
            SortBy::Creation => ("j.seq", false),
            SortBy::Id => ("j.id", false),
            // Every timer has a date, and an index of them.
            SortBy::Due => ("j.due_at", !matches!(state, Some(JobState::Timer))),
            SortBy::Created => ("j.created_at", false),
            SortBy::Priority => ("j.priority", false),
            SortBy::Retries => ("j.retries", false),
            SortBy::Instance => ("j.process_instance", true),
            SortBy::Execution => ("j.execution", true),
            SortBy::Definition => ("j.process_definition", true),
            SortBy::DefinitionKey => (self.dialect.definition_key, true),
            SortBy::Tenant => ("j.tenant", true),
            SortBy::Type => ("j.type", false),
        }
    }
}

/// True if a suspension covers the job.
const SUSPENDED: &str = concat!(" s WHERE ", suspends!("j"), ")");

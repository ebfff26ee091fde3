//! The conditions of a query on the table of one state.

use super::{SUSPENDED, Statement, Value};
use crate::job::JobState;
use crate::job::query::{JobQuery, TextField};

impl JobQuery {
    /// Returns whether a job of this state can match.
    pub(super) fn may_match(&self, state: JobState) -> bool {
        let is_executable = state == JobState::Executable;
        let needs_lock =
            self.locked == Some(true) || self.lock_owner.is_some() || self.lock_expired.is_some();
        (self.states.is_empty() || self.states.contains(&state))
            && (is_executable || !needs_lock)
            && (!self.executable || is_executable || state == JobState::Timer)
            && match self.suspended {
                Some(true) => state != JobState::DeadLetter,
                Some(false) => state != JobState::Suspended,
                None => true,
            }
            && (self.any_of.is_empty() || self.any_of.iter().any(|query| query.may_match(state)))
    }
}

impl Statement<'_> {
    /// Adds the conditions for the table of a state, which [may match](JobQuery::may_match).
    pub(super) fn conditions(&mut self, state: JobState) {
        let has_id = self.dialect.has_id;
        self.sql(" WHERE ").sql(has_id);
        self.of_query(state);
        if self.query.any_of.is_empty() {
            return;
        }
        let (outer, mut before) = (self.query, " AND (true");
        for query in outer.any_of.iter().filter(|query| query.may_match(state)) {
            self.query = query;
            self.sql(before);
            self.of_query(state);
            before = " OR true";
        }
        self.query = outer;
        self.sql(")");
    }

    /// Adds the conditions of the query itself.
    fn of_query(&mut self, state: JobState) {
        self.names();
        self.numbers();
        self.lock(state);
        let is_covered = matches!(state, JobState::Executable | JobState::Timer);
        if let (Some(suspended), true) = (self.query.suspended, is_covered) {
            self.sql(if suspended { " AND " } else { " AND NOT " });
            self.sql("EXISTS (SELECT 1 FROM ");
            self.sql(self.dialect.suspensions).sql(SUSPENDED);
        }
    }

    fn names(&mut self) {
        let query = self.query;
        match query.ids.as_deref() {
            Some([id]) => {
                self.sql(" AND j.id = ").bind(Value::Id(id.uuid()));
            }
            Some(ids) => {
                let ids = ids.iter().map(|id| id.uuid()).collect();
                self.sql(" AND j.id").one_of(Value::Ids(ids));
            }
            None => {}
        }
        if let Some(id) = query.correlation_id {
            self.sql(" AND j.correlation_id = ").bind(Value::Id(id));
        }
        if !query.kinds.is_empty() {
            let kinds = query.kinds.iter().map(|kind| kind.as_str().to_owned());
            self.sql(" AND j.kind")
                .one_of(Value::Texts(kinds.collect()));
        }
        for (field, matches) in &query.texts {
            self.text(column(*field), matches);
        }
        if let Some(key) = &query.unique_key {
            self.sql(" AND j.id IN (SELECT u.job_id FROM ");
            self.sql(self.dialect.unique_jobs).sql(" u WHERE u.key = ");
            self.bind(Value::Text(key.clone()));
            self.sql(" UNION ALL SELECT u.job_id FROM ");
            self.sql(self.dialect.unique_dead_letters);
            self.sql(" u WHERE u.key = ").bind(Value::Text(key.clone()));
            self.sql(")");
        }
        if let Some(batch) = query.batch {
            self.sql(" AND j.id IN (SELECT m.job_id FROM ");
            self.sql(self.dialect.batch_members);
            self.sql(" m WHERE m.batch_id = ")
                .bind(Value::Id(batch.uuid()));
            self.sql(")");
        }
        if let Some(values) = &query.custom_values {
            self.sql(" AND ");
            self.custom_values(values);
        }
    }

    fn numbers(&mut self) {
        let query = self.query;
        for (condition, number) in [
            (" AND j.priority >= ", query.min_priority),
            (" AND j.priority <= ", query.max_priority),
            (" AND j.priority <> ", query.priority_other_than),
        ] {
            if let Some(number) = number {
                self.sql(condition).bind(Value::Number(number));
            }
        }
        for (condition, moment) in [
            (" AND j.due_at < ", query.due_before),
            (" AND j.due_at > ", query.due_after),
            (" AND j.created_at < ", query.created_before),
            (" AND j.created_at > ", query.created_after),
        ] {
            if let Some(moment) = moment {
                self.sql(condition).bind(Value::Moment(moment));
            }
        }
        for (flag, yes, no) in [
            (
                query.with_exception,
                " AND j.exception_message IS NOT NULL",
                " AND j.exception_message IS NULL",
            ),
            (
                query.retries_left,
                " AND j.retries > 0",
                " AND j.retries <= 0",
            ),
            (query.exclusive, " AND j.exclusive", " AND NOT j.exclusive"),
        ] {
            if let Some(flag) = flag {
                self.sql(if flag { yes } else { no });
            }
        }
        if query.executable {
            self.sql(" AND (j.due_at IS NULL OR j.due_at <= ");
            self.bind(Value::Now).sql(")");
        }
    }

    /// Adds the conditions on the lock. Only executable jobs have one.
    fn lock(&mut self, state: JobState) {
        let query = self.query;
        if state != JobState::Executable {
            return;
        }
        if query.locked == Some(false) || query.executable {
            let leases = self.dialect.leases;
            self.sql(" AND NOT EXISTS (SELECT 1 FROM ").sql(leases);
            self.sql(" l WHERE l.job_id = j.id AND l.owner IS NOT NULL)");
        }
        if query.locked == Some(true) {
            self.held().sql(")");
        }
        if let Some(owner) = query.lock_owner {
            self.held().sql(" AND l.owner = ");
            self.bind(Value::Id(owner.uuid())).sql(")");
        }
        if let Some(expired) = query.lock_expired {
            let plus_longest_lease = self.dialect.plus_longest_lease;
            self.held();
            self.sql(if expired { " AND NOT " } else { " AND " });
            // No node writes a longer lease, so one that ends later counts as expired.
            self.sql("(l.expires_at > ").bind(Value::Now);
            self.sql(" AND l.expires_at < ").bind(Value::Now);
            self.sql(plus_longest_lease).sql("))");
        }
    }

    /// Begins the condition that the job is among the jobs of leases `l`. Leases are few.
    fn held(&mut self) -> &mut Self {
        let leases = self.dialect.leases;
        self.sql(" AND j.id IN (SELECT l.job_id FROM ").sql(leases);
        self.sql(" l WHERE l.owner IS NOT NULL")
    }
}

const fn column(field: TextField) -> &'static str {
    match field {
        TextField::Type => "j.type",
        TextField::Instance => "j.process_instance",
        TextField::Execution => "j.execution",
        TextField::Definition => "j.process_definition",
        TextField::Element => "j.element",
        TextField::Tenant => "j.tenant",
        TextField::Category => "j.category",
        TextField::Deployment => "j.deployment",
        TextField::Lane => "j.lane",
        TextField::ExceptionMessage => "j.exception_message",
    }
}

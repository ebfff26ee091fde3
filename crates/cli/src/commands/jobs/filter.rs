//! The flags that select jobs: one for every condition of [`JobQuery`].

use chrono::{DateTime, Utc};
use clap::Args;
use jobwire_core::{BatchId, JobId, JobKind, JobQuery, JobState, NodeId, TextField, TextMatch};
use serde_json::Value;
use uuid::Uuid;

/// The filters. All that are given must match; without any, all jobs match. A pattern has `%` for
/// any characters and `_` for one.
#[derive(Clone, Debug, Default, PartialEq, Args)]
pub struct FilterArgs {
    /// Only these jobs; several are separated by commas
    #[arg(id = "filter_ids", long = "id", value_name = "ID", value_delimiter = ',', value_parser = super::place::parse)]
    pub ids: Vec<JobId>,
    /// Only of these states: executable, timer, suspended, dead-letter; several are separated by commas
    #[arg(long = "state", value_name = "STATE", value_delimiter = ',', value_parser = state)]
    pub states: Vec<JobState>,
    /// Only of these kinds: message, timer, history; several are separated by commas
    #[arg(long = "kind", value_name = "KIND", value_delimiter = ',', value_parser = kind)]
    pub kinds: Vec<JobKind>,
    /// Only of this handler type; repeat it for several (no commas)
    #[arg(long = "type", value_name = "TYPE")]
    pub job_types: Vec<String>,
    /// Only of this process instance; repeat it for several (no commas)
    #[arg(
        long = "process-instance",
        visible_alias = "instance",
        value_name = "NAME"
    )]
    pub process_instances: Vec<String>,
    /// Only jobs without a process instance
    #[arg(long, conflicts_with = "process_instances")]
    pub without_instance: bool,
    /// Only of this execution
    #[arg(long, value_name = "NAME")]
    pub execution: Option<String>,
    /// Only of this process definition
    #[arg(long, visible_alias = "definition", value_name = "NAME")]
    pub process_definition: Option<String>,
    /// Only of process definitions with this key, of any version: KEY, or KEY:VERSION:ID
    #[arg(long, value_name = "KEY")]
    pub definition_key: Option<String>,
    /// Only of this element; repeat it for several (no commas)
    #[arg(long = "element", value_name = "NAME")]
    pub elements: Vec<String>,
    /// Only of this tenant; repeat it for several (no commas)
    #[arg(long = "tenant", value_name = "NAME")]
    pub tenants: Vec<String>,
    /// Only of tenants that match this pattern
    #[arg(long, value_name = "PATTERN")]
    pub tenant_like: Option<String>,
    /// Only jobs without a tenant; with --tenant, these as well
    #[arg(long, conflicts_with = "tenant_like")]
    pub without_tenant: bool,
    /// Only of this category
    #[arg(long, value_name = "NAME")]
    pub category: Option<String>,
    /// Only of categories that match this pattern
    #[arg(long, value_name = "PATTERN")]
    pub category_like: Option<String>,
    /// Only of this deployment
    #[arg(long, value_name = "NAME")]
    pub deployment: Option<String>,
    /// Only with this tag; several times for all of several
    #[arg(long = "tag", value_name = "TAG")]
    pub tags: Vec<String>,
    /// Only of this lane
    #[arg(long, value_name = "LANE")]
    pub lane: Option<String>,
    /// Only with this correlation id
    #[arg(long, value_name = "UUID", value_parser = crate::commands::id::<Uuid>)]
    pub correlation_id: Option<Uuid>,
    /// Only the job that last took this unique key
    #[arg(long, value_name = "KEY")]
    pub unique_key: Option<String>,
    /// Only members of this batch
    #[arg(long, value_name = "ID", value_parser = crate::commands::id::<BatchId>)]
    pub batch: Option<BatchId>,
    /// Only jobs whose custom values contain this object, for example {"order":17}
    #[arg(long, value_name = "JSON", value_parser = object)]
    pub custom_values: Option<Value>,
    /// Only of this priority or a larger one
    #[arg(
        long = "priority-at-least",
        value_name = "N",
        allow_hyphen_values = true
    )]
    pub min_priority: Option<i64>,
    /// Only of this priority or a smaller one
    #[arg(
        long = "priority-at-most",
        value_name = "N",
        allow_hyphen_values = true
    )]
    pub max_priority: Option<i64>,
    /// Only of another priority than this one
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub priority_other_than: Option<i64>,
    /// Only jobs due before this date, for example 2026-01-31T08:00:00Z
    #[arg(long, value_name = "DATE", value_parser = crate::commands::date)]
    pub due_before: Option<DateTime<Utc>>,
    /// Only jobs due after this date
    #[arg(long, value_name = "DATE", value_parser = crate::commands::date)]
    pub due_after: Option<DateTime<Utc>>,
    /// Only jobs created before this date
    #[arg(long, value_name = "DATE", value_parser = crate::commands::date)]
    pub created_before: Option<DateTime<Utc>>,
    /// Only jobs created after this date
    #[arg(long, value_name = "DATE", value_parser = crate::commands::date)]
    pub created_after: Option<DateTime<Utc>>,
    /// Only jobs that failed at least once (or never: `false`)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub with_exception: Option<bool>,
    /// Only jobs whose last failure has exactly this message
    #[arg(long, value_name = "TEXT")]
    pub exception_message: Option<String>,
    /// Only jobs whose last failure has a message that matches this pattern
    #[arg(long, value_name = "PATTERN")]
    pub exception_like: Option<String>,
    /// Only jobs with attempts left (or without: `false`)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub retries_left: Option<bool>,
    /// Only jobs with (or without: `false`) a lock
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub locked: Option<bool>,
    /// Only jobs that this node holds
    #[arg(long, value_name = "NODE", value_parser = crate::commands::id::<NodeId>)]
    pub lock_owner: Option<NodeId>,
    /// Only jobs whose lock has expired (or has not: `false`)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub lock_expired: Option<bool>,
    /// Only exclusive jobs (or others: `false`)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub exclusive: Option<bool>,
    /// Only jobs that are due and not locked
    #[arg(long)]
    pub executable: bool,
    /// Only suspended jobs (or active ones: `false`)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    pub suspended: Option<bool>,
    /// Only jobs that fulfil all conditions of this object, or of that of another --any-of: fields of a
    /// query (docs/guides/operating-jobs.md), for example {"locked":true,"min_priority":5}
    #[arg(long, value_name = "JSON", value_parser = alternative)]
    pub any_of: Vec<JobQuery>,
}

fn state(text: &str) -> Result<JobState, String> {
    JobState::parse(text)
        .ok_or_else(|| one_of(JobState::ALL.iter().map(|state| state.as_str()).collect()))
}

fn kind(text: &str) -> Result<JobKind, String> {
    JobKind::parse(text)
        .ok_or_else(|| one_of(JobKind::ALL.iter().map(|kind| kind.as_str()).collect()))
}

fn one_of(known: Vec<&str>) -> String {
    format!("write one of {}", known.join(", "))
}

fn object(text: &str) -> Result<Value, String> {
    let parsed = serde_json::from_str::<Value>(text).ok();
    parsed
        .filter(Value::is_object)
        .ok_or_else(|| "write a JSON object, for example {\"order\":17}".to_owned())
}

/// Reads the conditions of one alternative.
fn alternative(text: &str) -> Result<JobQuery, String> {
    const FORM: &str = "write, for example, {\"locked\":true} or \
                        {\"texts\":[[\"type\",{\"one_of\":[\"http\"]}]]}";
    // A list would be read as the fields in their order.
    if !text.trim_start().starts_with('{') {
        return Err(format!("it is no JSON object of conditions; {FORM}"));
    }
    let query: JobQuery = serde_json::from_str(text).map_err(|error| {
        format!("it can't be read as the conditions of a query: {error}; {FORM}")
    })?;
    if query == JobQuery::default() {
        return Err(format!(
            "it has no condition, so every job would match; {FORM}"
        ));
    }
    let whole = JobQuery::default().any_of([query.clone()]);
    whole.check().map_err(|error| error.to_string())?;
    Ok(query)
}

impl FilterArgs {
    pub(super) fn is_given(&self) -> bool {
        *self != FilterArgs::default()
    }

    /// Returns the query for all jobs that match, page by page.
    pub(super) fn query(&self) -> JobQuery {
        let mut query = JobQuery::default()
            .states(self.states.iter().copied())
            .kinds(self.kinds.iter().copied());
        for (field, matches) in self.texts() {
            query = query.text(field, matches);
        }
        if !self.ids.is_empty() {
            query = query.ids(self.ids.iter().copied());
        }
        query.correlation_id = self.correlation_id;
        query.unique_key.clone_from(&self.unique_key);
        query.batch = self.batch;
        query.custom_values.clone_from(&self.custom_values);
        for tag in &self.tags {
            query = query.tag(tag);
        }
        query.min_priority = self.min_priority;
        query.max_priority = self.max_priority;
        query.priority_other_than = self.priority_other_than;
        query.due_before = self.due_before;
        query.due_after = self.due_after;
        query.created_before = self.created_before;
        query.created_after = self.created_after;
        query.with_exception = self.with_exception;
        query.retries_left = self.retries_left;
        query.locked = self.locked;
        query.lock_owner = self.lock_owner;
        query.lock_expired = self.lock_expired;
        query.exclusive = self.exclusive;
        query.executable = self.executable;
        query.suspended = self.suspended;
        query.any_of.clone_from(&self.any_of);
        query
    }

    fn texts(&self) -> Vec<(TextField, TextMatch)> {
        let exactly = |text: &String| TextMatch::OneOf(vec![text.clone()]);
        let like = |text: &String| TextMatch::Like(text.clone());
        let missing = |is: bool| is.then_some(TextMatch::Missing);
        let several =
            |texts: &[String]| (!texts.is_empty()).then(|| TextMatch::OneOf(texts.to_vec()));
        let tenant = match (self.without_tenant, several(&self.tenants)) {
            (true, Some(_)) => Some(TextMatch::OneOfOrMissing(self.tenants.clone())),
            (without, tenants) => tenants.or(missing(without)),
        };
        let key = self.definition_key.clone().map(TextMatch::Key);
        let given = [
            (TextField::Type, several(&self.job_types)),
            (TextField::Instance, several(&self.process_instances)),
            (TextField::Instance, missing(self.without_instance)),
            (TextField::Execution, self.execution.as_ref().map(exactly)),
            (
                TextField::Definition,
                self.process_definition.as_ref().map(exactly),
            ),
            (TextField::Definition, key),
            (TextField::Element, several(&self.elements)),
            (TextField::Tenant, tenant),
            (TextField::Tenant, self.tenant_like.as_ref().map(like)),
            (TextField::Category, self.category.as_ref().map(exactly)),
            (TextField::Category, self.category_like.as_ref().map(like)),
            (TextField::Deployment, self.deployment.as_ref().map(exactly)),
            (TextField::Lane, self.lane.as_ref().map(exactly)),
            (
                TextField::ExceptionMessage,
                self.exception_message.as_ref().map(exactly),
            ),
            (
                TextField::ExceptionMessage,
                self.exception_like.as_ref().map(like),
            ),
        ];
        given
            .into_iter()
            .filter_map(|(field, matches)| Some((field, matches?)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        filter: FilterArgs,
    }

    fn parsed(args: &[&str]) -> FilterArgs {
        let args = std::iter::once("list").chain(args.iter().copied());
        Command::try_parse_from(args).unwrap().filter
    }

    #[test]
    fn every_flag_becomes_a_condition() {
        let id = JobId::generate();
        let node = NodeId::generate();
        let (ids, owner) = (format!("{id},{id}"), node.to_string());
        let date = "2026-01-31T08:00:00Z";
        let moment = date.parse().unwrap();
        let all = JobQuery::default;
        let mut in_batch = all();
        in_batch.batch = ids[..36].parse().ok();
        let cases: Vec<(Vec<&str>, JobQuery)> = vec![
            (vec![], all()),
            (vec!["--id", &ids], all().ids([id, id])),
            (
                vec!["--state", "timer,suspended"],
                all().states([JobState::Timer, JobState::Suspended]),
            ),
            (vec!["--kind", "timer"], all().kinds([JobKind::Timer])),
            (
                vec!["--type", "a", "--type", "b"],
                all().job_types(["a", "b"]),
            ),
            (vec!["--process-instance", "i"], all().instance("i")),
            (vec!["--instance", "i"], all().instance("i")),
            (vec!["--definition", "d:1"], all().process_definition("d:1")),
            (
                vec!["--process-instance", "i", "--process-instance", "j"],
                all().instances(["i", "j"]),
            ),
            (vec!["--without-instance"], all().without_instance()),
            (vec!["--execution", "e"], all().execution("e")),
            (
                vec!["--process-definition", "d:1"],
                all().process_definition("d:1"),
            ),
            (vec!["--definition-key", "d"], all().definition_key("d")),
            (vec!["--element", "e"], all().element("e")),
            (
                vec!["--element", "e", "--element", "f"],
                all().elements(["e", "f"]),
            ),
            (vec!["--tenant", "t"], all().tenant("t")),
            (vec!["--tenant-like", "t%"], all().tenant_like("t%")),
            (vec!["--without-tenant"], all().without_tenant()),
            (
                vec!["--tenant", "t", "--without-tenant"],
                all().text(
                    TextField::Tenant,
                    TextMatch::OneOfOrMissing(vec!["t".to_owned()]),
                ),
            ),
            (vec!["--category", "c"], all().category("c")),
            (vec!["--category-like", "c_"], all().category_like("c_")),
            (vec!["--deployment", "d"], all().deployment("d")),
            (vec!["--lane", "l"], all().lane("l")),
            (
                vec!["--correlation-id", &ids[..36]],
                all().correlation_id(id.uuid()),
            ),
            (vec!["--unique-key", "k"], all().unique_key("k")),
            (
                vec!["--custom-values", r#"{"order":17}"#],
                all().custom_values(json!({ "order": 17 })),
            ),
            (vec!["--priority-at-least", "-7"], all().min_priority(-7)),
            (vec!["--priority-at-most", "7"], all().max_priority(7)),
            (
                vec!["--priority-other-than", "-7"],
                all().priority_other_than(-7),
            ),
            (vec!["--batch", &ids[..36]], in_batch),
            (vec!["--tag", "red"], all().tag("red")),
            (vec!["--due-before", date], all().due_before(moment)),
            (vec!["--due-after", date], all().due_after(moment)),
            (vec!["--created-before", date], all().created_before(moment)),
            (vec!["--created-after", date], all().created_after(moment)),
            (vec!["--with-exception"], all().with_exception(true)),
            (
                vec!["--exception-message", "m"],
                all().exception_message("m"),
            ),
            (vec!["--exception-like", "m%"], all().exception_like("m%")),
            (vec!["--retries-left", "false"], all().retries_left(false)),
            (vec!["--locked", "false"], all().locked(false)),
            (vec!["--lock-owner", &owner], all().lock_owner(node)),
            (vec!["--lock-expired"], all().lock_expired(true)),
            (vec!["--exclusive"], all().exclusive(true)),
            (vec!["--executable"], all().executable()),
            (vec!["--suspended", "false"], all().suspended(false)),
            (
                vec![
                    "--any-of",
                    r#"{"locked":true,"min_priority":5}"#,
                    "--any-of",
                    r#"{"texts":[["tenant",{"like":"eu-%"}]]}"#,
                ],
                all().any_of([
                    all().locked(true).min_priority(5),
                    all().tenant_like("eu-%"),
                ]),
            ),
        ];
        let (mut fields, mut texts) = (BTreeSet::new(), BTreeSet::new());
        for (args, expected) in cases {
            let filter = parsed(&args);
            assert_eq!(filter.query(), expected, "{args:?}");
            assert_eq!(filter.is_given(), !args.is_empty(), "{args:?}");
            let written = serde_json::to_value(&expected).unwrap();
            fields.extend(written.as_object().unwrap().keys().cloned());
            let named = |(field, _): &(TextField, _)| serde_json::to_string(field).unwrap();
            texts.extend(expected.texts.iter().map(named));
        }
        // A condition that is added to the query needs a flag.
        assert_eq!(
            fields,
            known(serde_json::from_str::<JobQuery>(r#"{"?":1}"#))
        );
        let known = known(serde_json::from_str::<TextField>(r#""?""#));
        let known: BTreeSet<_> = known.iter().map(|name| format!("\"{name}\"")).collect();
        assert_eq!(texts, known);
    }

    /// Returns the names that the error of an unknown one lists.
    fn known<T>(read: serde_json::Result<T>) -> BTreeSet<String> {
        let error = read.err().unwrap().to_string();
        let (_, list) = error.split_once("expected one of ").unwrap();
        let names = list.split('`').skip(1).step_by(2);
        names.map(str::to_owned).collect()
    }

    #[test]
    fn an_alternative_that_can_not_be_asked_is_refused_with_the_remedy() {
        for (text, parts) in [
            ("[true]", &["no JSON object", "write, for example"][..]),
            (
                r#"{"lock":true}"#,
                &["unknown field `lock`", "`locked`", "`lock_owner`"],
            ),
            (r#"{"locked":17}"#, &["invalid type", "write, for example"]),
            ("{}", &["no condition", "write, for example"]),
            (
                r#"{"any_of":[{"locked":true}]}"#,
                &["`any_of` of its own", "one level deep"],
            ),
            (
                r#"{"texts":[["tenant",{"like":"a\\"}]]}"#,
                &["ends in a backslash"],
            ),
        ] {
            let said = match Command::try_parse_from(["list", "--any-of", text]) {
                Ok(_) => panic!("{text}"),
                Err(error) => error.to_string(),
            };
            assert!(said.contains("--any-of"), "{said}");
            for part in parts {
                assert!(said.contains(part), "{part} in {said}");
            }
        }
    }

    #[test]
    fn a_wrong_value_is_refused() {
        for wrong in [
            &["--custom-values", "[1]"][..],
            &["--custom-values", "{"],
            &["--kind", "lost"],
            &["--lock-owner", "node-1"],
            &["--correlation-id", "x"],
            &["--batch", "x"],
            &["--without-tenant", "--tenant-like", "a%"],
        ] {
            let args = std::iter::once("list").chain(wrong.iter().copied());
            assert!(Command::try_parse_from(args).is_err(), "{wrong:?}");
        }
    }
}

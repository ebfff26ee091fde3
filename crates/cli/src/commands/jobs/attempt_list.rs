//! `jobs attempts` without a job: a list of recorded attempts.

use chrono::{DateTime, Utc};
use clap::Args;
use jobwire_core::store::attempts::{
    AttemptCursor, AttemptField, AttemptOutcome, AttemptQuery, AttemptSort, AttemptView,
};
use jobwire_core::telemetry::plain;
use jobwire_core::{JobId, NodeId, Store, TextMatch};
use serde::Serialize;

use super::history::{NOT_RECORDED, moment};
use crate::error::Error;
use crate::output;

/// Maximum number of characters of a cell; `--json` shows all.
const SHOWN: usize = 80;

/// The filters, the order and the page. All filters that are given must match; without any, all
/// attempts match.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct AttemptListArgs {
    /// Only attempts of these jobs; several are separated by commas
    #[arg(id = "filter_ids", long = "id", value_name = "ID", value_delimiter = ',', value_parser = super::place::parse)]
    pub ids: Vec<JobId>,
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
    /// Only attempts of jobs without a process instance
    #[arg(long, conflicts_with = "process_instances")]
    pub without_instance: bool,
    /// Only of this tenant; repeat it for several (no commas)
    #[arg(long = "tenant", value_name = "NAME")]
    pub tenants: Vec<String>,
    /// Only of tenants that match this pattern: `%` for any characters, `_` for one
    #[arg(long, value_name = "PATTERN")]
    pub tenant_like: Option<String>,
    /// Only attempts of jobs without a tenant; with --tenant, these as well
    #[arg(long, conflicts_with = "tenant_like")]
    pub without_tenant: bool,
    /// Only with these outcomes: done, retry, dead-letter, snooze, conflict, panic, timeout,
    /// cancelled, node-died, lost-lock; several are separated by commas
    #[arg(long = "outcome", value_name = "OUTCOME", value_delimiter = ',', value_parser = outcome)]
    pub outcomes: Vec<AttemptOutcome>,
    /// Only attempts of this node
    #[arg(long, value_name = "NODE", value_parser = crate::commands::id::<NodeId>)]
    pub node: Option<NodeId>,
    /// Only attempts that started after this date, for example 2027-01-31T08:00:00Z
    #[arg(long, value_name = "DATE", value_parser = crate::commands::date)]
    pub started_after: Option<DateTime<Utc>>,
    /// Only attempts that started before this date
    #[arg(long, value_name = "DATE", value_parser = crate::commands::date)]
    pub started_before: Option<DateTime<Utc>>,
    /// Show the newest or the oldest first
    #[arg(long, value_name = "ORDER", default_value_t = AttemptSort::Newest, value_parser = sort)]
    pub sort: AttemptSort,
    /// Continue behind the page that ended with this cursor
    #[arg(long, value_name = "CURSOR")]
    pub after: Option<AttemptCursor>,
    /// Maximum number of attempts
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=AttemptQuery::MAX_LIMIT))]
    pub limit: i64,
}

impl Default for AttemptListArgs {
    fn default() -> Self {
        let AttemptQuery { sort, limit, .. } = AttemptQuery::default();
        Self {
            ids: Vec::new(),
            job_types: Vec::new(),
            process_instances: Vec::new(),
            without_instance: false,
            tenants: Vec::new(),
            tenant_like: None,
            without_tenant: false,
            outcomes: Vec::new(),
            node: None,
            started_after: None,
            started_before: None,
            sort,
            after: None,
            limit,
        }
    }
}

fn outcome(text: &str) -> Result<AttemptOutcome, String> {
    let known = || AttemptOutcome::ALL.iter().map(|of| of.as_str());
    AttemptOutcome::parse(text)
        .ok_or_else(|| format!("write one of {}", known().collect::<Vec<_>>().join(", ")))
}

fn sort(text: &str) -> Result<AttemptSort, String> {
    AttemptSort::parse(text).ok_or_else(|| "write newest or oldest".to_owned())
}

impl AttemptListArgs {
    pub(super) fn is_given(&self) -> bool {
        *self != Self::default()
    }

    pub(super) fn query(&self) -> AttemptQuery {
        let several = |texts: &[String]| TextMatch::OneOf(texts.to_vec());
        let mut query = AttemptQuery::default()
            .outcomes(self.outcomes.iter().copied())
            .sort(self.sort)
            .limit(self.limit);
        if !self.ids.is_empty() {
            query = query.ids(self.ids.iter().copied());
        }
        if !self.job_types.is_empty() {
            query = query.text(AttemptField::Type, several(&self.job_types));
        }
        if !self.process_instances.is_empty() {
            query = query.text(AttemptField::Instance, several(&self.process_instances));
        }
        if self.without_instance {
            query = query.without_instance();
        }
        query = match (self.without_tenant, self.tenants.is_empty()) {
            (true, true) => query.without_tenant(),
            (true, false) => {
                let tenants = TextMatch::OneOfOrMissing(self.tenants.clone());
                query.text(AttemptField::Tenant, tenants)
            }
            (false, false) => query.text(AttemptField::Tenant, several(&self.tenants)),
            (false, true) => query,
        };
        if let Some(pattern) = &self.tenant_like {
            query = query.tenant_like(pattern);
        }
        query.node = self.node;
        query.started_after = self.started_after;
        query.started_before = self.started_before;
        query.after = self.after;
        query
    }
}

/// A line of the list as JSON.
#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    attempt: AttemptView,
    /// The place behind the attempt, for `--after`.
    cursor: String,
}

pub(super) async fn list(store: &dyn Store, query: &AttemptQuery, json: bool) -> Result<(), Error> {
    let attempts = store.find_attempts(query).await?;
    if json {
        let lines = attempts.into_iter().map(|attempt| Line {
            cursor: AttemptCursor::after(&attempt, query.sort).to_string(),
            attempt,
        });
        return output::json(&lines.collect::<Vec<_>>());
    }
    let found = attempts.len() as u64;
    let next = query.next_page(&attempts);
    if found == 0 && query.after.is_none() {
        return output::line(format_args!("no recorded attempts match; {NOT_RECORDED}"));
    }
    let head = [
        "started", "ended", "outcome", "job", "type", "instance", "node", "message",
    ];
    let rows: Vec<[String; 8]> = attempts.iter().map(row).collect();
    output::table(head, &rows)?;
    let found = output::count(found, "attempt");
    match next {
        Some(next) => output::line(format_args!("{found}; the next page: --after {next}")),
        None if query.after.is_some() => {
            output::line(format_args!("{found}; this is the last page"))
        }
        None => output::line(found),
    }
}

fn row(attempt: &AttemptView) -> [String; 8] {
    let text = |text: Option<&str>| plain::one_line(text.unwrap_or("-"), SHOWN);
    let message = attempt.message.as_deref();
    [
        moment(attempt.started_at),
        moment(attempt.ended_at),
        text(Some(&attempt.outcome)),
        attempt.job.to_string(),
        text(Some(&attempt.job_type)),
        text(attempt.process_instance.as_deref()),
        attempt.node.to_string(),
        text(message.and_then(|message| message.lines().next())),
    ]
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        list: AttemptListArgs,
    }

    fn parsed(args: &[&str]) -> Result<AttemptListArgs, clap::Error> {
        let args = std::iter::once("attempts").chain(args.iter().copied());
        Command::try_parse_from(args).map(|command| command.list)
    }

    #[test]
    fn every_flag_becomes_a_condition_on_attempts() {
        let all = AttemptQuery::default;
        let (id, node) = (JobId::generate(), NodeId::generate());
        let (ids, owner) = (format!("{id},{id}"), node.to_string());
        let date = "2026-01-31T08:00:00Z";
        let moment = date.parse().unwrap();
        let cases: Vec<(Vec<&str>, AttemptQuery)> = vec![
            (vec!["--id", &ids], all().ids([id, id])),
            (
                vec!["--type", "a", "--type", "b"],
                all().job_types(["a", "b"]),
            ),
            (vec!["--process-instance", "i"], all().instance("i")),
            (
                vec!["--instance", "i", "--instance", "j"],
                all().instances(["i", "j"]),
            ),
            (vec!["--without-instance"], all().without_instance()),
            (vec!["--tenant", "t"], all().tenant("t")),
            (vec!["--tenant-like", "t%"], all().tenant_like("t%")),
            (vec!["--without-tenant"], all().without_tenant()),
            (
                vec!["--tenant", "t", "--without-tenant"],
                all().text(
                    AttemptField::Tenant,
                    TextMatch::OneOfOrMissing(vec!["t".to_owned()]),
                ),
            ),
            (
                vec!["--outcome", "retry,node-died"],
                all().outcomes([AttemptOutcome::Retry, AttemptOutcome::NodeDied]),
            ),
            (vec!["--node", &owner], all().node(node)),
            (vec!["--started-after", date], all().started_after(moment)),
            (vec!["--started-before", date], all().started_before(moment)),
            (vec!["--sort", "oldest"], all().sort(AttemptSort::Oldest)),
            (vec!["--limit", "7"], all().limit(7)),
        ];
        for (args, query) in cases {
            let list = parsed(&args).unwrap();
            assert!(list.is_given(), "{args:?}");
            assert_eq!(list.query(), query, "{args:?}");
        }
        let nothing = parsed(&[]).unwrap();
        assert!(!nothing.is_given());
        assert_eq!(nothing.query(), all());
    }

    #[test]
    fn a_wrong_value_of_a_filter_of_attempts_is_refused_with_the_remedy() {
        for (args, remedy) in [
            (["--outcome", "failed"], "write one of done, retry"),
            (["--sort", "due"], "write newest or oldest"),
            (["--node", "node-1"], "write a UUID"),
            (["--started-after", "today"], "write a date and time"),
            (["--after", "x"], "not a cursor of a list of attempts"),
            (["--limit", "10001"], "10000"),
        ] {
            let said = parsed(&args).unwrap_err().to_string();
            assert!(said.contains(remedy), "{args:?}: {said}");
        }
    }
}

//! `jobs end`: deletes the jobs of an instance, an execution or a definition in one transaction, as
//! [`Client::end`](jobwire_core::Client::end) does.

use clap::Args;
use jobwire_core::store::{Ended, EndedScope};
use jobwire_core::telemetry::plain;
use jobwire_core::{JobId, JobKind, JobQuery};
use serde::Serialize;

use super::Jobs;
use crate::commands::definition_key;
use crate::commands::suspension::exact_definition;
use crate::connect::{Database, Outlet};
use crate::error::Error;
use crate::output;
use crate::settings::Settings;

/// The scope that has ended.
#[derive(Clone, Debug, Args)]
pub struct EndArgs {
    /// What has ended.
    #[command(flatten)]
    pub what: EndedArgs,
    /// With --definition-key or --start-timers-of-key: the definitions of this tenant; without it, those
    /// that have none
    #[arg(long, value_name = "NAME",
        conflicts_with_all = ["instance", "execution", "definition", "start_timers"])]
    pub tenant: Option<String>,
}

/// An instance, an execution, or a definition.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub struct EndedArgs {
    /// All jobs of this process instance
    #[arg(long, value_name = "NAME", visible_alias = "process-instance")]
    pub instance: Option<String>,
    /// All jobs of this execution
    #[arg(long, value_name = "NAME")]
    pub execution: Option<String>,
    /// All jobs of this process definition, by its exact id (invoice:3:4711), those of its instances
    /// included
    #[arg(long, value_name = "NAME", visible_alias = "process-definition")]
    pub definition: Option<String>,
    /// All jobs of all versions of this process definition (invoice), those of its instances included
    #[arg(long, value_name = "KEY")]
    pub definition_key: Option<String>,
    /// The start timers of this process definition, by its exact id
    #[arg(long, value_name = "DEFINITION")]
    pub start_timers: Option<String>,
    /// The start timers of all versions of this process definition
    #[arg(long, value_name = "KEY")]
    pub start_timers_of_key: Option<String>,
}

impl EndArgs {
    fn scope(self) -> Result<EndedScope, Error> {
        let Self { what, tenant } = self;
        Ok(if let Some(name) = what.instance {
            EndedScope::ProcessInstance(name)
        } else if let Some(name) = what.execution {
            EndedScope::Execution(name)
        } else if let Some(name) = what.definition {
            EndedScope::ProcessDefinition(name)
        } else if let Some(key) = what.definition_key {
            EndedScope::DefinitionKey(definition_key::given("definition-key", key, tenant)?)
        } else if let Some(key) = what.start_timers_of_key {
            let key = definition_key::given("start-timers-of-key", key, tenant)?;
            EndedScope::StartTimersOfKey(key)
        } else {
            EndedScope::StartTimers(what.start_timers.unwrap_or_default())
        })
    }
}

/// The result.
#[derive(Serialize)]
struct Report {
    deleted: Vec<JobId>,
    running: Vec<JobId>,
}

/// The scope as a query: its jobs.
pub(super) fn query(scope: &EndedScope) -> JobQuery {
    let all = JobQuery::default();
    match scope {
        EndedScope::ProcessInstance(name) => all.instance(name),
        EndedScope::Execution(name) => all.execution(name),
        EndedScope::ProcessDefinition(name) => all.process_definition(name),
        EndedScope::DefinitionKey(key) => definition_key::query(all, key),
        EndedScope::StartTimers(name) => start_timers(all.process_definition(name)),
        EndedScope::StartTimersOfKey(key) => start_timers(definition_key::query(all, key)),
        _ => all,
    }
}

/// Returns the query for the start timers among these jobs.
fn start_timers(jobs: JobQuery) -> JobQuery {
    jobs.without_instance().kinds([JobKind::Timer])
}

/// Returns the filters of `jobs list` that show the scope.
pub(super) fn filters(scope: &EndedScope) -> String {
    match scope {
        EndedScope::ProcessInstance(name) => format!("--instance {}", shown(name)),
        EndedScope::Execution(name) => format!("--execution {}", shown(name)),
        EndedScope::ProcessDefinition(name) => format!("--definition {}", shown(name)),
        EndedScope::DefinitionKey(key) => definition_key::filters(key),
        EndedScope::StartTimers(name) => format!("--definition {} {TIMERS}", shown(name)),
        EndedScope::StartTimersOfKey(key) => format!("{} {TIMERS}", definition_key::filters(key)),
        _ => String::new(),
    }
}

/// The filters of `jobs list` that show start timers among the jobs of a definition.
const TIMERS: &str = "--without-instance --kind timer";

fn shown(name: &str) -> String {
    plain::one_line(name, 200)
}

/// Ends a scope. Without a confirmation, tells how many jobs it would delete.
pub(super) async fn end(
    jobs: &Jobs<'_>,
    args: EndArgs,
    yes: bool,
    json: bool,
) -> Result<(), Error> {
    let scope = args.scope()?;
    let store = &*jobs.store;
    if !yes {
        let count = store.count(&query(&scope)).await?;
        return Err(Error::Usage(format!(
            "{} would be deleted; check with `jobwire jobs list {}` first, then pass --yes",
            output::count(count.unsigned_abs(), "job"),
            filters(&scope)
        )));
    }
    let Some(database) = jobs.database else {
        return Err(Error::Usage("this is for jobs of Jobwire".to_owned()));
    };
    let ended = through_outlet(jobs.settings, database, &scope).await?;
    let none = ended.deleted.is_empty() && ended.running.is_empty();
    print(ended, json)?;
    if !none || json {
        return Ok(());
    }
    output::line("remark: no job belongs to this scope")?;
    match &scope {
        EndedScope::ProcessDefinition(name) | EndedScope::StartTimers(name) => {
            exact_definition(store, name).await
        }
        EndedScope::DefinitionKey(key) | EndedScope::StartTimersOfKey(key) => {
            definition_key::other_tenant(store, key).await
        }
        _ => Ok(()),
    }
}

async fn through_outlet(
    settings: &Settings,
    database: &Database,
    scope: &EndedScope,
) -> Result<Ended, Error> {
    let outlet = Outlet::open(settings).await?;
    let ended = database.creator(outlet.hook()).end(scope).await;
    outlet.close_and_tell().await;
    Ok(ended?)
}

fn print(ended: Ended, json: bool) -> Result<(), Error> {
    let Ended {
        deleted, running, ..
    } = ended;
    if json {
        return output::json(&Report { deleted, running });
    }
    let deleted = output::count(deleted.len() as u64, "job");
    output::line(format_args!("{deleted} deleted"))?;
    for id in &running {
        output::line(format_args!(
            "job {id} runs and is cancelled: it is deleted when its handler ends"
        ))?;
    }
    Ok(())
}

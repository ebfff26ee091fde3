//! `jobs end`: deletes the jobs of an instance, an execution or a definition in one transaction, as
//! [`Client::end`](jobwire_core::Client::end) does.

use clap::Args;
use jobwire_core::JobId;
use jobwire_core::store::{Ended, EndedScope};
use serde::Serialize;

use crate::connect::{Database, Outlet};
use crate::error::Error;
use crate::output;
use crate::settings::Settings;

/// The scope that has ended.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub struct EndArgs {
    /// All jobs of this process instance
    #[arg(long, value_name = "NAME", alias = "process-instance")]
    pub instance: Option<String>,
    /// All jobs of this execution
    #[arg(long, value_name = "NAME")]
    pub execution: Option<String>,
    /// All jobs of this process definition, those of its instances included
    #[arg(long, value_name = "NAME", alias = "process-definition")]
    pub definition: Option<String>,
    /// The start timers of this process definition
    #[arg(long, value_name = "DEFINITION")]
    pub start_timers: Option<String>,
}

impl EndArgs {
    fn scope(self) -> EndedScope {
        match (self.instance, self.execution, self.definition) {
            (Some(name), _, _) => EndedScope::ProcessInstance(name),
            (_, Some(name), _) => EndedScope::Execution(name),
            (_, _, Some(name)) => EndedScope::ProcessDefinition(name),
            _ => EndedScope::StartTimers(self.start_timers.unwrap_or_default()),
        }
    }
}

/// The result.
#[derive(Serialize)]
struct Report {
    deleted: Vec<JobId>,
    running: Vec<JobId>,
}

/// Ends a scope.
pub(super) async fn end(settings: &Settings, args: EndArgs, json: bool) -> Result<(), Error> {
    let scope = args.scope();
    let database = Database::open_existing(settings).await?;
    let ended = through_outlet(settings, &database, &scope).await;
    database.store().close().await;
    print(ended?, json)
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
            "job {id} runs and is asked to stop; end the scope again when it has ended, or cancel \
             it with `jobwire jobs cancel`"
        ))?;
    }
    Ok(())
}

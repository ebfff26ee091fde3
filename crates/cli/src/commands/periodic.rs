//! `jobwire periodic`: declares, shows, pauses, resumes, runs and removes periodic jobs.

mod file;
mod list;

use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::Utc;
use clap::{Args, Subcommand};
use jobwire_core::job::periodic::{Declared, InvalidPeriodicJob};
use jobwire_core::producer::commit_hook::Cause;
use jobwire_core::store::Origin;
use jobwire_core::telemetry::plain;
use jobwire_core::{Store, StoreError};

use crate::connect::{self, Database, Outlet};
use crate::error::Error;
use crate::output;
use crate::settings::Settings;
pub(super) use file::read;

/// Arguments.
#[derive(Debug, Args)]
pub struct PeriodicArgs {
    /// The action.
    #[command(subcommand)]
    pub action: Action,
}

/// The actions.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Show the periodic jobs, their schedules and their next due dates
    List {
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Create or change the periodic jobs of a file; others stay as they are
    Declare {
        /// A TOML file of `[[periodic]]` tables; `-` for standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Only check the file
        #[arg(long)]
        check: bool,
    },
    /// Stop a periodic job from creating jobs until it is resumed
    Pause {
        /// The periodic job
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Let a paused periodic job create jobs again, from its next due date on
    Resume {
        /// The periodic job
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Create a job of a periodic job now; its due dates do not change
    Run {
        /// The periodic job
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Remove a periodic job; the jobs that it created stay
    Remove {
        /// The periodic job
        #[arg(value_name = "NAME")]
        name: String,
    },
}

pub(crate) async fn run(settings: Settings, args: PeriodicArgs) -> Result<(), Error> {
    if let Action::Declare { file, check: true } = &args.action {
        return check(&settings, file);
    }
    let database = Database::open_existing(&settings).await?;
    let store = database.store();
    let result = act(&settings, &*store, args.action).await;
    store.close().await;
    result
}

/// Checks the periodic jobs of a file as `declare` does: also that each has a first date, which may
/// need a business calendar.
fn check(settings: &Settings, file: &Path) -> Result<(), Error> {
    let jobs = read(file)?;
    let (now, calendars) = (Utc::now(), connect::calendars(settings)?);
    for job in &jobs {
        let named = |invalid| {
            let name = job.name().to_owned();
            StoreError::InvalidPeriodicJob(InvalidPeriodicJob { name, invalid })
        };
        let declaration = job.declare().map_err(StoreError::InvalidPeriodicJob)?;
        declaration.first(now, &calendars).map_err(named)?;
    }
    let count = output::count(jobs.len() as u64, "periodic job");
    output::line(format_args!("{count}, all valid; nothing was changed"))
}

async fn act(settings: &Settings, store: &dyn Store, action: Action) -> Result<(), Error> {
    match action {
        Action::List { json } => list::list(store, json).await,
        Action::Declare { file, .. } => declare(store, &file).await,
        Action::Pause { name } => {
            let found = store.pause_periodic_job(&name, true).await?;
            told(found, &name, "is paused")
        }
        Action::Resume { name } => {
            let found = store.pause_periodic_job(&name, false).await?;
            told(found, &name, "is resumed")
        }
        Action::Run { name } => start(settings, store, &name).await,
        Action::Remove { name } => {
            let found = store.remove_periodic_job(&name).await?;
            let removed = "is removed; a node that declares it creates it again at its next start";
            told(found, &name, removed)
        }
    }
}

fn told(found: bool, name: &str, done: &str) -> Result<(), Error> {
    if found {
        output::line(format_args!("periodic job `{}` {done}", shown(name)))
    } else {
        Err(no_such(name))
    }
}

/// Returns the name in one line.
fn shown(name: &str) -> String {
    plain::one_line(name, 256)
}

fn no_such(name: &str) -> Error {
    Error::Failed(format!(
        "there is no periodic job `{}`; `jobwire periodic list` shows all",
        shown(name)
    ))
}

async fn declare(store: &dyn Store, file: &Path) -> Result<(), Error> {
    let jobs = read(file)?;
    let declared = store.declare_periodic_jobs(&jobs).await?;
    jobs.iter().zip(declared).try_for_each(|(job, declared)| {
        let what = match declared {
            Declared::Created => "is created",
            Declared::Changed => "is changed",
            Declared::Same => "is as declared",
            Declared::Outdated => {
                "has a larger version in the database and is not changed; give it a larger `version`"
            }
        };
        told(true, job.name(), what)
    })
}

/// Creates a job and publishes its hint. Without a broker the leader finds the job.
async fn start(settings: &Settings, store: &dyn Store, name: &str) -> Result<(), Error> {
    let outlet = Outlet::open(settings).await?;
    let hook = outlet.hook();
    let origin = match hook {
        Some(_) => Origin::Hook,
        None => Origin::Sql,
    };
    let triggered = store.run_periodic_job(name, origin).await;
    if let (Some(hook), Ok(Some(triggered))) = (&hook, &triggered) {
        hook.publish(Cause::Operator, triggered.ready.clone());
    }
    outlet.close(Duration::from_secs(10)).await;
    match triggered? {
        Some(triggered) => output::line(triggered.job),
        None => Err(no_such(name)),
    }
}

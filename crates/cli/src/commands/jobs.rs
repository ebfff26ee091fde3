//! `jobwire jobs`: lists, shows and changes jobs.

mod execute;
mod filter;
mod list;
mod operate;
mod show;

use clap::{Args, Subcommand};
use jobwire_core::JobId;

use crate::connect::Database;
use crate::error::Error;
use crate::output;
use crate::settings::Settings;
use filter::FilterArgs;
use operate::Selection;

/// Arguments.
#[derive(Debug, Args)]
pub struct JobsArgs {
    /// The action.
    #[command(subcommand)]
    pub action: Action,
}

/// The actions.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// List jobs, oldest first
    List {
        /// The filters.
        #[command(flatten)]
        filter: FilterArgs,
        /// Maximum number of jobs
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=100_000))]
        limit: i64,
        /// Number of jobs to skip at the beginning
        #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
        offset: i64,
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Show all fields of one job
    Show {
        /// The job
        id: JobId,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Make dead letters executable now; with --state also retries that wait, timers and others
    Retry {
        /// The jobs.
        #[command(flatten)]
        selection: Selection,
        /// Confirm that all matches run, if they are not only dead letters
        #[arg(long)]
        yes: bool,
        /// Number of attempts that each gets
        #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(i32).range(1..))]
        retries: i32,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete jobs that are not running
    Delete {
        /// The jobs.
        #[command(flatten)]
        selection: Selection,
        /// Confirm that all matches are deleted
        #[arg(long)]
        yes: bool,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete jobs; ask the nodes of running ones to stop them, which needs a broker
    Cancel {
        /// The jobs
        #[arg(value_name = "ID", required = true)]
        ids: Vec<JobId>,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Run one job now, in this process, with the built-in handlers
    Execute {
        /// The job
        id: JobId,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
}

pub(crate) async fn run(settings: Settings, args: JobsArgs) -> Result<(), Error> {
    if let Action::Retry { selection, .. } | Action::Delete { selection, .. } = &args.action {
        selection.check()?;
    }
    let database = Database::open_existing(&settings).await?;
    let result = act(&settings, &database, args.action).await;
    database.store().close().await;
    result
}

async fn act(settings: &Settings, database: &Database, action: Action) -> Result<(), Error> {
    let store = database.store();
    match action {
        Action::List {
            filter,
            limit,
            offset,
            json,
        } => list::list(&*store, filter.filter(offset, limit), json).await,
        Action::Show { id, json } => show::show(&*store, id, json).await,
        Action::Retry {
            mut selection,
            yes,
            retries,
            json,
        } => {
            let by_state = operate::Matching::of(&mut selection, &*store).await?;
            if by_state.more_than_dead_letters() && !yes {
                return Err(Error::Usage(format!(
                    "{by_state} match and would all run now; check with `jobwire jobs list` first, then pass --yes, or leave --state \
                     out for dead letters only"
                )));
            }
            let ids = selection.ids(&*store).await?;
            operate::retry(settings, &*store, &ids, retries, json).await
        }
        Action::Delete {
            selection,
            yes,
            json,
        } => {
            if selection.all && !yes {
                let count = store.count(&selection.filter.clone().filter(0, 1)).await?;
                let jobs = output::count(count.unsigned_abs(), "job");
                let states = if selection.filter.states.is_empty() {
                    ", of every state,"
                } else {
                    ""
                };
                return Err(Error::Usage(format!(
                    "{jobs} match{states} and would all be deleted; check with `jobwire jobs list` first, then pass --yes"
                )));
            }
            let ids = selection.ids(&*store).await?;
            operate::delete(settings, &*store, &ids, json).await
        }
        Action::Cancel { ids, json } => operate::cancel(settings, &*store, &ids, json).await,
        Action::Execute { id, json } => execute::execute(settings, database, id, json).await,
    }
}

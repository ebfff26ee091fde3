//! `jobwire lanes`: shows the rules and the jobs in each lane, sets rules, drains a lane.

mod list;
mod relocate;
mod rules;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use jobwire_core::producer::lane_move::DEFAULT_RATE;

use crate::connect::Database;
use crate::error::Error;
use crate::settings::Settings;

/// Arguments.
#[derive(Debug, Args)]
pub struct LanesArgs {
    /// The action.
    #[command(subcommand)]
    pub action: Action,
}

/// The actions.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Show the rules, and the waiting and running jobs of each lane
    List {
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Replace the rules that choose the lane of jobs created without one
    Set {
        /// A TOML file of `[[rule]]` tables; `-` for standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Only check the file
        #[arg(long)]
        check: bool,
    },
    /// Move the jobs of one lane to another, to drain it
    Move {
        /// The lane to drain
        #[arg(value_name = "FROM")]
        from: String,
        /// The lane that receives its jobs
        #[arg(value_name = "TO")]
        to: String,
        /// Maximum number of jobs a second
        #[arg(long, value_name = "JOBS", default_value_t = DEFAULT_RATE, value_parser = clap::value_parser!(u32).range(1..))]
        rate: u32,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
}

pub(crate) async fn run(settings: Settings, args: LanesArgs) -> Result<(), Error> {
    if let Action::Set { file, check: true } = &args.action {
        return rules::check(file);
    }
    let database = Database::open_existing(&settings).await?;
    let store = database.store();
    let result = match args.action {
        Action::List { json } => list::list(&settings, &*store, json).await,
        Action::Set { file, .. } => rules::set(&settings, &*store, &file).await,
        Action::Move {
            from,
            to,
            rate,
            json,
        } => relocate::relocate(&settings, &*store, from, to, rate, json).await,
    };
    store.close().await;
    result
}

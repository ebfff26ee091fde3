//! `jobwire lanes`: which lane a job gets, what waits in each, and draining one that shall go.

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
    /// What to do.
    #[command(subcommand)]
    pub action: Action,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Show the rules, and what waits and runs in each lane
    List {
        /// As a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Replace the rules that choose a job's lane where its creator names none
    Set {
        /// A TOML file of `[[rule]]` tables; `-` for standard input
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Only check the file
        #[arg(long)]
        check: bool,
    },
    /// Give the jobs of one lane another: drain a lane that shall go
    Move {
        /// The lane that is drained
        #[arg(value_name = "FROM")]
        from: String,
        /// The lane that gets its jobs
        #[arg(value_name = "TO")]
        to: String,
        /// The most jobs a second
        #[arg(long, value_name = "JOBS", default_value_t = DEFAULT_RATE, value_parser = clap::value_parser!(u32).range(1..))]
        rate: u32,
        /// Say what happened as JSON
        #[arg(long)]
        json: bool,
    },
}

pub(crate) async fn run(settings: Settings, args: LanesArgs) -> Result<(), Error> {
    if let Action::Set { file, check: true } = &args.action {
        return rules::check(file);
    }
    let database = Database::open(&settings).await?;
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

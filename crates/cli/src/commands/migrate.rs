//! `jobwire migrate`: creates, updates and removes the job tables.

use clap::{Args, Subcommand};
use jobwire_core::store::{SCHEMA_VERSION, SchemaStatus};

use crate::connect::Database;
use crate::error::{Error, with_settings_alone};
use crate::output;
use crate::settings::Settings;

/// Arguments.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// The direction.
    #[command(subcommand)]
    pub direction: Direction,
}

/// The directions.
#[derive(Debug, Subcommand)]
pub enum Direction {
    /// Update the tables to this program's version
    Up,
    /// Take the tables back to an earlier version
    Down {
        /// The version to go back to; 0 removes everything [default: one back]
        #[arg(long, value_name = "VERSION", value_parser = clap::value_parser!(i32).range(0..))]
        to: Option<i32>,
        /// Confirm; jobs that only a newer version can hold are deleted
        #[arg(long)]
        yes: bool,
    },
    /// Show the version of the tables; exit code 1 if `up` is needed
    Status,
}

pub(crate) async fn run(settings: Settings, args: MigrateArgs) -> Result<(), Error> {
    // `down` and `status` create no file, because a new file would have no tables.
    let creates = matches!(args.direction, Direction::Up);
    let database = Database::connect(&settings, creates).await?;
    match args.direction {
        Direction::Up => up(&database).await?,
        Direction::Down { to, yes } => down(&database, to, yes).await?,
        Direction::Status => return status(&database, &settings).await,
    }
    database.store().close().await;
    Ok(())
}

async fn up(database: &Database) -> Result<(), Error> {
    let before = version(&database.status().await?);
    database.migrate().await?;
    database.status().await?.ready()?;
    if before >= SCHEMA_VERSION {
        return output::line(format_args!("schema version {before}: nothing to do"));
    }
    output::line(format_args!(
        "schema version {SCHEMA_VERSION} (it was {before})"
    ))
}

async fn down(database: &Database, to: Option<i32>, yes: bool) -> Result<(), Error> {
    let status = database.status().await?;
    let found = version(&status);
    let to = to.unwrap_or_else(|| (found - 1).max(0));
    if found < to {
        return Err(Error::Usage(format!(
            "the tables have schema version {found}, which is below {to}; `jobwire migrate up` updates them"
        )));
    }
    if found == to {
        return output::line(format_args!("schema version {found}: nothing to do"));
    }
    if !yes {
        let lost = if to == 0 {
            "removes every Jobwire table with all its jobs"
        } else {
            "removes what later versions added, with its data"
        };
        return Err(Error::Usage(format!(
            "going from schema version {found} down to {to} {lost}; stop every node, make a \
             backup, and pass --yes"
        )));
    }
    database.migrate_down(to).await?;
    output::line(format_args!("schema version {to} (it was {found})"))
}

async fn status(database: &Database, settings: &Settings) -> Result<(), Error> {
    let status = database.status().await?;
    let found = version(&status);
    let verdict = match status.ready() {
        Ok(()) => "ready".to_owned(),
        Err(error) => with_settings_alone(&error.to_string()),
    };
    output::line(format_args!(
        "{}: schema version {found}, this program needs {SCHEMA_VERSION}: {verdict}",
        settings.database_url
    ))?;
    status.ready().map_err(|_| Error::Reported)
}

fn version(status: &SchemaStatus) -> i32 {
    match status {
        SchemaStatus::Ready { version, .. } => *version,
        SchemaStatus::Outdated { found, .. } | SchemaStatus::TooNew { found, .. } => *found,
    }
}

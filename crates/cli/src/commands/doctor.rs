//! `jobwire doctor`: checks all that a node needs, and shows the remedy for each problem.
//!
//! The exit code is 0 if there is no problem (remarks do not count), otherwise 1. The command
//! creates no SQLite file. On the broker it declares the lanes, as any node does, and sends one
//! marker through each, which nodes ignore.

mod batches;
mod broker;
mod calendars;
mod database;
mod engine;
mod events;
mod finding;
mod lanes;
mod leases;
mod limits;
mod nodes;
mod suspensions;
mod tap;

use clap::Args;

use crate::error::Error;
use crate::output;
use crate::settings::Settings;
use finding::{Findings, Level};

/// Arguments.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}

pub(crate) async fn run(mut settings: Settings, args: DoctorArgs) -> Result<(), Error> {
    let mut findings = Findings::default();
    if let Some(Err(error)) = settings.calendars.as_deref().map(crate::calendars::read) {
        findings.error("calendars", error.of_setting(&settings, "calendars"));
        // The other checks need none.
        settings.calendars = None;
    }
    for remark in settings.remarks() {
        let found = format!("`{}` {}", remark.setting, remark.found);
        findings.remark("settings", found, remark.remedy);
    }
    let has_engine = settings.has_engine();
    if has_engine {
        engine::examine(&settings, &mut findings).await;
    }
    // An operator who only names an engine has no Jobwire database.
    if !has_engine || settings.is_given("database_url") {
        database::examine(&settings, &mut findings).await;
    }
    broker::examine(&settings, &mut findings).await;
    if args.json {
        output::json(&findings.0)?;
    } else {
        for finding in &findings.0 {
            output::line(finding)?;
        }
    }
    let wrong = findings
        .0
        .iter()
        .filter(|f| f.level == Level::Wrong)
        .count();
    if wrong == 0 {
        return Ok(());
    }
    if !args.json {
        output::line(format_args!(
            "{} to repair",
            output::count(wrong as u64, "thing")
        ))?;
    }
    Err(Error::Reported)
}

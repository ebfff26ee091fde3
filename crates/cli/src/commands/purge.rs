//! `jobwire purge`: removes every trace of a process instance or a tenant.

use std::collections::BTreeMap;

use clap::Args;
use jobwire_core::telemetry::plain;
use jobwire_core::{CommitHook, KeptSettings, Purge, Purged, Store};
use serde::Serialize;

use crate::connect::{Database, Outlet};
use crate::error::Error;
use crate::output;
use crate::settings::Settings;

/// Maximum number of running or refused jobs that are named; `--json` has all.
const NAMED: usize = 20;

/// Arguments of `purge`.
#[derive(Debug, Args)]
pub struct PurgeArgs {
    /// The scope.
    #[command(flatten)]
    pub scope: PurgeScopeArgs,
    /// Only count the rows that would be deleted, by table
    #[arg(long)]
    pub dry_run: bool,
    /// Cancel jobs that run; without it they run on and are named
    #[arg(long)]
    pub cancel: bool,
    /// Confirm that all these rows are deleted
    #[arg(long)]
    pub yes: bool,
    /// Print a JSON object
    #[arg(long)]
    pub json: bool,
}

/// The scope of a purge.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct PurgeScopeArgs {
    /// Everything of this process instance
    #[arg(long, value_name = "NAME", visible_alias = "process-instance")]
    pub instance: Option<String>,
    /// Everything of this tenant
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
}

/// The result of a dry run.
#[derive(Serialize)]
struct Counted {
    rows: BTreeMap<&'static str, u64>,
    kept: KeptSettings,
}

pub(crate) async fn run(settings: Settings, args: PurgeArgs) -> Result<(), Error> {
    let mut purge = match (args.scope.instance, args.scope.tenant) {
        (Some(instance), _) => Purge::instance(instance),
        (None, tenant) => Purge::tenant(tenant.unwrap_or_default()),
    };
    if args.cancel {
        purge = purge.cancel_running();
    }
    let database = Database::open_existing(&settings).await?;
    let store = database.store();
    let result = if args.dry_run {
        count(&*store, &purge, args.json).await
    } else if args.yes {
        let outlet = Outlet::open(&settings).await?;
        let hook = outlet.hook().unwrap_or_else(CommitHook::disconnected);
        let purged = purge.run(&*store, &hook).await;
        outlet.close_and_tell().await;
        match purged {
            Ok(purged) => print(&purged, args.json),
            Err(error) => Err(error.into()),
        }
    } else {
        refuse(&*store, &purge).await
    };
    store.close().await;
    result
}

async fn count(store: &dyn Store, purge: &Purge, json: bool) -> Result<(), Error> {
    let rows = purge.count(store).await?;
    let kept = purge.kept(store).await?;
    if json {
        return output::json(&Counted { rows, kept });
    }
    tables(&rows)?;
    warn_of(&kept)?;
    output::line("nothing was deleted")
}

/// Tells which settings name the scope and stay.
fn warn_of(kept: &KeptSettings) -> Result<(), Error> {
    if !kept.schedules.is_empty() {
        output::line(if kept.schedules.len() == 1 {
            "this periodic job names the scope and goes on creating its jobs; a purge leaves it \
             (`jobwire periodic remove`):"
        } else {
            "these periodic jobs name the scope and go on creating its jobs; a purge leaves them \
             (`jobwire periodic remove`):"
        })?;
        for name in &kept.schedules {
            output::line(plain::one_line(name, 500))?;
        }
    }
    if !kept.lane_rules.is_empty() {
        let positions = kept.lane_rules.iter().map(ToString::to_string);
        output::line(format_args!(
            "lane rules name the tenant, and a purge leaves them (`jobwire lanes set`): {}",
            positions.collect::<Vec<_>>().join(", ")
        ))?;
    }
    Ok(())
}

async fn refuse(store: &dyn Store, purge: &Purge) -> Result<(), Error> {
    let rows = purge.count(store).await?.values().sum::<u64>();
    warn_of(&purge.kept(store).await?)?;
    Err(Error::Usage(format!(
        "{} would be deleted and can't be brought back; see them by table with --dry-run, then pass \
         --yes",
        output::count(rows, "row")
    )))
}

fn tables(rows: &BTreeMap<&'static str, u64>) -> Result<(), Error> {
    let cells = rows.iter();
    let cells: Vec<[String; 2]> = cells
        .map(|(table, rows)| [(*table).to_owned(), rows.to_string()])
        .collect();
    output::table(["table", "rows"], &cells)
}

fn print(purged: &Purged, json: bool) -> Result<(), Error> {
    if json {
        return output::json(purged);
    }
    tables(&purged.rows)?;
    let total = output::count(purged.rows.values().sum::<u64>(), "row");
    output::line(format_args!("{total} deleted"))?;
    if !purged.running.is_empty() {
        output::line(format_args!(
            "{} still running; purge again when they have ended:",
            output::count(purged.running.len() as u64, "job")
        ))?;
        for id in purged.running.iter().take(NAMED) {
            output::line(id)?;
        }
    }
    for (id, why) in purged.refused.iter().take(NAMED) {
        let why = plain::one_line(why, 500);
        output::line(format_args!(
            "the database refused to delete job {id}: {why}"
        ))?;
    }
    let all = purged.running.len().max(purged.refused.len());
    if all > NAMED {
        output::line(format_args!("{} more; --json names all", all - NAMED))?;
    }
    if !purged.held_limits.is_empty() {
        let limits = purged.held_limits.iter();
        let limits: Vec<_> = limits.map(|limit| plain::one_line(limit, 500)).collect();
        output::line(format_args!(
            "nodes still hold permits for the tenant; purge again when they have given them back, of \
             these limits: {}",
            limits.join(", ")
        ))?;
    }
    warn_of(&purged.kept)
}

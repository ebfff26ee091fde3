//! `jobwire batches`: lists, shows and cancels batches.

use chrono::SecondsFormat;
use clap::{Args, Subcommand};
use jobwire_core::producer::batches::cancel;
use jobwire_core::telemetry::plain;
use jobwire_core::{BatchId, BatchState, BatchView, CommitHook, JobQuery, JobState, Store};

use crate::connect::{Database, Outlet};
use crate::error::Error;
use crate::output;
use crate::settings::Settings;

/// Maximum number of jobs that are named; `--json` has all.
const NAMED: usize = 20;

/// Arguments.
#[derive(Debug, Args)]
pub struct BatchesArgs {
    /// The action.
    #[command(subcommand)]
    pub action: Action,
}

/// The actions.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Show the open batches, the latest first, with the progress of each
    List {
        /// Also those that have ended
        #[arg(long)]
        ended: bool,
        /// Maximum number of batches
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=10_000))]
        limit: i64,
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
    /// Show a batch, and its members by state; `jobwire jobs list --batch` lists them
    Show {
        /// The batch
        #[arg(value_name = "ID", value_parser = super::id::<BatchId>)]
        id: BatchId,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Cancel a batch: delete its members, also those that run, and create no job at its end
    Cancel {
        /// The batch
        #[arg(value_name = "ID", value_parser = super::id::<BatchId>)]
        id: BatchId,
        /// Confirm that the members are deleted
        #[arg(long)]
        yes: bool,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
}

pub(crate) async fn run(settings: Settings, args: BatchesArgs) -> Result<(), Error> {
    let database = Database::open_existing(&settings).await?;
    let store = database.store();
    let result = act(&settings, &*store, args.action).await;
    store.close().await;
    result
}

async fn act(settings: &Settings, store: &dyn Store, action: Action) -> Result<(), Error> {
    match action {
        Action::List { ended, limit, json } => list(store, ended, limit, json).await,
        Action::Show { id, json } => show(store, id, json).await,
        Action::Cancel { id, yes, json } => {
            let batch = found(store, id).await?;
            if !yes {
                let left = batch.members.saturating_sub(batch.ended);
                return Err(Error::Usage(format!(
                    "{} of batch `{}` would be deleted; check with `jobwire jobs list --batch {id}` \
                     first, then pass --yes",
                    output::count(left, "job"),
                    plain::one_line(&batch.name, 256),
                )));
            }
            stop(settings, store, id, json).await
        }
    }
}

/// Returns a batch that exists.
pub(super) async fn found(store: &dyn Store, id: BatchId) -> Result<BatchView, Error> {
    let batch = store.batch(id).await?;
    batch.ok_or_else(|| {
        Error::Failed(format!(
            "there is no batch {id}; `jobwire batches list --ended` shows all"
        ))
    })
}

async fn list(store: &dyn Store, ended: bool, limit: i64, json: bool) -> Result<(), Error> {
    let all = store.batches(ended, limit).await?;
    if json {
        return output::json(&all);
    }
    if all.is_empty() {
        return output::line(if ended {
            "no batches"
        } else {
            "no open batches"
        });
    }
    let rows: Vec<[String; 7]> = all
        .iter()
        .map(|batch| {
            [
                batch.id.to_string(),
                batch.name.clone(),
                batch.state.to_string(),
                batch.members.to_string(),
                batch.ended.to_string(),
                batch.dead_letters.to_string(),
                batch.created_at.to_rfc3339_opts(SecondsFormat::Secs, true),
            ]
        })
        .collect();
    let head = [
        "id",
        "name",
        "state",
        "members",
        "ended",
        "dead letters",
        "created",
    ];
    output::table(head, &rows)?;
    let refused = all
        .iter()
        .filter_map(|batch| Some((batch, batch.refused.as_ref()?)));
    for (batch, why) in refused.take(NAMED) {
        output::line(format_args!(
            "batch {} ended without its job: {}",
            batch.id,
            plain::one_line(why, 1_000)
        ))?;
    }
    let faulty = all
        .iter()
        .filter_map(|batch| Some((batch, batch.fault.as_ref()?)));
    for (batch, why) in faulty.take(NAMED) {
        output::line(format_args!(
            "batch {} can't end: {}",
            batch.id,
            plain::one_line(why, 1_000)
        ))?;
    }
    Ok(())
}

async fn show(store: &dyn Store, id: BatchId, json: bool) -> Result<(), Error> {
    let batch = found(store, id).await?;
    if json {
        return output::json(&batch);
    }
    let date = |at: chrono::DateTime<chrono::Utc>| at.to_rfc3339_opts(SecondsFormat::Secs, true);
    let dead = if batch.or_dead_letters {
        "count as ended"
    } else {
        "keep the batch open"
    };
    let mut rows = vec![
        ["id".to_owned(), batch.id.to_string()],
        ["name".to_owned(), batch.name.clone()],
        ["state".to_owned(), batch.state.to_string()],
        ["members".to_owned(), batch.members.to_string()],
        ["ended".to_owned(), batch.ended.to_string()],
        [
            "dead letters".to_owned(),
            format!("{} ({dead})", batch.dead_letters),
        ],
        ["created".to_owned(), date(batch.created_at)],
    ];
    if let Some(why) = &batch.refused {
        let why = plain::one_line(why, 1_000);
        rows.push(["job at the end".to_owned(), format!("not created: {why}")]);
    } else if let Some(why) = &batch.fault {
        let why = plain::one_line(why, 1_000);
        rows.push([
            "job at the end".to_owned(),
            format!("can't be created: {why}"),
        ]);
    } else if batch.state != BatchState::Cancelled {
        let id = batch.callback;
        let text = format!("{id} (exists after the end, if the batch has one)");
        rows.push(["job at the end".to_owned(), text]);
    }
    rows.extend(batch.ended_at.map(|at| ["ended at".to_owned(), date(at)]));
    for state in JobState::ALL {
        let query = JobQuery::default().batch(id).states([*state]);
        let count = store.count(&query).await?;
        if count > 0 {
            rows.push([format!("{state} members"), count.to_string()]);
        }
    }
    output::table(["field", "value"], &rows)
}

async fn stop(
    settings: &Settings,
    store: &dyn Store,
    id: BatchId,
    json: bool,
) -> Result<(), Error> {
    let outlet = Outlet::open(settings).await?;
    let hook = outlet.hook().unwrap_or_else(CommitHook::disconnected);
    let cancelled = cancel(store, &hook, id).await;
    outlet.close_and_tell().await;
    let cancelled = cancelled?;
    if json {
        return output::json(&cancelled);
    }
    let deleted = output::count(cancelled.deleted.len() as u64, "job");
    output::line(format_args!("{deleted} deleted"))?;
    for job in cancelled.running.iter().take(NAMED) {
        output::line(format_args!(
            "job {job} is cancelled and still runs; its node ends it soon"
        ))?;
    }
    for (job, why) in cancelled.refused.iter().take(NAMED) {
        let why = plain::one_line(why, 500);
        output::line(format_args!("job {job} was not deleted: {why}"))?;
    }
    if cancelled.refused.is_empty() {
        Ok(())
    } else {
        Err(Error::Reported)
    }
}

//! `jobwire demo`: runs jobs on real input, and checks an account of them against the database.
//!
//! There are two demonstrations:
//! * `permits`: a town hall handles applications for permits. It has several job types, exclusive
//!   jobs of each case, timers, failures with retries, dead letters and transactions that roll
//!   back.
//! * `replay`: an event log, in which each event is an exclusive job of its case. The jobs of a
//!   case run one at a time and in order.
//!
//! The `stage` is the database, the transport and the nodes. Without settings it consists of a new
//! file in a temporary directory, the in-process transport and a node in this process. The
//! `account` at the end reports the results; if it does not add up, the exit code is 1.

mod account;
mod args;
mod event_log;
mod ledger;
mod permits;
mod progress;
mod replay;
mod speed;
mod stage;

pub use args::DemoArgs;
pub use speed::Speed;

use account::Account;
use event_log::Event;
use stage::Stage;

use crate::error::Error;
use crate::output;
use crate::settings::{Settings, remarks};
use crate::signals::Signals;

/// Runs the demonstration.
///
/// # Errors
/// Fails if the demonstration can't run, or if its account does not add up.
pub async fn run(settings: Settings, args: DemoArgs) -> Result<(), Error> {
    let mut signals = Signals::listen()?;
    let prepared = tokio::select! {
        prepared = prepare(settings, &args) => prepared,
        () = signals.next() => Err(Error::Failed("the demo was stopped before it started".to_owned())),
    };
    let (mut stage, events) = prepared?;
    let ended = tokio::select! {
        ended = show(&mut stage, &args, events) => ended,
        () = signals.next() => Err(Error::Failed("the demo was stopped".to_owned())),
    };
    let error = match ended {
        Ok(account) => {
            let cleared = stage.clear().await;
            present(&account, args.json)?;
            return cleared;
        }
        Err(error) => error,
    };
    // Waits for running jobs, unless another signal comes.
    let left = tokio::select! {
        left = stage.abandon() => left?,
        () = signals.next() => "; its nodes were stopped at once".to_owned(),
    };
    Err(Error::Failed(format!("{error}{left}")))
}

async fn prepare(
    settings: Settings,
    args: &DemoArgs,
) -> Result<(Stage, Option<Vec<Event>>), Error> {
    if args.nodes == 0 {
        remarks::tell(&settings.remarks_of_demo());
    }
    // Bad input is reported before the database is used.
    let events = match &args.input {
        Some(path) => Some(event_log::read(path.clone()).await?),
        None => None,
    };
    Ok((Stage::set(settings, args).await?, events))
}

async fn show(
    stage: &mut Stage,
    args: &DemoArgs,
    events: Option<Vec<Event>>,
) -> Result<Account, Error> {
    match events {
        Some(events) => replay::run(stage, events, args).await,
        None => permits::run(stage, args.instances).await,
    }
}

fn present(account: &Account, json: bool) -> Result<(), Error> {
    if json {
        output::json(account)?;
    } else {
        account.print()?;
    }
    if account.adds_up() {
        Ok(())
    } else {
        Err(Error::Failed(format!(
            "the account does not add up: {}",
            account.problems().join("; ")
        )))
    }
}

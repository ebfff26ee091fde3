//! `jobwire tap`: sets up the commit tap, or shows its problems.

use clap::{Args, Subcommand};
use jobwire_core::PgStore;

use crate::connect::Database;
use crate::error::Error;
use crate::output;
use crate::settings::Settings;

/// Arguments.
#[derive(Debug, Args)]
pub struct TapArgs {
    /// What to do
    #[command(subcommand)]
    pub action: Action,
}

/// The actions.
#[derive(Clone, Copy, Debug, Subcommand)]
pub enum Action {
    /// Create the publication of the commit tap, or repair it: jobs of plain SQL then start within
    /// milliseconds
    Create,
    /// Show whether the commit tap can be used, and its problems
    Status,
    /// Remove the publication of the commit tap
    Drop,
}

pub(crate) async fn run(settings: Settings, args: TapArgs) -> Result<(), Error> {
    let database = Database::open(&settings).await?;
    let Database::Postgres(store) = &database else {
        return Err(Error::Failed(
            "SQLite has no commit tap and needs none: jobs of other programs on this machine are \
             noticed within a second"
                .to_owned(),
        ));
    };
    let done = act(store, args.action).await;
    database.store().close().await;
    done
}

async fn act(store: &PgStore, action: Action) -> Result<(), Error> {
    match action {
        Action::Create => {
            store.create_tap().await?;
            output::line("the publication `jobwire_tap` is there")?;
            status(store).await
        }
        Action::Status => status(store).await,
        Action::Drop => {
            store.drop_tap().await?;
            output::line(
                "the publication `jobwire_tap` is removed; nodes stop using it by themselves",
            )
        }
    }
}

/// Shows the problems. Fails if the tap cannot be used.
async fn status(store: &PgStore) -> Result<(), Error> {
    let findings = store.examine_tap().await?;
    for finding in &findings {
        let mark = if finding.blocks { "WRONG  " } else { "remark " };
        output::line(format_args!(
            "{mark}{}\n       -> {}",
            finding.found, finding.remedy
        ))?;
    }
    if findings.iter().any(|finding| finding.blocks) {
        return Err(Error::Reported);
    }
    output::line(
        "the commit tap can be used; the leader begins within five minutes of `jobwire tap create`, and \
         its `jobwire_tap_standing` is 1 then",
    )
}

//! `jobwire order`: shows or sets the waiting rule of exclusive jobs.

use clap::{Args, ValueEnum};

use crate::connect::Database;
use crate::error::Error;
use crate::output;
use crate::settings::Settings;

/// Arguments.
#[derive(Debug, Args)]
pub struct OrderArgs {
    /// The new order for every node on this database; if left out, the current one is shown
    #[arg(value_name = "ORDER")]
    pub order: Option<Order>,
}

/// The effect of a job that can't run on the later jobs of its instance.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Order {
    /// Later jobs wait while an earlier one waits for a retry, is suspended, or is a dead letter
    /// (an existing one, too)
    Strict,
    /// Later jobs do not wait for such a job
    Relaxed,
}

pub(crate) async fn run(settings: Settings, args: OrderArgs) -> Result<(), Error> {
    let database = Database::open_existing(&settings).await?;
    let store = database.store();
    if let Some(order) = args.order {
        store
            .set_strict_order(matches!(order, Order::Strict))
            .await?;
    }
    let strict = store.strict_order().await?;
    store.close().await;
    output::line(if strict { "strict" } else { "relaxed" })
}

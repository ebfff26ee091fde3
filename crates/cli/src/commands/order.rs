//! `jobwire order`: how exclusive jobs wait for each other.

use clap::{Args, ValueEnum};

use crate::connect::Database;
use crate::error::Error;
use crate::output;
use crate::settings::Settings;

/// Arguments.
#[derive(Debug, Args)]
pub struct OrderArgs {
    /// The order from now on, for every node on this database; without it, the one that holds is shown
    #[arg(value_name = "ORDER")]
    pub order: Option<Order>,
}

/// What a job that can't go on means for its younger siblings.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Order {
    /// While a job waits for a retry, is suspended, or is a dead letter (one of today, too), its younger siblings wait
    Strict,
    /// Such a job lets its siblings pass
    Relaxed,
}

pub(crate) async fn run(settings: Settings, args: OrderArgs) -> Result<(), Error> {
    let database = Database::open(&settings).await?;
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

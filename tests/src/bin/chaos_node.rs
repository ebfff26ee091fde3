//! A node of the chaos suite: `jobwire run` with the handlers of the workload.
//!
//! All settings come from the environment, as they do for `jobwire run`. `CHAOS_DATABASE_URL` says where
//! the handlers write their history, past the proxies that stand before the node's own database.
#![allow(clippy::print_stderr, reason = "a program of the tests")]

use jobwire::Settings;
use jobwire::commands::run::{Additions, run_with};
use jobwire::settings::Sources;
use jobwire_core::{PgOptions, PgStore};
use jobwire_tests::chaos::handlers::handlers;
use jobwire_tests::chaos::recorder::Recorder;
use std::error::Error;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chaos_node: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Box<dyn Error>> {
    let settings = Settings::load(&Sources {
        file: None,
        directory: std::env::temp_dir(),
        environment: std::env::vars().collect(),
        flags: Vec::new(),
    })?;
    jobwire::logging::start(&settings, true);
    let url = std::env::var("CHAOS_DATABASE_URL")?;
    let mut options = PgOptions::default();
    options.max_connections = 2;
    options.statement_timeout = settings.statement_timeout;
    let store = PgStore::connect_with(&url, options).await?;
    let additions = Additions {
        handlers: handlers(&Recorder::start(&url)?, &store),
        ..Additions::default()
    };
    run_with(settings, additions).await?;
    Ok(())
}

//! A node of the chaos suite: `jobwire run` with the handlers of the workload.
//!
//! All settings come from the environment, as for `jobwire run`. `CHAOS_DATABASE_URL` is the
//! database to which the handlers write their history, past the proxies in front of the node's own
//! database. With `CHAOS_GATE`, handlers wait for a row in `chaos.gate`. `CHAOS_BUG` names a bug to
//! inject into the node. `CHAOS_TYPES` lists the types that the node serves, separated by commas;
//! without it the node serves all.
#![allow(clippy::print_stderr, reason = "a program of the tests")]

use jobwire_cli::Settings;
use jobwire_cli::commands::run::{Additions, run_with};
use jobwire_cli::settings::Sources;
use jobwire_core::{PgOptions, PgStore};
use jobwire_tests::chaos::handlers::handlers;
use jobwire_tests::chaos::mutant::{Bug, HastyTransport, Mutant};
use jobwire_tests::chaos::recorder::Recorder;
use jobwire_tests::chaos::workload::Kind;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let result = runtime.map_err(Into::into).and_then(|runtime| {
        let result = runtime.block_on(run());
        // As in `jobwire run`: a thread that waits for a broker must not keep the program alive.
        runtime.shutdown_background();
        result
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("chaos_node: {error}");
            ExitCode::FAILURE
        }
    }
}

fn kinds() -> Result<Vec<Kind>, Box<dyn Error>> {
    let Ok(types) = std::env::var("CHAOS_TYPES") else {
        return Ok(Kind::ALL.to_vec());
    };
    let kind = |name: &str| {
        Kind::of(name).ok_or_else(|| format!("CHAOS_TYPES: there is no {name}").into())
    };
    types.split(',').map(kind).collect()
}

async fn run() -> Result<(), Box<dyn Error>> {
    let settings = Settings::load(&Sources {
        file: None,
        directory: std::env::temp_dir(),
        environment: std::env::vars().collect(),
        flags: Vec::new(),
    })?;
    jobwire_cli::logging::start(&settings, None);
    let url = std::env::var("CHAOS_DATABASE_URL")?;
    let mut options = PgOptions::default();
    options.max_connections = 3;
    options.statement_timeout = settings.statement_timeout;
    let store = PgStore::connect_with(&url, options).await?;
    let gate = std::env::var_os("CHAOS_GATE").is_some();
    let mut additions = Additions {
        handlers: handlers(&kinds()?, &Recorder::start(&url)?, &store, gate),
        ..Additions::default()
    };
    if let Ok(name) = std::env::var("CHAOS_BUG") {
        let bug = Bug::parse(&name).ok_or_else(|| format!("CHAOS_BUG: there is no {name}"))?;
        if bug == Bug::AckBeforeLock {
            additions.transport = Some(Box::new(|inner| Arc::new(HastyTransport(inner))));
        }
        additions.store = Some(Box::new(move |inner| {
            Arc::new(Mutant::new(bug, inner, store))
        }));
    }
    run_with(settings, additions).await?;
    Ok(())
}

//! The log: on standard error, as text or JSON lines.

mod escaped;

use std::io::IsTerminal;

use tracing::Level;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use crate::settings::{LogFormat, Settings};
use escaped::{Escaped, EscapedJson};

/// What commands other than `run` log where nobody said anything.
const QUIET: &str = "warn";

/// Start to log. A process that logs already (a test) goes on as it was.
pub fn start(settings: &Settings, is_node: bool) {
    let filter = if is_node || settings.is_given("log") {
        settings.log.as_str()
    } else {
        QUIET
    };
    // What becomes of a connection, the transport says itself; its client would add an error for each one
    // that closes in good order. Whoever names the client in the filter hears it, but never at `trace`:
    // there it prints its frames, the log-in with its password among them.
    let client_too = filter.contains("lapin");
    // The database's client likewise; but what the server remarks is worth a line.
    let database_too = filter.contains("sqlx");
    let without_client = filter_fn(move |about| {
        let target = about.target();
        if target.starts_with("sqlx") && target != "sqlx::postgres::notice" {
            return database_too || *about.level() == Level::ERROR;
        }
        !target.starts_with("lapin") || (client_too && *about.level() != Level::TRACE)
    });
    let filter = EnvFilter::builder().parse_lossy(filter);
    let ansi = std::io::stderr().is_terminal();
    let layer = fmt::layer().with_ansi(ansi);
    let layer = match settings.log_format {
        LogFormat::Text => {
            let writer = move || Escaped::new(std::io::stderr(), ansi);
            layer.with_writer(writer).boxed()
        }
        LogFormat::Json => {
            let writer = || EscapedJson::new(std::io::stderr());
            layer.json().with_writer(writer).boxed()
        }
    };
    let _ = tracing_subscriber::registry()
        .with(layer.with_filter(filter).with_filter(without_client))
        .try_init();
}

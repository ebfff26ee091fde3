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

/// The default filter of commands other than `run` and `demo`. Rows that the database refuses are
/// part of what a command prints.
pub const QUIET: &str = "warn,jobwire_core::store::poison=error";
/// The default filter of `demo`, some of whose jobs fail on purpose. Its account counts them.
pub const DEMO: &str = "warn,jobwire_core::worker::executor::failure=error";

/// Starts logging. A process that logs already (a test) keeps its logger.
///
/// `default` is the filter if the settings give none; without it the setting's own default applies.
pub fn start(settings: &Settings, default: Option<&str>) {
    let default = default.filter(|_| !settings.is_given("log"));
    let filter = default.unwrap_or(settings.log.as_str());
    // The transport logs the state of its connections. Its client library would add an error for
    // each connection that closes normally. A filter that names the library enables its logs, but
    // never at `trace`: there it prints its frames, including the login with the password.
    let client_too = filter.contains("lapin");
    // The same holds for the database's client library, except for the server's notices.
    let database_too = filter.contains("sqlx");
    let without_client = filter_fn(move |about| {
        let target = about.target();
        if target.starts_with("sqlx") && target != "sqlx::postgres::notice" {
            return database_too;
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

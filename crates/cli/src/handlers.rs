//! The built-in handler types of `jobwire run`.
//!
//! | type | payload | effect |
//! | --- | --- | --- |
//! | [`noop`] | any | nothing |
//! | [`sleep`] | `{"ms": 500}` | waits |
//! | [`http`] | `{"url": …, "method": …, "headers": …, "body": …}` | calls a service on an allowed host |
//! | [`event`] | `{"position": 3, …}` | writes a row in the transaction that completes the job |

pub mod event;
pub mod http;
pub mod noop;
pub mod sleep;

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::{HandlerOptions, Handlers};

use crate::error::Error;
use crate::settings::Settings;

pub use http::{AllowList, BadHost};

/// Options of the built-in handlers.
#[derive(Clone, Debug, Default)]
pub struct BuiltIn {
    /// Hosts that `http` jobs may call. Default: none, which refuses every such job.
    pub http_allow_hosts: AllowList,
}

/// Returns all built-in handlers.
#[must_use]
pub fn built_in(options: &BuiltIn) -> Handlers {
    let mut handlers = Handlers::default();
    handlers.add(noop::TYPE, noop::run);
    handlers.add(sleep::TYPE, sleep::run);
    handlers.register(
        http::TYPE,
        HandlerOptions::default(),
        Arc::new(http::HttpHandler::new(options.http_allow_hosts.clone())),
    );
    handlers.register(
        event::TYPE,
        HandlerOptions::default().in_transaction(),
        Arc::new(event::EventHandler),
    );
    handlers
}

/// Returns the built-in handlers, configured by the settings.
///
/// # Errors
/// Fails if an entry of `http_allow_hosts` is invalid.
pub fn configured(settings: &Settings) -> Result<Handlers, Error> {
    let http_allow_hosts = AllowList::parse(&settings.http_allow_hosts)
        .map_err(|bad| Error::Usage(bad.to_string()))?;
    Ok(built_in(&BuiltIn { http_allow_hosts }))
}

/// Allows row locks for jobs of these types.
///
/// # Errors
/// Fails if a type has no handler.
pub fn hold_by_row(handlers: &mut Handlers, types: &[String]) -> Result<(), Error> {
    for job_type in types {
        if !handlers.allow_row_lock(job_type) {
            let served = handlers.types().join(", ");
            return Err(Error::Usage(format!(
                "`row_lock_types` names `{job_type}`, which no handler of this program serves; it \
                 serves {served}"
            )));
        }
    }
    Ok(())
}

/// Records the attempts of these types.
///
/// # Errors
/// Fails if a type has no handler.
pub fn record_attempts(
    handlers: &mut Handlers,
    types: &[String],
    keep: Duration,
) -> Result<(), Error> {
    for job_type in types {
        if !handlers.keep_attempts(job_type, keep) {
            let served = handlers.types().join(", ");
            return Err(Error::Usage(format!(
                "`attempt_types` names `{job_type}`, which no handler of this program serves; it \
                 serves {served}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_there_and_events_run_in_their_transaction() {
        let handlers = built_in(&BuiltIn::default());
        assert_eq!(handlers.types(), ["event", "http", "noop", "sleep"]);
        assert!(
            handlers
                .get("event")
                .is_some_and(|h| h.options.in_transaction)
        );
    }
}

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
use crate::settings::{Settings, TypeLimit, TypeTimeout};

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

/// Applies the settings of types to the handlers: row locks, timeouts, limits, recorded attempts.
///
/// # Errors
/// Fails if a setting names a type that has no handler.
pub fn apply(handlers: &mut Handlers, settings: &Settings) -> Result<(), Error> {
    hold_by_row(handlers, &settings.row_lock_types)?;
    limit_times(handlers, &settings.type_timeouts)?;
    limit_fleet(handlers, &settings.type_limits)?;
    record_attempts(handlers, &settings.attempt_types, settings.attempts_kept)
}

/// Like [`apply`], for a command that runs one job. Settings of types that other programs serve are
/// left out.
pub fn apply_where_served(handlers: &mut Handlers, settings: &Settings) {
    for job_type in &settings.row_lock_types {
        handlers.allow_row_lock(job_type);
    }
    for of in &settings.type_timeouts {
        handlers.limit_time(&of.job_type, of.timeout);
    }
    for of in &settings.type_limits {
        handlers.limit_fleet(&of.job_type, of.limit());
    }
    for job_type in &settings.attempt_types {
        handlers.keep_attempts(job_type, settings.attempts_kept);
    }
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

/// Sets the timeouts of types.
///
/// # Errors
/// Fails if a type has no handler.
pub fn limit_times(handlers: &mut Handlers, timeouts: &[TypeTimeout]) -> Result<(), Error> {
    for TypeTimeout { job_type, timeout } in timeouts {
        if !handlers.limit_time(job_type, *timeout) {
            let served = handlers.types().join(", ");
            return Err(Error::Usage(format!(
                "`type_timeouts` names `{job_type}`, which no handler of this program serves; it \
                 serves {served}"
            )));
        }
    }
    Ok(())
}

/// Limits how many jobs of types run at once in the fleet, or start in a period.
///
/// # Errors
/// Fails if a type has no handler.
pub fn limit_fleet(handlers: &mut Handlers, limits: &[TypeLimit]) -> Result<(), Error> {
    for of in limits {
        let job_type = &of.job_type;
        if !handlers.limit_fleet(job_type, of.limit()) {
            let served = handlers.types().join(", ");
            return Err(Error::Usage(format!(
                "`type_limits` names `{job_type}`, which no handler of this program serves; it \
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
    fn a_timeout_holds_for_its_type_and_an_unknown_type_is_named() {
        let mut handlers = built_in(&BuiltIn::default());
        let of = |job_type: &str| TypeTimeout {
            job_type: job_type.to_owned(),
            timeout: Duration::from_secs(120),
        };
        limit_times(&mut handlers, &[of("http")]).expect("it is served");
        let timeout = |job_type| handlers.get(job_type).and_then(|h| h.options.timeout);
        assert_eq!(timeout("http"), Some(Duration::from_secs(120)));
        assert_eq!(timeout("sleep"), None);
        let said = limit_times(&mut handlers, &[of("mail")]).expect_err("nobody serves it");
        assert!(
            said.to_string().contains("`type_timeouts` names `mail`"),
            "{said}"
        );
    }

    #[test]
    fn a_limit_holds_for_its_type_and_an_unknown_type_is_named() {
        let mut handlers = built_in(&BuiltIn::default());
        let of = |job_type: &str| TypeLimit {
            job_type: job_type.to_owned(),
            number: 2,
            period: None,
            burst: None,
            per_tenant: false,
        };
        limit_fleet(&mut handlers, &[of("http")]).expect("it is served");
        let is_limited = |job_type| handlers.get(job_type).map(|h| h.options.limit.is_some());
        assert_eq!(is_limited("http"), Some(true));
        assert_eq!(is_limited("sleep"), Some(false));
        let said = limit_fleet(&mut handlers, &[of("mail")]).expect_err("nobody serves it");
        assert!(
            said.to_string().contains("`type_limits` names `mail`"),
            "{said}"
        );
    }

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

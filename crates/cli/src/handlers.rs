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

use jobwire_core::{HandlerOptions, Handlers};

use crate::error::Error;
use crate::settings::{Settings, TypeConcurrency, TypeRetryPolicy, TypeTimeout};

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
        http::HttpHandler::options(),
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

/// Applies the settings of types to the handlers: row locks, timeouts, heartbeats, limits of a node and
/// of the fleet, recorded attempts and retry policies.
///
/// # Errors
/// Fails if a setting names a type that has no handler.
pub fn apply(handlers: &mut Handlers, settings: &Settings) -> Result<(), Error> {
    match unserved(handlers, settings).first() {
        Some(type_of) => Err(refused(handlers, *type_of)),
        None => Ok(()),
    }
}

/// Like [`apply`], for a program with types of its own: fails for these settings only.
///
/// # Errors
/// Fails if one of them names a type that has no handler.
pub fn apply_and_require(
    handlers: &mut Handlers,
    settings: &Settings,
    required: &[&str],
) -> Result<(), Error> {
    let mut unserved = unserved(handlers, settings).into_iter();
    match unserved.find(|(setting, _)| required.contains(setting)) {
        Some(type_of) => Err(refused(handlers, type_of)),
        None => Ok(()),
    }
}

/// Like [`apply`], for a command that runs one job. Settings of types that other programs serve are
/// left out.
pub fn apply_where_served(handlers: &mut Handlers, settings: &Settings) {
    let _ = unserved(handlers, settings);
}

/// Applies the settings of types. Returns each setting with each type in it that has no handler.
fn unserved<'s>(handlers: &mut Handlers, of: &'s Settings) -> Vec<(&'static str, &'s str)> {
    let mut found = Vec::new();
    let mut tell = |setting, job_type: &'s String, is_served: bool| {
        if !is_served {
            found.push((setting, job_type.as_str()));
        }
    };
    for name in &of.row_lock_types {
        tell("row_lock_types", name, handlers.allow_row_lock(name));
    }
    for TypeTimeout { job_type, timeout } in &of.type_timeouts {
        let is_served = handlers.limit_time(job_type, *timeout);
        tell("type_timeouts", job_type, is_served);
    }
    for TypeTimeout { job_type, timeout } in &of.type_heartbeat_timeouts {
        let is_served = handlers.expect_heartbeats(job_type, *timeout);
        tell("type_heartbeat_timeouts", job_type, is_served);
    }
    for TypeConcurrency { job_type, number } in &of.type_concurrency {
        let is_served = handlers.limit_node(job_type, *number);
        tell("type_concurrency", job_type, is_served);
    }
    for limit in &of.type_limits {
        let is_served = handlers.limit_fleet(&limit.job_type, limit.limit());
        tell("type_limits", &limit.job_type, is_served);
    }
    for name in &of.attempt_types {
        let is_served = handlers.keep_attempts(name, of.attempts_kept);
        tell("attempt_types", name, is_served);
    }
    for TypeRetryPolicy { job_type, policy } in &of.type_retry_policies {
        let is_served = handlers.retry(job_type, policy.clone());
        tell("type_retry_policies", job_type, is_served);
    }
    found
}

fn refused(handlers: &Handlers, (setting, job_type): (&str, &str)) -> Error {
    let served = handlers.types().join(", ");
    Error::Usage(format!(
        "`{setting}` names `{job_type}`, which no handler of this program serves; it serves {served}"
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jobwire_core::RetryPolicy;

    use super::*;
    use crate::settings::Sources;

    fn with(flags: &[(&'static str, &str)]) -> Settings {
        let flags = flags.iter().map(|(key, value)| (*key, (*value).to_owned()));
        let directory = tempfile::tempdir().expect("a directory");
        Settings::load(&Sources {
            directory: directory.path().to_owned(),
            flags: flags.collect(),
            ..Sources::default()
        })
        .expect("all is well")
    }

    /// Applies settings to the built-in handlers, and returns the options of `http` and `sleep`.
    fn applied(flags: &[(&'static str, &str)]) -> [HandlerOptions; 2] {
        let mut handlers = built_in(&BuiltIn::default());
        apply(&mut handlers, &with(flags)).expect("they are served");
        ["http", "sleep"].map(|of| handlers.get(of).expect("built in").options.clone())
    }

    /// A setting that names `mail` is refused with its own name.
    fn names_the_unknown_type(setting: &'static str, value: &str) {
        let (mut handlers, settings) = (built_in(&BuiltIn::default()), with(&[(setting, value)]));
        let said = apply(&mut handlers, &settings).expect_err("no handler serves it");
        let said = said.to_string();
        let expected = format!("`{setting}` names `mail`, which no handler");
        assert!(said.contains(&expected), "{said}");
        assert!(said.contains("it serves event, http"), "{said}");
        let of = |required: &[&str]| {
            apply_and_require(&mut built_in(&BuiltIn::default()), &settings, required)
        };
        assert!(of(&[setting]).is_err());
        assert!(of(&["lanes"]).is_ok());
    }

    #[test]
    fn a_timeout_holds_for_its_type_and_an_unknown_type_is_named() {
        let [http, sleep] = applied(&[]);
        assert_eq!(http.timeout, Some(Duration::from_secs(30)));
        assert_eq!(sleep.timeout, None);
        let [http, sleep] = applied(&[("type_timeouts", "http=2m")]);
        assert_eq!(http.timeout, Some(Duration::from_secs(120)));
        assert_eq!(sleep.timeout, None);
        names_the_unknown_type("type_timeouts", "mail=2m");
    }

    #[test]
    fn a_heartbeat_timeout_holds_for_its_type_and_an_unknown_type_is_named() {
        let [http, sleep] = applied(&[("type_heartbeat_timeouts", "http=2m")]);
        assert_eq!(http.heartbeat_timeout, Some(Duration::from_secs(120)));
        assert_eq!(sleep.heartbeat_timeout, None);
        names_the_unknown_type("type_heartbeat_timeouts", "mail=2m");
    }

    #[test]
    fn a_limit_of_a_node_holds_for_its_type_and_an_unknown_type_is_named() {
        let [http, sleep] = applied(&[("type_concurrency", "http=2")]);
        assert_eq!((http.concurrency, sleep.concurrency), (Some(2), None));
        names_the_unknown_type("type_concurrency", "mail=2");
    }

    #[test]
    fn a_limit_holds_for_its_type_and_an_unknown_type_is_named() {
        let [http, sleep] = applied(&[("type_limits", "http=2")]);
        assert!(http.limit.is_some() && sleep.limit.is_none());
        names_the_unknown_type("type_limits", "mail=2");
    }

    #[test]
    fn a_retry_policy_holds_for_its_type_and_an_unknown_type_is_named() {
        let [http, sleep] = applied(&[("type_retry_policies", "http=30s")]);
        assert_eq!(
            http.retry,
            Some(RetryPolicy::fixed(Duration::from_secs(30)))
        );
        assert_eq!(sleep.retry, None);
        names_the_unknown_type("type_retry_policies", "mail=30s");
    }

    #[test]
    fn row_locks_and_recorded_attempts_hold_for_their_types() {
        let [http, sleep] = applied(&[
            ("row_lock_types", "sleep"),
            ("attempt_types", "http"),
            ("attempts_kept", "36h"),
        ]);
        assert!(sleep.row_lock && !http.row_lock);
        assert_eq!(http.keep_attempts, Some(Duration::from_secs(36 * 3_600)));
        assert_eq!(sleep.keep_attempts, None);
        names_the_unknown_type("row_lock_types", "mail");
        names_the_unknown_type("attempt_types", "mail");
    }

    #[test]
    fn the_settings_of_other_programs_types_are_left_out() {
        let mut handlers = built_in(&BuiltIn::default());
        apply_where_served(
            &mut handlers,
            &with(&[("type_timeouts", "mail=1m,http=2m")]),
        );
        let timeout = handlers.get("http").and_then(|http| http.options.timeout);
        assert_eq!(timeout, Some(Duration::from_secs(120)));
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

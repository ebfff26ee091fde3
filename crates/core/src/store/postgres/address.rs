//! The database's URL: its parameters, and the security of the connection.
//!
//! sqlx, like libpq, defaults to `sslmode=prefer`: it encrypts if the server offers TLS, and it
//! verifies nothing. So a server that declines TLS, or an impostor, gets the password. sqlx also
//! only logs an unknown parameter, such as `sslmod=verify-full`. Therefore the default for another
//! machine is `sslmode=verify-full`, a weaker mode is refused unless [`Plaintext::Allow`] is set,
//! and unknown parameters are refused.

use std::borrow::Cow;

use sqlx::postgres::{PgConnectOptions, PgSslMode};
use url::Url;

use crate::store::error::StoreError;
use crate::transport::{Plaintext, is_loopback};

/// The parameters that sqlx accepts.
const PARAMETERS: [&str; 17] = [
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "options",
    "password",
    "port",
    "ssl-ca",
    "ssl-cert",
    "ssl-key",
    "ssl-mode",
    "ssl-root-cert",
    "sslcert",
    "sslkey",
    "sslmode",
    "sslrootcert",
    "statement-cache-capacity",
];
const FORM: &str = "write postgres://user:password@host:5432/database";
/// Maximum length of a parameter's name in an error, in characters.
const SHOWN: usize = 40;

/// Returns the options for a connection to this URL.
///
/// # Errors
/// [`StoreError::Config`]: the URL can't be read, has an unknown parameter, or would send the
/// password over a network where others can read it.
pub fn connect_options(url: &str, plaintext: Plaintext) -> Result<PgConnectOptions, StoreError> {
    let environment = std::env::var("PGSSLMODE").ok();
    read(url, plaintext, environment.as_deref()).map_err(StoreError::Config)
}

/// Returns the host of the URL if it is another machine.
///
/// # Errors
/// The same as those of [`connect_options`].
pub fn host_elsewhere(url: &str) -> Result<Option<String>, StoreError> {
    let options = connect_options(url, Plaintext::Allow)?;
    Ok(elsewhere(&options).map(str::to_owned))
}

fn elsewhere(options: &PgConnectOptions) -> Option<&str> {
    let host = options.get_host();
    let local = options.get_socket().is_some() || host.starts_with('/') || is_loopback(host);
    (!local).then_some(host)
}

fn read(
    text: &str,
    plaintext: Plaintext,
    environment: Option<&str>,
) -> Result<PgConnectOptions, String> {
    let url = Url::parse(text)
        .map_err(|error| format!("the database URL can't be read: {error}; {FORM}"))?;
    if !matches!(url.scheme(), "postgres" | "postgresql") {
        let shown: String = url.scheme().chars().take(SHOWN).collect();
        return Err(format!(
            "the database URL begins with `{shown}:`, which is not PostgreSQL; {FORM}{}",
            match url.scheme() {
                "sqlite" => ", or connect with `SqliteStore`",
                _ => "",
            }
        ));
    }
    let behind_the_host = |(name, _): (Cow<'_, str>, Cow<'_, str>)| name.contains('@');
    if url.path().contains('@') || url.query_pairs().any(behind_the_host) {
        return Err(format!(
            "the database URL can't be read: there is an `@` after the host; {FORM}, with `/`, \
             `?`, `#` and `@` in the password encoded as %2F, %3F, %23 and %40"
        ));
    }
    for (name, _) in url.query_pairs() {
        if !PARAMETERS.contains(&&*name) && !name.starts_with("options[") {
            let shown: String = name.escape_debug().take(SHOWN).collect();
            return Err(format!(
                "the database URL has the unknown parameter `{shown}`; remove it, or use one of {}",
                PARAMETERS.join(", ")
            ));
        }
    }
    // Read from the text, since sqlx does not distinguish its default from an explicit mode.
    let written = url
        .query_pairs()
        .filter(|(name, _)| matches!(&**name, "sslmode" | "ssl-mode"))
        .last()
        .map(|(_, mode)| mode.into_owned());
    let options: PgConnectOptions = text
        .parse()
        .map_err(|error| format!("the database URL can't be read: {error}; {FORM}"))?;
    let chosen = written.or_else(|| {
        let mode = environment?;
        mode.parse::<PgSslMode>().is_ok().then(|| mode.to_owned())
    });
    if elsewhere(&options).is_none() || matches!(plaintext, Plaintext::Allow) {
        return Ok(options);
    }
    if chosen.is_none() {
        return Ok(options.ssl_mode(PgSslMode::VerifyFull));
    }
    secured(&options)?;
    Ok(options)
}

/// Checks the options of a connection that the application has made.
///
/// # Errors
/// [`StoreError::Config`] if they lead to another machine without verified TLS, and `plaintext`
/// does not allow it.
pub(super) fn check_security(
    options: &PgConnectOptions,
    plaintext: Plaintext,
) -> Result<(), StoreError> {
    match plaintext {
        Plaintext::Allow => Ok(()),
        Plaintext::Loopback => secured(options).map_err(StoreError::Config),
    }
}

/// Returns an error if the connection leads to another machine without verified TLS.
fn secured(options: &PgConnectOptions) -> Result<(), String> {
    let Some(host) = elsewhere(options) else {
        return Ok(());
    };
    let (mode, risk) = match options.get_ssl_mode() {
        PgSslMode::VerifyFull => return Ok(()),
        PgSslMode::Require => ("require", UNVERIFIED),
        PgSslMode::VerifyCa => ("verify-ca", UNVERIFIED),
        PgSslMode::Disable => ("disable", UNENCRYPTED),
        PgSslMode::Allow => ("allow", UNENCRYPTED),
        PgSslMode::Prefer => ("prefer", UNENCRYPTED),
    };
    let host = host.escape_debug();
    Err(format!(
        "sslmode={mode} {risk}, and '{host}' is another machine; set sslmode=verify-full (with \
         sslrootcert=FILE if this machine does not trust the authority that signed the server's \
         certificate), or, if the network itself can be trusted, set `PgOptions::plaintext` \
         (setting `database_plaintext`) to `allow`"
    ))
}

const UNVERIFIED: &str = "does not verify that the server is the one in the URL";
const UNENCRYPTED: &str = "sends the password and every job unencrypted if the server declines TLS";

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(url: &str, plaintext: Plaintext, environment: Option<&str>) -> Result<String, String> {
        let options = read(url, plaintext, environment)?;
        Ok(format!("{:?}", options.get_ssl_mode()))
    }

    #[test]
    fn another_machine_is_spoken_to_over_verified_tls() {
        let strict = |url: &str| mode(url, Plaintext::Loopback, None);
        for host in ["db", "10.0.0.1", "[fd00::1]", "0.0.0.0"] {
            let url = format!("postgres://me:secret@{host}/jobs");
            assert_eq!(strict(&url).as_deref(), Ok("VerifyFull"), "{host}");
        }
        let moved = "postgres://me@localhost/jobs?host=db";
        assert_eq!(strict(moved).as_deref(), Ok("VerifyFull"));
        for weaker in ["disable", "allow", "prefer", "require", "verify-ca"] {
            for name in ["sslmode", "ssl-mode"] {
                let url = format!("postgres://me:secret@db/jobs?{name}={weaker}");
                let said = strict(&url).expect_err("weaker");
                for part in ["'db'", weaker, "verify-full", "`PgOptions::plaintext`"] {
                    assert!(said.contains(part), "{part} in {said}");
                }
                assert!(!said.contains("secret"), "{said}");
            }
        }
        let chosen = "postgres://me@db/jobs?sslmode=verify-full";
        assert_eq!(strict(chosen).as_deref(), Ok("VerifyFull"));
    }

    #[test]
    fn a_setting_allows_less() {
        let allowed = |url: &str| mode(url, Plaintext::Allow, None);
        assert_eq!(
            allowed("postgres://me@db/jobs?sslmode=disable").as_deref(),
            Ok("Disable")
        );
        assert_eq!(
            allowed("postgres://me@db/jobs?sslmode=require").as_deref(),
            Ok("Require")
        );
        assert!(allowed("postgres://me@db/jobs").is_ok());
    }

    #[test]
    fn what_stays_on_this_machine_is_left_as_it_was() {
        for url in [
            "postgres://me@localhost/jobs?sslmode=disable",
            "postgres://me@127.0.0.1/jobs?sslmode=disable",
            "postgres://me@%2Frun%2Fpostgresql/jobs?sslmode=disable",
            "postgres:///jobs?host=/run/postgresql&sslmode=disable",
        ] {
            assert_eq!(
                mode(url, Plaintext::Loopback, None).as_deref(),
                Ok("Disable"),
                "{url}"
            );
        }
    }

    #[test]
    fn a_parameter_with_a_typing_error_is_refused_by_name() {
        let url = "postgres://me:secret@localhost/jobs?sslmod=verify-full";
        for plaintext in [Plaintext::Loopback, Plaintext::Allow] {
            let said = mode(url, plaintext, None).expect_err("unknown");
            assert!(
                said.contains("`sslmod`") && said.contains("sslmode"),
                "{said}"
            );
            assert!(!said.contains("secret"), "{said}");
        }
    }

    #[test]
    fn a_url_of_another_database_is_refused_with_its_scheme() {
        for (url, parts) in [
            (
                "mysql://me:secret@localhost/jobs",
                ["`mysql:`", "postgres://"],
            ),
            ("sqlite:jobs.db", ["`sqlite:`", "SqliteStore"]),
            (
                "http://me:secret@localhost/jobs",
                ["`http:`", "postgres://"],
            ),
        ] {
            let said = mode(url, Plaintext::Allow, None).expect_err("another database");
            assert!(parts.iter().all(|part| said.contains(part)), "{said}");
            assert!(!said.contains("secret"), "{said}");
        }
        assert!(mode("postgresql://localhost/jobs", Plaintext::Loopback, None).is_ok());
    }

    #[test]
    fn the_options_of_a_pool_obey_the_same_rule() {
        let to = |host: &str, mode| PgConnectOptions::new().host(host).ssl_mode(mode);
        let check =
            |options, plaintext| check_security(&options, plaintext).map_err(|e| e.to_string());
        let weak = check(to("db", PgSslMode::Prefer), Plaintext::Loopback);
        assert!(weak.is_err_and(|said| said.contains("sslmode=prefer")));
        for (options, plaintext) in [
            (to("db", PgSslMode::VerifyFull), Plaintext::Loopback),
            (to("db", PgSslMode::Disable), Plaintext::Allow),
            (to("127.0.0.1", PgSslMode::Disable), Plaintext::Loopback),
        ] {
            assert_eq!(check(options, plaintext), Ok(()));
        }
    }

    #[test]
    fn a_password_with_a_question_mark_is_not_shown() {
        for url in [
            "postgres://me:se?cret@db/jobs",
            "postgres://me:1?cret@db/jobs",
        ] {
            let said = mode(url, Plaintext::Allow, None).expect_err("unreadable");
            assert!(!said.contains("cret"), "{said}");
        }
    }

    #[test]
    fn the_environment_chooses_as_the_url_does() {
        let url = "postgres://me@db/jobs";
        let with = |mode_: &str| mode(url, Plaintext::Loopback, Some(mode_));
        // sqlx reads the variable itself; this test checks only whether it counts as a choice.
        assert!(with("prefer").is_err());
        assert_eq!(with("nonsense").as_deref(), Ok("VerifyFull"));
    }
}

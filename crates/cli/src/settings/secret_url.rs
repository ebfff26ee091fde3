//! A URL whose password is never shown.

use std::fmt;

use url::Url;

/// A URL that may hold a password. `Display` and `Debug` hide it; only [`expose`](Self::expose)
/// returns the whole URL.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretUrl(String);

/// Query parameters that are secret too.
const SECRET_PARAMETERS: [&str; 4] = ["password", "sslpassword", "passfile", "sslkey"];

impl SecretUrl {
    /// Wraps a URL without checking it.
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// Returns the whole URL, for the connection.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Returns the text before the first colon.
    #[must_use]
    pub fn scheme(&self) -> &str {
        self.0.split_once(':').map_or("", |(scheme, _)| scheme)
    }

    /// Returns the whole URL for each of its hosts: `http://me:secret@one,two/` is two URLs.
    #[must_use]
    pub fn of_each_host(&self) -> Vec<String> {
        let parts = || {
            let (begin, end) = authority(&self.0)?;
            let (head, tail) = (self.0.get(..end)?, self.0.get(end..)?);
            let hosts = head.rfind('@').map_or(begin, |at| at + 1);
            Some((head.get(..hosts)?, head.get(hosts..)?, tail))
        };
        match parts() {
            Some((head, hosts, tail)) => {
                let hosts = hosts.split(',');
                hosts.map(|host| format!("{head}{host}{tail}")).collect()
            }
            None => vec![self.0.clone()],
        }
    }

    fn redacted(&self) -> String {
        // Settings give it without the colon.
        if self.0 == "none:" {
            return "none".to_owned();
        }
        let (first, more) = split_hosts(&self.0);
        let Ok(mut url) = Url::parse(&first) else {
            return redact_unreadable(&self.0);
        };
        // After an unencoded `/` or `?` in a password, the rest may belong to that password.
        let rest = [Some(url.path()), url.query(), url.fragment()];
        if rest.iter().flatten().any(|part| part.contains('@')) {
            return redact_unreadable(&self.0);
        }
        if !url.has_authority() {
            // `user:password@host`, without a scheme, parses as a URL too.
            return if url.scheme() == "sqlite" {
                self.0.clone()
            } else {
                redact_unreadable(&self.0)
            };
        }
        if url.password().is_some() {
            // Fails only without an authority.
            let _ = url.set_password(Some("***"));
        }
        if url
            .query_pairs()
            .any(|(key, _)| SECRET_PARAMETERS.contains(&&*key))
        {
            let pairs: Vec<(String, String)> = url
                .query_pairs()
                .map(|(key, value)| {
                    let secret = SECRET_PARAMETERS.contains(&&*key);
                    (
                        key.into_owned(),
                        if secret {
                            "***".to_owned()
                        } else {
                            value.into_owned()
                        },
                    )
                })
                .collect();
            url.query_pairs_mut().clear().extend_pairs(pairs);
        }
        with_hosts(url.as_str(), more)
    }
}

/// Returns the start and the end of the authority of a URL.
fn authority(text: &str) -> Option<(usize, usize)> {
    let begin = text.find("://")? + 3;
    let length = text.get(begin..)?.find(['/', '?', '#']);
    Some((begin, length.map_or(text.len(), |length| begin + length)))
}

/// Splits a URL into the URL with its first host only, as the standard allows, and the other hosts.
fn split_hosts(text: &str) -> (String, &str) {
    let split = || {
        let (begin, end) = authority(text)?;
        let (head, tail) = (text.get(..end)?, text.get(end..)?);
        let hosts = head.rfind('@').map_or(begin, |at| at + 1);
        let comma = hosts + head.get(hosts..)?.find(',')?;
        Some((format!("{}{tail}", head.get(..comma)?), head.get(comma..)?))
    };
    split().unwrap_or_else(|| (text.to_owned(), ""))
}

/// Reverses [`split_hosts`].
fn with_hosts(url: &str, more: &str) -> String {
    let mut url = url.to_owned();
    if let Some((_, end)) = authority(&url) {
        url.insert_str(end, more);
    }
    url
}

/// Redacts a URL that can't be parsed: its password may be anywhere before the last `@`.
fn redact_unreadable(text: &str) -> String {
    match (text.split_once("://"), text.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://***@{rest}"),
        (None, Some((_, rest))) => format!("***@{rest}"),
        _ => text.to_owned(),
    }
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.redacted())
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretUrl({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_never_shown() {
        for (url, shown) in [
            (
                "postgres://me:secret@db:5432/jobs",
                "postgres://me:***@db:5432/jobs",
            ),
            ("amqp://me:se%40cret@mq/%2F", "amqp://me:***@mq/%2F"),
            (
                "postgres://db/jobs?user=me&password=secret",
                "postgres://db/jobs?user=me&password=***",
            ),
            (
                "postgres://me:sec@ret@db:no-port/jobs",
                "postgres://***@db:no-port/jobs",
            ),
            ("me:secret@db", "***@db"),
            (
                "amqps://me:se,cret@h1:5671,[::1]:5672,h3/jobs?heartbeat=3",
                "amqps://me:***@h1:5671,[::1]:5672,h3/jobs?heartbeat=3",
            ),
            (
                "kafka://me:secret@k1,k2:9093?password=secret",
                "kafka://me:***@k1,k2:9093?password=***",
            ),
            (
                "amqp://me:secret@h1,h2:no-port/",
                "amqp://me:***@h1,h2:no-port/",
            ),
            ("amqp://me:1/secret@h1,h2", "amqp://***@h1,h2"),
            ("amqp://me:1,2/secret@h1", "amqp://***@h1"),
            ("amqp://me:1?secret@h1", "amqp://***@h1"),
        ] {
            let url = SecretUrl::new(url);
            assert_eq!(url.to_string(), shown);
            assert!(!format!("{url:?}").contains("secret"));
        }
    }

    #[test]
    fn each_host_has_a_url_of_its_own() {
        let urls = |text: &str| SecretUrl::new(text).of_each_host();
        assert_eq!(
            urls("https://me:a,b@one:8443,[::1],two/engine-rest"),
            [
                "https://me:a,b@one:8443/engine-rest",
                "https://me:a,b@[::1]/engine-rest",
                "https://me:a,b@two/engine-rest"
            ]
        );
        assert_eq!(urls("http://one/a,b"), ["http://one/a,b"]);
        assert_eq!(urls("nonsense"), ["nonsense"]);
    }

    #[test]
    fn what_has_no_password_is_shown_as_it_is() {
        for url in [
            "sqlite:jobwire.db",
            "sqlite::memory:",
            "in-process:",
            "postgres://db/jobs",
            "amqp://h1:5672,h2:5672/jobs",
            "nonsense",
        ] {
            assert_eq!(SecretUrl::new(url).to_string(), url);
        }
        assert_eq!(SecretUrl::new("none:").to_string(), "none");
    }
}

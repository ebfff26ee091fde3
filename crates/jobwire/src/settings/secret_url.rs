//! A URL whose password is never shown.

use std::fmt;

use url::Url;

/// A URL that may hold a password. `Display` and `Debug` show it without; only
/// [`expose`](Self::expose) gives all of it.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretUrl(String);

/// Query parameters that are secrets too.
const SECRET_PARAMETERS: [&str; 4] = ["password", "sslpassword", "passfile", "sslkey"];

impl SecretUrl {
    /// Take a URL; whether it can be read is looked at elsewhere.
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// All of it, for whoever connects.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What stands before the first colon.
    #[must_use]
    pub fn scheme(&self) -> &str {
        self.0.split_once(':').map_or("", |(scheme, _)| scheme)
    }

    fn redacted(&self) -> String {
        let Ok(mut url) = Url::parse(&self.0) else {
            return redact_unreadable(&self.0);
        };
        if !url.has_authority() {
            // `user:password@host`, its scheme forgotten, reads as a URL too.
            return if url.scheme() == "sqlite" {
                self.0.clone()
            } else {
                redact_unreadable(&self.0)
            };
        }
        if url.password().is_some() {
            // Fails only where there is no authority.
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
        url.to_string()
    }
}

/// A URL that can't be read may have its password anywhere before the last `@`.
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
        ] {
            let url = SecretUrl::new(url);
            assert_eq!(url.to_string(), shown);
            assert!(!format!("{url:?}").contains("secret"));
        }
    }

    #[test]
    fn what_has_no_password_is_shown_as_it_is() {
        for url in [
            "sqlite:jobwire.db",
            "sqlite::memory:",
            "in-process:",
            "postgres://db/jobs",
            "nonsense",
        ] {
            assert_eq!(SecretUrl::new(url).to_string(), url);
        }
    }
}

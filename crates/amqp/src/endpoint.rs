//! Where the broker is, and who we are to it: the parsed URL, which never shows its password.

use std::fmt;

use jobwire_core::transport::TransportError;
use lapin::uri::{AMQPScheme, AMQPUri};
use url::{Host, Url};

/// A broker's address with credentials. `Debug` and `Display` leave the password out.
#[derive(Clone)]
pub(crate) struct Endpoint {
    uri: AMQPUri,
}

impl Endpoint {
    /// Read `amqp://user:password@host:port/vhost`, or `amqps://`.
    ///
    /// An empty path means the virtual host `/`, as most people expect, and not the one whose name
    /// is empty, as the specification has it.
    pub(crate) fn parse(text: &str) -> Result<Self, TransportError> {
        let mistake = |problem: String| TransportError::Refused {
            problem: format!("the broker's URL is wrong: {problem}"),
            remedy: "give --broker (JOBWIRE_BROKER_URL) as \
                     amqp://user:password@host:5672/virtual-host, or amqps://"
                .to_owned(),
        };
        // The errors of this parser do not repeat its input, and so no password.
        let url = Url::parse(text).map_err(|e| mistake(e.to_string()))?;
        if !matches!(url.scheme(), "amqp" | "amqps") {
            return Err(mistake(format!(
                "it begins with '{}:', not with 'amqp:' or 'amqps:'",
                url.scheme()
            )));
        }
        let host = match url.host() {
            Some(Host::Domain("")) | None => return Err(mistake("it names no host".to_owned())),
            Some(Host::Ipv6(address)) => address.to_string(),
            Some(other) => other.to_string(),
        };
        if url.path_segments().is_some_and(|s| s.count() > 1) {
            return Err(mistake(
                "the virtual host holds a '/'; write it as %2F".to_owned(),
            ));
        }
        let mut uri: AMQPUri = text.parse().map_err(mistake)?;
        // The parser below lapin takes an IPv6 address for "localhost".
        uri.authority.host = host;
        if uri.vhost.is_empty() {
            "/".clone_into(&mut uri.vhost);
        }
        Ok(Self { uri })
    }

    /// What lapin connects to, with our heartbeat unless the URL names one.
    pub(crate) fn uri(&self, heartbeat: std::time::Duration) -> AMQPUri {
        let mut uri = self.uri.clone();
        let seconds = u16::try_from(heartbeat.as_secs()).unwrap_or(u16::MAX);
        uri.query.heartbeat.get_or_insert(seconds);
        uri
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.uri.scheme == AMQPScheme::AMQPS
    }

    pub(crate) fn user(&self) -> &str {
        &self.uri.authority.userinfo.username
    }

    pub(crate) fn vhost(&self) -> &str {
        &self.uri.vhost
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = &self.uri.authority;
        write!(
            f,
            "{}://{}@{}:{} (virtual host '{}')",
            self.uri.scheme,
            authority.userinfo.username,
            authority.host,
            authority.port,
            self.uri.vhost
        )
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_password_is_never_shown() {
        let endpoint = Endpoint::parse("amqp://bob:s3cr%2Ft@[::1]:5673/%2Fjobs").unwrap();
        assert_eq!(
            endpoint.to_string(),
            "amqp://bob@::1:5673 (virtual host '/jobs')"
        );
        assert_eq!(
            endpoint
                .uri(Duration::from_secs(10))
                .authority
                .userinfo
                .password,
            "s3cr/t"
        );
        assert!(!format!("{endpoint:?}").contains("s3cr"));
    }

    #[test]
    fn mistakes_are_named_without_the_password() {
        for (url, problem) in [
            ("bob:hunter2@host", "begins with 'bob:'"),
            ("http://bob:hunter2@host/", "begins with 'http:'"),
            ("amqp://bob:hunter2@host:99999/", "port"),
            ("amqp:///jobs", "no host"),
            ("amqp:hunter2", "no host"),
            ("amqp://bob:hunter2@host/a/b", "%2F"),
            ("amqp://bob:hunter2@host/?heartbeat=soon", "digit"),
            ("", "relative URL"),
        ] {
            let error = Endpoint::parse(url).unwrap_err().to_string();
            assert!(error.contains(problem), "{url}: {error}");
            assert!(error.contains("--broker"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn an_empty_path_is_the_usual_virtual_host() {
        for url in ["amqp://host", "amqp://host/", "amqp://host/%2F"] {
            assert_eq!(Endpoint::parse(url).unwrap().vhost(), "/");
        }
        let tls = Endpoint::parse("amqps://host").unwrap();
        assert!(tls.is_tls());
        assert_eq!(tls.uri(Duration::from_secs(7)).authority.port, 5671);
        let named = Endpoint::parse("amqp://host?heartbeat=3").unwrap();
        assert_eq!(named.uri(Duration::from_secs(7)).query.heartbeat, Some(3));
    }
}

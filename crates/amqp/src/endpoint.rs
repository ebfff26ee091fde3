//! The parsed URL of the broker: hosts, credentials, virtual host. It never shows its password.
//!
//! ```text
//! amqp[s]://[user:password@]host[:port][,host[:port]]…[/virtual-host][?heartbeat=10&auth_mechanism=external]
//! ```
//! Several hosts are nodes of one cluster. Each process shuffles them once, so that a fleet spreads
//! over them, and then tries them in turn.

use std::fmt;
use std::time::Duration;

use jobwire_core::transport::{BadSetting, BrokerSecurity, HostPort, is_loopback};
use lapin::uri::{AMQPScheme, AMQPUri, SASLMechanism};
use rand::seq::SliceRandom;
use url::{Host, Url};

const REMEDY: &str = "give --broker (JOBWIRE_BROKER_URL) as \
                      amqp://user:password@host:5672/virtual-host, or amqps://; separate several \
                      hosts by commas";

/// The parameters allowed after `?`. Any other would have no effect and is an error.
const PARAMETERS: [&str; 5] = [
    "heartbeat",
    "auth_mechanism",
    "frame_max",
    "channel_max",
    "connection_timeout",
];

/// A broker's address with credentials. `Debug` and `Display` leave the password out.
#[derive(Clone)]
pub(crate) struct Endpoint {
    /// The parts that all hosts share. Its host is the first one.
    uri: AMQPUri,
    hosts: Vec<HostPort>,
}

impl Endpoint {
    /// Parses the URL. If it names no user and a client certificate is set, the certificate is the
    /// log-in.
    ///
    /// An empty path means the virtual host `/`, as most users expect. By the specification it
    /// means the virtual host with the empty name.
    pub(crate) fn parse(text: &str, security: &BrokerSecurity) -> Result<Self, BadSetting> {
        // The errors of the parsers below do not repeat their input, so they show no password.
        let (first, more) = split(text);
        let url = Url::parse(&first).map_err(|e| mistake(e.to_string()))?;
        if !matches!(url.scheme(), "amqp" | "amqps") {
            return Err(mistake(format!(
                "it begins with '{}:', not with 'amqp:' or 'amqps:'",
                url.scheme()
            )));
        }
        let host = host(&url)?;
        look_behind_the_hosts(&url)?;
        let mut uri: AMQPUri = first.parse().map_err(|e: String| mistake(e))?;
        if uri.vhost.is_empty() {
            "/".clone_into(&mut uri.vhost);
        }
        let port = uri.authority.port;
        let mut hosts = vec![HostPort { host, port }];
        for more in more {
            let address = format!("{}://{more}", url.scheme());
            let url = Url::parse(&address).map_err(|e| mistake(e.to_string()))?;
            let port = url.port().unwrap_or_else(|| uri.scheme.default_port());
            hosts.push(HostPort {
                host: self::host(&url)?,
                port,
            });
        }
        let has_user = !url.username().is_empty() || url.password().is_some();
        if uri.query.auth_mechanism.is_none() && !has_user && security.certificate.is_some() {
            uri.query.auth_mechanism = Some(SASLMechanism::External);
        }
        let endpoint = Self { uri, hosts };
        if endpoint.is_external() && (!endpoint.is_tls() || security.certificate.is_none()) {
            return Err(BadSetting {
                setting: "broker_tls_certificate",
                problem: "is missing, but 'auth_mechanism=external' in the URL logs in by \
                          certificate, over TLS"
                    .to_owned(),
                remedy:
                    "write amqps:// and set `security.certificate` and `security.key` (settings \
                         `broker_tls_certificate` and `broker_tls_key`) to the files with \
                         certificate and key"
                        .to_owned(),
            });
        }
        Ok(endpoint)
    }

    /// Returns the mistakes in the combination of the URL and the security settings.
    pub(crate) fn mistakes(&self, security: &BrokerSecurity) -> Vec<BadSetting> {
        security.mistakes(self.is_tls(), self.hosts.iter().map(|at| at.host.as_str()))
    }

    /// Shuffles the hosts.
    pub(crate) fn shuffled(mut self) -> Self {
        self.hosts.shuffle(&mut rand::rng());
        self
    }

    pub(crate) fn hosts(&self) -> &[HostPort] {
        &self.hosts
    }

    /// Returns the URI for lapin, with the given heartbeat unless the URL has one.
    pub(crate) fn uri(&self, at: &HostPort, heartbeat: Duration) -> AMQPUri {
        let mut uri = self.uri.clone();
        // The parser that lapin uses reads an IPv6 address as "localhost".
        at.host.clone_into(&mut uri.authority.host);
        uri.authority.port = at.port;
        let seconds = u16::try_from(heartbeat.as_secs()).unwrap_or(u16::MAX);
        uri.query.heartbeat.get_or_insert(seconds);
        uri
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.uri.scheme == AMQPScheme::AMQPS
    }

    /// Returns whether all hosts are this machine.
    pub(crate) fn is_loopback(&self) -> bool {
        self.hosts.iter().all(|at| is_loopback(&at.host))
    }

    /// Returns whether the client certificate is the log-in.
    pub(crate) fn is_external(&self) -> bool {
        self.uri.query.auth_mechanism == Some(SASLMechanism::External)
    }

    /// Returns the user for messages.
    pub(crate) fn user(&self) -> String {
        if self.is_external() {
            "(named by the client certificate)".to_owned()
        } else {
            format!("'{}'", self.uri.authority.userinfo.username)
        }
    }

    pub(crate) fn vhost(&self) -> &str {
        &self.uri.vhost
    }

    /// Returns the URL of one host, without the password.
    pub(crate) fn at(&self, address: &HostPort) -> String {
        self.shown(&address.to_string())
    }

    fn shown(&self, hosts: &str) -> String {
        let user = if self.is_external() {
            String::new()
        } else {
            format!("{}@", self.uri.authority.userinfo.username)
        };
        format!(
            "{}://{user}{hosts} (virtual host '{}')",
            self.uri.scheme, self.uri.vhost
        )
    }
}

fn mistake(problem: impl Into<String>) -> BadSetting {
    BadSetting {
        setting: "broker_url",
        problem: format!("the broker's URL is wrong: {}", problem.into()),
        remedy: REMEDY.to_owned(),
    }
}

/// Splits off all hosts except the first: a standard URL has only one.
fn split(text: &str) -> (String, Vec<&str>) {
    let alone = || (text.to_owned(), Vec::new());
    let Some((scheme, rest)) = text.split_once("://") else {
        return alone();
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let (user, hosts) = match authority.rfind('@') {
        Some(at) => authority.split_at(at + 1),
        None => ("", authority),
    };
    let Some((first, more)) = hosts.split_once(',') else {
        return alone();
    };
    let url = format!("{scheme}://{user}{first}{tail}");
    (url, more.split(',').collect())
}

/// Checks path, query and fragment. They contain the rest of a password that has an unencoded `/`,
/// `?` or `#`.
fn look_behind_the_hosts(url: &Url) -> Result<(), BadSetting> {
    if url.path_segments().is_some_and(|s| s.count() > 1) {
        return Err(mistake("the virtual host contains a '/'; write it as %2F"));
    }
    let rest = [Some(url.path()), url.query(), url.fragment()];
    if rest.iter().flatten().any(|part| part.contains('@')) {
        return Err(mistake(
            "there is an '@' after the hosts; write it as %40, and in a password '/' as %2F, '?' \
             as %3F, '#' as %23",
        ));
    }
    if url
        .query_pairs()
        .any(|(key, _)| !PARAMETERS.contains(&&*key))
    {
        return Err(mistake(format!(
            "it has an unknown parameter after '?' (allowed: {}); TLS is set by `security` \
             (settings `broker_tls_ca`, `broker_tls_certificate` and `broker_tls_key`)",
            PARAMETERS.join(", ")
        )));
    }
    Ok(())
}

fn host(url: &Url) -> Result<String, BadSetting> {
    let named = match url.host() {
        Some(Host::Domain("")) | None => return Err(mistake("it names no host")),
        Some(Host::Ipv6(address)) => return Ok(address.to_string()),
        Some(other) => other.to_string(),
    };
    // For unknown schemes the URL standard allows nearly every character in a host.
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if named.chars().all(plain) {
        Ok(named)
    } else {
        Err(mistake(
            "the name of a host has characters other than letters, digits, '-', '_' or '.'",
        ))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.hosts.iter().map(ToString::to_string).collect();
        f.write_str(&self.shown(&hosts.join(",")))
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

    fn parse(url: &str) -> Result<Endpoint, BadSetting> {
        Endpoint::parse(url, &BrokerSecurity::default())
    }

    fn uri(endpoint: &Endpoint) -> AMQPUri {
        endpoint.uri(&endpoint.hosts[0], Duration::from_secs(7))
    }

    fn certified() -> BrokerSecurity {
        BrokerSecurity {
            certificate: Some("client.pem".into()),
            key: Some("client.key".into()),
            ..BrokerSecurity::default()
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let endpoint = parse("amqp://bob:s3cr%2Ft@[::1]:5673/%2Fjobs").unwrap();
        assert_eq!(
            endpoint.to_string(),
            "amqp://bob@[::1]:5673 (virtual host '/jobs')"
        );
        assert_eq!(uri(&endpoint).authority.userinfo.password, "s3cr/t");
        assert_eq!(uri(&endpoint).authority.host, "::1");
        assert!(!format!("{endpoint:?}").contains("s3cr"));
    }

    #[test]
    fn several_hosts_share_everything_else() {
        let endpoint =
            parse("amqp://bob:hunter2@h1,[::1]:5673,10.0.0.3:5674/jobs?heartbeat=3").unwrap();
        assert_eq!(
            endpoint.to_string(),
            "amqp://bob@h1:5672,[::1]:5673,10.0.0.3:5674 (virtual host 'jobs')"
        );
        let third = endpoint.uri(&endpoint.hosts[2], Duration::from_secs(7));
        assert_eq!(third.authority.host, "10.0.0.3");
        assert_eq!(third.authority.port, 5674);
        assert_eq!(third.authority.userinfo.password, "hunter2");
        assert_eq!(
            (third.vhost.as_str(), third.query.heartbeat),
            ("jobs", Some(3))
        );
        assert_eq!(
            endpoint.at(&endpoint.hosts[1]),
            "amqp://bob@[::1]:5673 (virtual host 'jobs')"
        );
        let tls = parse("amqps://h1,h2").unwrap();
        assert!(tls.hosts.iter().all(|at| at.port == 5671));
        let mut hosts = endpoint.clone().shuffled().hosts;
        hosts.sort_by_key(|at| at.port);
        assert_eq!(hosts, endpoint.hosts);
    }

    #[test]
    fn mistakes_are_named_without_the_password() {
        for (url, problem) in [
            ("bob:hunter2@host", "begins with 'bob:'"),
            ("http://bob:hunter2@host/", "begins with 'http:'"),
            ("amqp://bob:hunter2@host:99999/", "port"),
            ("amqp://bob:hunter2@h1,h2:99999/", "port"),
            ("amqp:///jobs", "no host"),
            ("amqp:hunter2", "no host"),
            ("amqp://bob:hunter2@h1,,h2/", "no host"),
            ("amqp://bob:hunter2@h1,/", "no host"),
            ("amqp://bob:hunter2@h1,[::1", "address"),
            ("amqp://bob:1/hunter2@host", "'@'"),
            ("amqp://bob:1?hunter2@host", "'@'"),
            ("amqp://bob:1#hunter2@host", "'@'"),
            (
                "amqps://bob:hunter2@host?verify=verify_none",
                "broker_tls_ca",
            ),
            ("amqp://bob:hunter2@h1;h2/", "name of a host"),
            ("amqp://bob:hunter2@host/a/b", "%2F"),
            ("amqp://bob:hunter2@host/?heartbeat=soon", "digit"),
            ("amqp://bob:hunter2@host/?auth_mechanism=magic", "mechanism"),
            ("", "relative URL"),
        ] {
            let error = parse(url).unwrap_err().to_string();
            assert!(error.contains(problem), "{url}: {error}");
            assert!(error.contains("--broker"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn an_empty_path_is_the_usual_virtual_host() {
        for url in ["amqp://host", "amqp://host/", "amqp://host/%2F"] {
            assert_eq!(parse(url).unwrap().vhost(), "/");
        }
        let tls = parse("amqps://host").unwrap();
        assert!(tls.is_tls());
        assert_eq!(uri(&tls).authority.port, 5671);
        let named = parse("amqp://host?heartbeat=3").unwrap();
        assert_eq!(uri(&named).query.heartbeat, Some(3));
    }

    #[test]
    fn a_certificate_is_the_log_in_where_nobody_is_named() {
        let external = |url| Endpoint::parse(url, &certified()).unwrap().is_external();
        assert!(external("amqps://host/jobs"));
        assert!(external("amqps://bob:pw@host/?auth_mechanism=external"));
        assert!(!external("amqps://bob:pw@host/"));
        assert!(!external("amqps://host/?auth_mechanism=plain"));
        assert!(!parse("amqps://host/").unwrap().is_external());
        let shown = Endpoint::parse("amqps://host", &certified()).unwrap();
        assert_eq!(shown.to_string(), "amqps://host:5671 (virtual host '/')");
    }

    #[test]
    fn a_log_in_by_certificate_needs_one() {
        let missing = parse("amqps://host/?auth_mechanism=external").unwrap_err();
        assert_eq!(missing.setting, "broker_tls_certificate");
        let plain = Endpoint::parse("amqp://localhost/?auth_mechanism=external", &certified());
        assert_eq!(plain.unwrap_err().setting, "broker_tls_certificate");
    }
}

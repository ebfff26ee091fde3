//! The brokers' URL and its errors.
//!
//! ```text
//! kafka://[user:password@]host[:port][,host[:port]]…[/prefix][?group=NAME&tls=true&sasl=MECHANISM]
//! ```
//!
//! A standard URL has one host, so this module parses the list of brokers. User and password are
//! percent-encoded as in any URL (`@` is `%40`, `,` is `%2C`).

use std::fmt;

use jobwire_core::Lane;
use jobwire_core::transport::{BadSetting, HostPort, TransportError};

use crate::mechanism::Mechanism;

/// The port of a broker without one in the URL.
const DEFAULT_PORT: u16 = 9092;
/// The prefix of a URL without one.
const DEFAULT_PREFIX: &str = "jobwire";
/// Maximum length of the prefix: a topic's name has at most 249 characters; a lane takes up to 64
/// of them, and `.lane.` six.
const LONGEST_PREFIX: usize = 150;

/// A parsed URL. Names begin with the prefix: a lane is the topic `<prefix>.lane.<lane>`, control
/// messages use the topic `<prefix>.control`, and the nodes of a lane are the group
/// `<prefix>.workers.<lane>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// The brokers to connect to first; they name the others. At least one.
    pub(crate) brokers: Vec<HostPort>,
    prefix: String,
    group: String,
    pub(crate) tls: bool,
    pub(crate) mechanism: Option<Mechanism>,
    pub(crate) credentials: Option<Credentials>,
}

/// A user and a password. Neither `Debug` nor `Display` shows the password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// The user.
    pub(crate) user: String,
    password: String,
}

impl Credentials {
    /// Returns the password, for the client library only.
    pub(crate) fn password(&self) -> &str {
        &self.password
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// The error of an invalid URL. Repeats nothing of the part before `@`, so no password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the broker's URL: {field} {problem}; {remedy}")]
pub(crate) struct BadKafkaUrl {
    /// `scheme`, `brokers`, `user`, `prefix`, or the parameter's name.
    pub(crate) field: &'static str,
    /// The problem, in words that follow the field's name.
    pub(crate) problem: String,
    /// The remedy.
    pub(crate) remedy: &'static str,
}

impl From<BadKafkaUrl> for TransportError {
    fn from(bad: BadKafkaUrl) -> Self {
        Self::Setting(BadSetting {
            setting: "broker_url",
            problem: format!("{} {}", bad.field, bad.problem),
            remedy: bad.remedy.to_owned(),
        })
    }
}

impl Endpoint {
    /// Parses a URL.
    ///
    /// # Errors
    /// [`BadKafkaUrl`] names the first invalid part.
    pub(crate) fn parse(url: &str) -> Result<Self, BadKafkaUrl> {
        let rest = url.strip_prefix("kafka://").ok_or(BadKafkaUrl {
            field: "scheme",
            problem: "is not `kafka://`".to_owned(),
            remedy: "write kafka://host:9092/prefix",
        })?;
        let (rest, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        let prefix = match path {
            "" => DEFAULT_PREFIX.to_owned(),
            path => valid_prefix(path)?,
        };
        let mut options = Self {
            brokers: hosts.split(',').map(broker).collect::<Result<_, _>>()?,
            group: format!("{prefix}.workers"),
            prefix,
            tls: false,
            mechanism: None,
            credentials: user.map(credentials).transpose()?,
        };
        options.set(parameters)?;
        Ok(options)
    }

    /// Returns the value of `bootstrap.servers`.
    pub(crate) fn bootstrap(&self) -> String {
        let brokers: Vec<String> = self.brokers.iter().map(ToString::to_string).collect();
        brokers.join(",")
    }

    /// Returns the topic of a lane.
    pub(crate) fn topic(&self, lane: &Lane) -> String {
        format!("{}.lane.{lane}", self.prefix)
    }

    /// Returns the topic of control messages.
    pub(crate) fn control_topic(&self) -> String {
        format!("{}.control", self.prefix)
    }

    /// Returns the topic of the event stream.
    pub(crate) fn events_topic(&self) -> String {
        format!("{}.events", self.prefix)
    }

    /// Returns the consumer group whose members share the partitions of a lane.
    pub(crate) fn group(&self, lane: &Lane) -> String {
        format!("{}.{lane}", self.group)
    }

    fn set(&mut self, parameters: &str) -> Result<(), BadKafkaUrl> {
        let mut seen: Vec<String> = Vec::new();
        for (name, value) in url::form_urlencoded::parse(parameters.as_bytes()) {
            if seen.contains(&name.to_string()) {
                return Err(BadKafkaUrl {
                    field: "parameters",
                    problem: format!("contain {} twice", shown(&name)),
                    remedy: "give it once",
                });
            }
            match &*name {
                "group" => self.group = valid_group(&value)?,
                "tls" => self.tls = truth(&value)?,
                "sasl" => self.mechanism = Some(mechanism(&value)?),
                other => {
                    return Err(BadKafkaUrl {
                        field: "parameters",
                        problem: format!("contain the unknown {}", shown(other)),
                        remedy: "use `group`, `tls` or `sasl`",
                    });
                }
            }
            seen.push(name.into_owned());
        }
        Ok(())
    }
}

/// The form for logs, without the password.
impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("kafka://")?;
        if let Some(credentials) = &self.credentials {
            write!(f, "{}@", credentials.user)?;
        }
        for (n, broker) in self.brokers.iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            write!(f, "{comma}{broker}")?;
        }
        write!(f, "/{} (group '{}'", self.prefix, self.group)?;
        f.write_str(if self.tls { ", tls)" } else { ")" })
    }
}

/// Returns a part of the URL as an error may show it. If a password contains an unencoded `/` or
/// `?`, its rest up to the `@` is in the place of the prefix or of a parameter.
fn shown(text: &str) -> String {
    if text.contains('@') {
        "text with an `@`, which is not shown because it may be part of a password".to_owned()
    } else {
        format!("`{}`", text.escape_debug())
    }
}

fn broker(text: &str) -> Result<HostPort, BadKafkaUrl> {
    let wrong = |problem: String, remedy| BadKafkaUrl {
        field: "brokers",
        problem,
        remedy,
    };
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest
            .split_once(']')
            .filter(|(host, _)| host.parse::<std::net::Ipv6Addr>().is_ok())
            .ok_or_else(|| {
                wrong(
                    "contain a `[` that no IPv6 address with a `]` follows".to_owned(),
                    "write for example [::1]:9092",
                )
            })?;
        match after {
            "" => (host, None),
            after => (host, Some(after.strip_prefix(':').unwrap_or(after))),
        }
    } else {
        match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    if host.is_empty() {
        return Err(wrong(
            "contain an empty name".to_owned(),
            "write host:port, separated by commas if there are several",
        ));
    }
    let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    if !host.chars().all(named) {
        return Err(wrong(
            "contain a name with characters other than letters, digits, `-`, `_` and `.`"
                .to_owned(),
            "write host:port, separated by commas if there are several; in a password write `/` as \
             %2F, `?` as %3F",
        ));
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => port.parse().ok().filter(|p| *p > 0).ok_or_else(|| {
            wrong(
                format!("give a port for '{host}' that is not a number from 1 to 65535"),
                "write host:9092; in a password write `/` as %2F, `?` as %3F",
            )
        })?,
    };
    Ok(HostPort {
        host: host.to_owned(),
        port,
    })
}

fn credentials(text: &str) -> Result<Credentials, BadKafkaUrl> {
    let wrong = |problem: &str, remedy| BadKafkaUrl {
        field: "user",
        problem: problem.to_owned(),
        remedy,
    };
    let (user, password) = text
        .split_once(':')
        .ok_or_else(|| wrong("has no password", "write user:password@host"))?;
    let decode = |part: &str| {
        percent_decoded(part).ok_or_else(|| {
            wrong(
                "or password is not percent-encoded UTF-8",
                "write `%` as %25, `@` as %40, `:` as %3A",
            )
        })
    };
    let (user, password) = (decode(user)?, decode(password)?);
    if user.is_empty() {
        return Err(wrong("is empty", "write user:password@host"));
    }
    Ok(Credentials { user, password })
}

/// Returns `None` if a `%` is not followed by two hexadecimal digits, or the bytes are not UTF-8.
fn percent_decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (code, rest) = part.split_at_checked(2)?;
        if !code.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(code, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

fn valid_prefix(prefix: &str) -> Result<String, BadKafkaUrl> {
    let ok = prefix.len() <= LONGEST_PREFIX
        && prefix
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if ok {
        Ok(prefix.to_owned())
    } else {
        Err(BadKafkaUrl {
            field: "prefix",
            problem: format!("is {}", shown(prefix)),
            remedy: "use 1 to 150 letters, digits, `-`, `_` or `.`",
        })
    }
}

fn valid_group(group: &str) -> Result<String, BadKafkaUrl> {
    if (1..=255).contains(&group.len()) && !group.chars().any(char::is_control) {
        Ok(group.to_owned())
    } else {
        Err(BadKafkaUrl {
            field: "group",
            problem: format!("has {} bytes or a control character", group.len()),
            remedy: "use 1 to 255 printable characters",
        })
    }
}

fn mechanism(value: &str) -> Result<Mechanism, BadKafkaUrl> {
    value.parse().map_err(|()| BadKafkaUrl {
        field: "sasl",
        problem: format!("is {}", shown(value)),
        remedy: "write sasl=SCRAM-SHA-512, SCRAM-SHA-256, PLAIN or OAUTHBEARER",
    })
}

fn truth(value: &str) -> Result<bool, BadKafkaUrl> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        other => Err(BadKafkaUrl {
            field: "tls",
            problem: format!("is {}", shown(other)),
            remedy: "write tls=true or tls=false",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_url_takes_the_defaults() {
        let endpoint = Endpoint::parse("kafka://localhost").unwrap();
        assert_eq!(
            endpoint.to_string(),
            "kafka://localhost:9092/jobwire (group 'jobwire.workers')"
        );
        assert_eq!(endpoint.topic(&Lane::default()), "jobwire.lane.default");
        assert_eq!(endpoint.control_topic(), "jobwire.control");
        assert_eq!((endpoint.tls, endpoint.credentials), (false, None));
    }

    #[test]
    fn every_part_of_a_url_is_read() {
        let url = "kafka://bob:s3cr%2Ft%40@k1:9093,k2,[::1]:9094/billing?group=invoices&tls=true&sasl=SCRAM-SHA-256";
        let endpoint = Endpoint::parse(url).unwrap();
        let brokers: Vec<String> = endpoint.brokers.iter().map(ToString::to_string).collect();
        assert_eq!(brokers, ["k1:9093", "k2:9092", "[::1]:9094"]);
        assert_eq!(
            (&*endpoint.prefix, &*endpoint.group),
            ("billing", "invoices")
        );
        assert!(endpoint.tls);
        assert_eq!(endpoint.mechanism, Some(Mechanism::ScramSha256));
        assert_eq!(endpoint.group(&Lane::default()), "invoices.default");
        assert_eq!(endpoint.credentials.unwrap().password(), "s3cr/t@");
    }

    #[test]
    fn a_password_is_never_shown() {
        let endpoint = Endpoint::parse("kafka://bob:hunter2@host").unwrap();
        assert!(!format!("{endpoint:?} {endpoint}").contains("hunter2"));
        for url in [
            "kafka:/bob:hunter2@host",
            "kafka://bob:hunter2@",
            "kafka://bob:hunter2@host:port",
            "kafka://bob:hunter2%zz@host",
            "kafka://bob:hunter2@host/a b",
            "kafka://bob:hunter2@host?tsl=true",
            "kafka://bob:hunter2/@host",
            "kafka://bob:1/hunter2@host",
            "kafka://bob:1?hunter2@host",
        ] {
            let error = Endpoint::parse(url).unwrap_err();
            assert!(!format!("{error:?} {error}").contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn mistakes_name_the_field_and_the_remedy() {
        for (url, field) in [
            ("", "scheme"),
            ("amqp://host", "scheme"),
            ("kafka://", "brokers"),
            ("kafka://k1,,k2", "brokers"),
            ("kafka://k1:0", "brokers"),
            ("kafka://k1:99999", "brokers"),
            ("kafka://[k1]:9092", "brokers"),
            ("kafka://k 1", "brokers"),
            ("kafka://bob@host", "user"),
            ("kafka://:secret@host", "user"),
            ("kafka://host/a/b", "prefix"),
            ("kafka://host?group=", "group"),
            ("kafka://host?tls=yes", "tls"),
            ("kafka://host?sasl=GSSAPI", "sasl"),
            ("kafka://host?acks=0", "parameters"),
            ("kafka://host?tls=true&tls=false", "parameters"),
        ] {
            let error = Endpoint::parse(url).unwrap_err();
            assert_eq!(error.field, field, "{url}: {error}");
            assert!(!error.remedy.is_empty());
        }
    }
}

//! What can be set about Kafka, and how it is written in a URL.
//!
//! ```text
//! kafka://[user:password@]host[:port][,host[:port]]…[/prefix][?group=NAME&tls=true]
//! ```
//!
//! The standard URL has one host only, so the list of brokers is read here; names and passwords are
//! percent-encoded as everywhere (`@` is `%40`, `,` is `%2C`).

use std::fmt;

/// The port of a broker that names none.
const DEFAULT_PORT: u16 = 9092;
/// The prefix of a URL that names none.
const DEFAULT_PREFIX: &str = "jobwire";
/// A topic's name has at most 249 characters, of which a lane may take 64 and `.lane.` six.
const LONGEST_PREFIX: usize = 150;

/// Settings of the Kafka transport. There is no transport yet; see the [crate](crate).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KafkaOptions {
    /// Brokers to ask first; they name the others. At least one. No default.
    pub brokers: Vec<Broker>,
    /// Begins every topic's name: lanes are `<prefix>.lane.<lane>`, the topic for what nodes tell each
    /// other is `<prefix>.control`. 1 to 150 letters, digits, `-`, `_` or `.`. Default: `jobwire`.
    pub prefix: String,
    /// The consumer group in which a fleet shares the partitions of its lanes. 1 to 255 characters.
    /// Default: `<prefix>.workers`.
    pub group: String,
    /// Speak TLS to the brokers. Default: no.
    pub tls: bool,
    /// User and password (SASL). Default: none.
    pub credentials: Option<Credentials>,
}

/// The address of one broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broker {
    /// Name or address; an IPv6 address without its brackets.
    pub host: String,
    /// Default: 9092.
    pub port: u16,
}

impl fmt::Display for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A user and a password. Neither `Debug` nor [`KafkaOptions`]'s `Display` shows the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user.
    pub user: String,
    password: String,
}

impl Credentials {
    /// The password, for the client library and nobody else.
    #[must_use]
    pub fn password(&self) -> &str {
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

/// A URL that can't be read: which part, what is wrong with it, and what to do. Repeats nothing of the
/// part before `@`, so no password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the broker's URL: {field} {problem}; {remedy}")]
pub struct BadKafkaUrl {
    /// `scheme`, `brokers`, `user`, `prefix`, or the parameter's name.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: String,
    /// What to do.
    pub remedy: &'static str,
}

impl KafkaOptions {
    /// Read a URL.
    ///
    /// # Errors
    /// [`BadKafkaUrl`] names the first part that can't be read.
    pub fn parse(url: &str) -> Result<Self, BadKafkaUrl> {
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
            credentials: user.map(credentials).transpose()?,
        };
        options.set(parameters)?;
        Ok(options)
    }

    /// The topic of a lane.
    #[must_use]
    pub fn topic(&self, lane: &str) -> String {
        format!("{}.lane.{lane}", self.prefix)
    }

    /// The topic of what nodes tell each other.
    #[must_use]
    pub fn control_topic(&self) -> String {
        format!("{}.control", self.prefix)
    }

    fn set(&mut self, parameters: &str) -> Result<(), BadKafkaUrl> {
        let mut seen: Vec<String> = Vec::new();
        for (name, value) in url::form_urlencoded::parse(parameters.as_bytes()) {
            if seen.contains(&name.to_string()) {
                return Err(BadKafkaUrl {
                    field: "parameters",
                    problem: format!("give {} twice", shown(&name)),
                    remedy: "give it once",
                });
            }
            match &*name {
                "group" => self.group = valid_group(&value)?,
                "tls" => self.tls = truth(&value)?,
                other => {
                    return Err(BadKafkaUrl {
                        field: "parameters",
                        problem: format!("name {}, which is not known", shown(other)),
                        remedy: "use `group` or `tls`",
                    });
                }
            }
            seen.push(name.into_owned());
        }
        Ok(())
    }
}

/// As it can be logged: without the password.
impl fmt::Display for KafkaOptions {
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

/// A part as an error may show it. Behind a password with an unencoded `/` or `?` the rest of that
/// password stands where the prefix or a parameter is expected, up to the `@`.
fn shown(text: &str) -> String {
    if text.contains('@') {
        "something with an `@`, which is not shown as it may be part of a password".to_owned()
    } else {
        format!("`{}`", text.escape_debug())
    }
}

fn broker(text: &str) -> Result<Broker, BadKafkaUrl> {
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
                    "hold a `[` without an IPv6 address and `]` behind it".to_owned(),
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
            "hold an empty name".to_owned(),
            "write host:port, several with commas between them",
        ));
    }
    let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':');
    if !host.chars().all(named) {
        return Err(wrong(
            "hold a name with other than letters, digits, `-`, `_` or `.`".to_owned(),
            "write host:port, several with commas between them; in a password write `/` as %2F, `?` as %3F",
        ));
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => port.parse().ok().filter(|p| *p > 0).ok_or_else(|| {
            wrong(
                format!("give no number from 1 to 65535 as the port of '{host}'"),
                "write host:9092; in a password write `/` as %2F, `?` as %3F",
            )
        })?,
    };
    Ok(Broker {
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

/// `None` where a `%` is not followed by two hexadecimal digits, or the bytes are not UTF-8.
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
        let options = KafkaOptions::parse("kafka://localhost").unwrap();
        assert_eq!(
            options.to_string(),
            "kafka://localhost:9092/jobwire (group 'jobwire.workers')"
        );
        assert_eq!(options.topic("default"), "jobwire.lane.default");
        assert_eq!(options.control_topic(), "jobwire.control");
        assert_eq!((options.tls, options.credentials), (false, None));
    }

    #[test]
    fn every_part_of_a_url_is_read() {
        let url = "kafka://bob:s3cr%2Ft%40@k1:9093,k2,[::1]:9094/billing?group=invoices&tls=true";
        let options = KafkaOptions::parse(url).unwrap();
        let brokers: Vec<String> = options.brokers.iter().map(ToString::to_string).collect();
        assert_eq!(brokers, ["k1:9093", "k2:9092", "[::1]:9094"]);
        assert_eq!((&*options.prefix, &*options.group), ("billing", "invoices"));
        assert!(options.tls);
        assert_eq!(options.credentials.unwrap().password(), "s3cr/t@");
    }

    #[test]
    fn a_password_is_never_shown() {
        let options = KafkaOptions::parse("kafka://bob:hunter2@host").unwrap();
        assert!(!format!("{options:?} {options}").contains("hunter2"));
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
            let error = KafkaOptions::parse(url).unwrap_err();
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
            ("kafka://host?acks=0", "parameters"),
            ("kafka://host?tls=true&tls=false", "parameters"),
        ] {
            let error = KafkaOptions::parse(url).unwrap_err();
            assert_eq!(error.field, field, "{url}: {error}");
            assert!(!error.remedy.is_empty());
        }
    }
}

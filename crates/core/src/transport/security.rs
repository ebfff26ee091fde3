//! Security of the connection to a broker: the same settings, with the same meaning, on every
//! broker.
//!
//! A transport that uses a network takes [`BrokerSecurity`] with its options, calls
//! [`mistakes`](BrokerSecurity::mistakes) before it connects, and reads the files itself, with its
//! own TLS library. No option turns verification off: over TLS, a broker presents a certificate of
//! a trusted authority that names the host, or the connection is refused.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;

/// The security settings of a connection to a broker. By default, TLS is used if the URL asks for
/// it, with the authorities that this machine trusts. Without TLS, only connections to this machine
/// itself are allowed.
///
/// ```
/// use jobwire_core::transport::{BrokerSecurity, Plaintext};
/// let security = BrokerSecurity {
///     ca: Some("/etc/jobwire/ca.pem".into()),
///     ..BrokerSecurity::default()
/// };
/// assert_eq!(security.plaintext, Plaintext::Loopback);
/// assert!(security.mistakes(true, ["broker.example.org"]).is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrokerSecurity {
    /// A PEM file with the authorities that sign the broker's certificate; only these are trusted.
    /// Setting `broker_tls_ca`. Default: the authorities that this machine trusts.
    pub ca: Option<PathBuf>,
    /// A PEM file with this client's certificate and the intermediate certificates up to its
    /// authority. Setting `broker_tls_certificate`. Default: none.
    pub certificate: Option<PathBuf>,
    /// A PEM file with the unencrypted private key of the certificate. Setting `broker_tls_key`.
    pub key: Option<PathBuf>,
    /// The hosts to which a connection may go without TLS. Setting `broker_plaintext`.
    pub plaintext: Plaintext,
}

/// The hosts to which a connection may go without TLS. Without TLS, others on the network can read
/// the password and forge hints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Plaintext {
    /// This machine only.
    #[default]
    Loopback,
    /// Any host: the network is trusted, or encrypts by itself.
    Allow,
}

impl fmt::Display for Plaintext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Loopback => "loopback",
            Self::Allow => "allow",
        })
    }
}

impl FromStr for Plaintext {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "loopback" => Ok(Self::Loopback),
            "allow" => Ok(Self::Allow),
            _ => Err("write `loopback` or `allow`".to_owned()),
        }
    }
}

/// An option that is wrong. The text names the option of the library and the setting of the
/// program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} (setting `{setting}`): {problem}; {remedy}", option(.setting))]
pub struct BadSetting {
    /// The key of the setting of the program.
    pub setting: &'static str,
    /// The problem.
    pub problem: String,
    /// The action that solves the problem.
    pub remedy: String,
}

/// Returns the option of the library that has this setting: the names are the same without the
/// prefix.
fn option(setting: &str) -> String {
    match setting {
        "broker_url" => return "the broker's URL".to_owned(),
        "kafka_oauth_token_file" => return "option `tokens`".to_owned(),
        _ => {}
    }
    if let Some(file) = setting.strip_prefix("broker_tls_") {
        return format!("option `security.{file}`");
    }
    let prefixes = ["broker_", "amqp_", "kafka_"];
    let name = prefixes
        .iter()
        .find_map(|prefix| setting.strip_prefix(prefix));
    format!("option `{}`", name.unwrap_or(setting))
}

impl BrokerSecurity {
    /// Returns all settings that conflict with a URL that asks for TLS (or not) to these hosts.
    /// Reads no file.
    #[must_use]
    pub fn mistakes<'a>(
        &self,
        tls: bool,
        hosts: impl IntoIterator<Item = &'a str>,
    ) -> Vec<BadSetting> {
        let mut mistakes = Vec::new();
        let mut wrong = |setting, problem: String, remedy: &str| {
            mistakes.push(BadSetting {
                setting,
                problem,
                remedy: remedy.to_owned(),
            });
        };
        if !tls {
            for (setting, file) in self.files() {
                if file.is_some() {
                    wrong(
                        setting,
                        "has no effect, since the broker's URL does not ask for TLS".to_owned(),
                        "write `amqps://…` (RabbitMQ) or `…?tls=true` (Kafka) as the broker's URL, \
                         or leave it out",
                    );
                }
            }
            let strange = hosts.into_iter().find(|host| !is_loopback(host));
            if let (Plaintext::Loopback, Some(host)) = (self.plaintext, strange) {
                wrong(
                    "broker_url",
                    format!(
                        "would send the password and every hint to '{host}' unencrypted, where \
                         others on the network can read and forge them"
                    ),
                    "write `amqps://…` (RabbitMQ) or `…?tls=true` (Kafka); or, if the network is \
                     trusted, set `security.plaintext` (setting `broker_plaintext`) to `allow`",
                );
            }
            return mistakes;
        }
        match (&self.certificate, &self.key) {
            (Some(_), None) => wrong(
                "broker_tls_key",
                "is missing, but the certificate is set".to_owned(),
                "name the file with the private key of that certificate",
            ),
            (None, Some(_)) => wrong(
                "broker_tls_certificate",
                "is missing, but the key is set".to_owned(),
                "name the file with the certificate of that key",
            ),
            _ => {}
        }
        mistakes
    }

    /// Returns each file, with the setting that names it.
    #[must_use]
    pub fn files(&self) -> [(&'static str, Option<&PathBuf>); 3] {
        [
            ("broker_tls_ca", self.ca.as_ref()),
            ("broker_tls_certificate", self.certificate.as_ref()),
            ("broker_tls_key", self.key.as_ref()),
        ]
    }
}

/// Returns whether this name or address (an IPv6 address with or without brackets) is this machine
/// itself.
#[must_use]
pub fn is_loopback(host: &str) -> bool {
    let host = host.strip_prefix('[').unwrap_or(host);
    let host = host.strip_suffix(']').unwrap_or(host);
    if let Ok(address) = host.parse::<Ipv4Addr>() {
        return address.is_loopback();
    }
    if let Ok(address) = host.parse::<Ipv6Addr>() {
        return address.is_loopback()
            || address.to_ipv4_mapped().is_some_and(|v4| v4.is_loopback());
    }
    // RFC 6761 reserves this name, and all names below it, for the machine itself.
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    host == "localhost" || host.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(mistakes: &[BadSetting]) -> Vec<&'static str> {
        mistakes.iter().map(|mistake| mistake.setting).collect()
    }

    #[test]
    fn an_error_names_the_option_of_the_library_and_the_setting_of_the_program() {
        let text = |setting| {
            let (problem, remedy) = ("is wrong".to_owned(), "correct it".to_owned());
            BadSetting {
                setting,
                problem,
                remedy,
            }
            .to_string()
        };
        for (setting, expected) in [
            (
                "broker_url",
                "the broker's URL (setting `broker_url`): is wrong; correct it",
            ),
            (
                "broker_tls_ca",
                "option `security.ca` (setting `broker_tls_ca`): is wrong; correct it",
            ),
            (
                "kafka_linger",
                "option `linger` (setting `kafka_linger`): is wrong; correct it",
            ),
        ] {
            assert_eq!(text(setting), expected);
        }
    }

    #[test]
    fn only_this_machine_is_loopback() {
        for host in [
            "localhost",
            "LOCALHOST.",
            "mq.localhost",
            "127.0.0.1",
            "127.8.9.1",
            "::1",
            "[::1]",
            "::ffff:127.0.0.1",
        ] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "",
            "broker",
            "localhost.example.org",
            "notlocalhost",
            "127.0.0.1.example.org",
            "10.0.0.1",
            "0.0.0.0",
            "::",
            "fd00::1",
            "::ffff:10.0.0.1",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[test]
    fn without_tls_only_this_machine_is_spoken_to_unless_a_setting_says_so() {
        let mut security = BrokerSecurity::default();
        assert!(security.mistakes(false, ["localhost", "::1"]).is_empty());
        let mistakes = security.mistakes(false, ["localhost", "broker"]);
        assert_eq!(settings(&mistakes), ["broker_url"]);
        let said = mistakes[0].to_string();
        for part in ["'broker'", "amqps://", "tls=true", "broker_plaintext"] {
            assert!(said.contains(part), "{part} in {said}");
        }
        assert!(security.mistakes(true, ["broker"]).is_empty());
        security.plaintext = Plaintext::Allow;
        assert!(security.mistakes(false, ["broker"]).is_empty());
    }

    #[test]
    fn files_that_would_be_ignored_are_a_mistake() {
        let security = BrokerSecurity {
            ca: Some("ca.pem".into()),
            certificate: Some("client.pem".into()),
            key: Some("client.key".into()),
            ..BrokerSecurity::default()
        };
        assert!(security.mistakes(true, ["broker"]).is_empty());
        assert_eq!(
            settings(&security.mistakes(false, ["localhost"])),
            ["broker_tls_ca", "broker_tls_certificate", "broker_tls_key"]
        );
    }

    #[test]
    fn a_certificate_needs_its_key() {
        let mut security = BrokerSecurity {
            certificate: Some("client.pem".into()),
            ..BrokerSecurity::default()
        };
        assert_eq!(
            settings(&security.mistakes(true, ["broker"])),
            ["broker_tls_key"]
        );
        security.key = security.certificate.take();
        assert_eq!(
            settings(&security.mistakes(true, ["broker"])),
            ["broker_tls_certificate"]
        );
    }

    #[test]
    fn where_plaintext_may_go_is_a_word() {
        for word in [Plaintext::Loopback, Plaintext::Allow] {
            assert_eq!(word.to_string().parse(), Ok(word));
        }
        assert!("never".parse::<Plaintext>().is_err());
    }
}

//! Checks the brokers' URLs: the features of this program, the security, and the combination.

use jobwire_core::Lane;
use jobwire_core::transport::{BadSetting, Plaintext};

use super::{SecretUrl, Settings};

const FORMS: &str = "write `none`, `in-process:`, `amqps://user:password@host:5671/virtual-host`, \
                     `amqp://…` or `kafka://…`";

/// The brokers that a program was built for.
#[derive(Clone, Copy, Debug)]
struct Built {
    amqp: bool,
    kafka: bool,
}

const BUILT: Built = Built {
    amqp: cfg!(feature = "amqp"),
    kafka: cfg!(feature = "kafka"),
};

/// The mistakes, each with its setting.
type Wrong = Vec<(&'static str, String)>;

impl Settings {
    /// Returns these settings with names of their own on the broker, so that a bench or a demo
    /// beside running nodes takes none of their hints. A prefix that was given stays.
    pub(crate) fn with_names_of(mut self, what: &str) -> Self {
        #[cfg(feature = "amqp")]
        if !self.is_given("amqp_prefix") {
            self.amqp_prefix = format!("{}.{what}", self.amqp_prefix);
        }
        if self.broker_url.scheme() == "kafka" {
            let named = with_kafka_prefix(self.broker_url.expose(), &format!("jobwire.{what}"));
            self.broker_url = SecretUrl::new(named);
        }
        self
    }
}

/// Returns the URL with this prefix if it has none.
fn with_kafka_prefix(url: &str, prefix: &str) -> String {
    let (brokers, parameters) = match url.split_once('?') {
        Some((brokers, parameters)) => (brokers, format!("?{parameters}")),
        None => (url, String::new()),
    };
    let brokers = brokers.strip_suffix('/').unwrap_or(brokers);
    let path = brokers.split_once("://").map_or(brokers, |(_, rest)| rest);
    if path.contains('/') {
        return url.to_owned();
    }
    format!("{brokers}/{prefix}{parameters}")
}

/// Returns all mistakes in the settings of the brokers.
pub(super) fn check(settings: &Settings) -> Wrong {
    let mut wrong = one(settings, "broker_url", &settings.broker_url);
    wrong.extend(several(settings));
    wrong
}

fn several(settings: &Settings) -> Wrong {
    let mut wrong = Vec::new();
    let lanes = &settings.second_broker_lanes;
    let is_given = |url: &SecretUrl| !url.expose().is_empty();
    let others = [
        ("second_broker_url", &settings.second_broker_url),
        ("former_broker_url", &settings.former_broker_url),
    ];
    for (setting, url) in others {
        if !is_given(url) {
            continue;
        }
        let has_none = |url: &SecretUrl| matches!(url.scheme(), "in-process" | "none");
        if has_none(url) || has_none(&settings.broker_url) {
            let problem = "can't be combined with `in-process:` or `none`; set both this and \
                           `broker_url` to a broker, or leave this out";
            wrong.push((setting, problem.to_owned()));
        } else if url.expose() == settings.broker_url.expose() {
            let problem = "is the same as `broker_url`; leave it out";
            wrong.push((setting, problem.to_owned()));
        } else {
            wrong.extend(one(settings, setting, url));
        }
    }
    if is_given(&settings.second_broker_url) == lanes.is_empty() {
        let (setting, problem) = if lanes.is_empty() {
            (
                "second_broker_url",
                "carries no lane; set `second_broker_lanes`",
            )
        } else {
            (
                "second_broker_lanes",
                "these lanes have no broker; set `second_broker_url`",
            )
        };
        wrong.push((setting, problem.to_owned()));
    }
    for lane in lanes.iter().filter(|lane| !Lane::is_valid(lane)) {
        wrong.push((
            "second_broker_lanes",
            format!("`{lane}` is not a lane's name; use 1 to 64 letters, digits, `-`, `_` or `.`"),
        ));
    }
    wrong
}

/// Returns the mistakes of one broker. The library's mistakes in the URL are reported for
/// `setting`.
fn one(settings: &Settings, setting: &'static str, url: &SecretUrl) -> Wrong {
    let settings = &settings.for_broker(url);
    if let Err(problem) = known(url.scheme(), url.expose(), BUILT) {
        return vec![(setting, problem)];
    }
    let wrong: Wrong = match url.scheme() {
        "in-process" | "none" => settings
            .broker_security()
            .files()
            .into_iter()
            .filter(|(_, file)| file.is_some())
            .map(|(setting, _)| {
                let problem = "has no effect: `broker_url` names no broker; leave this setting \
                               out";
                (setting, problem.to_owned())
            })
            .collect(),
        #[cfg(feature = "amqp")]
        "amqp" | "amqps" => told(settings.amqp_options().mistakes_with(url.expose())),
        #[cfg(feature = "kafka")]
        "kafka" => told(settings.kafka_options().mistakes_with(url.expose())),
        _ => Vec::new(),
    };
    wrong
        .into_iter()
        .map(|(about, problem)| {
            (
                if about == "broker_url" {
                    setting
                } else {
                    about
                },
                problem,
            )
        })
        .collect()
}

impl Settings {
    /// Returns the settings for one of several brokers, without the files for TLS if this broker
    /// uses no TLS. If no broker uses TLS, the files stay, and a mistake reports that they have no
    /// effect.
    #[must_use]
    pub fn for_broker(&self, url: &SecretUrl) -> Self {
        let mut settings = self.clone();
        let all = [
            &self.broker_url,
            &self.second_broker_url,
            &self.former_broker_url,
        ];
        if !asks_for_tls(url) && all.into_iter().any(asks_for_tls) {
            settings.broker_tls_ca = None;
            settings.broker_tls_certificate = None;
            settings.broker_tls_key = None;
        }
        settings
    }

    /// Returns whether the connection to the broker leaves this machine without TLS, as
    /// `broker_plaintext` allows.
    #[must_use]
    pub fn is_in_the_clear(&self) -> bool {
        let strict = Self {
            broker_plaintext: Plaintext::Loopback,
            ..self.clone()
        };
        self.broker_plaintext != Plaintext::Loopback && !check(&strict).is_empty()
    }
}

fn asks_for_tls(url: &SecretUrl) -> bool {
    match url.scheme() {
        "amqps" => true,
        "kafka" => {
            let (_, parameters) = url.expose().split_once('?').unwrap_or_default();
            url::form_urlencoded::parse(parameters.as_bytes())
                .any(|(name, value)| name == "tls" && value == "true")
        }
        _ => false,
    }
}

/// Converts the mistakes that a library found.
#[cfg_attr(
    not(any(feature = "amqp", feature = "kafka")),
    allow(dead_code, reason = "for brokers that this build lacks")
)]
fn told(mistakes: Vec<BadSetting>) -> Wrong {
    mistakes
        .into_iter()
        .map(|bad| (bad.setting, format!("{}; {}", bad.problem, bad.remedy)))
        .collect()
}

/// Checks that this program supports the scheme.
fn known(scheme: &str, url: &str, built: Built) -> Result<(), String> {
    let lacks = |broker: &str, feature: &str| {
        Err(format!(
            "this program was built without {broker}; use a program built with the feature \
             `{feature}` (on by default), or another broker"
        ))
    };
    match scheme {
        "in-process" if url == "in-process:" => Ok(()),
        "none" if url == "none:" => Ok(()),
        "amqp" | "amqps" if built.amqp => Ok(()),
        "amqp" | "amqps" => lacks("RabbitMQ", "amqp"),
        "kafka" if built.kafka => Ok(()),
        "kafka" => lacks("Kafka", "kafka"),
        "" | "in-process" | "none" => Err(format!("is not a broker's URL; {FORMS}")),
        other => Err(format!("`{other}` is not a supported broker; {FORMS}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_build_lacks_is_named_with_its_feature() {
        let nothing = Built {
            amqp: false,
            kafka: false,
        };
        for (url, feature) in [
            ("amqp://mq", "`amqp`"),
            ("amqps://mq", "`amqp`"),
            ("kafka://k1", "`kafka`"),
        ] {
            let (scheme, _) = url.split_once(':').expect("a scheme");
            let problem = known(scheme, url, nothing).expect_err("not built in");
            assert!(
                problem.contains("built without") && problem.contains(feature),
                "{problem}"
            );
        }
        assert!(known("in-process", "in-process:", nothing).is_ok());
        assert!(known("none", "none:", nothing).is_ok());
        assert!(known("none", "none:me", nothing).is_err());
    }
}

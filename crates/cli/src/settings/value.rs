//! Parses and shows the values of settings.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use jobwire_core::job::retry::BadRetryPolicy;
use jobwire_core::transport::Plaintext;
use jobwire_core::{
    LaneOrder, LaneShare, RetryFrom, RetryPolicy, StartOrder, TapMode, job::duration,
};

use super::SecretUrl;

/// A type of settings.
pub trait Value: Sized {
    /// Parses a value.
    ///
    /// # Errors
    /// Returns the mistake and the remedy.
    fn read(text: &str) -> Result<Self, String>;

    /// Returns the value in a form without passwords.
    fn shown(&self) -> String;

    /// Returns a text that could not be parsed, in a form without passwords.
    #[must_use]
    fn safe(text: &str) -> String {
        text.to_owned()
    }
}

impl Value for SecretUrl {
    fn read(text: &str) -> Result<Self, String> {
        Ok(Self::new(match text.trim() {
            // A word, as people write it.
            "none" => "none:",
            url => url,
        }))
    }
    fn shown(&self) -> String {
        self.to_string()
    }
    fn safe(text: &str) -> String {
        Self::new(text).to_string()
    }
}

impl Value for String {
    fn read(text: &str) -> Result<Self, String> {
        Ok(text.trim().to_owned())
    }
    fn shown(&self) -> String {
        self.clone()
    }
}

impl Value for Duration {
    fn read(text: &str) -> Result<Self, String> {
        duration::parse(text).map_err(|e| e.to_string())
    }
    fn shown(&self) -> String {
        duration::write(*self)
    }
}

impl Value for Option<Duration> {
    fn read(text: &str) -> Result<Self, String> {
        match text.trim() {
            "" => Ok(None),
            text => Duration::read(text).map(Some),
        }
    }
    fn shown(&self) -> String {
        self.map(duration::write).unwrap_or_default()
    }
}

impl Value for RetryPolicy {
    fn read(text: &str) -> Result<Self, String> {
        Self::parse(text).map_err(|error| {
            let problem = match &error {
                BadRetryPolicy::Duration(bad) => bad.problem(),
                _ => error.to_string(),
            };
            format!("{problem}; use for example `30s`, `exponential(1s, 2, 1h)` or `PT10M,PT17M`")
        })
    }
    fn shown(&self) -> String {
        match self {
            Self::Fixed(wait) => duration::write(*wait),
            other => other.to_string(),
        }
    }
}

impl Value for Option<PathBuf> {
    fn read(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.starts_with("-----BEGIN") {
            return Err("write the name of a file, not its content".to_owned());
        }
        Ok((!text.is_empty()).then(|| PathBuf::from(text)))
    }
    fn shown(&self) -> String {
        self.as_ref()
            .map(|path| path.display().to_string())
            .unwrap_or_default()
    }
    fn safe(text: &str) -> String {
        // A private key pasted here must not appear in a log.
        text.split_once("-----BEGIN")
            .map_or_else(|| text.to_owned(), |(before, _)| format!("{before}***"))
    }
}

impl Value for Plaintext {
    fn read(text: &str) -> Result<Self, String> {
        text.trim().parse()
    }
    fn shown(&self) -> String {
        self.to_string()
    }
}

/// An interval, or the word `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interval {
    /// Never.
    Off,
    /// Once in this time.
    Every(Duration),
}

impl Interval {
    /// Returns the interval; `None` means never.
    #[must_use]
    pub const fn duration(self) -> Option<Duration> {
        match self {
            Self::Off => None,
            Self::Every(duration) => Some(duration),
        }
    }
}

impl Value for Interval {
    fn read(text: &str) -> Result<Self, String> {
        match text.trim() {
            "off" => Ok(Self::Off),
            other => duration::parse(other)
                .map(Self::Every)
                .map_err(|e| format!("{e}; or write `off`")),
        }
    }
    fn shown(&self) -> String {
        match self {
            Self::Off => "off".to_owned(),
            Self::Every(every) => duration::write(*every),
        }
    }
}

impl Value for bool {
    fn read(text: &str) -> Result<Self, String> {
        match text.trim() {
            "true" | "yes" | "on" | "1" => Ok(true),
            "false" | "no" | "off" | "0" => Ok(false),
            _ => Err("write `true` or `false`".to_owned()),
        }
    }
    fn shown(&self) -> String {
        self.to_string()
    }
}

/// Returns the words of a list separated by commas.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
}

impl Value for Vec<LaneShare> {
    fn read(text: &str) -> Result<Self, String> {
        words(text).map(str::parse).collect()
    }
    fn shown(&self) -> String {
        self.iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(",")
    }
}

/// Returns the types of a list and what it says of each, in order.
fn by_type<'t>(
    text: &'t str,
    what: &str,
    example: &str,
) -> Result<Vec<(&'t str, &'t str)>, String> {
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    for word in words(text) {
        let Some((job_type, value)) = word.rsplit_once('=') else {
            return Err(format!(
                "`{word}` has no {what}; write, for example, `{example}`"
            ));
        };
        let job_type = job_type.trim();
        if job_type.is_empty() {
            return Err(format!(
                "`{word}` has no type; write, for example, `{example}`"
            ));
        }
        if pairs.iter().any(|(known, _)| *known == job_type) {
            return Err(format!("`{job_type}` is named twice; remove one"));
        }
        pairs.push((job_type, value.trim()));
    }
    Ok(pairs)
}

/// How many jobs of a type run at once on a node: `http=2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeConcurrency {
    /// The type.
    pub job_type: String,
    /// The maximum number of jobs.
    pub number: usize,
}

impl Value for Vec<TypeConcurrency> {
    fn read(text: &str) -> Result<Self, String> {
        let pairs = by_type(text, "number", "http=2")?.into_iter();
        let read = pairs.map(|(job_type, number)| {
            Ok(TypeConcurrency {
                job_type: job_type.to_owned(),
                number: usize::read(number)
                    .map_err(|problem| format!("the number of `{job_type}`: {problem}"))?,
            })
        });
        read.collect()
    }
    fn shown(&self) -> String {
        let shown = |of: &TypeConcurrency| format!("{}={}", of.job_type, of.number);
        self.iter().map(shown).collect::<Vec<_>>().join(",")
    }
}

/// A time that holds for a type: `http=2m`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeTimeout {
    /// The type.
    pub job_type: String,
    /// The time.
    pub timeout: Duration,
}

impl Value for Vec<TypeTimeout> {
    fn read(text: &str) -> Result<Self, String> {
        let pairs = by_type(text, "timeout", "http=2m")?.into_iter();
        let read = pairs.map(|(job_type, timeout)| {
            Ok(TypeTimeout {
                job_type: job_type.to_owned(),
                timeout: Duration::read(timeout)?,
            })
        });
        read.collect()
    }
    fn shown(&self) -> String {
        self.iter()
            .map(|of| format!("{}={}", of.job_type, duration::write(of.timeout)))
            .collect::<Vec<_>>()
            .join(",")
    }
}

impl Value for LaneOrder {
    fn read(text: &str) -> Result<Self, String> {
        Self::parse(text.trim()).ok_or_else(|| "write `weighted`, `strict` or `aging`".to_owned())
    }
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Value for StartOrder {
    fn read(text: &str) -> Result<Self, String> {
        text.parse()
    }
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Value for RetryFrom {
    fn read(text: &str) -> Result<Self, String> {
        Self::parse(text.trim()).ok_or_else(|| "write `now` or `due-date`".to_owned())
    }
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Value for TapMode {
    fn read(text: &str) -> Result<Self, String> {
        Self::parse(text.trim()).ok_or_else(|| "write `auto`, `on` or `off`".to_owned())
    }
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Value for Vec<String> {
    fn read(text: &str) -> Result<Self, String> {
        Ok(words(text).map(str::to_owned).collect())
    }
    fn shown(&self) -> String {
        self.join(",")
    }
}

/// The address of the HTTP endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HttpAddress {
    /// No endpoints are served.
    Off,
    /// Endpoints are served on `host:port`.
    At(String),
}

impl Value for HttpAddress {
    fn read(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text == "off" {
            return Ok(Self::Off);
        }
        let port = text
            .rsplit_once(':')
            .filter(|(host, _)| !host.is_empty())
            .and_then(|(_, port)| port.parse::<u16>().ok());
        match port {
            Some(_) => Ok(Self::At(text.to_owned())),
            None => Err(
                "write `host:port`, for example `127.0.0.1:7070` (port 0: any free port), or `off`"
                    .to_owned(),
            ),
        }
    }
    fn shown(&self) -> String {
        match self {
            Self::Off => "off".to_owned(),
            Self::At(address) => address.clone(),
        }
    }
}

macro_rules! words_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $text),+ })
            }
        }

        impl Value for $name {
            fn read(text: &str) -> Result<Self, String> {
                match text.trim() {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(format!("write {}", [$(concat!("`", $text, "`")),+].join(" or "))),
                }
            }
            fn shown(&self) -> String {
                self.to_string()
            }
        }
    };
}

words_enum! {
    /// The format of the log.
    LogFormat {
        /// Text for people.
        Text = "text",
        /// One JSON object per line.
        Json = "json"
    }
}

words_enum! {
    /// The type of the queue of a lane on RabbitMQ.
    QueueType {
        /// On one node of the broker: lowest latency.
        Classic = "classic",
        /// Replicated over a cluster.
        Quorum = "quorum"
    }
}

words_enum! {
    /// The type of a process engine.
    EngineType {
        /// Flowable.
        Flowable = "flowable",
        /// Camunda 7, or an engine with its schema.
        Camunda = "camunda",
        /// Activiti.
        Activiti = "activiti"
    }
}

words_enum! {
    /// The way in which the engine executes a job.
    EngineExecute {
        /// Chosen by the engine and its version.
        Auto = "auto",
        /// Over its REST interface.
        Rest = "rest",
        /// Over the execution endpoint.
        Endpoint = "endpoint"
    }
}

words_enum! {
    /// What is done with jobs of other scopes than processes.
    EngineOtherScopes {
        /// A start is refused.
        Refuse = "refuse",
        /// They stay with an engine node.
        Leave = "leave"
    }
}

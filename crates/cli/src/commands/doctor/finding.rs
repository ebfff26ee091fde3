//! The findings.

use std::fmt;

use jobwire_core::telemetry::plain;
use serde::Serialize;

use crate::error::with_settings_alone;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Level {
    /// No problem.
    Fine,
    /// No problem now, but a fact that the operator needs.
    Remark,
    /// A problem that must be repaired.
    Wrong,
}

/// The result of one check.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    /// The checked part.
    pub(super) about: &'static str,
    pub(super) level: Level,
    /// The result.
    pub(super) found: String,
    /// The remedy.
    pub(super) remedy: Option<String>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.level {
            Level::Fine => "ok     ",
            Level::Remark => "remark ",
            Level::Wrong => "WRONG  ",
        };
        write!(f, "{mark}{}: {}", self.about, self.found)?;
        match &self.remedy {
            Some(remedy) => write!(f, "\n       -> {remedy}"),
            None => Ok(()),
        }
    }
}

#[derive(Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    pub(super) fn fine(&mut self, about: &'static str, found: impl Into<String>) {
        self.add(about, Level::Fine, found.into(), None);
    }

    pub(super) fn remark(
        &mut self,
        about: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(about, Level::Remark, found.into(), Some(remedy.into()));
    }

    pub(super) fn wrong(
        &mut self,
        about: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(about, Level::Wrong, found.into(), Some(remedy.into()));
    }

    /// Adds an error whose text includes the remedy.
    pub(super) fn error(&mut self, about: &'static str, error: impl fmt::Display) {
        self.add(about, Level::Wrong, error.to_string(), None);
    }

    fn add(&mut self, about: &'static str, level: Level, found: String, remedy: Option<String>) {
        // Names from the database may contain line ends that forge a finding.
        self.0.push(Finding {
            about,
            level,
            found: plain::one_line(&with_settings_alone(&found), usize::MAX),
            remedy: remedy.map(|remedy| plain::one_line(&remedy, usize::MAX)),
        });
    }
}

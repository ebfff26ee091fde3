//! Gates, which keep ready jobs from running on an operator's request: suspensions and pauses.
//!
//! Both are rows of the table `suspension`, so a lock statement reads one table for both. A
//! **suspension** moves waiting jobs to the suspended table. A **pause** moves nothing: its jobs
//! stay ready, and no statement locks them.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::job::Lane;

/// The type of the jobs that suspend, activate, pause or resume at a date. Every node of a Jobwire
/// database runs them without registration. A pause of everything or of a lane does not cover them,
/// so that it can end at a date; a pause or a suspension of exactly this type does.
pub const SUSPENSION_TYPE: &str = "jobwire.suspension";

/// The scope of a suspension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SuspensionScope {
    /// One process instance.
    ProcessInstance(String),
    /// All instances of a definition.
    ProcessDefinition(String),
    /// One handler type (job definition).
    Type(String),
    /// One tenant.
    Tenant(String),
}

impl SuspensionScope {
    /// Returns the word in the table, and the value.
    #[must_use]
    pub fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::ProcessInstance(v) => ("process_instance", v),
            Self::ProcessDefinition(v) => ("process_definition", v),
            Self::Type(v) => ("type", v),
            Self::Tenant(v) => ("tenant", v),
        }
    }
}

/// The scope of a pause.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PauseScope {
    /// One handler type.
    Type(String),
    /// One category.
    Category(String),
    /// One lane.
    Lane(Lane),
    /// All jobs, except those of the type [`SUSPENSION_TYPE`].
    All,
}

impl PauseScope {
    /// Returns the word in the table, and the value.
    #[must_use]
    pub fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::Type(v) => ("pause_type", v),
            Self::Category(v) => ("pause_category", v),
            Self::Lane(v) => ("pause_lane", &v.0),
            Self::All => ("pause_all", ""),
        }
    }
}

/// A suspension or a pause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gate {
    /// A suspension.
    Suspension(SuspensionScope),
    /// A pause.
    Pause(PauseScope),
}

impl Gate {
    /// The words of all gates in the table.
    pub const WORDS: [&'static str; 8] = [
        "process_instance",
        "process_definition",
        "type",
        "tenant",
        "pause_type",
        "pause_category",
        "pause_lane",
        "pause_all",
    ];

    /// Returns the word in the table, and the value.
    #[must_use]
    pub fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::Suspension(scope) => scope.parts(),
            Self::Pause(scope) => scope.parts(),
        }
    }

    /// Returns the gate of a row, or `None` if a newer program wrote a word that this one does not
    /// know.
    #[must_use]
    pub fn parse(word: &str, value: String) -> Option<Self> {
        Some(match word {
            "process_instance" => Self::Suspension(SuspensionScope::ProcessInstance(value)),
            "process_definition" => Self::Suspension(SuspensionScope::ProcessDefinition(value)),
            "type" => Self::Suspension(SuspensionScope::Type(value)),
            "tenant" => Self::Suspension(SuspensionScope::Tenant(value)),
            "pause_type" => Self::Pause(PauseScope::Type(value)),
            "pause_category" => Self::Pause(PauseScope::Category(value)),
            "pause_lane" => Self::Pause(PauseScope::Lane(Lane(value))),
            "pause_all" => Self::Pause(PauseScope::All),
            _ => return None,
        })
    }

    /// Returns the suspension of this scope in the words of the program, or `None` if there is no
    /// such scope.
    #[must_use]
    pub fn suspension(scope: &str, value: String) -> Option<Self> {
        let word = match scope {
            "instance" => "process_instance",
            "definition" => "process_definition",
            "type" | "tenant" => scope,
            _ => return None,
        };
        Self::parse(word, value)
    }

    /// Returns the pause of this scope in the words of the program, or `None` if there is no such
    /// scope.
    #[must_use]
    pub fn pause(scope: &str, value: String) -> Option<Self> {
        match scope {
            "type" | "category" | "lane" | "all" => Self::parse(&format!("pause_{scope}"), value),
            _ => None,
        }
    }

    /// Returns `suspended` or `paused`.
    #[must_use]
    pub fn state(&self) -> &'static str {
        match self {
            Self::Suspension(_) => "suspended",
            Self::Pause(_) => "paused",
        }
    }

    /// Returns the scope in the words of the program: `instance`, `definition`, `type`, `tenant`,
    /// `category`, `lane` or `all`.
    #[must_use]
    pub fn scope(&self) -> &'static str {
        match self {
            Self::Suspension(SuspensionScope::ProcessInstance(_)) => "instance",
            Self::Suspension(SuspensionScope::ProcessDefinition(_)) => "definition",
            Self::Suspension(SuspensionScope::Type(_)) | Self::Pause(PauseScope::Type(_)) => "type",
            Self::Suspension(SuspensionScope::Tenant(_)) => "tenant",
            Self::Pause(PauseScope::Category(_)) => "category",
            Self::Pause(PauseScope::Lane(_)) => "lane",
            Self::Pause(PauseScope::All) => "all",
        }
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pause(PauseScope::All) => f.write_str("everything is paused"),
            gate => write!(f, "{} {} is {}", gate.scope(), gate.parts().1, gate.state()),
        }
    }
}

impl Serialize for Gate {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let mut fields = serializer.serialize_struct("Gate", 3)?;
        fields.serialize_field("state", self.state())?;
        fields.serialize_field("scope", self.scope())?;
        fields.serialize_field("value", self.parts().1)?;
        fields.end()
    }
}

impl From<SuspensionScope> for Gate {
    fn from(scope: SuspensionScope) -> Self {
        Self::Suspension(scope)
    }
}

impl From<PauseScope> for Gate {
    fn from(scope: PauseScope) -> Self {
        Self::Pause(scope)
    }
}

/// A suspension or a pause, as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct GateView {
    /// The suspension or pause.
    #[serde(flatten)]
    pub gate: Gate,
    /// The time at which it began.
    pub since: DateTime<Utc>,
    /// Number of jobs of its scope in the suspended table; 0 for a pause.
    pub moved: i64,
    /// Number of ready jobs of its scope that wait where they are: all jobs of a pause, and jobs
    /// that were created during a suspension.
    pub waiting: i64,
}

impl GateView {
    pub(crate) fn new(gate: Gate, since: DateTime<Utc>, moved: i64, waiting: i64) -> Self {
        Self {
            gate,
            since,
            moved,
            waiting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gate_is_read_back_from_its_row() {
        for word in Gate::WORDS {
            let value = if word == "pause_all" { "" } else { "v" };
            let gate = Gate::parse(word, value.to_owned()).expect(word);
            assert_eq!(gate.parts(), (word, value));
        }
        assert_eq!(Gate::parse("pause_moon", String::new()), None);
    }

    #[test]
    fn a_gate_is_written_in_the_words_of_the_program() {
        let lane = Gate::from(PauseScope::Lane(Lane("bulk".to_owned())));
        assert_eq!(lane.to_string(), "lane bulk is paused");
        let instance = Gate::from(SuspensionScope::ProcessInstance("i".to_owned()));
        assert_eq!(instance.to_string(), "instance i is suspended");
        assert_eq!(
            Gate::from(PauseScope::All).to_string(),
            "everything is paused"
        );
        let json = serde_json::to_value(&lane).expect("writes");
        let written = serde_json::json!({"state": "paused", "scope": "lane", "value": "bulk"});
        assert_eq!(json, written);
    }
}

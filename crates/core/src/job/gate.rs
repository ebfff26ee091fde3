//! Gates, which keep ready jobs from running on an operator's request: suspensions and pauses.
//!
//! Both are rows of the table `suspension`, so a lock statement reads one table for both. A
//! **suspension** moves waiting jobs to the suspended table. A **pause** moves nothing: its jobs
//! stay ready, and no statement locks them.

use std::borrow::Cow;
use std::fmt;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::job::Lane;
use crate::job::definition_key::DefinitionKey;

/// The type of the jobs that suspend, activate, pause or resume at a date. Every node of a Jobwire
/// database runs them without registration. A pause of everything or of a lane does not cover them,
/// so that it can end at a date; a pause or a suspension of exactly this type does.
pub const SUSPENSION_TYPE: &str = "jobwire.suspension";

/// The scope of a suspension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SuspensionScope {
    /// One process instance.
    ProcessInstance(String),
    /// All instances of a definition, by its exact id.
    ProcessDefinition(String),
    /// All instances of a definition, of every version that its tenant has deployed or will deploy.
    DefinitionKey(DefinitionKey),
    /// One element of a process definition: a job definition of Camunda 7.
    Element {
        /// The process definition, by its exact id.
        definition: String,
        /// The element, for example an activity.
        element: String,
    },
    /// One handler type.
    Type(String),
    /// One tenant.
    Tenant(String),
}

impl SuspensionScope {
    /// Returns the word in the table, and the value. That of an element begins with the number of
    /// characters of the definition, so that no other two names have the same value. SQL makes the
    /// same text of the columns of a job.
    #[must_use]
    pub fn parts(&self) -> (&'static str, Cow<'_, str>) {
        let (word, value) = match self {
            Self::ProcessInstance(v) => ("process_instance", v),
            Self::ProcessDefinition(v) => ("process_definition", v),
            Self::DefinitionKey(key) => return ("definition_key", key.value().into()),
            Self::Element {
                definition,
                element,
            } => {
                let length = definition.chars().count();
                return ("element", format!("{length}:{definition}{element}").into());
            }
            Self::Type(v) => ("type", v),
            Self::Tenant(v) => ("tenant", v),
        };
        (word, Cow::Borrowed(value))
    }

    /// Returns the element of a value, or `None` if it has another form.
    fn element(value: &str) -> Option<Self> {
        let (length, names) = value.split_once(':')?;
        let starts = names.char_indices().map(|(start, _)| start);
        let end = starts.chain([names.len()]).nth(length.parse().ok()?)?;
        let (definition, element) = names.split_at(end);
        Some(Self::Element {
            definition: definition.to_owned(),
            element: element.to_owned(),
        })
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
    pub const WORDS: [&'static str; 10] = [
        "process_instance",
        "process_definition",
        "definition_key",
        "element",
        "type",
        "tenant",
        "pause_type",
        "pause_category",
        "pause_lane",
        "pause_all",
    ];

    /// Returns the word in the table, and the value.
    #[must_use]
    pub fn parts(&self) -> (&'static str, Cow<'_, str>) {
        match self {
            Self::Suspension(scope) => scope.parts(),
            Self::Pause(scope) => {
                let (word, value) = scope.parts();
                (word, Cow::Borrowed(value))
            }
        }
    }

    /// Returns the gate of a row, or `None` if a newer program wrote a word or a value that this one
    /// does not know.
    #[must_use]
    pub fn parse(word: &str, value: String) -> Option<Self> {
        Some(match word {
            "process_instance" => Self::Suspension(SuspensionScope::ProcessInstance(value)),
            "process_definition" => Self::Suspension(SuspensionScope::ProcessDefinition(value)),
            "definition_key" => Self::Suspension(SuspensionScope::DefinitionKey(
                DefinitionKey::parse(&value)?,
            )),
            "element" => Self::Suspension(SuspensionScope::element(&value)?),
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
    /// such scope, or it is that of a [`DefinitionKey`]. Reads `definition` for an element only.
    #[must_use]
    pub fn suspension(scope: &str, value: String, definition: String) -> Option<Self> {
        Some(Self::Suspension(match scope {
            "instance" => SuspensionScope::ProcessInstance(value),
            "definition" => SuspensionScope::ProcessDefinition(value),
            "element" => SuspensionScope::Element {
                definition,
                element: value,
            },
            "type" => SuspensionScope::Type(value),
            "tenant" => SuspensionScope::Tenant(value),
            _ => return None,
        }))
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

    /// Returns the scope in the words of the program: `instance`, `definition`, `definition-key`,
    /// `element`, `type`, `tenant`, `category`, `lane` or `all`.
    #[must_use]
    pub fn scope(&self) -> &'static str {
        match self {
            Self::Suspension(SuspensionScope::ProcessInstance(_)) => "instance",
            Self::Suspension(SuspensionScope::ProcessDefinition(_)) => "definition",
            Self::Suspension(SuspensionScope::DefinitionKey(_)) => "definition-key",
            Self::Suspension(SuspensionScope::Element { .. }) => "element",
            Self::Suspension(SuspensionScope::Type(_)) | Self::Pause(PauseScope::Type(_)) => "type",
            Self::Suspension(SuspensionScope::Tenant(_)) => "tenant",
            Self::Pause(PauseScope::Category(_)) => "category",
            Self::Pause(PauseScope::Lane(_)) => "lane",
            Self::Pause(PauseScope::All) => "all",
        }
    }

    /// Returns the name of the instance, definition, key, element, type, tenant, category or lane;
    /// empty for a pause of everything.
    #[must_use]
    pub fn value(&self) -> &str {
        match self {
            Self::Suspension(
                SuspensionScope::ProcessInstance(v)
                | SuspensionScope::ProcessDefinition(v)
                | SuspensionScope::Element { element: v, .. }
                | SuspensionScope::Type(v)
                | SuspensionScope::Tenant(v),
            ) => v,
            Self::Suspension(SuspensionScope::DefinitionKey(key)) => key.key(),
            Self::Pause(scope) => scope.parts().1,
        }
    }

    /// Returns the process definition of an element.
    #[must_use]
    pub fn definition(&self) -> Option<&str> {
        match self {
            Self::Suspension(SuspensionScope::Element { definition, .. }) => Some(definition),
            _ => None,
        }
    }

    /// Returns the tenant of a definition key, if it has one.
    #[must_use]
    pub fn tenant(&self) -> Option<&str> {
        match self {
            Self::Suspension(SuspensionScope::DefinitionKey(key)) => key.tenant(),
            _ => None,
        }
    }

    /// Returns the value for people: `pay of invoice:3:4711` for an element, and `invoice of tenant
    /// acme` for a definition key.
    #[must_use]
    pub fn name(&self) -> Cow<'_, str> {
        if let Self::Suspension(SuspensionScope::DefinitionKey(key)) = self {
            return key.to_string().into();
        }
        match self.definition() {
            Some(definition) => format!("{} of {definition}", self.value()).into(),
            None => self.value().into(),
        }
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pause(PauseScope::All) => f.write_str("everything is paused"),
            gate => write!(f, "{} {} is {}", gate.scope(), gate.name(), gate.state()),
        }
    }
}

impl Serialize for Gate {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;
        let definition = ("definition", self.definition());
        let more = [definition, ("tenant", self.tenant())];
        let more = more.map(|(name, text)| text.map(|text| (name, text)));
        let number = 3 + more.iter().flatten().count();
        let mut fields = serializer.serialize_struct("Gate", number)?;
        fields.serialize_field("state", self.state())?;
        fields.serialize_field("scope", self.scope())?;
        fields.serialize_field("value", self.value())?;
        for (name, text) in more.into_iter().flatten() {
            fields.serialize_field(name, text)?;
        }
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
            let value = match word {
                "pause_all" => "",
                "definition_key" => "invoice:acme",
                "element" => "7:invoicepay",
                _ => "v",
            };
            let gate = Gate::parse(word, value.to_owned()).expect(word);
            assert_eq!(gate.parts(), (word, value.into()));
        }
        assert_eq!(Gate::parse("pause_moon", String::new()), None);
    }

    fn element(definition: &str, element: &str) -> SuspensionScope {
        SuspensionScope::Element {
            definition: definition.to_owned(),
            element: element.to_owned(),
        }
    }

    #[test]
    fn no_two_elements_have_the_same_value() {
        let names = [
            ("1:a", "b"),
            ("1", ":ab"),
            ("1", "a:b"),
            ("", "1:ab"),
            ("1:ab", ""),
            ("ü:1", "€"),
            ("ü", ":1€"),
        ];
        let scopes = names.map(|(definition, name)| element(definition, name));
        for scope in &scopes {
            let (word, value) = scope.parts();
            let same = scopes.iter().filter(|other| other.parts().1 == value);
            assert_eq!(same.count(), 1, "{value}");
            let read = Gate::parse(word, value.into_owned());
            assert_eq!(read, Some(scope.clone().into()));
        }
        for value in [
            "",
            "invoice",
            "3:ab",
            "-1:ab",
            ":ab",
            "99999999999999999999:ab",
        ] {
            assert_eq!(Gate::parse("element", value.to_owned()), None, "{value}");
        }
    }

    #[test]
    fn an_element_is_written_with_its_definition() {
        let gate = Gate::from(element("invoice:3:4711", "pay"));
        assert_eq!(
            gate.to_string(),
            "element pay of invoice:3:4711 is suspended"
        );
        let json = serde_json::to_value(&gate).expect("writes");
        let written = serde_json::json!({
            "state": "suspended", "scope": "element", "value": "pay", "definition": "invoice:3:4711",
        });
        assert_eq!(json, written);
    }

    #[test]
    fn a_definition_key_is_written_with_its_tenant() {
        let key = DefinitionKey::new("invoice").expect("a key");
        let of = |key: DefinitionKey| Gate::from(SuspensionScope::DefinitionKey(key));
        let (acme, plain) = (of(key.clone().of_tenant("acme")), of(key));
        let said = "definition-key invoice of tenant acme is suspended";
        assert_eq!(acme.to_string(), said);
        let said = "definition-key invoice without a tenant is suspended";
        assert_eq!(plain.to_string(), said);
        let written = serde_json::json!({
            "state": "suspended", "scope": "definition-key", "value": "invoice", "tenant": "acme",
        });
        assert_eq!(serde_json::to_value(&acme).expect("writes"), written);
        let written = serde_json::json!({
            "state": "suspended", "scope": "definition-key", "value": "invoice",
        });
        assert_eq!(serde_json::to_value(&plain).expect("writes"), written);
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

//! Priority rules: the priorities of jobs by what they are.
//!
//! The first of these that exists is the priority of a new job, as in Camunda:
//!
//! 1. the override of its job definition, that is, of its type, and of its process definition and
//!    element if the override names them; an override with more names comes first
//! 2. the priority that its creator gives ([`NewJob::priority`](crate::NewJob::priority))
//! 3. that of its type
//! 4. that of its process definition
//! 5. the default, or for history jobs the default of history
//! 6. 0
//!
//! Rules are stored in the database and applied inside the insert, so that they apply to jobs from
//! the library and from SQL. They are for new jobs: the later occurrences of a repeating job keep
//! the priority of the one before. [`Client::set_priority`](crate::Client::set_priority) changes
//! existing jobs, too, if asked to.

use crate::job::new_job::MAX_FIELD_BYTES;

/// Maximum number of rules.
pub const MAX_PRIORITY_RULES: i64 = 4_096;

/// The definition of jobs: their type, and possibly the process definition and the element that they
/// belong to.
///
/// ```
/// use jobwire_core::JobDefinition;
///
/// let notify = JobDefinition::of("send-mail").process_definition("order:3").element("notify");
/// # assert_eq!(notify.job_type, "send-mail");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobDefinition {
    /// The handler type.
    pub job_type: String,
    /// Only jobs of this process definition.
    pub process_definition: Option<String>,
    /// Only jobs of this element.
    pub element: Option<String>,
}

impl JobDefinition {
    /// Creates the definition of all jobs of a type.
    #[must_use]
    pub fn of(job_type: impl Into<String>) -> Self {
        Self {
            job_type: job_type.into(),
            process_definition: None,
            element: None,
        }
    }

    /// Limits it to jobs of this process definition.
    #[must_use]
    pub fn process_definition(mut self, definition: impl Into<String>) -> Self {
        self.process_definition = Some(definition.into());
        self
    }

    /// Limits it to jobs of this element.
    #[must_use]
    pub fn element(mut self, element: impl Into<String>) -> Self {
        self.element = Some(element.into());
        self
    }

    /// Returns whether it covers a job of its type with these names.
    pub(crate) fn covers(&self, definition: Option<&String>, element: Option<&String>) -> bool {
        let fits = |of: Option<&String>, its| of.is_none() || of == its;
        fits(self.process_definition.as_ref(), definition) && fits(self.element.as_ref(), element)
    }
}

/// The jobs that a priority rule is for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PriorityScope {
    /// Jobs of a definition, whatever priority their creator gives.
    Override(JobDefinition),
    /// Jobs of a type.
    Type(String),
    /// Jobs of a process definition.
    ProcessDefinition(String),
    /// History jobs.
    History,
    /// All other jobs.
    Default,
}

impl PriorityScope {
    /// Returns the word and the names (type, process definition, element) of the table; an empty
    /// name fits all jobs.
    #[must_use]
    pub fn parts(&self) -> (&'static str, [&str; 3]) {
        match self {
            Self::Override(definition) => {
                let names = [
                    &*definition.job_type,
                    definition.process_definition.as_deref().unwrap_or_default(),
                    definition.element.as_deref().unwrap_or_default(),
                ];
                ("override", names)
            }
            Self::Type(name) => ("type", [name, "", ""]),
            Self::ProcessDefinition(name) => ("process_definition", ["", name, ""]),
            Self::History => ("history", [""; 3]),
            Self::Default => ("default", [""; 3]),
        }
    }

    /// Returns the place of a rule among those that may fit a job. The first one that fits decides.
    /// The priority that the creator of a job gives stands behind the overrides.
    #[must_use]
    pub fn place(&self) -> (u8, bool, bool) {
        let (_, [_, definition, element]) = self.parts();
        let kind = match self {
            Self::Override(_) => 0,
            Self::Type(_) => 1,
            Self::ProcessDefinition(_) => 2,
            Self::History | Self::Default => 3,
        };
        (kind, element.is_empty(), definition.is_empty())
    }

    /// Returns the scope of a word and names of the table.
    #[must_use]
    pub fn parse(word: &str, names: [String; 3]) -> Option<Self> {
        let [job_type, process_definition, element] = names;
        let named = |name: String| (!name.is_empty()).then_some(name);
        match word {
            "override" => Some(Self::Override(JobDefinition {
                job_type,
                process_definition: named(process_definition),
                element: named(element),
            })),
            "type" => Some(Self::Type(job_type)),
            "process_definition" => Some(Self::ProcessDefinition(process_definition)),
            "history" => Some(Self::History),
            "default" => Some(Self::Default),
            _ => None,
        }
    }
}

/// The priority of the new jobs of a scope.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PriorityRule {
    /// The jobs.
    pub scope: PriorityScope,
    /// Their priority. Larger is more urgent.
    pub priority: i64,
}

impl PriorityRule {
    /// Creates a rule.
    #[must_use]
    pub fn new(scope: PriorityScope, priority: i64) -> Self {
        Self { scope, priority }
    }

    /// Checks the names.
    ///
    /// # Errors
    /// The name that no job can have, and the remedy.
    pub fn validate(&self) -> Result<(), String> {
        let (word, names) = self.scope.parts();
        let needed = match word {
            "override" | "type" => Some(0),
            "process_definition" => Some(1),
            _ => None,
        };
        let fields = ["type", "process_definition", "element"];
        for (at, (field, name)) in fields.into_iter().zip(names).enumerate() {
            if needed == Some(at) && name.is_empty() {
                return Err(format!(
                    "field `{field}` is empty; name the jobs of the rule"
                ));
            }
            if name.len() > MAX_FIELD_BYTES || name.contains('\0') {
                return Err(format!(
                    "field `{field}` has a value that no job can have; give at most \
                     {MAX_FIELD_BYTES} bytes without NUL"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_reads_back_from_its_parts() {
        for scope in [
            PriorityScope::Override(JobDefinition::of("mail")),
            PriorityScope::Override(JobDefinition::of("mail").process_definition("order:3")),
            PriorityScope::Override(JobDefinition::of("mail").element("notify")),
            PriorityScope::Type("mail".to_owned()),
            PriorityScope::ProcessDefinition("order:3".to_owned()),
            PriorityScope::History,
            PriorityScope::Default,
        ] {
            let (word, names) = scope.parts();
            let names = names.map(str::to_owned);
            assert_eq!(PriorityScope::parse(word, names), Some(scope));
        }
        assert_eq!(PriorityScope::parse("later", Default::default()), None);
    }

    #[test]
    fn rules_have_places_in_the_order_in_which_they_are_asked() {
        let mail = || JobDefinition::of("mail");
        let places = [
            PriorityScope::Override(mail().element("e").process_definition("d")),
            PriorityScope::Override(mail().element("e")),
            PriorityScope::Override(mail().process_definition("d")),
            PriorityScope::Override(mail()),
            PriorityScope::Type("mail".to_owned()),
            PriorityScope::ProcessDefinition("d".to_owned()),
            PriorityScope::Default,
        ]
        .map(|scope| scope.place());
        assert!(places.is_sorted(), "{places:?}");
    }

    #[test]
    fn a_name_that_no_job_can_have_is_refused_with_its_field() {
        let said = |scope| PriorityRule::new(scope, 1).validate().unwrap_err();
        let empty = said(PriorityScope::Type(String::new()));
        assert!(empty.contains("`type` is empty"), "{empty}");
        let empty = said(PriorityScope::ProcessDefinition(String::new()));
        assert!(empty.contains("`process_definition` is empty"), "{empty}");
        let long = JobDefinition::of("mail").element("x".repeat(1_025));
        assert!(said(PriorityScope::Override(long)).contains("`element`"));
        let nul = said(PriorityScope::Type("a\0".to_owned()));
        assert!(nul.contains("without NUL"), "{nul}");
        let all = PriorityRule::new(PriorityScope::Default, i64::MIN);
        assert_eq!(all.validate(), Ok(()));
    }
}

//! The query for the jobs that an address takes.

use jobwire_core::job::scope::{Names, Scope};
use serde_json::Value;

use crate::http::{Answer, Rest};

/// Maximum number of bytes of an answer: 16,000 ids of deployments.
const MOST: usize = 1024 * 1024;
/// Maximum number of bytes of a name.
const LONGEST: usize = 255;

/// The reason why an address gives no usable answer to a query.
#[derive(Debug)]
pub(crate) struct Silent {
    pub(crate) reason: String,
    /// The address is unreachable.
    pub(crate) is_away: bool,
}

impl Silent {
    fn there(reason: String) -> Self {
        Self {
            reason,
            is_away: false,
        }
    }

    /// Returns the reason why this is not an answer of an engine.
    pub(super) fn unless(answer: Answer) -> Result<(), Self> {
        match answer {
            Answer::Executed => Ok(()),
            Answer::Unsent(reason) | Answer::Unanswered(reason) => Err(Self {
                reason,
                is_away: true,
            }),
            // Another path may be usable.
            Answer::Refused(said) | Answer::Unusable(said) => Err(Self::there(said)),
            Answer::Missing(said) => Err(Self::there(format!("there is no such path: {said}"))),
            Answer::GivenBack | Answer::OtherMethod => {
                Err(Self::there("the path takes no GET".to_owned()))
            }
        }
    }
}

/// A query to an engine node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// Camunda's registered deployments: those whose jobs its own deployment-aware executor would
    /// run.
    Deployments,
    /// The report of the execution endpoint about itself. An endpoint without this report takes all
    /// jobs.
    Endpoint,
}

impl Question {
    fn path(self) -> &'static str {
        match self {
            Self::Deployments => "/deployment/registered",
            Self::Endpoint => "/scope",
        }
    }

    /// Returns the jobs that an address takes before its first answer: those that any address
    /// takes.
    pub(crate) fn unknown(self) -> Scope {
        let none: [&str; 0] = [];
        match self {
            Self::Deployments => Scope::default().deployments(none),
            Self::Endpoint => Scope::default().categories(none),
        }
    }

    /// Sends the query to an address.
    ///
    /// # Errors
    /// The reason why the address reports no jobs.
    pub(crate) async fn ask(self, rest: &Rest) -> Result<Scope, Silent> {
        match rest.read(self.path(), MOST).await {
            Ok(said) => self.understand(&said).map_err(Silent::there),
            // An application with an older endpoint.
            Err(Answer::Missing(_) | Answer::OtherMethod) if self == Self::Endpoint => {
                Ok(Scope::default())
            }
            Err(answer) => {
                Silent::unless(answer)?;
                Err(Silent::there(format!("`{}` gives no names", self.path())))
            }
        }
    }

    fn understand(self, said: &[u8]) -> Result<Scope, String> {
        let unknown = || {
            format!(
                "the answer of `{}` is no list of names; check `engine_url`",
                self.path()
            )
        };
        let said: Value = serde_json::from_slice(said).map_err(|_| unknown())?;
        let mut scope = Scope::default();
        match self {
            Self::Deployments => scope.deployments = Some(names(&said).ok_or_else(unknown)?),
            Self::Endpoint => {
                let fields = said.as_object().ok_or_else(unknown)?;
                let of = |field: &str| -> Result<Names, String> {
                    match fields.get(field) {
                        None | Some(Value::Null) => Ok(None),
                        Some(list) => names(list).map(Some).ok_or_else(unknown),
                    }
                };
                scope.categories = of("categories")?;
            }
        }
        Ok(scope)
    }
}

fn names(list: &Value) -> Option<std::collections::BTreeSet<String>> {
    let names = list.as_array()?.iter().map(|name| {
        let name = name.as_str()?;
        (1..=LONGEST).contains(&name.len()).then(|| name.to_owned())
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_address_takes_is_read_and_anything_else_is_no_answer() {
        let said = |question: Question, text: &str| question.understand(text.as_bytes());
        let none: [&str; 0] = [];
        assert_eq!(
            said(Question::Deployments, r#"["d1","d2"]"#),
            Ok(Scope::default().deployments(["d1", "d2"]))
        );
        assert_eq!(
            said(Question::Deployments, "[]"),
            Ok(Scope::default().deployments(none))
        );
        assert_eq!(
            said(Question::Endpoint, r#"{"categories":["red"],"more":1}"#),
            Ok(Scope::default().categories(["red"]))
        );
        for all in ["{}", r#"{"categories":null}"#] {
            assert_eq!(said(Question::Endpoint, all), Ok(Scope::default()));
        }
        for strange in ["", "<html>", "{}", "[1]", r#"[""]"#, "null"] {
            assert!(said(Question::Deployments, strange).is_err(), "{strange}");
        }
        for strange in ["[]", r#"{"categories":"red"}"#, r#"{"categories":[1]}"#] {
            assert!(said(Question::Endpoint, strange).is_err(), "{strange}");
        }
    }
}

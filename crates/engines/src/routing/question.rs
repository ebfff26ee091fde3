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
    /// The artefact at the address is too old. It gets no job.
    pub(crate) is_old: bool,
}

impl Silent {
    fn there(reason: String) -> Self {
        Self {
            reason,
            is_away: false,
            is_old: false,
        }
    }

    fn old() -> Self {
        Self {
            is_old: true,
            ..Self::there(too_old())
        }
    }

    /// Returns the reason why this is not an answer of an engine.
    pub(super) fn unless(answer: Answer) -> Result<(), Self> {
        match answer {
            Answer::Executed => Ok(()),
            Answer::Unsent(reason) | Answer::Unanswered(reason) | Answer::ByGateway(reason) => {
                Err(Self {
                    reason,
                    is_away: true,
                    is_old: false,
                })
            }
            // Another path may be usable.
            Answer::Refused(said) | Answer::Unusable(said) => Err(Self::there(said)),
            Answer::Missing(said) => Err(Self::there(format!("there is no such path: {said}"))),
            Answer::GivenBack | Answer::Unrecorded | Answer::NotBegun | Answer::OtherMethod => {
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
    /// The report of the endpoint about itself. An endpoint without this report takes all jobs.
    Endpoint(Requests),
}

/// The requests by which an endpoint runs jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Requests {
    /// Executions. The engine locks the instance of the job, if its instances have locks.
    Executions,
    /// Executions that state that the caller holds the instance. An endpoint that does not report
    /// that it accepts this is refused.
    InHeldInstances,
    /// The operation `run`.
    Runs,
}

impl Requests {
    /// Returns the field of the report that tells the number of jobs of a list.
    fn list(self) -> &'static str {
        match self {
            Self::Executions | Self::InHeldInstances => "list",
            Self::Runs => "run_list",
        }
    }
}

/// The report of an address about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// The jobs that it takes.
    pub(crate) scope: Scope,
    /// Whether it takes lists of jobs.
    pub(crate) takes_lists: bool,
}

impl From<Scope> for Report {
    fn from(scope: Scope) -> Self {
        Self {
            scope,
            takes_lists: false,
        }
    }
}

/// The reason why an endpoint of an older artefact is refused.
fn too_old() -> String {
    format!(
        "the endpoint is of an older Java artefact, which can't be told that the node holds the process instance;          use the artefact of version {} or later on every engine node, as the program has",
        env!("CARGO_PKG_VERSION")
    )
}

impl Question {
    fn path(self) -> &'static str {
        match self {
            Self::Deployments => "/deployment/registered",
            Self::Endpoint(_) => "/scope",
        }
    }

    /// Returns the jobs that an address takes before its first answer: those that any address
    /// takes.
    pub(crate) fn unknown(self) -> Scope {
        let none: [&str; 0] = [];
        match self {
            Self::Deployments => Scope::default().deployments(none),
            Self::Endpoint(_) => Scope::default().categories(none),
        }
    }

    /// Sends the query to an address.
    ///
    /// # Errors
    /// The reason why the address reports no jobs.
    pub(crate) async fn ask(self, rest: &Rest) -> Result<Report, Silent> {
        match rest.read(self.path(), MOST).await {
            Ok(said) => self.understand(&said),
            Err(Answer::Missing(_) | Answer::OtherMethod)
                if self == Self::Endpoint(Requests::InHeldInstances) =>
            {
                Err(Silent::old())
            }
            // An application with an older endpoint.
            Err(Answer::Missing(_) | Answer::OtherMethod) if matches!(self, Self::Endpoint(_)) => {
                Ok(Report::default())
            }
            Err(answer) => {
                Silent::unless(answer)?;
                Err(Silent::there(format!("`{}` gives no names", self.path())))
            }
        }
    }

    fn understand(self, said: &[u8]) -> Result<Report, Silent> {
        let unknown = || {
            Silent::there(format!(
                "the answer of `{}` is no list of names; check `engine_url`",
                self.path()
            ))
        };
        let said: Value = serde_json::from_slice(said).map_err(|_| unknown())?;
        let mut report = Report::default();
        let scope = &mut report.scope;
        match self {
            Self::Deployments => scope.deployments = Some(names(&said).ok_or_else(unknown)?),
            Self::Endpoint(requests) => {
                let fields = said.as_object().ok_or_else(unknown)?;
                let of = |field: &str| -> Result<Names, Silent> {
                    match fields.get(field) {
                        None | Some(Value::Null) => Ok(None),
                        Some(list) => names(list).map(Some).ok_or_else(unknown),
                    }
                };
                scope.categories = of("categories")?;
                let accepts = fields.get("instance").and_then(Value::as_str) == Some("held");
                if requests == Requests::InHeldInstances && !accepts {
                    return Err(Silent::old());
                }
                report.takes_lists = fields
                    .get(requests.list())
                    .and_then(Value::as_u64)
                    .is_some();
            }
        }
        Ok(report)
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

    const ENDPOINT: Question = Question::Endpoint(Requests::Executions);
    const HELD: Question = Question::Endpoint(Requests::InHeldInstances);
    const RUNS: Question = Question::Endpoint(Requests::Runs);

    fn said(question: Question, text: &str) -> Result<Report, String> {
        let said = question.understand(text.as_bytes());
        said.map_err(|silent| silent.reason)
    }

    #[test]
    fn what_an_address_takes_is_read_and_anything_else_is_no_answer() {
        let none: [&str; 0] = [];
        assert_eq!(
            said(Question::Deployments, r#"["d1","d2"]"#),
            Ok(Scope::default().deployments(["d1", "d2"]).into())
        );
        assert_eq!(
            said(Question::Deployments, "[]"),
            Ok(Scope::default().deployments(none).into())
        );
        assert_eq!(
            said(ENDPOINT, r#"{"categories":["red"],"more":1}"#),
            Ok(Scope::default().categories(["red"]).into())
        );
        for all in ["{}", r#"{"categories":null}"#] {
            assert_eq!(said(ENDPOINT, all), Ok(Report::default()));
        }
        for strange in ["", "<html>", "{}", "[1]", r#"[""]"#, "null"] {
            assert!(said(Question::Deployments, strange).is_err(), "{strange}");
        }
        for strange in ["[]", r#"{"categories":"red"}"#, r#"{"categories":[1]}"#] {
            assert!(said(ENDPOINT, strange).is_err(), "{strange}");
        }
    }

    #[test]
    fn an_artefact_that_takes_no_held_instance_is_refused_with_the_version_to_use() {
        let new = said(HELD, r#"{"categories":null,"instance":"held","list":200}"#);
        assert!(new.is_ok_and(|report| report.takes_lists));
        let without_lists = said(HELD, r#"{"instance":"held"}"#);
        assert!(without_lists.is_ok_and(|report| !report.takes_lists));
        for old in ["{}", r#"{"categories":null}"#, r#"{"instance":"mine"}"#] {
            let reason = said(HELD, old).expect_err(old);
            assert!(reason.contains(env!("CARGO_PKG_VERSION")), "{reason}");
            assert!(said(ENDPOINT, old).is_ok());
        }
    }

    /// Only the lists of operations extend the locks of their jobs.
    #[test]
    fn each_request_has_its_own_lists() {
        let takes = |question: Question, text: &str| {
            said(question, text).is_ok_and(|report| report.takes_lists)
        };
        let (list, run_list) = (r#"{"list":200}"#, r#"{"run_list":200}"#);
        assert!(takes(ENDPOINT, list) && !takes(ENDPOINT, run_list));
        assert!(takes(RUNS, run_list) && !takes(RUNS, list));
    }
}

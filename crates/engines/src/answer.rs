//! The answers of an engine to the requests that execute jobs.

use jobwire_core::telemetry::plain;

/// Maximum number of characters of a message that are kept.
pub(crate) const SHOWN: usize = 1_000;

/// The engine's answer to an execution. It is only a hint: the rows decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The execution has succeeded.
    Executed,
    /// The execution has failed.
    Refused(String),
    /// The job is executable and unlocked: another job of its instance runs, or the execution met a
    /// conflict.
    GivenBack,
    /// The execution has failed, and the engine could not record the failure. Or an execution under
    /// the same lock is under way.
    Unrecorded,
    /// The engine did not begin the job of a list in time: its executions have become long.
    NotBegun,
    /// The path exists, for requests of another method.
    OtherMethod,
    /// The engine has no such executable job, or the path is wrong.
    Missing(String),
    /// The engine can't execute jobs: wrong credentials, a wrong path, or too large a request.
    Unusable(String),
    /// The request did not reach the engine.
    Unsent(String),
    /// The request was sent, and no answer came. The execution may still run, or has ended.
    Unanswered(String),
    /// A gateway answered for the engine. The execution may still run or wait there, or has ended.
    ByGateway(String),
}

impl Answer {
    /// Reads the answer in a line about a job: the status that a request for this job would have,
    /// and the fields of its body.
    pub(crate) fn of_line(said: &serde_json::Value) -> Self {
        let text = || plain::one_line(said["message"].as_str().unwrap_or_default(), SHOWN);
        match said["status"].as_u64() {
            Some(200) => became(said),
            Some(404) => Self::Missing(text()),
            Some(500) => Self::Refused(text()),
            _ => Self::Unusable("a line of the answer has no known status".to_owned()),
        }
    }

    /// Returns its name, for metrics.
    pub(crate) const fn as_str(&self) -> &'static str {
        match self {
            Self::Executed => "executed",
            Self::Refused(_) => "refused",
            Self::GivenBack => "given-back",
            Self::Unrecorded => "unrecorded",
            Self::NotBegun => "not-begun",
            Self::OtherMethod => "other-method",
            Self::Missing(_) => "missing",
            Self::Unusable(_) => "unusable",
            Self::Unsent(_) => "unsent",
            Self::Unanswered(_) | Self::ByGateway(_) => "unanswered",
        }
    }

    /// Returns the reason why the engine did not answer, or answered with an error.
    pub(crate) fn problem(self) -> Option<String> {
        match self {
            Self::Refused(said)
            | Self::Unusable(said)
            | Self::Unsent(said)
            | Self::Unanswered(said)
            | Self::ByGateway(said) => Some(said),
            Self::Executed
            | Self::GivenBack
            | Self::Unrecorded
            | Self::NotBegun
            | Self::OtherMethod
            | Self::Missing(_) => None,
        }
    }

    /// Returns whether no answer of the engine came. The execution may still run.
    pub(crate) const fn is_unanswered(&self) -> bool {
        matches!(self, Self::Unanswered(_) | Self::ByGateway(_))
    }
}

/// Reads the state of a job after its execution: `{"state": "timer", "message": "…"}`.
pub(crate) fn state(said: &[u8]) -> Answer {
    became(&serde_json::from_slice(said).unwrap_or_default())
}

fn became(said: &serde_json::Value) -> Answer {
    match said["state"].as_str() {
        Some("gone") => Answer::Executed,
        Some("job") => Answer::GivenBack,
        Some("not begun") => Answer::NotBegun,
        Some("running") => Answer::Unrecorded,
        Some(state) => {
            let message = said["message"].as_str().unwrap_or(state);
            Answer::Refused(plain::one_line(message, SHOWN))
        }
        None => Answer::Unusable(
            "the answer does not tell the state of a job; check whether the execution endpoint \
             stands at `engine_url`"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_tells_the_state_and_anything_else_is_no_endpoint() {
        let said = |text: &str| state(text.as_bytes());
        assert_eq!(said(r#"{"state":"gone"}"#), Answer::Executed);
        assert_eq!(said(r#"{"state":"job","id":"7"}"#), Answer::GivenBack);
        assert_eq!(said(r#"{"state":"running"}"#), Answer::Unrecorded);
        let failed = said(r#"{"state":"timer","retries":2,"message":"no\nroute"}"#);
        assert_eq!(failed, Answer::Refused("no\\nroute".to_owned()));
        let dead = said(r#"{"state":"dead letter","message":null}"#);
        assert_eq!(dead, Answer::Refused("dead letter".to_owned()));
        for strange in ["", "<html>", "[]", r#"{"state":1}"#, r#"{"status":"ok"}"#] {
            assert!(matches!(said(strange), Answer::Unusable(_)), "{strange}");
        }
    }
}

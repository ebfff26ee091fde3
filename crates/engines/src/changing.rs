//! An operator's change of a job. The engine makes it by its own rules, so its counts, history and
//! incidents stay right: over its REST interface, or by an operation of its endpoint.

use jobwire_core::store::Operated;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::call::{Call, operation_path};
use crate::http::Answer;
use crate::routing::Routes;

/// An operator's change of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Delete,
    /// Makes a timer or a dead letter executable, a dead letter with this number of attempts.
    Retry(i32),
}

impl Change {
    /// Returns the operation of the endpoint that makes this change.
    pub(crate) const fn operation(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Retry(_) => "retry",
        }
    }

    /// Returns the request of that operation. `id` is the engine's.
    pub(crate) fn request(self, id: &str) -> Value {
        match self {
            Self::Delete => json!({"id": id}),
            Self::Retry(retries) => json!({"id": id, "retries": retries.max(1)}),
        }
    }
}

/// The answer of that operation.
#[derive(Deserialize)]
pub(crate) struct Found {
    /// Whether the engine has such a job.
    pub(crate) found: bool,
}

/// The result of one change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    Operated(Operated),
    /// The engine refused, or gave no answer.
    Refused(String),
    /// The request did not reach the engine.
    Unsent(String),
}

impl Changed {
    fn refused(id: &str, said: &str) -> Self {
        Self::Refused(failed(id, said))
    }
}

fn failed(id: &str, said: &str) -> String {
    format!("the engine did not change job {id}: {said}")
}

/// Requests the change over the engine's REST interface.
pub(crate) async fn over_rest(routes: &Routes, call: &Call, id: &str) -> Changed {
    match routes.call(call).await {
        Answer::Missing(_) => Changed::Operated(Operated::NotFound),
        answer => changed(id, answer),
    }
}

/// Requests the change from the engine's endpoint.
pub(crate) async fn over_endpoint(routes: &Routes, change: Change, id: &str) -> Changed {
    let operation = change.operation();
    let path = operation_path(operation);
    let request = change.request(id).to_string();
    match routes.operate(&path, &request).await {
        Ok(said) => match serde_json::from_slice(&said) {
            Ok(Found { found: true }) => Changed::Operated(Operated::Done),
            Ok(Found { found: false }) => Changed::Operated(Operated::NotFound),
            Err(error) => Changed::refused(
                id,
                &format!("the answer to {path} is unreadable ({error}); check `engine_url`"),
            ),
        },
        Err(Answer::Missing(_) | Answer::OtherMethod) => Changed::refused(
            id,
            &format!(
                "its endpoint has no operation `{operation}`; use the Java artefact of version {} \
                 or later on every engine node, and, without Spring, pass {path} on to it",
                env!("CARGO_PKG_VERSION")
            ),
        ),
        Err(answer) => changed(id, answer),
    }
}

fn changed(id: &str, answer: Answer) -> Changed {
    match answer {
        Answer::Executed => Changed::Operated(Operated::Done),
        Answer::Unsent(said) => Changed::Unsent(failed(id, &said)),
        Answer::GivenBack | Answer::Unrecorded | Answer::NotBegun | Answer::OtherMethod => {
            Changed::refused(id, "its interface is another one; check `engine_url`")
        }
        Answer::Missing(said) | Answer::Refused(said) | Answer::Unusable(said) => {
            Changed::refused(id, &said)
        }
        // The engine may still make the change.
        Answer::Unanswered(said) | Answer::ByGateway(said) => Changed::Refused(format!(
            "the engine gave no answer; it may have changed job {id}: {said}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::meter::Meter;
    use crate::options::{EngineOptions, Execution};

    /// Serves an endpoint that answers each request like this. Returns its routes, and the channel
    /// of the requests.
    async fn endpoint(
        status: &'static str,
        body: &'static str,
    ) -> (Routes, tokio::sync::mpsc::UnboundedReceiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let (heard, requests) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = Vec::new();
                while !request.ends_with(b"}") {
                    let read = stream.read_buf(&mut request).await.expect("a request");
                    assert!(read > 0, "the request is whole");
                }
                let _ = heard.send(String::from_utf8_lossy(&request).into_owned());
                let answer = format!(
                    "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(answer.as_bytes()).await.expect("sent");
            }
        });
        (at(&url), requests)
    }

    fn at(url: &str) -> Routes {
        let options = EngineOptions::activiti(url).execution(Execution::Endpoint);
        Routes::new(&options, None, String::new(), &Meter::new("test")).expect("usable")
    }

    fn refusal(changed: Changed) -> String {
        match changed {
            Changed::Refused(said) => said,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn the_endpoint_is_asked_for_the_change_with_its_attempts() {
        let (routes, mut requests) = endpoint("200 OK", r#"{"found":true}"#).await;
        for (change, path, body) in [
            (
                Change::Retry(3),
                "/v1/retry",
                r#"{"id":"1207","retries":3}"#,
            ),
            (
                Change::Retry(0),
                "/v1/retry",
                r#"{"id":"1207","retries":1}"#,
            ),
            (Change::Delete, "/v1/delete", r#"{"id":"1207"}"#),
        ] {
            let done = over_endpoint(&routes, change, "1207").await;
            assert_eq!(done, Changed::Operated(Operated::Done));
            let request = requests.recv().await.expect("a request");
            assert!(request.starts_with(&format!("POST {path} ")), "{request}");
            assert!(request.ends_with(body), "{request}");
        }
    }

    #[tokio::test]
    async fn a_job_that_the_endpoint_does_not_find_is_gone() {
        let (routes, _requests) = endpoint("200 OK", r#"{"found":false}"#).await;
        let done = over_endpoint(&routes, Change::Retry(3), "1207").await;
        assert_eq!(done, Changed::Operated(Operated::NotFound));
    }

    #[tokio::test]
    async fn an_endpoint_of_an_older_artefact_is_told_with_the_version_to_use() {
        for status in ["404 Not Found", "405 Method Not Allowed"] {
            let (routes, _requests) = endpoint(status, "").await;
            let said = refusal(over_endpoint(&routes, Change::Retry(3), "1207").await);
            let version = format!("version {} or later", env!("CARGO_PKG_VERSION"));
            for part in ["job 1207", "no operation `retry`", &version] {
                assert!(said.contains(part), "{part} in {said}");
            }
        }
    }

    #[tokio::test]
    async fn a_refusal_of_the_engine_is_told_in_its_words() {
        let (status, body) = ("500 Internal Server Error", r#"{"message":"a conflict"}"#);
        let (routes, _requests) = endpoint(status, body).await;
        let said = refusal(over_endpoint(&routes, Change::Delete, "1207").await);
        assert!(said.contains("a conflict"), "{said}");
        let (routes, _requests) = endpoint("200 OK", "<html>").await;
        let said = refusal(over_endpoint(&routes, Change::Delete, "1207").await);
        assert!(said.contains("`engine_url`"), "{said}");
    }

    #[tokio::test]
    async fn an_engine_without_an_answer_may_have_changed_the_job() {
        let (routes, _requests) = endpoint("504 Gateway Timeout", "").await;
        let said = refusal(over_endpoint(&routes, Change::Delete, "1207").await);
        assert!(said.contains("may have changed job 1207"), "{said}");
        let (routes, _requests) = endpoint("400 Bad Request", "{}").await;
        let said = refusal(over_endpoint(&routes, Change::Delete, "1207").await);
        assert!(said.contains("did not change job 1207"), "{said}");
    }

    #[tokio::test]
    async fn an_engine_that_is_away_did_not_get_the_request() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        drop(listener);
        let said = over_endpoint(&at(&url), Change::Retry(3), "1207").await;
        assert!(matches!(said, Changed::Unsent(_)), "{said:?}");
    }
}

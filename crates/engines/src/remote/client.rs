//! Operations of the endpoint: requests with typed answers.
//!
//! Connections are reused, answers are bounded, and every operation has a deadline. An operation
//! that was sent and has no answer may have taken effect.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use jobwire_core::StoreError;
use jobwire_core::store::answer::measured;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Result;
use crate::call::operation_path;
use crate::http::{Answer, Rest};
use crate::options::EngineOptions;

/// The endpoint of an engine.
#[derive(Debug)]
pub(super) struct Client {
    /// One client for each address. All addresses serve one database, so each takes every
    /// operation.
    rests: Vec<Rest>,
    /// The address that is tried first: the last one that did an operation. After an error it is
    /// the next one.
    current: AtomicUsize,
    url: String,
    within: Duration,
}

impl Client {
    pub(super) fn new(options: &EngineOptions) -> Result<Self> {
        let within = options.statement_timeout;
        let options = options.clone().answer_within(within);
        let rests = options.urls.iter().map(|url| Rest::new(&options, url));
        Ok(Self {
            rests: rests.collect::<Result<_>>()?,
            current: AtomicUsize::new(0),
            url: options.urls.join(", "),
            within,
        })
    }

    /// Sends an operation to the first address that can be reached.
    async fn operate(&self, path: &str, body: &str) -> Result<Vec<u8>, Answer> {
        let current = self.current.load(Ordering::Relaxed);
        let mut said = Err(Answer::Unsent("the engine has no address".to_owned()));
        for turn in 0..self.rests.len() {
            let at = (current + turn) % self.rests.len();
            let Some(rest) = self.rests.get(at) else {
                break;
            };
            said = rest.operate(path, body.to_owned()).await;
            let next = if said.is_ok() { at } else { at + 1 };
            self.current
                .store(next % self.rests.len(), Ordering::Relaxed);
            // A sent operation is not repeated: it may have taken effect.
            if !matches!(said, Err(Answer::Unsent(_))) {
                break;
            }
        }
        said
    }

    /// Sends an operation, measures it as `statement`, and reads its answer.
    pub(super) async fn ask<T: DeserializeOwned + Send>(
        &self,
        statement: &'static str,
        operation: &str,
        request: &(impl Serialize + Sync),
    ) -> Result<T> {
        self.ask_within(statement, operation, request, self.within)
            .await
    }

    /// Sends an operation with a deadline of its own, and reads its answer.
    pub(super) async fn ask_within<T: DeserializeOwned + Send>(
        &self,
        statement: &'static str,
        operation: &str,
        request: &(impl Serialize + Sync),
        within: Duration,
    ) -> Result<T> {
        let path = operation_path(operation);
        let body = serde_json::to_string(request)
            .map_err(|error| StoreError::Config(format!("the request {path}: {error}")))?;
        let said = measured(statement, within, || async {
            let said = self.operate(&path, &body).await;
            said.map_err(|answer| self.failed(operation, answer))
        })
        .await?;
        serde_json::from_slice(&said).map_err(|error| StoreError::Remote {
            what: format!(
                "the answer to {path} is unreadable ({error}); check that `engine_url` ({}) is the \
                 URL of the endpoint, and that both have the same version",
                self.url
            ),
            sent: true,
        })
    }

    fn failed(&self, operation: &str, answer: Answer) -> StoreError {
        let url = &self.url;
        let away = |what: String, sent: bool| StoreError::Remote { what, sent };
        match answer {
            Answer::Unsent(said) => away(
                format!("the engine's endpoint at {url} can't be reached: {said}"),
                false,
            ),
            Answer::Unanswered(said) | Answer::ByGateway(said) => away(
                format!("the engine's endpoint at {url} gave no answer: {said}"),
                true,
            ),
            // The engine reports that its database failed.
            Answer::Refused(said) => away(
                format!("the engine's endpoint could not do `{operation}`: {said}"),
                true,
            ),
            Answer::Missing(_) | Answer::OtherMethod => StoreError::Config(format!(
                "{url} has no operation `{operation}` of the endpoint; give the URL below which `v1` stands, such as \
                 …/jobwire, and use the Java artefact of this version"
            )),
            // A gateway may have changed the answer of an operation that took effect.
            Answer::Unusable(said) => away(format!("{url}: {said}"), true),
            Answer::Executed | Answer::GivenBack | Answer::Unrecorded | Answer::NotBegun => {
                StoreError::Config(format!("{url} gave an answer of another contract"))
            }
        }
    }
}

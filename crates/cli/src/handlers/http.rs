//! `http`: calls a service. Payload: `{"url": "https://api.example.org/paid", "method": "POST",
//! "headers": {"Accept": "text/plain"}, "body": {"order": 17}}`; only `url` is needed. A body that is a text
//! is sent as it is, any other as JSON.
//!
//! | answer | the job |
//! | --- | --- |
//! | 2xx | is done |
//! | 429, 503 with `Retry-After` | waits so long; no attempt spent |
//! | 3xx | dead letter: redirects are not followed, they lead where nobody allowed |
//! | 408, 429, 5xx, no answer within 30 s, network, a host that this node may not call | by the retry policy; one attempt spent |
//! | other 4xx, a payload that can't be sent | dead letter |
//!
//! A host that this node may not call is no reason for a dead letter: another node of the fleet may be allowed to, or
//! this one after its settings were completed.
//!
//! Every call carries `Idempotency-Key`, the job's id, the same at every attempt, and `Jobwire-Fence`, which
//! only grows: with them the service can refuse a repeated call, and one of a worker that lost its lock.
//!
//! Who creates a job chooses where this process connects to (SSRF), so: only hosts that the operator named
//! ([`AllowList`]); a name is resolved once and connected to at that address, never at a private one (`resolver`); no
//! redirects; no proxies from the environment; at most 8 KiB of an answer are read, and the first 1,000 characters
//! kept, escaped.

mod allow;
mod request;
mod resolver;

use std::error::Error;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use jobwire_core::{
    Fence, Handler, HandlerError, HandlerResult, JobId, Outcome, Running, telemetry::plain,
};
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, redirect};
use serde_json::Value;

pub use allow::{AllowList, BadHost};
use request::Request;
use resolver::{PrivateAddress, PublicResolver};

/// The handler type.
pub const TYPE: &str = "http";

/// From connecting to the last byte of the answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// So much of an answer is read for the message.
const ANSWER_BYTES: usize = 8 * 1024;
/// So many characters of it are kept, and of the address that a redirect names.
const ANSWER_SHOWN: usize = 1_000;
/// A service can't put a job off for longer in one go.
const LONGEST_SNOOZE: Duration = Duration::from_secs(24 * 3600);
/// Nor make it come back without a pause.
const SHORTEST_SNOOZE: Duration = Duration::from_secs(1);

/// Calls what the allow list allows. See the [module](self).
pub struct HttpHandler {
    allowed: AllowList,
    client: Result<Client, String>,
}

#[async_trait]
impl Handler for HttpHandler {
    async fn run(&self, job: Running) -> HandlerResult {
        tokio::select! {
            answer = self.call(job.job.id, job.fence, job.job.payload.get()) => answer,
            () = job.stop.cancelled() => Err(HandlerError::retry("stopped before the service answered")),
        }
    }
}

impl HttpHandler {
    /// A handler that calls these hosts.
    #[must_use]
    pub fn new(allowed: AllowList) -> Self {
        Self::build(allowed, TIMEOUT, PublicResolver::of_the_machine())
    }

    fn build(allowed: AllowList, timeout: Duration, resolver: PublicResolver) -> Self {
        // A second installation finds the first: that is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .user_agent(concat!("jobwire/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            .no_proxy()
            .referer(false)
            .retry(reqwest::retry::never())
            .timeout(timeout)
            .dns_resolver(resolver)
            .build()
            .map_err(|error| causes(&error));
        Self { allowed, client }
    }

    async fn call(&self, id: JobId, fence: Fence, payload: &str) -> HandlerResult {
        let payload: Value = serde_json::from_str(payload).map_err(|e| {
            HandlerError::unrecoverable(format!(
                "field `payload` of an `http` job: {e}; give for example {{\"url\": \"https://api.example.org/paid\"}}"
            ))
        })?;
        let request =
            Request::parse(&payload).map_err(|e| HandlerError::unrecoverable(e.to_string()))?;
        self.ensure_allowed(&request)?;
        let client = self.client.as_ref().map_err(|problem| {
            HandlerError::retry(format!("no HTTP client on this node: {problem}"))
        })?;
        let mut call = client
            .request(request.method, request.url)
            .headers(request.headers)
            .header("Idempotency-Key", id.to_string())
            .header("Jobwire-Fence", fence.to_string());
        if let Some(body) = request.body {
            call = call.body(body);
        }
        match call.send().await {
            Ok(response) => judge(response).await,
            Err(error) => Err(not_answered(&error)),
        }
    }

    fn ensure_allowed(&self, request: &Request) -> Result<(), HandlerError> {
        let url = &request.url;
        let (Some(host), Some(port)) = (url.host(), url.port_or_known_default()) else {
            return Err(HandlerError::unrecoverable(
                "field `url` of the payload names no host; give one",
            ));
        };
        if self.allowed.allows(&host, port) {
            return Ok(());
        }
        let why = if self.allowed.is_empty() {
            "no host is allowed on this node yet"
        } else {
            "it is not among the allowed hosts of this node"
        };
        // Another node may have what this one lacks.
        Err(HandlerError::retry(format!(
            "`http` jobs may not call {host}:{port}: {why}; name it with `--http-allow-hosts`, \
             `JOBWIRE_HTTP_ALLOW_HOSTS` or `http_allow_hosts` in jobwire.toml"
        )))
    }
}

async fn judge(response: Response) -> HandlerResult {
    let status = response.status();
    if status.is_success() {
        return Ok(Outcome::Done);
    }
    let wait = retry_after(response.headers(), Utc::now());
    if let Some(wait) = wait
        && matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        )
    {
        tracing::debug!(%status, ?wait, "the service asked to come back later");
        return Ok(Outcome::Snooze(wait));
    }
    if status.is_redirection() {
        let to = response.headers().get(reqwest::header::LOCATION);
        let to = to
            .and_then(|to| to.to_str().ok())
            .map_or("another place".to_owned(), |to| {
                plain::one_line(to, ANSWER_SHOWN)
            });
        return Err(HandlerError::unrecoverable(format!(
            "the service answered {status}, a redirect to {to}, which is not followed; put the final address into `url`"
        )));
    }
    let retry = status.is_server_error()
        || matches!(
            status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT
        );
    let message = format!("the service answered {status}: {}", excerpt(response).await);
    Err(if retry {
        HandlerError::retry(message)
    } else {
        HandlerError::unrecoverable(message)
    })
}

/// Seconds, or an HTTP date.
fn retry_after(headers: &HeaderMap, now: DateTime<Utc>) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let at = DateTime::parse_from_rfc2822(text).ok()?.to_utc();
            (at - now).to_std().unwrap_or_default()
        }
    };
    Some(wait.clamp(SHORTEST_SNOOZE, LONGEST_SNOOZE))
}

async fn excerpt(mut response: Response) -> String {
    let mut read = Vec::new();
    while read.len() < ANSWER_BYTES {
        match response.chunk().await {
            Ok(Some(chunk)) => {
                let room = ANSWER_BYTES - read.len();
                read.extend_from_slice(chunk.get(..room).unwrap_or(&chunk));
            }
            Ok(None) | Err(_) => break,
        }
    }
    let text = String::from_utf8_lossy(&read);
    match text.trim() {
        "" => "(no body)".to_owned(),
        text => plain::one_line(text, ANSWER_SHOWN),
    }
}

fn not_answered(error: &reqwest::Error) -> HandlerError {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(next) = cause {
        if let Some(private) = next.downcast_ref::<PrivateAddress>() {
            // Another node may know the name by a public address.
            return HandlerError::retry(private.to_string());
        }
        cause = next.source();
    }
    if error.is_timeout() {
        return HandlerError::retry(format!(
            "the service did not answer in time: {}",
            causes(error)
        ));
    }
    HandlerError::retry(format!(
        "the service could not be called: {}",
        causes(error)
    ))
}

fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}

#[cfg(test)]
mod tests;

//! `http`: calls a service. Payload: `{"url": "https://api.example.org/paid", "method": "POST",
//! "headers": {"Accept": "text/plain"}, "body": {"order": 17}}`; only `url` is required. A body
//! that is a string is sent as it is, any other body as JSON.
//!
//! | answer | effect on the job |
//! | --- | --- |
//! | 2xx | is done |
//! | 429, 503 with `Retry-After` | waits for that time; no attempt spent |
//! | 3xx | becomes a dead letter: redirects are not followed, since they may lead to hosts that are not allowed |
//! | 408, 429, 5xx, no answer in time, network error, a host that this node may not call | is retried by its retry policy; one attempt spent |
//! | other 4xx, a payload that can't be sent | becomes a dead letter |
//!
//! A call has 30 s, from connecting to the last byte of the answer, or the timeout of the type if one is
//! set (`type_timeouts`). A call that takes longer is a timeout of the attempt, as of any other type.
//!
//! A job for a host that this node may not call does not become a dead letter: another node may be
//! allowed to call it, or this node after a change of its settings.
//!
//! Every call has the headers `Idempotency-Key`, the job's id, which is the same for every attempt,
//! and `Jobwire-Fence`, which only grows. So the service can refuse a repeated call, and a call of
//! a node that lost its lease.
//!
//! The creator of a job chooses the service that this process calls (SSRF). Therefore only hosts
//! that the operator allowed are called ([`AllowList`]). A name is resolved once, and the
//! connection goes to that address, never to a private one (`resolver`). Redirects and proxies from
//! the environment are not used. At most 8 KiB of an answer are read, and its first 1,000
//! characters are kept, escaped.

mod request;
mod resolver;

use std::error::Error;
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use jobwire_core::{
    Fence, Handler, HandlerError, HandlerOptions, HandlerResult, JobId, Outcome, Running,
    telemetry::plain,
};
use reqwest::header::{HeaderMap, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, redirect};
use serde_json::Value;

pub use crate::settings::{AllowList, BadHost};
use request::Request;
use resolver::{PrivateAddress, PublicResolver};

/// The handler type.
pub const TYPE: &str = "http";

/// The timeout of an attempt if the operator sets none.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The time for which the body of an answer is read for the message.
const BODY_WITHIN: Duration = Duration::from_secs(2);
/// Maximum number of bytes of an answer that are read for the message.
const ANSWER_BYTES: usize = 8 * 1024;
/// Maximum number of characters that are kept of an answer, and of the address of a redirect.
const ANSWER_SHOWN: usize = 1_000;
/// The longest time for which a service can postpone a job.
const LONGEST_SNOOZE: Duration = Duration::from_secs(24 * 3600);
/// The shortest time for which a service can postpone a job.
const SHORTEST_SNOOZE: Duration = Duration::from_secs(1);

/// Calls services on allowed hosts. See the [module](self).
pub struct HttpHandler {
    allowed: AllowList,
    client: Result<Client, String>,
}

#[async_trait]
impl Handler for HttpHandler {
    async fn run(&self, job: Running) -> HandlerResult<Outcome> {
        tokio::select! {
            answer = self.call(job.job.id, job.fence, job.job.payload.get()) => answer,
            () = job.stop.cancelled() => Err(HandlerError::retry("stopped before the service answered")),
        }
    }
}

impl HttpHandler {
    /// Creates a handler that may call these hosts. It limits no time: register it with its
    /// [`options`](Self::options).
    #[must_use]
    pub fn new(allowed: AllowList) -> Self {
        Self::build(allowed, PublicResolver::of_the_machine())
    }

    /// Returns the options of the handler: a timeout of 30 s, which covers the whole call.
    #[must_use]
    pub fn options() -> HandlerOptions {
        HandlerOptions::default().timeout(TIMEOUT)
    }

    fn build(allowed: AllowList, resolver: PublicResolver) -> Self {
        // Fails if a provider is installed already, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .user_agent(concat!("jobwire/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            .no_proxy()
            .referer(false)
            .retry(reqwest::retry::never())
            .dns_resolver(resolver)
            .build()
            .map_err(|error| causes(&error));
        Self { allowed, client }
    }

    async fn call(&self, id: JobId, fence: Fence, payload: &str) -> HandlerResult<Outcome> {
        let payload: Value = serde_json::from_str(payload).map_err(|e| {
            HandlerError::unrecoverable(format!(
                "field `payload` of an `http` job: {e}; give, for example, {{\"url\": \
                 \"https://api.example.org/paid\"}}"
            ))
        })?;
        let request =
            Request::parse(&payload).map_err(|e| HandlerError::unrecoverable(e.to_string()))?;
        self.ensure_allowed(&request)?;
        let client = self.client.as_ref().map_err(|problem| {
            HandlerError::retry(format!("this node has no HTTP client: {problem}"))
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
                "field `url` of the payload has no host; add one",
            ));
        };
        if self.allowed.allows(&host, port) {
            return Ok(());
        }
        let why = if self.allowed.is_empty() {
            "no host is allowed on this node yet"
        } else {
            "it is not an allowed host of this node"
        };
        // Another node may be allowed to call it.
        Err(HandlerError::retry(format!(
            "`http` jobs may not call {host}:{port}: {why}; allow it with `--http-allow-hosts`, \
             `JOBWIRE_HTTP_ALLOW_HOSTS` or `http_allow_hosts` in jobwire.toml"
        )))
    }
}

async fn judge(response: Response) -> HandlerResult<Outcome> {
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
        tracing::debug!(%status, ?wait, "the service postponed the job");
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
            "the service answered {status}, a redirect to {to}, which is not followed; put the \
             final address into `url`"
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

/// Returns the wait of `Retry-After`, which holds seconds or an HTTP date.
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

/// Returns the beginning of the body. The status has decided already, so the body is waited for only a
/// moment.
async fn excerpt(mut response: Response) -> String {
    let mut read = Vec::new();
    let reading = async {
        while read.len() < ANSWER_BYTES {
            match response.chunk().await {
                Ok(Some(chunk)) => {
                    let room = ANSWER_BYTES - read.len();
                    read.extend_from_slice(chunk.get(..room).unwrap_or(&chunk));
                }
                Ok(None) | Err(_) => break,
            }
        }
    };
    let _ = tokio::time::timeout(BODY_WITHIN, reading).await;
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
            // On another node the name may resolve to a public address.
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

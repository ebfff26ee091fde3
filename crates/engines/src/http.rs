//! The client of the engine's REST interface.
//!
//! Connections are kept and reused. No redirect is followed and no proxy of the environment is
//! used. At most 8 KiB of an answer are read.

use std::error::Error;
use std::time::Duration;

use jobwire_core::StoreError;
use jobwire_core::telemetry::plain;
use jobwire_core::transport::{Plaintext, is_loopback};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Body, Client, Response, StatusCode, redirect};
use url::Url;

use crate::dialect::{Call, Method};
use crate::options::{Credentials, EngineOptions};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(10);
/// Maximum number of bytes of an answer that are read, and of characters that are kept.
const ANSWER_BYTES: usize = 8 * 1024;
const ANSWER_SHOWN: usize = 1_000;

/// What the engine said to an execution. It is only a hint: the rows decide.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The execution has ended well.
    Executed,
    /// The execution has ended with an error.
    Refused(String),
    /// The engine has no such job to execute, or the path is wrong.
    Missing(String),
    /// The engine can't execute anything: credentials, path, a gateway's answer.
    Unusable(String),
    /// The request did not reach the engine.
    Unsent(String),
    /// The request was sent, and no answer came: it may still run, or has ended.
    Unanswered(String),
}

impl Answer {
    /// Returns its name, for metrics.
    pub(crate) const fn as_str(&self) -> &'static str {
        match self {
            Self::Executed => "executed",
            Self::Refused(_) => "refused",
            Self::Missing(_) => "missing",
            Self::Unusable(_) => "unusable",
            Self::Unsent(_) => "unsent",
            Self::Unanswered(_) => "unanswered",
        }
    }
}

/// The REST interface of an engine.
#[derive(Debug)]
pub(crate) struct Rest {
    client: Client,
    base: Url,
    path: String,
    credentials: Credentials,
}

impl Rest {
    /// Creates a client. Connects to nothing yet.
    pub(crate) fn new(options: &EngineOptions) -> Result<Self, StoreError> {
        let wrong = |problem: String| {
            StoreError::Config(format!(
                "the engine's URL can't be used: {problem}; write http://host:port/process-api, http://host:port/engine-rest, or https://…"
            ))
        };
        let base = Url::parse(&options.url).map_err(|error| wrong(error.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") || base.host().is_none() {
            return Err(wrong("it names no host of HTTP".to_owned()));
        }
        if !base.username().is_empty() || base.password().is_some() {
            return Err(wrong(
                "it has a user or a password, which belong into the credentials".to_owned(),
            ));
        }
        let is_open = base.scheme() == "http" && options.credentials != Credentials::None;
        let is_near = base.host_str().is_some_and(is_loopback);
        if is_open && !is_near && options.plaintext == Plaintext::Loopback {
            return Err(StoreError::Config(
                "the engine's credentials would be sent unencrypted to another machine; use https, or, if the \
                 network itself can be trusted, set `engine_plaintext` to `allow`"
                    .to_owned(),
            ));
        }
        if !options.path.starts_with('/') || !options.path.contains("{id}") {
            return Err(StoreError::Config(format!(
                "the engine's path `{}` must begin with `/` and contain `{{id}}`, the place of the job's id",
                options.path.escape_debug()
            )));
        }
        // Fails if a provider is installed already, which serves as well.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .user_agent(concat!("jobwire/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            .no_proxy()
            .referer(false)
            .retry(reqwest::retry::never())
            .connect_timeout(CONNECT_TIMEOUT)
            // Shorter than the keep-alive of servers, which close idle connections: a request that
            // meets the close has no answer.
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(options.concurrency)
            .tcp_nodelay(true)
            .timeout(options.answer_within)
            .build()
            .map_err(|error| wrong(causes(&error)))?;
        Ok(Self {
            client,
            base,
            path: options.path.clone(),
            credentials: options.credentials.clone(),
        })
    }

    /// Executes a job by the engine's id, with this JSON body.
    pub(crate) async fn execute(&self, id: &str, body: &'static str) -> Answer {
        let path = self.path.replace("{id}", id);
        self.send(Method::Post, &path, body).await
    }

    /// Sends a call.
    pub(crate) async fn call(&self, call: Call) -> Answer {
        self.send(call.method, &call.path, call.body).await
    }

    /// Reads what is at a path, without its content.
    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::Get, path, "").await
    }

    async fn send(&self, method: Method, path: &str, body: impl Into<Body>) -> Answer {
        let url = match self.url(path) {
            Ok(url) => url,
            Err(problem) => return Answer::Unusable(problem),
        };
        let call = match method {
            Method::Delete => self.client.delete(url),
            Method::Get => self.client.get(url),
            Method::Post => self.client.post(url).body(body),
            Method::Put => self.client.put(url).body(body),
        };
        let call = self.authorized(call);
        match call.header(CONTENT_TYPE, "application/json").send().await {
            Ok(response) => judge(response).await,
            Err(error) if error.is_connect() => Answer::Unsent(causes(&error)),
            Err(error) => Answer::Unanswered(causes(&error)),
        }
    }

    fn url(&self, path: &str) -> Result<Url, String> {
        let base = self.base.as_str().trim_end_matches('/');
        Url::parse(&format!("{base}{path}")).map_err(|error| error.to_string())
    }

    fn authorized(&self, call: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.credentials {
            Credentials::None => call,
            Credentials::Basic { user, password } => call.basic_auth(user, Some(password)),
            Credentials::Bearer(token) => call.bearer_auth(token),
        }
    }
}

async fn judge(response: Response) -> Answer {
    let status = response.status();
    if status.is_success() {
        return Answer::Executed;
    }
    let text = excerpt(response).await;
    match status {
        StatusCode::INTERNAL_SERVER_ERROR | StatusCode::CONFLICT => Answer::Refused(text),
        StatusCode::NOT_FOUND => Answer::Missing(text),
        StatusCode::GATEWAY_TIMEOUT => {
            Answer::Unanswered(format!("the engine's gateway answered {status}"))
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Answer::Unusable(format!(
            "the engine answered {status}; check the user, the password and its rights"
        )),
        _ => Answer::Unusable(format!("the engine answered {status}: {text}")),
    }
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
    plain::one_line(String::from_utf8_lossy(&read).trim(), ANSWER_SHOWN)
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
mod tests {
    use super::*;

    fn rest(url: &str, path: &str) -> Result<Rest, String> {
        let options = EngineOptions::new(url).path(path.to_owned());
        Rest::new(&options).map_err(|error| error.to_string())
    }

    #[test]
    fn a_url_or_path_that_cannot_work_is_refused_with_the_remedy() {
        let path = "/management/jobs/{id}";
        assert!(rest("http://127.0.0.1:8080/", path).is_ok());
        for url in ["localhost", "ftp://a", "http://me:secret@a"] {
            let said = rest(url, path).expect_err(url);
            assert!(said.contains("http://host:port") && !said.contains("secret"));
        }
        for path in ["jobs/{id}", "/jobs"] {
            assert!(rest("http://a", path).expect_err(path).contains("{id}"));
        }
    }

    #[test]
    fn credentials_go_to_another_machine_over_tls_only() {
        let with = |url: &str| {
            let options = EngineOptions::new(url).credentials(Credentials::basic("me", "secret"));
            Rest::new(&options).map(drop).map_err(|e| e.to_string())
        };
        assert!(with("http://127.0.0.1:8080").is_ok() && with("https://engine").is_ok());
        let said = with("http://engine:8080").expect_err("refused");
        assert!(said.contains("engine_plaintext") && !said.contains("secret"));
    }

    #[test]
    fn paths_are_joined_below_the_base() {
        let rest = rest("http://a:8/app/", "/management/jobs/{id}").expect("usable");
        let url = rest.url("/management/x").map(String::from);
        assert_eq!(url.as_deref(), Ok("http://a:8/app/management/x"));
    }
}

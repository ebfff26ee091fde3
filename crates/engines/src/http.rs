//! The client of the engine's REST interface.
//!
//! Connections are kept and reused. No redirect is followed and no proxy of the environment is
//! used. At most 8 KiB of an answer are read, 64 KiB of an answer about a job of the endpoint, and 8 MiB of an
//! answer about many jobs.

use std::time::Duration;

use jobwire_core::StoreError;
use jobwire_core::telemetry::plain;
use jobwire_core::transport::{Plaintext, is_loopback};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Body, Client, Response, StatusCode, redirect};
use url::Url;

pub(crate) use crate::answer::Answer;
use crate::answer::{SHOWN, state};
use crate::call::{Call, Method, Request};
use crate::options::{Credentials, EngineOptions, Execution};
use crate::unsent::{causes, reason};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const IDLE: Duration = Duration::from_secs(10);
/// Maximum number of bytes of an answer that are read.
const ANSWER_BYTES: usize = 8 * 1024;
/// Maximum number of bytes of an answer of the endpoint: an engine keeps messages of 4,000
/// characters.
const TOLD_BYTES: usize = 64 * 1024;
/// Maximum number of bytes of an answer to an operation: two hundred jobs with such messages.
const OPERATED_BYTES: usize = 8 * 1024 * 1024;

/// The remedy where a page answers for the engine.
const PAGE: &str = "check `engine_url`, and whether a page for a login or of a maintenance stands before the engine";

/// The REST interface of an engine, at one address.
#[derive(Debug)]
pub(crate) struct Rest {
    client: Client,
    base: Url,
    path: String,
    execution: Execution,
    credentials: Credentials,
}

impl Rest {
    /// Creates a client of the engine at this URL. Connects to nothing yet.
    pub(crate) fn new(options: &EngineOptions, url: &str) -> Result<Self, StoreError> {
        let wrong = |problem: String| {
            StoreError::Config(format!(
                "the engine's URL can't be used: {problem}; write http://host:port/process-api, \
                 http://host:port/engine-rest, or https://…"
            ))
        };
        let base = Url::parse(url).map_err(|error| wrong(error.to_string()))?;
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
                "the engine's credentials would be sent unencrypted to another machine; use https, \
                 or, if the network itself can be trusted, set `engine_plaintext` to `allow`"
                    .to_owned(),
            ));
        }
        if let Credentials::Bearer(token) = &options.credentials
            && (token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()))
        {
            return Err(StoreError::Config(
                "the engine's token is empty or has characters that no token can have, such as a \
                 space or a line feed; correct the file in `engine_token_file`"
                    .to_owned(),
            ));
        }
        let path = options.execution_path();
        if !path.starts_with('/') || !path.contains("{id}") {
            return Err(StoreError::Config(format!(
                "the engine's path `{}` must begin with `/` and contain `{{id}}`, the place of the \
                 job's id",
                path.escape_debug()
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
            // Shorter than the keep-alive of servers. They close idle connections, and a request
            // sent at that moment gets no answer.
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(options.concurrency)
            .tcp_nodelay(true)
            .timeout(options.answer_within)
            .build()
            .map_err(|error| {
                StoreError::Config(format!(
                    "no client of HTTP can be made: {}; check this machine's trust store, or the file \
                     in the environment variable `SSL_CERT_FILE`",
                    causes(&error)
                ))
            })?;
        Ok(Self {
            client,
            base,
            path: path.to_owned(),
            execution: options.execution,
            credentials: options.credentials.clone(),
        })
    }

    /// Executes a job by the engine's id, under the lock of this owner.
    pub(crate) async fn execute(&self, id: &str, request: Request, owner: &str) -> Answer {
        let path = self.path_of(id, request, owner);
        match self.exchange(Method::Post, &path, request.body).await {
            Ok(response) if self.execution == Execution::Endpoint => told(response).await,
            Ok(response) => self.done(response).await,
            Err(failed) => failed,
        }
    }

    /// Returns the path of an execution. The endpoint compares the owner with the job's row; an
    /// older artefact ignores it.
    fn path_of(&self, id: &str, request: Request, owner: &str) -> String {
        let path = self.path.replace("{id}", id) + request.query;
        if self.execution != Execution::Endpoint {
            return path;
        }
        let and = if path.contains('?') { '&' } else { '?' };
        format!("{path}{and}owner={owner}")
    }

    /// Executes a job by an operation of the endpoint, which tells what became of it.
    pub(crate) async fn run(&self, path: &str, body: String) -> Answer {
        match self.exchange(Method::Post, path, body).await {
            Ok(response) => told(response).await,
            Err(failed) => failed,
        }
    }

    /// Sends a request that the endpoint answers by lines, and returns them.
    ///
    /// # Errors
    /// The other answer of the endpoint.
    pub(crate) async fn lines(&self, path: &str, body: String) -> Result<Lines, Answer> {
        let response = self.exchange(Method::Post, path, body).await?;
        if !response.status().is_success() {
            return Err(judge(response).await);
        }
        Ok(Lines {
            response,
            read: Vec::new(),
            seen: 0,
            drops: false,
        })
    }

    /// Sends an operation to the endpoint, and returns the bytes of its answer of success.
    ///
    /// # Errors
    /// The other answer of the endpoint.
    pub(crate) async fn operate(&self, path: &str, body: String) -> Result<Vec<u8>, Answer> {
        let response = self.exchange(Method::Post, path, body).await?;
        if !response.status().is_success() {
            return Err(judge(response).await);
        }
        match beginning(response, OPERATED_BYTES).await {
            (said, None) if said.len() < OPERATED_BYTES => Ok(said),
            (_, None) => Err(Answer::Unusable(format!(
                "the answer to {path} has more than {OPERATED_BYTES} bytes"
            ))),
            (_, Some(error)) => Err(Answer::Unanswered(error)),
        }
    }

    /// Asks whether the execution endpoint is there, without an execution: it takes no GET.
    async fn ask_endpoint(&self) -> Answer {
        let path = self.path.replace("{id}", "0");
        self.get(&path).await
    }

    /// Asks whether the engine answers: over REST for its version at the path `about`, and at the
    /// endpoint whether it is there.
    pub(crate) async fn ask(&self, about: &str) -> Answer {
        match self.execution {
            Execution::Endpoint => match self.ask_endpoint().await {
                Answer::OtherMethod => Answer::Executed,
                Answer::Executed => Answer::Missing(String::new()),
                other => other,
            },
            Execution::Auto | Execution::Rest => match self.read(about, ANSWER_BYTES).await {
                Ok(said) if is_object(&said) => Answer::Executed,
                Ok(_) => Answer::Unusable(format!(
                    "{} answers with a page instead of the engine's version; {PAGE}",
                    self.url_shown()
                )),
                Err(answer) => answer,
            },
        }
    }

    /// Returns the answer to a request that the engine answers with 204 when it has done it. Another
    /// status of success comes from something else: a page for a login or of a maintenance.
    async fn done(&self, response: Response) -> Answer {
        let status = response.status();
        match status {
            StatusCode::NO_CONTENT => Answer::Executed,
            _ if status.is_success() => Answer::Unusable(format!(
                "{} answered {status} instead of 204 No Content; {PAGE}",
                self.url_shown()
            )),
            _ => judge(response).await,
        }
    }

    /// Returns the URL, without secrets.
    pub(crate) fn url_shown(&self) -> &str {
        self.base.as_str()
    }

    /// Returns the host and the port.
    pub(crate) fn address(&self) -> String {
        let host = self.base.host_str().unwrap_or_default();
        match self.base.port_or_known_default() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        }
    }

    /// Sends a call.
    pub(crate) async fn call(&self, call: &Call) -> Answer {
        let sent = self.exchange(call.method, &call.path, call.body.clone());
        match sent.await {
            Ok(response) => self.done(response).await,
            Err(failed) => failed,
        }
    }

    /// Reads at most this many bytes that are at a path. A longer answer is none.
    pub(crate) async fn read(&self, path: &str, most: usize) -> Result<Vec<u8>, Answer> {
        let response = self.exchange(Method::Get, path, "").await?;
        if !response.status().is_success() {
            return Err(judge(response).await);
        }
        match beginning(response, most).await {
            (said, None) if said.len() < most => Ok(said),
            (_, None) => Err(Answer::Unusable(format!(
                "the answer is longer than {most} bytes"
            ))),
            (_, Some(error)) => Err(Answer::Unanswered(error)),
        }
    }

    /// Reads what is at a path, without its content.
    async fn get(&self, path: &str) -> Answer {
        match self.exchange(Method::Get, path, "").await {
            Ok(response) => judge(response).await,
            Err(failed) => failed,
        }
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: impl Into<Body>,
    ) -> Result<Response, Answer> {
        let url = self.url(path).map_err(Answer::Unusable)?;
        let call = match method {
            Method::Delete => self.client.delete(url),
            Method::Get => self.client.get(url),
            Method::Post => self.client.post(url).body(body),
            Method::Put => self.client.put(url).body(body),
        };
        let call = self.authorized(call);
        match call.header(CONTENT_TYPE, "application/json").send().await {
            Ok(response) => Ok(response),
            Err(error) if error.is_connect() => Err(Answer::Unsent(reason(&error))),
            Err(error) => Err(Answer::Unanswered(causes(&error))),
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

/// The lines of an answer, as they arrive.
#[derive(Debug)]
pub(crate) struct Lines {
    response: Response,
    /// Read bytes that no line has been made of.
    read: Vec<u8>,
    /// The number of these bytes that contain no line feed.
    seen: usize,
    /// Whether the line that arrives is too long. It is dropped up to its line feed.
    drops: bool,
}

impl Lines {
    /// Returns the next line without its line feed, and no longer than [`TOLD_BYTES`]; longer ones are
    /// left out. `None` at the end.
    ///
    /// # Errors
    /// The reason why the connection broke, or why this is no answer by lines.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>, String> {
        loop {
            let unseen = self.read.get(self.seen..).unwrap_or_default();
            if let Some(at) = unseen.iter().position(|byte| *byte == b'\n') {
                let rest = self.read.split_off(self.seen + at + 1);
                let mut line = std::mem::replace(&mut self.read, rest);
                line.pop();
                self.seen = 0;
                if !std::mem::take(&mut self.drops) {
                    return Ok(Some(line));
                }
                continue;
            }
            self.seen = self.read.len();
            if self.seen >= TOLD_BYTES {
                // The jobs of the other lines have their answers.
                self.drops = true;
                self.read.clear();
                self.seen = 0;
            }
            match self.response.chunk().await {
                Ok(Some(chunk)) => self.read.extend_from_slice(&chunk),
                Ok(None) => return Ok(None),
                Err(error) => return Err(causes(&error)),
            }
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
        StatusCode::METHOD_NOT_ALLOWED => Answer::OtherMethod,
        _ if is_of_gateway(status) => {
            Answer::ByGateway(format!("the engine's gateway answered {status}"))
        }
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Answer::Unusable(format!(
            "the engine answered {status}; check the user and the password, or the \
             token, and the rights"
        )),
        _ => Answer::Unusable(format!("the engine answered {status}: {text}")),
    }
}

/// Returns whether a gateway answers so that lost the engine's answer: a proxy, a load balancer, or
/// a content delivery network (520 to 530). The engine may have the request.
fn is_of_gateway(status: StatusCode) -> bool {
    matches!(status.as_u16(), 502..=504 | 520..=530)
}

/// Returns the endpoint's answer about a job, from a response with a status of success.
async fn told(response: Response) -> Answer {
    if !response.status().is_success() {
        return judge(response).await;
    }
    match beginning(response, TOLD_BYTES).await {
        (said, None) => state(&said),
        (_, Some(error)) => Answer::Unanswered(error),
    }
}

/// Reads the beginning of an answer. Returns the read text, and the error of a broken connection.
async fn beginning(mut response: Response, most: usize) -> (Vec<u8>, Option<String>) {
    let mut read = Vec::new();
    while read.len() < most {
        match response.chunk().await {
            Ok(Some(chunk)) => {
                let room = most - read.len();
                read.extend_from_slice(chunk.get(..room).unwrap_or(&chunk));
            }
            Ok(None) => break,
            Err(error) => return (read, Some(causes(&error))),
        }
    }
    (read, None)
}

/// Returns whether these bytes are an object of JSON.
fn is_object(said: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(said).is_ok()
}

async fn excerpt(response: Response) -> String {
    let (read, _) = beginning(response, ANSWER_BYTES).await;
    plain::one_line(String::from_utf8_lossy(&read).trim(), SHOWN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(url: &str, path: &str) -> Result<Rest, String> {
        let options = EngineOptions::new(url).path(path.to_owned());
        Rest::new(&options, url).map_err(|error| error.to_string())
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
            Rest::new(&options, url)
                .map(drop)
                .map_err(|e| e.to_string())
        };
        assert!(with("http://127.0.0.1:8080").is_ok() && with("https://engine").is_ok());
        let said = with("http://engine:8080").expect_err("refused");
        assert!(said.contains("engine_plaintext") && !said.contains("secret"));
    }

    /// The client can't make a request with such a token, and each job would seem to have no answer.
    #[test]
    fn a_token_that_no_header_can_have_is_refused_and_not_shown() {
        let with = |token: &str| {
            let options = EngineOptions::new("https://engine")
                .credentials(Credentials::Bearer(token.to_owned()));
            Rest::new(&options, "https://engine")
                .map(drop)
                .map_err(|e| e.to_string())
        };
        assert!(with("eyJhbGciOi.J9-_~+/==").is_ok());
        for token in ["", "two words", "hunter2\nhunter3", "hünter"] {
            let said = with(token).expect_err("refused");
            assert!(said.contains("`engine_token_file`"), "{said}");
            assert!(token.is_empty() || !said.contains(token), "{said}");
        }
    }

    /// A proxy that lost the connection to the engine does not know what the engine does.
    #[test]
    fn an_answer_of_a_gateway_leaves_the_execution_open() {
        let of_gateway = |status: u16| StatusCode::from_u16(status).map(is_of_gateway);
        for lost in [502, 503, 504, 520, 524, 530] {
            assert!(of_gateway(lost).is_ok_and(|it| it), "{lost}");
        }
        for told in [401, 404, 413, 429, 500, 501, 505, 519, 531] {
            assert!(of_gateway(told).is_ok_and(|it| !it), "{told}");
        }
    }

    /// An artefact that knows the owner refuses a job that another node has locked meanwhile.
    #[test]
    fn an_execution_over_the_endpoint_names_the_owner_of_its_lock() {
        let owner = "jobwire:0198c0de-7777-7000-8000-000000000001:7";
        let path = |execution: Execution, query: &'static str| {
            let mut options = EngineOptions::new("http://a:8/jobwire");
            options.execution = execution;
            let rest = Rest::new(&options, "http://a:8/jobwire").expect("usable");
            let path = rest.path_of("17", Request { query, body: "" }, owner);
            rest.url(&path).map(|url| {
                let query = url.query().unwrap_or_default();
                format!("{}?{query}", url.path())
            })
        };
        assert_eq!(
            path(Execution::Endpoint, "?instance=held"),
            Ok(format!(
                "/jobwire/jobs/17/execute?instance=held&owner={owner}"
            ))
        );
        assert_eq!(
            path(Execution::Endpoint, ""),
            Ok(format!("/jobwire/jobs/17/execute?owner={owner}"))
        );
        assert_eq!(
            path(Execution::Rest, ""),
            Ok("/jobwire/management/jobs/17?".to_owned())
        );
    }

    #[test]
    fn paths_are_joined_below_the_base() {
        let rest = rest("http://a:8/app/", "/management/jobs/{id}").expect("usable");
        let url = rest.url("/management/x").map(String::from);
        assert_eq!(url.as_deref(), Ok("http://a:8/app/management/x"));
    }
}

//! The part of an engine's application to which a node sends requests: the execution endpoint
//! (docs/reference/engine-endpoint.md), and Flowable's REST interface. The test answers each
//! execution.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use jobwire_tests::{Identity, wait::patience};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::engines::rows::SOON;

/// The first byte of a TLS handshake.
const HANDSHAKE: u8 = 22;

/// An execution that a node has requested.
#[derive(Debug)]
pub(super) struct Execution {
    /// The engine's id of the job.
    pub(super) id: String,
    /// The owner of the lock that the request names; `None` over REST.
    pub(super) owner: Option<String>,
    /// The number of the connection that the request came over.
    pub(super) connection: usize,
    answer: oneshot::Sender<Told>,
}

/// The status and the body of an answer.
type Told = (&'static str, &'static str);

impl Execution {
    /// Answers that the job ran, also to a node that no longer waits.
    pub(super) fn gone(self) {
        self.tell(("200 OK", r#"{"state":"gone"}"#), ("204 No Content", ""));
    }

    /// Answers as a page before the engine does, which knows no job.
    pub(super) fn page(self) {
        let page = ("200 OK", "<html><form action=\"/login\"></form></html>");
        self.tell(page, page);
    }

    /// Answers that the job failed and waits for its next attempt.
    pub(super) fn failed(self) {
        self.tell(
            ("200 OK", r#"{"state":"timer","retries":2}"#),
            (
                "500 Internal Server Error",
                r#"{"message":"the job failed"}"#,
            ),
        );
    }

    /// Answers that the job failed and is executable again: its failure was not recorded.
    pub(super) fn unrecorded(self) {
        self.tell(
            ("200 OK", r#"{"state":"job","retries":3}"#),
            (
                "500 Internal Server Error",
                r#"{"message":"the job failed"}"#,
            ),
        );
    }

    /// Answers as the endpoint of Camunda when the failure of a job could not be recorded.
    pub(super) fn running(self) {
        let told = ("200 OK", r#"{"state":"running","id":"7"}"#);
        self.tell(told, told);
    }

    /// Answers as the endpoint when the job is not executable, or not under the lock of the request.
    pub(super) fn refused(self) {
        let told = (
            "404 Not Found",
            r#"{"message":"there is no executable job 7 that the node has locked"}"#,
        );
        self.tell(told, told);
    }

    fn tell(self, by_endpoint: Told, by_rest: Told) {
        let told = match self.owner {
            Some(_) => by_endpoint,
            None => by_rest,
        };
        let _ = self.answer.send(told);
    }

    /// Closes the connection without an answer.
    pub(super) fn breaks(self) {}
}

/// What the connections of an application share.
#[derive(Debug)]
struct Shared {
    executions: mpsc::Sender<Execution>,
    /// The token that a request must have.
    token: Mutex<Option<String>>,
    connections: AtomicUsize,
    requests: AtomicUsize,
    plain: AtomicUsize,
    refused: AtomicUsize,
    probes: AtomicUsize,
}

/// An application on a port of its own. Ends with the runtime of its test.
pub(super) struct Application {
    address: SocketAddr,
    scheme: &'static str,
    executions: mpsc::Receiver<Execution>,
    shared: Arc<Shared>,
}

impl Application {
    /// Starts an application without TLS that asks for no token.
    pub(super) async fn start() -> Application {
        Application::on(None).await
    }

    /// Starts an application that speaks TLS with this identity, and nothing else.
    pub(super) async fn with_tls(identity: &Identity) -> Application {
        let certificate = CertificateDer::from_pem_file(&identity.certificate).unwrap();
        let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        Application::on(Some(TlsAcceptor::from(Arc::new(config)))).await
    }

    async fn on(tls: Option<TlsAcceptor>) -> Application {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let (sender, executions) = mpsc::channel(100);
        let shared = Arc::new(Shared {
            executions: sender,
            token: Mutex::default(),
            connections: AtomicUsize::default(),
            requests: AtomicUsize::default(),
            plain: AtomicUsize::default(),
            refused: AtomicUsize::default(),
            probes: AtomicUsize::default(),
        });
        let serving = shared.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(accept(stream, tls.clone(), serving.clone()));
            }
        });
        Application {
            address,
            scheme,
            executions,
            shared,
        }
    }

    /// Returns the URL of the endpoint.
    pub(super) fn url(&self) -> String {
        // The name that certificates have.
        format!(
            "{}://localhost:{}/jobwire",
            self.scheme,
            self.address.port()
        )
    }

    /// Returns the URL of the REST interface.
    pub(super) fn rest_url(&self) -> String {
        self.url().replace("/jobwire", "/process-api")
    }

    /// Answers 401 to each request without this bearer token from now on.
    pub(super) fn require(&self, token: &str) {
        *self.shared.token.lock().unwrap() = Some(token.to_owned());
    }

    /// Returns the number of HTTP requests so far.
    pub(super) fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }

    /// Returns the number of connections so far that did not begin with a TLS handshake.
    pub(super) fn plain(&self) -> usize {
        self.shared.plain.load(Ordering::SeqCst)
    }

    /// Returns the number of executions so far that were refused for their token.
    pub(super) fn refused(&self) -> usize {
        self.shared.refused.load(Ordering::SeqCst)
    }

    /// Returns the number of probes of the endpoint so far.
    pub(super) fn probes(&self) -> usize {
        self.shared.probes.load(Ordering::SeqCst)
    }

    /// Waits for an execution.
    pub(super) async fn execution(&mut self) -> Execution {
        let next = tokio::time::timeout(patience(SOON), self.executions.recv());
        let next = next.await.expect("an execution in time");
        next.expect("the application runs")
    }

    /// Fails if an execution was requested that the test has not taken.
    pub(super) fn assert_no_other(&mut self) {
        if let Ok(other) = self.executions.try_recv() {
            panic!("another execution: {other:?}");
        }
    }
}

async fn accept(mut stream: TcpStream, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let mut first = [0];
    if !matches!(stream.peek(&mut first).await, Ok(1)) {
        return;
    }
    let connection = shared.connections.fetch_add(1, Ordering::SeqCst);
    let is_handshake = first == [HANDSHAKE];
    if !is_handshake {
        shared.plain.fetch_add(1, Ordering::SeqCst);
    }
    match tls {
        Some(tls) => {
            if let Ok(stream) = tls.accept(stream).await {
                serve(stream, connection, &shared).await;
            }
        }
        // Web servers answer a handshake on their plain port like this.
        None if is_handshake => {
            // A connection that is closed before all is read is reset, and the answer may be lost.
            let mut hello = [0; 16 * 1024];
            let _ = stream.read(&mut hello).await;
            let _ = stream.write_all(&answer("400 Bad Request", "")).await;
            let _ = stream.shutdown().await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
        None => serve(stream, connection, &shared).await,
    }
}

/// Answers the requests of a connection, one after the other.
async fn serve(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    connection: usize,
    shared: &Shared,
) {
    let mut read = Vec::new();
    loop {
        let head = loop {
            if let Some(end) = read.windows(4).position(|part| part == b"\r\n\r\n") {
                let rest = read.split_off(end + 4);
                break std::mem::replace(&mut read, rest);
            }
            if !matches!(stream.read_buf(&mut read).await, Ok(1..)) {
                return;
            }
        };
        shared.requests.fetch_add(1, Ordering::SeqCst);
        let head = String::from_utf8_lossy(&head).into_owned();
        let mut lengths = head.lines().filter_map(|line| {
            let length = line.strip_prefix("content-length: ")?;
            length.parse().ok()
        });
        let length: usize = lengths.next().unwrap_or_default();
        while read.len() < length {
            if !matches!(stream.read_buf(&mut read).await, Ok(1..)) {
                return;
            }
        }
        read.drain(..length);
        let Some(answer) = respond(&head, connection, shared).await else {
            return;
        };
        if stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}

/// Returns the answer to a request; `None` if the connection breaks instead.
async fn respond(head: &str, connection: usize, shared: &Shared) -> Option<Vec<u8>> {
    let mut words = head.split_ascii_whitespace();
    let (method, target) = (words.next()?, words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let by_rest = path.strip_prefix("/process-api/management/jobs/");
    let job = path
        .strip_prefix("/jobwire/jobs/")
        .and_then(|rest| rest.strip_suffix("/execute"))
        .or(by_rest);
    let token = shared.token.lock().unwrap().clone();
    let header = token.map(|token| format!("authorization: Bearer {token}"));
    if header.is_some_and(|header| head.lines().all(|line| line != header)) {
        if method == "POST" {
            shared.refused.fetch_add(1, Ordering::SeqCst);
        }
        return Some(answer("401 Unauthorized", ""));
    }
    match (method, job) {
        ("GET", None) if path == "/jobwire/scope" => {
            Some(answer("200 OK", r#"{"categories":null,"instance":"held"}"#))
        }
        ("POST", Some(id)) => {
            let mut parameters = query.split('&');
            let owner = parameters.find_map(|pair| pair.strip_prefix("owner="));
            if owner.is_none() != by_rest.is_some() {
                return None;
            }
            let (sender, told) = oneshot::channel();
            let execution = Execution {
                id: id.to_owned(),
                owner: owner.map(str::to_owned),
                connection,
                answer: sender,
            };
            shared.executions.send(execution).await.ok()?;
            let (status, body) = told.await.ok()?;
            Some(answer(status, body))
        }
        ("POST", None) if path.starts_with("/jobwire/v1/") => Some(operation(path, shared)),
        ("GET", None) if path == "/process-api/management/engine" => Some(answer("200 OK", "{}")),
        (_, Some(_)) => Some(answer("405 Method Not Allowed", "")),
        _ => Some(answer("404 Not Found", "")),
    }
}

/// Answers an operation of the leader over the endpoint alone. The engine has two jobs of cases, and
/// no other job.
fn operation(path: &str, shared: &Shared) -> Vec<u8> {
    let body = match path.strip_prefix("/jobwire/v1/") {
        Some("lead") => {
            r#"{"leads":true,"term":1,"node":"","transport":"","remaining":0,"now":1700000000000}"#
        }
        Some("backlog") => r#"{"locked":0,"executable":0,"timers":0,"dead_letters":0}"#,
        Some("probe") => {
            shared.probes.fetch_add(1, Ordering::SeqCst);
            r#"{"contract":1,"engine":"flowable","version":"7.2.0.2","executor":false,"database":"MariaDB 10.11",
                "clock_ahead":0,"ids":[],"other_scopes":2,"handlers":[],"polls":false}"#
        }
        _ => return answer("404 Not Found", ""),
    };
    answer("200 OK", body)
}

fn answer(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
}

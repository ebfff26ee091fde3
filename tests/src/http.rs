//! A minimal HTTP client: one request on the loopback. And what a service of a test needs.

use std::fmt::Write;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A response: status code and body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status code, such as 200.
    pub status: u16,
    /// The body as text.
    pub body: String,
}

/// Returns a node's HTTP address from the line that it prints when it is ready.
#[must_use]
pub fn address_in(ready: &str) -> String {
    let address = ready.rsplit("http://").next().unwrap_or_default();
    address.trim().to_owned()
}

/// Reads a request up to the end of its head. Returns `None` if the caller has gone, as one that died.
pub async fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut buffer).await {
            Ok(length @ 1..) => request.extend_from_slice(buffer.get(..length)?),
            _ => return None,
        }
    }
    Some(String::from_utf8_lossy(&request).into_owned())
}

/// Answers a request with this status, such as `200 OK`, and closes the connection.
pub async fn answer(mut stream: TcpStream, status: &str) {
    let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// Gets `path` (with its query) from `address` (`host:port`).
///
/// # Errors
/// As [`Request::send`].
pub async fn get(address: &str, path: &str) -> std::io::Result<Response> {
    Request::new("GET", address, path).send().await
}

/// A request with one connection of its own.
#[derive(Clone, Debug)]
pub struct Request {
    address: String,
    head: String,
    body: String,
    deadline: Duration,
}

impl Request {
    /// Prepares a request of `path` (with its query) to `address` (`host:port`).
    #[must_use]
    pub fn new(method: &str, address: &str, path: &str) -> Request {
        Request {
            address: address.to_owned(),
            // HTTP/1.0: the server closes after the answer and does not chunk it.
            head: format!("{method} {path} HTTP/1.0\r\nHost: {address}\r\n"),
            body: String::new(),
            deadline: Duration::from_secs(30),
        }
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Request {
        let _ = write!(self.head, "{name}: {value}\r\n");
        self
    }

    /// Sets a body of JSON.
    #[must_use]
    pub fn json(mut self, body: impl Into<String>) -> Request {
        self.body = body.into();
        self.header("Content-Type", "application/json")
    }

    /// Sets the time after which the answer is given up: half a minute by default.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Request {
        self.deadline = deadline;
        self
    }

    /// Sends it.
    ///
    /// # Errors
    /// If no server listens, the answer takes too long, or it is not HTTP.
    pub async fn send(self) -> std::io::Result<Response> {
        tokio::time::timeout(self.deadline, self.exchange()).await?
    }

    async fn exchange(&self) -> std::io::Result<Response> {
        let Request {
            address,
            head,
            body,
            ..
        } = self;
        let mut stream = TcpStream::connect(address).await?;
        let length = body.len();
        let request = format!("{head}Content-Length: {length}\r\n\r\n{body}");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        let answer = String::from_utf8_lossy(&answer);
        parse(&answer).ok_or_else(|| std::io::Error::other(format!("not HTTP: {answer}")))
    }
}

fn parse(answer: &str) -> Option<Response> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    Some(Response {
        status,
        body: body.to_owned(),
    })
}

//! A minimal HTTP client: one GET on the loopback.

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

/// Gets `path` (with its query) from `address` (`host:port`).
///
/// # Errors
/// If no server listens, or the answer takes longer than half a minute or is not HTTP.
pub async fn get(address: &str, path: &str) -> std::io::Result<Response> {
    tokio::time::timeout(Duration::from_secs(30), exchange(address, path)).await?
}

async fn exchange(address: &str, path: &str) -> std::io::Result<Response> {
    let mut stream = TcpStream::connect(address).await?;
    // HTTP/1.0: the server closes after the answer and does not chunk it.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    parse(&answer).ok_or_else(|| std::io::Error::other(format!("not HTTP: {answer}")))
}

fn parse(answer: &str) -> Option<Response> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split_whitespace().nth(1)?.parse().ok()?;
    Some(Response {
        status,
        body: body.to_owned(),
    })
}

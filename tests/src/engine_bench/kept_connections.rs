//! Connections to an engine that are kept from one request to the next.

use std::io::{Error, ErrorKind, Result};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::http::Response;

/// Maximum size of an answer.
const MOST: usize = 16 << 20;
/// The engine's server closes a connection that was idle for 20 s.
const IDLE: Duration = Duration::from_secs(10);

type Connection = BufReader<TcpStream>;

/// Connections to one server of HTTP. As many are open as requests were under way at once.
#[derive(Debug)]
pub(super) struct KeptConnections {
    address: String,
    authorization: &'static str,
    /// Each with the time of its last answer, the youngest last.
    idle: Mutex<Vec<(Instant, Connection)>>,
}

impl KeptConnections {
    pub(super) fn to(address: String, authorization: &'static str) -> KeptConnections {
        KeptConnections {
            address,
            authorization,
            idle: Mutex::default(),
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(Instant, Connection)>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(since, _)| since.elapsed() < IDLE);
        idle
    }

    fn keep(&self, connection: Connection) {
        self.idle().push((Instant::now(), connection));
    }

    /// Opens a connection if none is idle, so that the next request does not wait for one.
    pub(super) async fn ready(&self) -> Result<()> {
        if self.idle().is_empty() {
            let connection = self.connect().await?;
            self.keep(connection);
        }
        Ok(())
    }

    /// Sends a request with a body of JSON, and returns its answer.
    pub(super) async fn post(&self, path: &str, json: &str) -> Result<Response> {
        let idle = self.idle().pop();
        let mut connection = match idle {
            Some((_, connection)) => connection,
            None => self.connect().await?,
        };
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{json}",
            self.address,
            self.authorization,
            json.len()
        );
        connection.write_all(request.as_bytes()).await?;
        let (answer, is_kept) = read(&mut connection).await?;
        if is_kept {
            self.keep(connection);
        }
        Ok(answer)
    }

    async fn connect(&self) -> Result<Connection> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        Ok(BufReader::new(stream))
    }
}

/// How the end of a body is found.
enum Body {
    Length(usize),
    Chunks,
}

/// Reads an answer, and whether the connection is kept.
async fn read(connection: &mut Connection) -> Result<(Response, bool)> {
    let status = line(connection).await?;
    let status = status
        .split_whitespace()
        .nth(1)
        .and_then(|it| it.parse().ok());
    let status: u16 = status.ok_or_else(|| not_http("no status"))?;
    let (mut body, mut is_kept) = (Body::Length(0), true);
    loop {
        let header = line(connection).await?;
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(':').ok_or_else(|| not_http("a header"))?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            body = Body::Length(value.parse().map_err(|_| not_http("a length"))?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            body = Body::Chunks;
        } else if name.eq_ignore_ascii_case("connection") {
            is_kept = !value.eq_ignore_ascii_case("close");
        }
    }
    let mut bytes = Vec::new();
    match body {
        Body::Length(length) => part(connection, length, &mut bytes).await?,
        Body::Chunks => loop {
            let size = line(connection).await?;
            let size = usize::from_str_radix(&size, 16).map_err(|_| not_http("a chunk"))?;
            part(connection, size, &mut bytes).await?;
            line(connection).await?;
            if size == 0 {
                break;
            }
        },
    }
    let body = String::from_utf8_lossy(&bytes).into_owned();
    Ok((Response { status, body }, is_kept))
}

async fn line(connection: &mut Connection) -> Result<String> {
    let mut text = String::new();
    if connection.take(MOST as u64).read_line(&mut text).await? == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    text.truncate(text.trim_end().len());
    Ok(text)
}

async fn part(connection: &mut Connection, size: usize, bytes: &mut Vec<u8>) -> Result<()> {
    let begin = bytes.len();
    if begin.saturating_add(size) > MOST {
        return Err(not_http("an answer that is too large"));
    }
    bytes.resize(begin + size, 0);
    let place = bytes.get_mut(begin..).unwrap_or_default();
    connection.read_exact(place).await?;
    Ok(())
}

fn not_http(what: &str) -> Error {
    Error::other(format!("the engine's answer is not HTTP: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    /// A server that gives these answers, one after the other, on one connection.
    async fn server(answers: &'static [&'static str]) -> KeptConnections {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = BufReader::new(stream);
            for answer in answers {
                while !line(&mut stream).await.unwrap().is_empty() {}
                stream.read_exact(&mut [0; 2]).await.unwrap();
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        KeptConnections::to(address, "Basic eDp5")
    }

    #[tokio::test]
    async fn a_connection_is_kept_whatever_the_form_of_an_answer() {
        let server = server(&[
            "HTTP/1.1 200 \r\nContent-Length: 4\r\n\r\n[17]",
            "HTTP/1.1 204 \r\n\r\n",
            "HTTP/1.1 500 \r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1\r\nd\r\n0\r\n\r\n",
        ])
        .await;
        for (status, body) in [(200, "[17]"), (204, ""), (500, "abcd")] {
            let answer = server.post("/", "{}").await.unwrap();
            assert_eq!((answer.status, &*answer.body), (status, body));
        }
        assert!(server.post("/", "{}").await.is_err(), "it has ended");
    }
}

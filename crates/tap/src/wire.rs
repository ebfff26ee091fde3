//! The bytes of a connection: a TCP connection, with or without TLS, or a Unix socket.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;

use pgwire_replication::protocol::framing::write_ssl_request;

use crate::address::{Address, TlsMode};
use crate::error::TapError;
use crate::tls;

/// A stream of bytes in both directions.
pub(crate) trait Bytes: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Bytes for T {}

/// Opens the connection, with TLS if the address demands it.
pub(crate) async fn open(address: &Address) -> Result<Box<dyn Bytes>, TapError> {
    if let Some(path) = address.socket() {
        return socket(&path).await;
    }
    // An IPv6 address comes from a URL with its brackets.
    let host = address.host.trim_matches(['[', ']']);
    let mut tcp = TcpStream::connect((host, address.port)).await?;
    tcp.set_nodelay(true)?;
    let mode = address.tls.mode;
    if mode == TlsMode::Disable {
        return Ok(Box::new(tcp));
    }
    write_ssl_request(&mut tcp).await?;
    match tcp.read_u8().await? {
        b'S' => Ok(Box::new(tls::encrypt(tcp, host, &address.tls).await?)),
        b'N' if mode == TlsMode::Prefer => Ok(Box::new(tcp)),
        b'N' => Err(TapError::Tls("the server does not offer TLS".to_owned())),
        _ => Err(TapError::Protocol(
            "the answer to the request for TLS is unknown".to_owned(),
        )),
    }
}

#[cfg(unix)]
async fn socket(path: &std::path::Path) -> Result<Box<dyn Bytes>, TapError> {
    Ok(Box::new(tokio::net::UnixStream::connect(path).await?))
}

#[cfg(not(unix))]
async fn socket(path: &std::path::Path) -> Result<Box<dyn Bytes>, TapError> {
    Err(TapError::Setting(format!(
        "this machine has no Unix sockets; {} cannot be used",
        path.display()
    )))
}

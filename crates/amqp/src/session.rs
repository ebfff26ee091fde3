//! One connection, from its handshake to its end.
//!
//! A session never recovers: when its connection breaks it is over, and [`crate::connection`] opens
//! the next one. (lapin can recover a connection, but not a channel that the broker closed, and it
//! would replay operations that are not wanted after an outage.) So a delivery tag or a confirm
//! belongs to exactly one session, and nothing of an old one reaches a new one.
//!
//! lapin runs each connection on its own thread, which ends when the broker closes the connection
//! or the socket ends. A silent broker (frozen, or behind a firewall that dropped the connection)
//! would keep the thread for ever, so the session holds a second handle to the socket and shuts it
//! down.

use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use jobwire_core::telemetry::metrics::BROKER_BLOCKED;
use jobwire_core::transport::{HostPort, TransportError};
use lapin::options::ConfirmSelectOptions;
use lapin::tcp::RustlsConnector;
use lapin::uri::AMQPUri;
use lapin::{AsyncTcpStream, Channel, Connection, ConnectionProperties, Event};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::endpoint::Endpoint;
use crate::error;
use crate::options::AmqpOptions;

/// Timeout of operations other than publishing: opening a channel, declaring, consuming.
const ANSWER: Duration = Duration::from_secs(5);
/// The minimum part of the connect timeout for one of several hosts.
const SHARE: Duration = Duration::from_secs(2);
/// The interval at which the connection's state is checked: lapin does not announce every end.
const LOOK: Duration = Duration::from_secs(1);

/// A second handle to a connection's socket, to end it when the broker does not answer.
#[derive(Clone, Default)]
struct Socket(Arc<Mutex<Handle>>);

#[derive(Default)]
struct Handle {
    stream: Option<std::net::TcpStream>,
    ended: bool,
}

impl Socket {
    fn keep(&self, stream: std::net::TcpStream) {
        let mut handle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        handle.stream = Some(stream);
        let ended = handle.ended;
        drop(handle);
        if ended {
            self.end();
        }
    }

    fn end(&self) {
        let mut handle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        handle.ended = true;
        if let Some(stream) = handle.stream.take() {
            // Fails if the socket is closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Ends the socket when its owner is dropped: a session, or an abandoned attempt.
struct Owned(Socket);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// An open connection.
pub(crate) struct Session {
    /// Identifies the session; grows.
    pub(crate) number: u64,
    connection: Connection,
    socket: Owned,
    blocked: watch::Sender<Option<String>>,
    over: CancellationToken,
    why: OnceLock<String>,
}

impl Session {
    /// Connects and logs in to one of the broker's hosts, over TLS if `tls` is given.
    pub(crate) async fn open(
        number: u64,
        endpoint: &Endpoint,
        at: &HostPort,
        tls: Option<RustlsConnector>,
        options: &AmqpOptions,
        name: &str,
    ) -> Result<Arc<Self>, TransportError> {
        let socket = Owned(Socket::default());
        let kept = socket.0.clone();
        let patience = patience(options.connect_timeout, endpoint.hosts().len());
        let properties = ConnectionProperties::default()
            .with_connection_name(name.into())
            .with_client_property("product".into(), "Jobwire".into())
            .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into());
        let runtime = lapin::runtime::default_runtime()
            .map_err(|e| TransportError::Unreachable(e.to_string()))?;
        let connecting = Connection::connector(
            endpoint.uri(at, options.heartbeat),
            runtime,
            // Runs on lapin's thread, which must end even if the host does not answer.
            async move |uri: AMQPUri, runtime| {
                let host = uri.authority.host.clone();
                let connected = tokio::time::timeout(patience, async {
                    let addresses = (host.as_str(), uri.authority.port);
                    let addresses: Vec<_> = tokio::net::lookup_host(addresses).await?.collect();
                    let stream = AsyncTcpStream::connect(&runtime, addresses).await?;
                    if let AsyncTcpStream::Plain(plain) = &stream {
                        let socket = plain.get_ref().as_fd().try_clone_to_owned()?;
                        kept.keep(socket.into());
                    }
                    match &tls {
                        Some(tls) => stream.into_rustls(tls, &host).await,
                        None => Ok(stream),
                    }
                });
                match connected.await {
                    Ok(stream) => stream.map_err(lapin::Error::from),
                    Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
                }
            },
            properties,
        );
        let connection = match tokio::time::timeout(patience, connecting).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(e)) => return Err(error::connecting(&e, endpoint, at, &options.security)),
            Err(_) => {
                return Err(TransportError::Unreachable(format!(
                    "{}: no answer within {patience:?}",
                    endpoint.at(at)
                )));
            }
        };
        Ok(Arc::new(Self {
            number,
            connection,
            socket,
            blocked: watch::Sender::new(None),
            over: CancellationToken::new(),
            why: OnceLock::new(),
        }))
    }

    /// Returns the events of the connection from now on. Is called only once: lapin gives each
    /// event to one listener only.
    pub(crate) fn events(&self) -> impl Stream<Item = Event> + Send {
        self.connection.events_listener()
    }

    /// Follows the connection until it ends or `stop` is cancelled. Returns the reason.
    pub(crate) async fn follow(
        &self,
        events: impl Stream<Item = Event>,
        stop: &CancellationToken,
    ) -> String {
        let mut events = std::pin::pin!(events);
        let mut look = tokio::time::interval(LOOK);
        let why = loop {
            let event = tokio::select! {
                () = stop.cancelled() => break "the transport is closed".to_owned(),
                event = events.next() => event,
                _ = look.tick() => None,
            };
            match event {
                Some(Event::ConnectionBlocked(reason)) => {
                    tracing::warn!(
                        %reason,
                        "the broker blocks publishers; resolve its alarm (memory, disk)"
                    );
                    metrics::gauge!(BROKER_BLOCKED).set(1.0);
                    self.blocked.send_replace(Some(reason));
                }
                Some(Event::ConnectionUnblocked) => {
                    tracing::info!("the broker accepts messages again");
                    metrics::gauge!(BROKER_BLOCKED).set(0.0);
                    self.blocked.send_replace(None);
                }
                // The end of a channel is announced here too; the connection then stays open.
                Some(Event::Error(e)) if !self.connection.status().connected() => {
                    break error::answer(&e).map_or_else(|| e.to_string(), |(_, said)| said);
                }
                _ if !self.connection.status().connected() => {
                    break "the connection ended".to_owned();
                }
                _ => {}
            }
        };
        let _ = self.why.set(why.clone());
        why
    }

    /// Closes the connection, with a handshake if the broker answers within the given time, and
    /// ends the session: all waits for the broker's answers end.
    pub(crate) async fn end(&self, within: Duration) {
        let closing = self.connection.close(200, "OK".into());
        let _ = tokio::time::timeout(within, closing).await;
        let _ = self.why.set("the connection ended".to_owned());
        self.over.cancel();
        self.socket.0.end();
    }

    /// Waits until the session is over.
    pub(crate) async fn over(&self) {
        self.over.cancelled().await;
    }

    /// Marks the session as over without closing the connection.
    pub(crate) fn abandon(&self) {
        self.over.cancel();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.is_cancelled() || !self.connection.status().connected()
    }

    /// Returns the reason why the session is over.
    pub(crate) fn why(&self) -> TransportError {
        let why = self
            .why
            .get()
            .map_or("the connection broke", String::as_str);
        TransportError::Unreachable(why.to_owned())
    }

    /// Returns the broker's reason for blocking publishers, if it blocks them.
    pub(crate) fn blocked(&self) -> Option<String> {
        self.blocked.borrow().clone()
    }

    /// Waits until the broker blocks publishers and returns its reason.
    pub(crate) async fn becomes_blocked(&self) -> String {
        let mut blocked = self.blocked.subscribe();
        let reason = blocked.wait_for(Option::is_some).await;
        reason.ok().and_then(|r| r.clone()).unwrap_or_default()
    }

    /// Opens a channel.
    pub(crate) async fn channel(&self) -> Result<Channel, TransportError> {
        self.answer(async {
            let opened = self.connection.create_channel().await;
            opened.map_err(|e| TransportError::Unreachable(e.to_string()))
        })
        .await
    }

    /// Opens a channel with publisher confirms. Without them lapin reports every publish as
    /// `NotRequested`.
    pub(crate) async fn confirming_channel(&self) -> Result<Channel, TransportError> {
        let channel = self.channel().await?;
        self.answer(async {
            let confirms = channel.confirm_select(ConfirmSelectOptions::default());
            let confirms = confirms.await;
            confirms.map_err(|e| TransportError::Unreachable(e.to_string()))
        })
        .await?;
        Ok(channel)
    }

    /// Awaits the broker's answer until the session ends, at most for [`ANSWER`].
    pub(crate) async fn answer<T>(
        &self,
        asking: impl Future<Output = Result<T, TransportError>>,
    ) -> Result<T, TransportError> {
        tokio::select! {
            biased;
            answer = asking => answer,
            () = self.over() => Err(self.why()),
            () = tokio::time::sleep(ANSWER) => Err(TransportError::Timeout(ANSWER)),
        }
    }
}

/// Returns the connect timeout of one host: a host that is switched off must not delay the others.
fn patience(all: Duration, hosts: usize) -> Duration {
    let hosts = u32::try_from(hosts.max(1)).unwrap_or(u32::MAX);
    (all / hosts).max(SHARE.min(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_share_the_patience() {
        let all = Duration::from_secs(10);
        assert_eq!(patience(all, 1), all);
        assert_eq!(patience(all, 2), Duration::from_secs(5));
        assert_eq!(patience(all, 50), SHARE);
        assert_eq!(patience(Duration::from_secs(1), 3), Duration::from_secs(1));
    }
}

//! One connection, from its handshake to its end.
//!
//! A session never recovers: when its connection breaks it is over, and [`crate::connection`] opens
//! the next one. (lapin can recover by itself, but not a channel that the broker closed, and what it
//! replays is not what we want after an outage.) So a delivery tag or a confirm belongs to exactly
//! one session, and nothing of an old one reaches a new one.
//!
//! lapin runs each connection on a thread of its own that ends when the broker says so or when the
//! socket does. A broker that says nothing (frozen, or behind a firewall that forgot) would keep it
//! for ever, so the session holds a second handle to the socket and shuts it down.

use std::net::Shutdown;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use jobwire_core::telemetry::metrics::BROKER_BLOCKED;
use jobwire_core::transport::TransportError;
use lapin::options::ConfirmSelectOptions;
use lapin::tcp::RustlsConnector;
use lapin::uri::AMQPUri;
use lapin::{AsyncTcpStream, Channel, Connection, ConnectionProperties, Event};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::endpoint::{Address, Endpoint};
use crate::error;
use crate::options::AmqpOptions;

/// How long a broker may take for what is no publishing: opening a channel, declaring, consuming.
const ANSWER: Duration = Duration::from_secs(5);
/// The least that one of several hosts gets of the time for connecting.
const SHARE: Duration = Duration::from_secs(2);
/// Not every end of a connection is announced; so look, too.
const LOOK: Duration = Duration::from_secs(1);

/// A second handle to a connection's socket: to end it when the broker does not answer.
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
            // Already gone: what we want.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Ends the socket with its owner: a session, or an attempt that is given up.
struct Owned(Socket);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// An open connection.
pub(crate) struct Session {
    /// Tells sessions apart; grows.
    pub(crate) number: u64,
    connection: Connection,
    socket: Owned,
    blocked: watch::Sender<Option<String>>,
    over: CancellationToken,
    why: OnceLock<String>,
}

impl Session {
    /// Connect and log in to one of the broker's hosts, over TLS where there is a connector.
    pub(crate) async fn open(
        number: u64,
        endpoint: &Endpoint,
        at: &Address,
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
            // Runs on lapin's thread, which must end even if nobody answers.
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

    /// What happens to the connection from now on. To be called once: lapin's listeners share the
    /// events, instead of each getting all.
    pub(crate) fn events(&self) -> impl Stream<Item = Event> + Send {
        self.connection.events_listener()
    }

    /// Follow the connection until it ends, or until told to stop. Says why.
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
                    tracing::warn!(%reason, "the broker takes no messages for now");
                    metrics::gauge!(BROKER_BLOCKED).set(1.0);
                    self.blocked.send_replace(Some(reason));
                }
                Some(Event::ConnectionUnblocked) => {
                    tracing::info!("the broker takes messages again");
                    metrics::gauge!(BROKER_BLOCKED).set(0.0);
                    self.blocked.send_replace(None);
                }
                // A channel's end is announced here, too: then the connection lives on.
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

    /// The session is over: everything that waits for the broker stops waiting. Then close the
    /// connection in good order, as far as the broker answers within the given time.
    pub(crate) async fn end(&self, within: Duration) {
        let closing = self.connection.close(200, "OK".into());
        let _ = tokio::time::timeout(within, closing).await;
        let _ = self.why.set("the connection ended".to_owned());
        self.over.cancel();
        self.socket.0.end();
    }

    /// Resolves when the session is over.
    pub(crate) async fn over(&self) {
        self.over.cancelled().await;
    }

    /// Mark it over without closing anything.
    pub(crate) fn abandon(&self) {
        self.over.cancel();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.is_cancelled() || !self.connection.status().connected()
    }

    /// Why the session is over.
    pub(crate) fn why(&self) -> TransportError {
        let why = self
            .why
            .get()
            .map_or("the connection broke", String::as_str);
        TransportError::Unreachable(why.to_owned())
    }

    /// The broker's reason for taking no messages, if it takes none.
    pub(crate) fn blocked(&self) -> Option<String> {
        self.blocked.borrow().clone()
    }

    /// Resolves with the reason when the broker takes no messages any more.
    pub(crate) async fn becomes_blocked(&self) -> String {
        let mut blocked = self.blocked.subscribe();
        let reason = blocked.wait_for(Option::is_some).await;
        reason.ok().and_then(|r| r.clone()).unwrap_or_default()
    }

    /// A fresh channel.
    pub(crate) async fn channel(&self) -> Result<Channel, TransportError> {
        self.answer(async {
            let opened = self.connection.create_channel().await;
            opened.map_err(|e| TransportError::Unreachable(e.to_string()))
        })
        .await
    }

    /// A fresh channel on which the broker confirms what it has. Before this, lapin would say of
    /// every message that no confirm was asked for.
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

    /// Await the broker's answer, but not beyond the session's end, nor for ever.
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

/// How long one of several hosts may take: one that is switched off must not hold up the others.
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

//! A TCP proxy that breaks on demand.
//!
//! It stands between a client and a server (PostgreSQL, RabbitMQ) and does to their
//! connections what networks do:
//!
//! | fault | call | what the client sees |
//! | --- | --- | --- |
//! | a cable pulled, a firewall that forgot | `set(…, Flow::Stall)` | a connection that stays open and says nothing |
//! | the same, but a new connection gets through | [`Proxy::forget`] | the open ones say nothing for ever |
//! | a load balancer that chose another server | [`Proxy::lead_to`] | the next connection leads there |
//! | answers lost, requests delivered | `set(Direction::ToClient, Flow::Stall)` | the same, but the server has done the work |
//! | a slow line | `set(…, Flow::Delay(…))` | the same bytes, later |
//! | a crash, a failover | [`Proxy::cut`] | connection reset |
//! | a server that is down | [`Proxy::refuse`] | connection refused |
//!
//! A change holds for open and for new connections. Stalled bytes are not lost: they
//! go on when the flow passes again, as TCP would repeat them. The end of a stream
//! keeps its place behind them, so that a half-open connection stays half-open.

use crate::port;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server: requests.
    ToServer,
    /// From the server to the client: answers.
    ToClient,
}

/// How bytes go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// As they come.
    #[default]
    Pass,
    /// Each after this time; the line keeps its bandwidth.
    Delay(Duration),
    /// Not at all, until this changes.
    Stall,
}

/// Everything that can be changed while connections are open.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    to_server: Flow,
    to_client: Flow,
    refuse: bool,
    /// How often all connections were cut: one that sees another number than at its
    /// start ends.
    cuts: u64,
    /// The same for connections that were forgotten: they carry nothing from then on.
    forgotten: u64,
}

impl State {
    fn flow(&self, direction: Direction) -> Flow {
        match direction {
            Direction::ToServer => self.to_server,
            Direction::ToClient => self.to_client,
        }
    }
}

/// The proxy; it and all its connections end when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: watch::Sender<State>,
    server: watch::Sender<String>,
    listening: watch::Receiver<bool>,
    open: watch::Receiver<usize>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Starts to pass connections on to `server` (`host:port`), on a port of its own.
    pub async fn start(server: &str) -> Proxy {
        let address = SocketAddr::from(([127, 0, 0, 1], port::free()));
        let (state, changes) = watch::channel(State::default());
        let (listens, mut listening) = watch::channel(false);
        let (counts, open) = watch::channel(0);
        let (server, leads_to) = watch::channel(server.to_owned());
        let gate = Gate {
            address,
            server: leads_to,
            changes,
            listens,
            counts,
        };
        let task = tokio::spawn(gate.keep());
        let listens = listening.wait_for(|&listens| listens).await;
        let _ = listens.expect("the proxy listens");
        Proxy {
            address,
            state,
            server,
            listening,
            open,
            task,
        }
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `url` with the proxy in place of its host and port.
    #[must_use]
    pub fn url(&self, url: &str) -> String {
        let mut url = url::Url::parse(url).unwrap_or_else(|error| panic!("not a URL: {error}"));
        let host = url.set_host(Some(&self.address.ip().to_string()));
        host.unwrap_or_else(|error| panic!("{url} cannot have a host: {error}"));
        let _ = url.set_port(Some(self.address.port()));
        url.into()
    }

    /// How many connections are open.
    #[must_use]
    pub fn connections(&self) -> usize {
        *self.open.borrow()
    }

    /// Lets bytes of one direction pass, or not.
    pub fn set(&self, direction: Direction, flow: Flow) {
        self.state.send_modify(|state| match direction {
            Direction::ToServer => state.to_server = flow,
            Direction::ToClient => state.to_client = flow,
        });
    }

    /// The same for both directions.
    pub fn set_both(&self, flow: Flow) {
        self.set(Direction::ToServer, flow);
        self.set(Direction::ToClient, flow);
    }

    /// Resets all connections that are open now; new ones are served.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// Drops what the connections that are open now carry, from now on and for ever, without a word to
    /// either end; new ones are served.
    pub fn forget(&self) {
        self.state.send_modify(|state| state.forgotten += 1);
    }

    /// Leads new connections to another server (`host:port`).
    pub fn lead_to(&self, server: &str) {
        self.server.send_replace(server.to_owned());
    }

    /// Refuses new connections from the moment this returns; open ones live on.
    pub async fn refuse(&self) {
        self.state.send_modify(|state| state.refuse = true);
        let _ = self.listening.clone().wait_for(|&listens| !listens).await;
    }

    /// Takes new connections again.
    pub async fn accept(&self) {
        self.state.send_modify(|state| state.refuse = false);
        let mut listening = self.listening.clone();
        let listens = listening.wait_for(|&listens| listens).await;
        let _ = listens.expect("the proxy listens again");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The connections are in the task's JoinSet and end with it.
        self.task.abort();
    }
}

/// The side that listens.
struct Gate {
    address: SocketAddr,
    server: watch::Receiver<String>,
    changes: watch::Receiver<State>,
    listens: watch::Sender<bool>,
    counts: watch::Sender<usize>,
}

impl Gate {
    async fn keep(self) {
        let mut connections = JoinSet::new();
        let mut changes = self.changes.clone();
        loop {
            // Closing the listener is what makes the kernel refuse.
            let refuse = changes.borrow_and_update().refuse;
            let listener = if refuse {
                None
            } else {
                Some(self.listen().await)
            };
            self.listens.send_replace(listener.is_some());
            loop {
                tokio::select! {
                    biased;
                    change = changes.wait_for(|state| state.refuse != refuse) => match change {
                        Ok(_) => break,
                        Err(_) => return,
                    },
                    Some(_) = connections.join_next() => {}
                    Some(client) = accept(listener.as_ref()) => {
                        connections.spawn(connect(client, self.server.borrow().clone(), self.changes.clone()));
                    }
                }
                self.counts.send_replace(connections.len());
            }
        }
    }

    async fn listen(&self) -> TcpListener {
        let listener = TcpListener::bind(self.address).await;
        listener.unwrap_or_else(|error| panic!("the proxy cannot listen: {error}"))
    }
}

async fn accept(listener: Option<&TcpListener>) -> Option<TcpStream> {
    listener?.accept().await.ok().map(|(client, _)| client)
}

/// One connection, until both directions have ended or it is cut.
async fn connect(mut client: TcpStream, server: String, changes: watch::Receiver<State>) {
    let (cuts, forgotten) = (changes.borrow().cuts, changes.borrow().forgotten);
    let mut cut = changes.clone();
    let Ok(mut server) = TcpStream::connect(server).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let both = async {
        tokio::join!(
            pump(
                from_client,
                to_server,
                Direction::ToServer,
                forgotten,
                changes.clone()
            ),
            pump(
                from_server,
                to_client,
                Direction::ToClient,
                forgotten,
                changes.clone()
            ),
        )
    };
    let was_cut = tokio::select! {
        _ = cut.wait_for(|state| state.cuts != cuts) => true,
        _ = both => false,
    };
    if was_cut {
        // Closing is then a reset, not an orderly end of the stream.
        let _ = (client.set_zero_linger(), server.set_zero_linger());
    }
}

/// Bytes, with the time at which they came; none are the end of the stream.
type Parcel = (Instant, Vec<u8>);

/// Carries one direction. Reader and writer are apart so that a delay holds each
/// parcel for its time without holding up the ones behind it.
async fn pump(
    from: ReadHalf<'_>,
    to: WriteHalf<'_>,
    direction: Direction,
    forgotten: u64,
    changes: watch::Receiver<State>,
) {
    let (send, receive) = mpsc::channel(256);
    let write = write(to, receive, direction, forgotten, changes);
    let _ = tokio::join!(read(from, send), write);
}

async fn read(mut from: ReadHalf<'_>, parcels: mpsc::Sender<Parcel>) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let parcel = (Instant::now(), buffer[..length].to_vec());
        if parcels.send(parcel).await.is_err() {
            return;
        }
    }
    let _ = parcels.send((Instant::now(), Vec::new())).await;
}

async fn write(
    mut to: WriteHalf<'_>,
    mut parcels: mpsc::Receiver<Parcel>,
    direction: Direction,
    forgotten: u64,
    mut changes: watch::Receiver<State>,
) -> io::Result<()> {
    while let Some((came, bytes)) = parcels.recv().await {
        let passes =
            |state: &State| state.forgotten == forgotten && state.flow(direction) != Flow::Stall;
        let flow = changes
            .wait_for(passes)
            .await
            .map(|state| state.flow(direction));
        if let Ok(Flow::Delay(delay)) = flow {
            tokio::time::sleep_until(came + delay).await;
        }
        if bytes.is_empty() {
            break;
        }
        to.write_all(&bytes).await?;
    }
    to.shutdown().await
}

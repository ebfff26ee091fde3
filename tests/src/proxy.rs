//! A TCP proxy that simulates network faults.
//!
//! The proxy stands between a client and a server (PostgreSQL, RabbitMQ) and simulates these faults
//! on their connections:
//!
//! | fault | call | what the client sees |
//! | --- | --- | --- |
//! | a cable pulled, a firewall that lost its state | `set(…, Flow::Stall)` | an open connection that carries nothing |
//! | the same, but new connections work | [`Proxy::forget`] | open connections never carry anything again |
//! | a load balancer that chose another server | [`Proxy::lead_to`] | the next connection leads there |
//! | answers lost, requests delivered | `set(Direction::ToClient, Flow::Stall)` | an open connection without answers; the server has done the work |
//! | a slow line | `set(…, Flow::Delay(…))` | the same bytes, later |
//! | a crash, a failover | [`Proxy::cut`] | connection reset |
//! | a server that is down | [`Proxy::refuse`] | connection refused |
//!
//! A change applies to open and to new connections. Stalled bytes are not lost: they pass when the
//! flow passes again, as TCP would repeat them. The end of a stream waits behind them, so that a
//! half-open connection stays half-open.

use crate::port;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server: requests.
    ToServer,
    /// From the server to the client: answers.
    ToClient,
}

/// The flow of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flow {
    /// Bytes pass at once.
    #[default]
    Pass,
    /// Each byte passes after this time; the line keeps its bandwidth.
    Delay(Duration),
    /// No byte passes until this changes.
    Stall,
}

/// The settings that can change while connections are open.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    to_server: Flow,
    to_client: Flow,
    refuse: bool,
    /// The number of times that all connections were cut. A connection ends when the number differs
    /// from the one at its start.
    cuts: u64,
    /// The same for forgotten connections: they carry nothing from then on.
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

/// The proxy. It and all its connections end when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: watch::Sender<State>,
    server: watch::Sender<String>,
    listening: watch::Receiver<bool>,
    open: watch::Receiver<usize>,
    held: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy on its own port that passes connections on to `server` (`host:port`).
    pub async fn start(server: &str) -> Proxy {
        let address = SocketAddr::from(([127, 0, 0, 1], port::free()));
        let (state, changes) = watch::channel(State::default());
        let (listens, mut listening) = watch::channel(false);
        let (counts, open) = watch::channel(0);
        let (server, leads_to) = watch::channel(server.to_owned());
        let held = Arc::<AtomicUsize>::default();
        let gate = Gate {
            held: held.clone(),
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
            held,
            task,
        }
    }

    /// Returns the address for clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns `url` with the proxy in place of its host and port.
    #[must_use]
    pub fn url(&self, url: &str) -> String {
        let mut url = url::Url::parse(url).unwrap_or_else(|error| panic!("not a URL: {error}"));
        let host = url.set_host(Some(&self.address.ip().to_string()));
        host.unwrap_or_else(|error| panic!("{url} cannot have a host: {error}"));
        let _ = url.set_port(Some(self.address.port()));
        url.into()
    }

    /// Returns the number of open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        *self.open.borrow()
    }

    /// Returns the number of directions of open connections whose bytes wait for a stalled flow to
    /// pass.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Acquire)
    }

    /// Sets the flow of one direction.
    pub fn set(&self, direction: Direction, flow: Flow) {
        self.state.send_modify(|state| match direction {
            Direction::ToServer => state.to_server = flow,
            Direction::ToClient => state.to_client = flow,
        });
    }

    /// Sets the flow of both directions.
    pub fn set_both(&self, flow: Flow) {
        self.set(Direction::ToServer, flow);
        self.set(Direction::ToClient, flow);
    }

    /// Resets all open connections. New ones are accepted.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// Drops all further bytes of the open connections and leaves both ends open. New connections
    /// are served.
    pub fn forget(&self) {
        self.state.send_modify(|state| state.forgotten += 1);
    }

    /// Leads new connections to another server (`host:port`).
    pub fn lead_to(&self, server: &str) {
        self.server.send_replace(server.to_owned());
    }

    /// Refuses new connections from its return on. Open ones stay.
    pub async fn refuse(&self) {
        self.state.send_modify(|state| state.refuse = true);
        let _ = self.listening.clone().wait_for(|&listens| !listens).await;
    }

    /// Accepts new connections again.
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

/// The listening side.
struct Gate {
    held: Arc<AtomicUsize>,
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
            // The kernel refuses connections when the listener is closed.
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
                        let server = self.server.borrow().clone();
                        connections.spawn(connect(client, server, self.changes.clone(), self.held.clone()));
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

/// Carries one connection until both directions have ended or it is cut.
async fn connect(
    mut client: TcpStream,
    server: String,
    changes: watch::Receiver<State>,
    held: Arc<AtomicUsize>,
) {
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
                changes.clone(),
                &held,
            ),
            pump(
                from_server,
                to_client,
                Direction::ToClient,
                forgotten,
                changes.clone(),
                &held,
            ),
        )
    };
    let was_cut = tokio::select! {
        _ = cut.wait_for(|state| state.cuts != cuts) => true,
        _ = both => false,
    };
    if was_cut {
        // Without lingering, closing resets the connection.
        let _ = (client.set_zero_linger(), server.set_zero_linger());
    }
}

/// Bytes with the time of their arrival. No bytes mark the end of the stream.
type Parcel = (Instant, Vec<u8>);

/// Carries one direction. Reader and writer are separate, so that a delay holds each parcel for its
/// time without holding up the following ones.
async fn pump(
    from: ReadHalf<'_>,
    to: WriteHalf<'_>,
    direction: Direction,
    forgotten: u64,
    changes: watch::Receiver<State>,
    held: &Arc<AtomicUsize>,
) {
    let (send, receive) = mpsc::channel(256);
    let write = write(to, receive, direction, forgotten, changes, held);
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

/// Counts a direction while its bytes are held.
struct Held(Arc<AtomicUsize>);

impl Held {
    fn begin(held: &Arc<AtomicUsize>) -> Self {
        held.fetch_add(1, Ordering::AcqRel);
        Self(held.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

async fn write(
    mut to: WriteHalf<'_>,
    mut parcels: mpsc::Receiver<Parcel>,
    direction: Direction,
    forgotten: u64,
    mut changes: watch::Receiver<State>,
    held: &Arc<AtomicUsize>,
) -> io::Result<()> {
    while let Some((came, bytes)) = parcels.recv().await {
        let passes =
            |state: &State| state.forgotten == forgotten && state.flow(direction) != Flow::Stall;
        let stalls = !passes(&changes.borrow());
        let waits = stalls.then(|| Held::begin(held));
        let flow = changes
            .wait_for(passes)
            .await
            .map(|state| state.flow(direction));
        drop(waits);
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

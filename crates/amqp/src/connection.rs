//! Keeps one connection to the broker, for one direction, for as long as the transport lives.
//!
//! ```text
//!          ┌───────────── wait: 50 ms, 100 ms, … with jitter ─────────────┐
//!          ▼                                                              │
//!     connect ── refused or unreachable: remember the problem ────────────┤
//!          │                                                              │
//!     session: publish and consume ── connection breaks, node stops ──────┘
//! ```
//! Publishing and consuming have a connection each: during an alarm the broker stops reading from a
//! connection that publishes, and acknowledgements must not wait behind it.
//!
//! With several hosts, each attempt tries all of them in turn, starting behind the last host tried.
//! Each attempt reads the TLS files again.
//!
//! The pause returns to its shortest after a session of ten seconds, so a broker that accepts
//! connections and drops them is not tried too often. Metrics: `jobwire_broker_up`,
//! `jobwire_broker_blocked`, `jobwire_broker_reconnects_total`.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::runtime::supervisor::survived;
use jobwire_core::telemetry::metrics::{BROKER_BLOCKED, BROKER_RECONNECTS, BROKER_UP};
use jobwire_core::transport::{HostPort, TransportError};
use rand::Rng;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::endpoint::Endpoint;
use crate::options::AmqpOptions;
use crate::session::Session;
use crate::{error, tls};

const FIRST_WAIT: Duration = Duration::from_millis(50);
/// A session of this length resets the pause between attempts.
const WELL: Duration = Duration::from_secs(10);
/// The maximum time that the broker may take to answer the close of a connection.
const GOODBYE: Duration = Duration::from_secs(1);

/// The direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Publish,
    Receive,
}

impl Direction {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Receive => "receive",
        }
    }
}

/// The current session, or why there is none.
#[derive(Clone, Default)]
struct State {
    session: Option<Arc<Session>>,
    /// The problem of the last attempt; `None` before the first has ended.
    problem: Option<TransportError>,
}

/// A handle of a kept connection, for publishers and receivers.
#[derive(Clone)]
pub(crate) struct Link {
    state: watch::Receiver<State>,
}

impl Link {
    /// Returns the current session, or why there is none.
    pub(crate) fn session(&self) -> Result<Arc<Session>, TransportError> {
        let state = self.state.borrow();
        match &state.session {
            Some(session) if !session.is_over() => Ok(session.clone()),
            Some(session) => Err(session.why()),
            None => Err(state.problem.clone().unwrap_or_else(|| {
                TransportError::Unreachable("no connection has been made yet".to_owned())
            })),
        }
    }

    /// Waits for a session for at most `patience`.
    pub(crate) async fn session_within(
        &mut self,
        patience: Duration,
    ) -> Result<Arc<Session>, TransportError> {
        let living = |state: &State| state.session.as_ref().is_some_and(|s| !s.is_over());
        let _ = tokio::time::timeout(patience, self.state.wait_for(living)).await;
        self.session()
    }

    /// Waits for the end of the first attempt to connect, for at most `patience`.
    pub(crate) async fn first_attempt(&mut self, patience: Duration) -> Result<(), TransportError> {
        let tried = |state: &State| state.session.is_some() || state.problem.is_some();
        let _ = tokio::time::timeout(patience, self.state.wait_for(tried)).await;
        self.session().map(drop)
    }
}

/// The task that keeps one connection.
pub(crate) struct Keeper {
    pub(crate) direction: Direction,
    pub(crate) endpoint: Endpoint,
    pub(crate) options: AmqpOptions,
    /// Ends the connection and the task.
    pub(crate) stop: CancellationToken,
    /// Index of the host to try next.
    turn: usize,
    state: watch::Sender<State>,
}

impl Keeper {
    pub(crate) fn new(
        direction: Direction,
        endpoint: Endpoint,
        options: AmqpOptions,
        stop: CancellationToken,
    ) -> Self {
        Self {
            direction,
            endpoint,
            options,
            stop,
            turn: 0,
            state: watch::Sender::new(State::default()),
        }
    }

    pub(crate) fn link(&self) -> Link {
        Link {
            state: self.state.subscribe(),
        }
    }

    /// Runs until `stop` is cancelled.
    pub(crate) async fn keep(mut self) {
        let mut wait = FIRST_WAIT;
        let mut number = 0;
        self.report(false);
        while !self.stop.is_cancelled() {
            number += 1;
            let since = Instant::now();
            let name = match self.direction {
                Direction::Publish => "amqp publishing",
                Direction::Receive => "amqp receiving",
            };
            if survived(name, self.once(number)).await.is_none() {
                self.remember(TransportError::Unreachable(
                    "the task that keeps the connection panicked; it restarts".to_owned(),
                ));
            }
            if since.elapsed() >= WELL {
                wait = FIRST_WAIT;
            }
            // Half to all of the wait, so that a fleet does not reconnect at the same moment.
            let pause = wait.mul_f64(rand::rng().random_range(0.5..=1.0));
            wait = (wait * 2).min(self.options.max_reconnect_wait);
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.state.send_replace(State {
            session: None,
            problem: Some(TransportError::Closed),
        });
    }

    /// Tries each host once, starting behind the last host tried.
    async fn open(&mut self, number: u64) -> Result<(Arc<Session>, HostPort), TransportError> {
        let name = format!(
            "{} ({})",
            self.options.connection_name,
            self.direction.as_str()
        );
        let tls = if self.endpoint.is_tls() {
            let security = self.options.security.clone();
            let read = tokio::task::spawn_blocking(move || tls::connector(&security));
            let read = read.await;
            Some(read.map_err(|e| TransportError::Unreachable(e.to_string()))??)
        } else {
            None
        };
        let hosts = self.endpoint.hosts();
        let mut failures = Vec::new();
        for at in hosts.iter().cycle().skip(self.turn).take(hosts.len()) {
            self.turn = (self.turn + 1) % hosts.len();
            let opening = Session::open(
                number,
                &self.endpoint,
                at,
                tls.clone(),
                &self.options,
                &name,
            );
            match opening.await {
                Ok(session) => return Ok((session, at.clone())),
                Err(problem) => failures.push(problem),
            }
        }
        Err(error::together(failures))
    }

    /// Runs one session to its end, or makes one failed attempt.
    async fn once(&mut self, number: u64) {
        let direction = self.direction.as_str();
        let stop = self.stop.clone();
        let opened = tokio::select! {
            () = stop.cancelled() => return,
            opened = self.open(number) => opened,
        };
        let (session, at) = match opened {
            Ok(opened) => opened,
            Err(problem) => {
                self.remember(problem);
                return;
            }
        };
        if number > 1 {
            metrics::counter!(BROKER_RECONNECTS, "direction" => direction).increment(1);
        }
        let broker = self.endpoint.at(&at);
        tracing::info!(broker, direction, "connected to the broker");
        // Called before the first publish, so that no event of a blocked connection is missed.
        let events = session.events();
        self.state.send_replace(State {
            session: Some(session.clone()),
            problem: None,
        });
        self.report(true);
        let why = session.follow(events, &self.stop).await;
        self.report(false);
        if self.stop.is_cancelled() {
            session.end(GOODBYE).await;
            return;
        }
        tracing::warn!(broker, direction, %why, "lost the connection to the broker; reconnecting");
        session.abandon();
        self.state.send_replace(State {
            session: None,
            problem: Some(TransportError::Unreachable(why)),
        });
        session.end(Duration::ZERO).await;
    }

    /// Stores the problem of an attempt. Logs it at `warn` only if it differs from the last one.
    fn remember(&self, problem: TransportError) {
        let direction = self.direction.as_str();
        let known = self
            .state
            .borrow()
            .problem
            .as_ref()
            .map(ToString::to_string);
        if known.as_deref() == Some(problem.to_string().as_str()) {
            tracing::debug!(%problem, direction, "still no connection to the broker");
        } else {
            tracing::warn!(%problem, direction, "no connection to the broker; retrying");
        }
        self.state.send_replace(State {
            session: None,
            problem: Some(problem),
        });
    }

    fn report(&self, up: bool) {
        let direction = self.direction.as_str();
        metrics::gauge!(BROKER_UP, "direction" => direction).set(f64::from(u8::from(up)));
        if self.direction == Direction::Publish && !up {
            // Whether a broker that is away would block is unknown.
            metrics::gauge!(BROKER_BLOCKED).set(0.0);
        }
    }
}

//! Keeping one connection to the broker, for one direction, for as long as the transport lives.
//!
//! ```text
//!          ┌───────────── wait: 50 ms, 100 ms, … with jitter ─────────────┐
//!          ▼                                                              │
//!     connect ── refused or unreachable: remember the problem ────────────┤
//!          │                                                              │
//!     session: publish and consume ── connection breaks, node stops ──────┘
//! ```
//! Publishing and consuming have a connection each, because the broker stops reading from one that
//! publishes while an alarm lasts: acknowledgements must not get stuck behind it.
//!
//! Of several hosts each attempt tries all, one after the other; the next attempt begins with the one
//! behind. Files of TLS are read again for each attempt.
//!
//! The pause goes back to its shortest once a session has lived for a while; a broker that accepts
//! and hangs up is not hammered. Metrics: `jobwire_broker_up`, `jobwire_broker_blocked`,
//! `jobwire_broker_reconnects_total`.

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::runtime::supervisor::survived;
use jobwire_core::telemetry::metrics::{BROKER_BLOCKED, BROKER_RECONNECTS, BROKER_UP};
use jobwire_core::transport::TransportError;
use rand::Rng;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::endpoint::{Address, Endpoint};
use crate::options::AmqpOptions;
use crate::session::Session;
use crate::{error, tls};

const FIRST_WAIT: Duration = Duration::from_millis(50);
/// A session that lived this long shows that the broker is well.
const WELL: Duration = Duration::from_secs(10);
/// How long the broker may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// What a connection is for.
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

/// What there is at the moment.
#[derive(Clone, Default)]
struct State {
    session: Option<Arc<Session>>,
    /// Of the last attempt; `None` before the first has ended.
    problem: Option<TransportError>,
}

/// The view of a kept connection that publisher and receivers have.
#[derive(Clone)]
pub(crate) struct Link {
    state: watch::Receiver<State>,
}

impl Link {
    /// The session, if there is one now; else why there is none.
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

    /// Wait for a session for some time, then say why there is none.
    pub(crate) async fn session_within(
        &mut self,
        patience: Duration,
    ) -> Result<Arc<Session>, TransportError> {
        let living = |state: &State| state.session.as_ref().is_some_and(|s| !s.is_over());
        let _ = tokio::time::timeout(patience, self.state.wait_for(living)).await;
        self.session()
    }

    /// Wait for the first attempt to connect to end, for some time.
    pub(crate) async fn first_attempt(&mut self, patience: Duration) -> Result<(), TransportError> {
        let tried = |state: &State| state.session.is_some() || state.problem.is_some();
        let _ = tokio::time::timeout(patience, self.state.wait_for(tried)).await;
        self.session().map(drop)
    }
}

/// Keeps one connection.
pub(crate) struct Keeper {
    pub(crate) direction: Direction,
    pub(crate) endpoint: Endpoint,
    pub(crate) options: AmqpOptions,
    /// Ends the connection, and this.
    pub(crate) stop: CancellationToken,
    /// How many hosts were tried so far: the next one is the one behind them.
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

    /// Runs until told to stop.
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
                    "the task that keeps the connection died; it is started again".to_owned(),
                ));
            }
            if since.elapsed() >= WELL {
                wait = FIRST_WAIT;
            }
            // Half to all of the wait, so that a fleet does not come back in step.
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

    /// Try each host once, beginning behind the last one that was tried.
    async fn open(&mut self, number: u64) -> Result<(Arc<Session>, Address), TransportError> {
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

    /// One session, or one failed attempt.
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
        // Before anybody publishes: else it could miss that the broker blocks.
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
        tracing::warn!(broker, direction, %why, "lost the connection to the broker; will connect again");
        session.abandon();
        self.state.send_replace(State {
            session: None,
            problem: Some(TransportError::Unreachable(why)),
        });
        session.end(Duration::ZERO).await;
    }

    /// A problem is worth a line once, not with every attempt.
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
            tracing::warn!(%problem, direction, "no connection to the broker; will try again");
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
            // Of a broker that is away nobody knows whether it would block.
            metrics::gauge!(BROKER_BLOCKED).set(0.0);
        }
    }
}

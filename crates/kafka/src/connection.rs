//! The state of the connection to the brokers, shared by all clients of a transport.
//!
//! librdkafka keeps and renews its connections itself, one per broker and client. It reports when
//! all brokers are down, but not when they are back. So code that gets an error calls
//! [`Link::suspect`], and a separate task ([`keep`]) then requests metadata until it gets an
//! answer.
//!
//! librdkafka reports a refusal (of a password, a certificate) in a callback, while the request
//! only times out. The link stores the refusal and returns it in place of the timeout.
//!
//! ```text
//!   up ── an error, a late confirm ──► suspected ── metadata fetched ──► up
//!                                          │  no answer: down, next request after 100 ms … 2 s
//! ```
//! Metrics: `jobwire_broker_up{direction}`, `jobwire_broker_reconnects_total{direction}`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jobwire_core::telemetry::metrics::{BROKER_RECONNECTS, BROKER_UP};
use jobwire_core::transport::TransportError;
use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::statistics::Statistics;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::blocking::blocking;
use crate::endpoint::Endpoint;
use crate::error::{explain, is_login, is_outage};
use crate::security::TokenSource;

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// The timeout of a request to the brokers.
pub(crate) const ANSWER: Duration = Duration::from_secs(3);

/// The time for which a refusal is held back, since another broker may accept the connection.
const REFUSAL_STANDS: Duration = Duration::from_millis(500);

/// The state of the brokers.
#[derive(Clone, Debug)]
enum State {
    /// The state is unknown, at the start or after an error.
    Suspected(Option<TransportError>),
    Up,
    Down(TransportError),
}

/// The state of the brokers, shared by all clients of a transport.
#[derive(Clone)]
pub(crate) struct Link(Arc<Shared>);

struct Shared {
    state: watch::Sender<State>,
    /// The last refusal since the brokers last answered.
    refusal: Mutex<Option<TransportError>>,
    refused: Notify,
}

impl Link {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Shared {
            state: watch::Sender::new(State::Suspected(None)),
            refusal: Mutex::default(),
            refused: Notify::new(),
        }))
    }

    fn refusal(&self) -> MutexGuard<'_, Option<TransportError>> {
        self.0
            .refusal
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reason why hints can't be published or received, or `None`.
    pub(crate) fn problem(&self) -> Option<TransportError> {
        match &*self.0.state.borrow() {
            State::Up | State::Suspected(None) => None,
            State::Suspected(Some(problem)) | State::Down(problem) => Some(problem.clone()),
        }
    }

    /// Returns whether the brokers have answered, without an error since.
    pub(crate) fn is_up(&self) -> bool {
        matches!(*self.0.state.borrow(), State::Up)
    }

    /// Requests a check after an error that suggests an outage. Until the brokers answer,
    /// [`problem`](Self::problem) returns this error.
    pub(crate) fn suspect(&self, problem: TransportError) {
        self.doubt(Some(problem));
    }

    /// Requests a check because one broker may be away. Publishing continues meanwhile.
    pub(crate) fn look(&self) {
        self.doubt(None);
    }

    fn doubt(&self, problem: Option<TransportError>) {
        self.0.state.send_if_modified(|state| {
            let modified = matches!(state, State::Up);
            if modified {
                *state = State::Suspected(problem);
            }
            modified
        });
    }

    /// Records that a broker refused the connection.
    fn refused(&self, problem: TransportError) {
        *self.refusal() = Some(problem);
        self.0.refused.notify_one();
        self.look();
    }

    /// Waits for a refusal, and then for [`REFUSAL_STANDS`]: another broker may accept the
    /// connection.
    async fn is_refused(&self) {
        while self.refusal().is_none() {
            self.0.refused.notified().await;
        }
        tokio::time::sleep(REFUSAL_STANDS).await;
    }

    /// Waits until the brokers are down.
    pub(crate) async fn goes_down(&self) -> TransportError {
        let mut state = self.0.state.subscribe();
        let down = state
            .wait_for(|state| matches!(state, State::Down(_)))
            .await;
        match down.as_deref() {
            Ok(State::Down(problem)) => problem.clone(),
            _ => TransportError::Closed,
        }
    }

    /// Waits until the first attempt has succeeded or failed, or `patience` has passed.
    pub(crate) async fn first_attempt(&self, patience: Duration) -> Result<(), TransportError> {
        let mut state = self.0.state.subscribe();
        let tried = state.wait_for(|state| !matches!(state, State::Suspected(_)));
        match tokio::time::timeout(patience, tried).await {
            Ok(Ok(state)) => match &*state {
                State::Down(problem) => Err(problem.clone()),
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn set(&self, new: State) {
        self.0.state.send_replace(new);
    }
}

/// Keeps the link's state up to date until `stop`. `probe` sends a request to the brokers and
/// blocks.
pub(crate) async fn keep<P>(link: Link, endpoint: Endpoint, stop: CancellationToken, probe: P)
where
    P: Fn() -> Result<(), TransportError> + Send + Sync + 'static,
{
    let probe = Arc::new(probe);
    let mut state = link.0.state.subscribe();
    let mut known: Option<bool> = None;
    report(false);
    loop {
        let mut wait = FIRST_WAIT;
        // The last logged refusal. Each refusal is logged once, even if timeouts come in between.
        let mut refused: Option<String> = None;
        loop {
            let asking = probe.clone();
            let asked = tokio::select! {
                () = stop.cancelled() => break,
                asked = blocking(move || asking()) => asked,
                () = link.is_refused() => Err(TransportError::Closed),
            };
            let refusal = link.refusal().take();
            let problem = match asked {
                Ok(()) => break,
                Err(problem) => refusal.unwrap_or(problem),
            };
            let to_mend = (!problem.is_transient()).then(|| problem.to_string());
            if known != Some(false) || (to_mend.is_some() && to_mend != refused) {
                tracing::warn!(%endpoint, %problem, "no connection to the brokers; trying again");
            }
            refused = to_mend.or(refused);
            known = Some(false);
            link.set(State::Down(problem));
            report(false);
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(wait) => {}
            }
            wait = (wait * 2).min(LONGEST_WAIT);
        }
        if stop.is_cancelled() {
            break;
        }
        match known {
            Some(false) => {
                tracing::info!(%endpoint, "connected to the brokers again");
                for direction in ["publish", "receive"] {
                    metrics::counter!(BROKER_RECONNECTS, "direction" => direction).increment(1);
                }
            }
            None => tracing::info!(%endpoint, "connected to the brokers"),
            Some(true) => {}
        }
        known = Some(true);
        link.set(State::Up);
        report(true);
        tokio::select! {
            () = stop.cancelled() => break,
            suspected = state.wait_for(|state| !matches!(state, State::Up)) => {
                if suspected.is_err() {
                    break;
                }
            }
        }
    }
    link.set(State::Down(TransportError::Closed));
    report(false);
}

fn report(up: bool) {
    for direction in ["publish", "receive"] {
        metrics::gauge!(BROKER_UP, "direction" => direction).set(f64::from(u8::from(up)));
    }
}

/// The callbacks that all clients share: errors, log lines, statistics, tokens.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) link: Link,
    pub(crate) tokens: Option<Arc<dyn TokenSource>>,
    /// Receives the statistics.
    pub(crate) statistics: fn(&Statistics),
}

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error
            | RDKafkaLogLevel::Warning => tracing::debug!(facility, line, "librdkafka warning"),
            _ => tracing::trace!(facility, line, "librdkafka"),
        }
    }

    fn stats(&self, statistics: Statistics) {
        (self.statistics)(&statistics);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "the Kafka client reported an error");
        self.note(&error, reason);
    }

    fn generate_oauth_token(
        &self,
        _: Option<&str>,
    ) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        let source = self.tokens.as_ref().ok_or(
            "no token source is set; set `KafkaOptions::tokens` (setting `kafka_oauth_token_file`)",
        )?;
        // The text is passed to C, so it must not contain a NUL.
        let token = source.token().map_err(|problem| {
            tracing::warn!(
                problem,
                "no token for the brokers; the client asks for one again"
            );
            problem.replace('\0', " ")
        })?;
        Ok(OAuthToken {
            token: token.text,
            principal_name: token.principal,
            lifetime_ms: token.ends_at_millis,
        })
    }
}

impl Context {
    /// Updates the link after an error that suggests an outage or a refusal.
    pub(crate) fn note(&self, error: &KafkaError, reason: &str) {
        let Some(code) = error.rdkafka_error_code() else {
            return;
        };
        // A broker that rejects the client's certificate ends the connection after the handshake.
        let alert =
            code == RDKafkaErrorCode::BrokerTransportFailure && reason.contains("SSL alert");
        if is_login(code) || alert {
            let code = if alert { RDKafkaErrorCode::SSL } else { code };
            self.link.refused(explain(code, reason));
        } else if code == RDKafkaErrorCode::AllBrokersDown {
            self.link.suspect(explain(code, reason));
        } else if is_outage(code) {
            self.link.look();
        }
    }
}

//! The link to the brokers, as all clients of a transport see it together.
//!
//! librdkafka keeps and renews its connections itself, one per broker and client. What it does not do
//! is to say plainly whether the brokers are there: it reports when all are down, and then only tries.
//! So whoever meets an error calls [`Link::suspect`]; a task of its own ([`keep`]) then asks for
//! metadata, and goes on asking until it gets an answer.
//!
//! What the brokers refuse (a password, a certificate) librdkafka tells beside the question, which then
//! only times out: the link remembers it and says that instead.
//!
//! ```text
//!   up ── an error, a confirm that is late ──► suspected ── metadata fetched ──► up
//!                                                 │  not: down, ask again after 100 ms … 2 s
//! ```
//! Metrics: `jobwire_broker_up{direction}`, `jobwire_broker_reconnects_total{direction}`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jobwire_core::telemetry::metrics::{BROKER_RECONNECTS, BROKER_UP};
use jobwire_core::transport::TransportError;
use rdkafka::ClientConfig;
use rdkafka::client::{ClientContext, OAuthToken};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::statistics::Statistics;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::endpoint::Endpoint;
use crate::error::{explain, is_login, is_outage};
use crate::options::KafkaOptions;
use crate::producers::blocking;
use crate::security::{self, TokenSource};

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(2);
/// How long the brokers may take to answer when they are suspected.
pub(crate) const ANSWER: Duration = Duration::from_secs(3);

/// A broker that refuses us decides nothing while another may still answer.
const REFUSAL_STANDS: Duration = Duration::from_millis(500);

/// How the brokers are.
#[derive(Clone, Debug)]
enum State {
    /// Not known yet, or an error made us doubt.
    Suspected(Option<TransportError>),
    Up,
    Down(TransportError),
}

/// Shared by all clients of a transport.
#[derive(Clone)]
pub(crate) struct Link(Arc<Shared>);

struct Shared {
    state: watch::Sender<State>,
    /// What the brokers refused since they last answered.
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

    /// Why nothing can be published or received; `None` while all is well.
    pub(crate) fn problem(&self) -> Option<TransportError> {
        match &*self.0.state.borrow() {
            State::Up | State::Suspected(None) => None,
            State::Suspected(Some(problem)) | State::Down(problem) => Some(problem.clone()),
        }
    }

    /// The brokers answered at least once and nothing has gone wrong since.
    pub(crate) fn is_up(&self) -> bool {
        matches!(*self.0.state.borrow(), State::Up)
    }

    /// Something failed as it does when the brokers are away: find out. Until then nothing is tried.
    pub(crate) fn suspect(&self, problem: TransportError) {
        self.doubt(Some(problem));
    }

    /// One of the brokers may be away: find out, and go on meanwhile.
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

    /// The brokers do not let us in.
    fn refused(&self, problem: TransportError) {
        *self.refusal() = Some(problem);
        self.0.refused.notify_one();
        self.look();
    }

    /// Wait for a refusal, and a moment longer: another broker may let us in.
    async fn is_refused(&self) {
        while self.refusal().is_none() {
            self.0.refused.notified().await;
        }
        tokio::time::sleep(REFUSAL_STANDS).await;
    }

    /// Wait until the brokers are known to be away.
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

    /// Wait for the first answer, or for the first attempt to have failed.
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

/// Keep the link's state true until told to stop. `probe` asks the brokers something, and blocks.
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
        // What an operator has to mend is told also where it comes after a timeout, and once.
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
                tracing::warn!(%endpoint, %problem, "no connection to the brokers; will try again");
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

/// What every client of a transport is configured with.
pub(crate) fn configuration(
    endpoint: &Endpoint,
    options: &KafkaOptions,
) -> Result<ClientConfig, TransportError> {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", endpoint.bootstrap())
        .set("client.id", &options.client_id)
        .set("allow.auto.create.topics", "false")
        // A broker that does not answer is given up for another, long before librdkafka's 60 s.
        .set("socket.timeout.ms", "10000")
        .set("socket.connection.setup.timeout.ms", "5000")
        .set("reconnect.backoff.ms", "50")
        .set("reconnect.backoff.max.ms", "2000")
        // A topic that was deleted and made again is noticed so soon.
        .set("topic.metadata.refresh.interval.ms", "10000")
        .set("topic.metadata.propagation.max.ms", "2000")
        .set_log_level(RDKafkaLogLevel::Warning);
    security::apply(
        &options.security,
        options.tokens.as_ref(),
        endpoint,
        &mut config,
    )?;
    Ok(config)
}

/// What happens beside the messages: errors, log lines, tokens.
#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) link: Link,
    pub(crate) tokens: Option<Arc<dyn TokenSource>>,
    /// Where statistics go.
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
            | RDKafkaLogLevel::Warning => tracing::debug!(facility, line, "librdkafka warns"),
            _ => tracing::trace!(facility, line, "librdkafka"),
        }
    }

    fn stats(&self, statistics: Statistics) {
        (self.statistics)(&statistics);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(%error, reason, "the Kafka client met an error");
        self.note(&error, reason);
    }

    fn generate_oauth_token(
        &self,
        _: Option<&str>,
    ) -> Result<OAuthToken, Box<dyn std::error::Error>> {
        let source = self.tokens.as_ref().ok_or("no source of tokens is set")?;
        // The text goes to C: it must not hold a NUL.
        let token = source.token().map_err(|problem| {
            tracing::warn!(problem, "no token for the brokers");
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
    /// An error that may mean that the brokers are away, or that they refuse us.
    pub(crate) fn note(&self, error: &KafkaError, reason: &str) {
        let Some(code) = error.rdkafka_error_code() else {
            return;
        };
        // A broker that does not trust our certificate ends the connection behind the handshake.
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

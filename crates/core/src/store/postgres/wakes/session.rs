//! The session that sends and hears notifications, and its replacement after a loss.

use std::time::Duration;

use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Connection, Executor, PgConnection};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::message::{self, Assembly, CHANNEL, Text};
use super::{CONFIRM, Link, Shared};
use crate::runtime::alarm;
use crate::telemetry::log_throttle::LogThrottle;
use crate::transport::TransportError;

/// The minimum time between two statements of one process. What becomes ready meanwhile is sent
/// together.
pub(super) const SPACING: Duration = Duration::from_millis(5);
/// The time within which a connection must be open.
const CONNECT: Duration = Duration::from_secs(10);
/// The time within which an own message must come back.
const COMES_BACK: Duration = Duration::from_secs(5);
/// The bounds of the pause before the next session.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The settings of the session. The commit of a NOTIFY holds a lock of the whole server, and must
/// not wait for the disk meanwhile; a lost one costs only time.
const SETTINGS: &str = "SET synchronous_commit = off; SET statement_timeout = 5000; SET jit = off; \
                        SET default_transaction_isolation = 'read committed'; \
                        SET idle_in_transaction_session_timeout = 5000";
const SEND: &str = "SELECT pg_notify($1, sent.line) FROM unnest($2::text[]) AS sent (line)";

/// Keeps a session until `stop`.
pub(super) async fn keep(shared: &Shared, stop: &CancellationToken) {
    let mut pause = FIRST_PAUSE;
    let mut told = LogThrottle::default();
    loop {
        let began = Instant::now();
        let ended = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            problem = hold(shared) => Some(problem),
        };
        let Some(problem) = ended else {
            lost(shared, "the transport is closed");
            return;
        };
        if let Some(more) = told.now() {
            tracing::warn!(
                problem,
                more,
                "the connection for wakes is lost; it is opened again, and nodes claim at their \
                 `claim_interval` meanwhile"
            );
        }
        lost(shared, &problem);
        if began.elapsed() > LONGEST_PAUSE * 2 {
            pause = FIRST_PAUSE;
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn lost(shared: &Shared, problem: &str) {
    shared.link.send_replace(Link {
        problem: Some(problem.to_owned()),
        ..Link::default()
    });
    shared.outbox().clear();
    shared.sent.notify_waiters();
}

/// Opens a session and uses it until it is lost. Returns the reason.
async fn hold(shared: &Shared) -> String {
    let opening = async {
        // The pool would try again until its time limit, and lose the reason of a failure.
        let first = PgConnection::connect_with(&shared.connect).await?;
        first.close().await?;
        // A pool of its own for each session: a lost connection must not keep the place of the
        // next one.
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .max_lifetime(None)
            .idle_timeout(None)
            .acquire_timeout(CONNECT)
            .test_before_acquire(false)
            .after_connect(|connection, _| {
                Box::pin(async move { connection.execute(SETTINGS).await.map(drop) })
            })
            .connect_lazy_with(shared.connect.clone());
        PgListener::connect_with(&pool).await
    };
    let mut listener = match tokio::time::timeout(CONNECT, opening).await {
        Ok(Ok(listener)) => listener,
        Ok(Err(error)) => return format!("the database can't be reached: {error}"),
        Err(_) => return format!("the database did not answer within {CONNECT:?}"),
    };
    listener.eager_reconnect(false);
    listener.ignore_pool_close_event(true);
    shared.link.send_replace(Link {
        opens: false,
        sends: true,
        listens: false,
        problem: Some("no notification has come back yet".to_owned()),
    });
    let mut session = Session {
        shared,
        listener,
        assembly: Assembly::default(),
        unreadable: LogThrottle::default(),
        listens: false,
        send_at: Instant::now(),
        back_until: None,
    };
    session.run().await
}

struct Session<'a> {
    shared: &'a Shared,
    listener: PgListener,
    assembly: Assembly,
    unreadable: LogThrottle,
    /// Whether LISTEN was sent.
    listens: bool,
    /// The earliest time of the next statement.
    send_at: Instant,
    /// The time until which an own message must come back.
    back_until: Option<Instant>,
}

impl Session<'_> {
    async fn run(&mut self) -> String {
        let shared = self.shared;
        let mut wanted = shared.wanted.subscribe();
        loop {
            if *wanted.borrow_and_update() && !self.listens {
                if let Err(problem) = self.listen().await {
                    return problem;
                }
                continue;
            }
            let filled = shared.outbox().is_filled();
            if filled && Instant::now() >= self.send_at {
                let batch = shared.outbox().take(shared.from);
                let result = self.send(&batch.texts).await;
                shared.outbox().sent(&batch, &result);
                batch.ended(&result.clone().map_err(TransportError::Unreachable));
                shared.sent.notify_waiters();
                if let Err(problem) = result {
                    return problem;
                }
                continue;
            }
            let send_at = filled.then_some(self.send_at);
            tokio::select! {
                biased;
                heard = self.listener.try_recv() => match heard {
                    Ok(Some(heard)) if heard.channel() == CHANNEL => self.hear(heard.payload()),
                    Ok(Some(_)) => {}
                    Ok(None) => return "the connection for wakes was lost".to_owned(),
                    Err(error) => return format!("the connection for wakes was lost: {error}"),
                },
                () = alarm::at(self.back_until) => {
                    return "notifications do not come back to the session that listens; if a \
                            pooler shares sessions (PgBouncer's pool_mode = transaction), connect \
                            to the server itself"
                        .to_owned();
                }
                () = alarm::at(send_at) => {}
                () = shared.filled.notified(), if !filled => {}
                Ok(()) = wanted.changed() => {}
            }
        }
    }

    async fn listen(&mut self) -> Result<(), String> {
        let listening = tokio::time::timeout(CONFIRM, self.listener.listen(CHANNEL)).await;
        answered(listening)?;
        self.listens = true;
        let probe = message::probe(self.shared.from);
        self.send(&[probe]).await
    }

    async fn send(&mut self, texts: &[String]) -> Result<(), String> {
        let sending = sqlx::query(SEND)
            .bind(CHANNEL)
            .bind(texts)
            .execute(&mut self.listener);
        let sent = tokio::time::timeout(CONFIRM, sending).await;
        self.send_at = Instant::now() + SPACING;
        if self.listens {
            self.back_until.get_or_insert(Instant::now() + COMES_BACK);
        }
        answered(sent.map(|sent| sent.map(drop)))
    }

    fn hear(&mut self, text: &str) {
        let shared = self.shared;
        let from = match message::read(text) {
            Some(Text::Wake { from, draw, lanes }) => {
                // The own process was woken when it published.
                if from != shared.from {
                    for (lane, jobs) in lanes {
                        match jobs {
                            0 => shared.wakes.waiting(&lane, draw),
                            jobs => shared.wakes.ready_elsewhere(&lane, jobs, draw),
                        }
                    }
                }
                from
            }
            Some(Text::Part {
                from,
                message,
                part,
                parts,
                text,
            }) => {
                let whole = self.assembly.add((from, message), (part, parts), text);
                if let Some(whole) = whole {
                    let control = &shared.control;
                    control.read(whole.as_bytes(), &mut self.unreadable);
                }
                from
            }
            Some(Text::Probe { from }) => from,
            None => {
                if let Some(more) = self.unreadable.now() {
                    tracing::warn!(more, "dropped an unreadable notification");
                }
                return;
            }
        };
        if from == shared.from {
            self.back_until = None;
            if !shared.link.borrow().listens {
                shared.link.send_replace(Link {
                    opens: false,
                    sends: true,
                    listens: true,
                    problem: None,
                });
                // Wakes and messages may have been lost before.
                shared.wakes.all();
                shared.control.missed();
            }
        }
    }
}

fn answered<T>(
    answer: Result<Result<T, sqlx::Error>, tokio::time::error::Elapsed>,
) -> Result<T, String> {
    match answer {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(format!("the connection for wakes was lost: {error}")),
        Err(_) => Err(format!(
            "the database did not answer a notification within {CONFIRM:?}"
        )),
    }
}

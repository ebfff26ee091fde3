//! The connections to the endpoints, bounded in number and duration.
//!
//! A connection serves one request. Its limits are [`HEAD`] for the request's head and [`LIFETIME`]
//! in total. There is no keep-alive, so no connection is idle. At most [`MOST`] are open; the next
//! one closes the oldest. A normal request is answered within milliseconds, so the oldest of many
//! connections is one that does not finish. A flood of such connections does not use up the
//! descriptors for the database, and does not block probes.

use std::collections::VecDeque;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use jobwire_core::telemetry::log_throttle::LogThrottle;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// Maximum number of open connections.
const MOST: usize = 128;
/// Maximum time for the head of a request.
const HEAD: Duration = Duration::from_secs(5);
/// Maximum time for a connection, including the answer.
const LIFETIME: Duration = Duration::from_secs(30);
/// Maximum size of the head of a request.
const HEAD_BYTES: usize = 16 * 1024;
/// The wait after a failure to accept a connection, for example because no descriptor is free.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves until the future is dropped.
pub(super) async fn serve(listener: TcpListener, routes: Router) {
    let mut tasks = JoinSet::new();
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    let (mut cut, mut refused) = (LogThrottle::default(), LogThrottle::default());
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                if let Some(more) = refused.now() {
                    tracing::warn!(
                        %error,
                        more,
                        "can't accept a connection to the HTTP endpoints; trying again"
                    );
                }
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        while tasks.try_join_next().is_some() {}
        if open.len() >= MOST {
            open.retain(|connection| !connection.is_finished());
        }
        if open.len() >= MOST
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
            if let Some(more) = cut.now() {
                tracing::warn!(
                    open = MOST,
                    more,
                    "too many connections to the HTTP endpoints; the oldest was closed without an \
                     answer"
                );
            }
        }
        open.push_back(tasks.spawn(answer(stream, routes.clone())));
    }
}

async fn answer(stream: TcpStream, routes: Router) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .keep_alive(false)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    // The client causes such errors: it has closed the connection, is slow, or sends no
    // HTTP.
    match tokio::time::timeout(LIFETIME, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::debug!(%error, "a connection to the HTTP endpoints ended with an error")
        }
        Err(_) => {
            tracing::debug!("a connection to the HTTP endpoints took too long and was closed")
        }
    }
}

//! Connections to the endpoints: few, short, and none that keeps another one out.
//!
//! A connection serves one request. It has [`HEAD`] for the request's head and [`LIFETIME`] for everything; there is no
//! keep-alive, so there is nothing idle. At most [`MOST`] are open: the next one ends the oldest. An honest request is
//! answered within milliseconds, so the oldest of so many is one that does not finish; and a flood of such connections
//! takes neither the descriptors of the process, which its database needs, nor the turn of a probe.

use std::collections::VecDeque;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use jobwire_core::telemetry::log_throttle::LogThrottle;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// Connections that are open at once.
const MOST: usize = 128;
/// How long the head of a request may take.
const HEAD: Duration = Duration::from_secs(5);
/// How long a connection may take, its answer included.
const LIFETIME: Duration = Duration::from_secs(30);
/// A head is at most so large.
const HEAD_BYTES: usize = 16 * 1024;
/// When no connection can be accepted (no descriptor is free), wait.
const PAUSE: Duration = Duration::from_millis(100);

/// Serve until this is dropped.
pub(super) async fn serve(listener: TcpListener, routes: Router) {
    let mut tasks = JoinSet::new();
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    let (mut cut, mut refused) = (LogThrottle::default(), LogThrottle::default());
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                if let Some(more) = refused.now() {
                    tracing::warn!(%error, more, "the HTTP endpoints can't accept a connection");
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
                    "too many connections to the HTTP endpoints; the oldest was closed without an answer"
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
    // What goes wrong is the client's: it is gone, slow, or speaks no HTTP.
    match tokio::time::timeout(LIFETIME, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a connection to the HTTP endpoints has ended"),
        Err(_) => tracing::debug!("a connection to the HTTP endpoints took too long"),
    }
}

//! The HTTP endpoints of a node.
//!
//! | path | answers |
//! | --- | --- |
//! | `/metrics` | every metric of [`jobwire_core::telemetry::metrics`], for Prometheus |
//! | `/healthz` | 200 while no task of the process is down; otherwise restart the process. Also names refused batches and types that no node serves, for which a restart does not help |
//! | `/readyz` | the node's health as JSON; 503 while it takes no work |
//!
//! The number of connections and their duration are bounded (`server.rs`).

pub mod metrics;
mod server;

use std::net::SocketAddr;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use jobwire_core::job::query::UnservedType;
use jobwire_core::node::HealthWatch;
use jobwire_core::store::StuckBatch;
use jobwire_core::telemetry::plain;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;

use crate::connect::Database;
use crate::error::Error;
use crate::output;
use crate::settings::{HttpAddress, Settings};

/// The data that the endpoints report.
#[derive(Clone)]
pub struct Node {
    /// The health of the node.
    pub health: HealthWatch,
    /// Its metrics.
    pub metrics: PrometheusHandle,
    /// Its database; `None` for that of an engine.
    pub database: Option<Database>,
}

/// Listens on the configured address. If the default address is in use, listens on a free port.
///
/// # Errors
/// [`Error::Listen`].
pub async fn listen(settings: &Settings) -> Result<Option<TcpListener>, Error> {
    let HttpAddress::At(address) = &settings.http else {
        return Ok(None);
    };
    let failed = |source| Error::Listen {
        address: address.clone(),
        source,
    };
    match TcpListener::bind(address).await {
        Ok(listener) => Ok(Some(listener)),
        Err(error)
            if error.kind() == std::io::ErrorKind::AddrInUse && !settings.is_given("http") =>
        {
            let any = SocketAddr::from(([127, 0, 0, 1], 0));
            TcpListener::bind(any).await.map(Some).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

/// Serves until the process ends.
pub async fn serve(listener: TcpListener, node: Node) {
    let routes = Router::new()
        .route("/metrics", get(render))
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .with_state(node);
    server::serve(listener, routes).await;
}

async fn render(State(node): State<Node>) -> Response {
    metrics::observe_process(node.database.as_ref());
    // The read removes batches that have not been refused again for a long time.
    let _ = node.health.stuck();
    let headers = [(
        header::CONTENT_TYPE,
        "text/plain; version=0.0.4; charset=utf-8",
    )];
    (headers, node.metrics.render()).into_response()
}

async fn alive(State(node): State<Node>) -> Response {
    let down = node.health.tasks_down();
    let stuck: String = node.health.stuck().iter().map(describe).collect();
    if down.is_empty() {
        let unserved: String = node.health.unserved().iter().map(waits).collect();
        let periodic: String = node.health.periodic().iter().map(not_created).collect();
        return format!("alive\n{stuck}{unserved}{periodic}").into_response();
    }
    let text: String = down
        .iter()
        .map(|(task, why)| format!("task {task} is down: {why}\n"))
        .collect();
    (StatusCode::SERVICE_UNAVAILABLE, text + &stuck).into_response()
}

/// Describes the jobs of a type that no node takes, in one line.
fn waits(unserved: &UnservedType) -> String {
    let them = match &*unserved.scopes {
        [] => "them".to_owned(),
        scopes => output::scopes(scopes),
    };
    format!(
        "{} of type {} wait, and no living node takes {them}\n",
        output::count(unserved.jobs.unsigned_abs(), "job"),
        plain::one_line(&unserved.job_type, 255)
    )
}

/// Describes a periodic job that can't be created, in one line.
fn not_created((name, why): (&String, &String)) -> String {
    format!(
        "periodic job {} is not created: {}\n",
        plain::one_line(name, 256),
        plain::one_line(why, 1_000)
    )
}

/// Describes a batch in one line.
fn describe(stuck: &StuckBatch) -> String {
    let job = stuck
        .job
        .map_or_else(String::new, |job| format!(", job {job}"));
    format!(
        "batch {} does not get through for {} s: {} refused{job}: {}\n",
        stuck.operation,
        stuck.seconds,
        match stuck.jobs {
            0 => "all".to_owned(),
            jobs => format!("{jobs} of its jobs"),
        },
        plain::one_line(&stuck.reason, 1_000)
    )
}

async fn ready(State(node): State<Node>) -> Response {
    let health = node.health.checked().await;
    let status = if health.ready {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    match serde_json::to_string(&health) {
        Ok(text) => {
            let headers = [(header::CONTENT_TYPE, "application/json")];
            (status, headers, plain::json(&text)).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

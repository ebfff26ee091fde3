//! Records metrics for Prometheus, with the buckets of the library's own table.

use std::time::Duration;

use jobwire_core::telemetry::metrics::{
    ALL, COUNT_BUCKETS, Kind, POOL_CONNECTIONS, SECONDS_BUCKETS, describe,
};
use metrics::{Unit, describe_gauge, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::connect::Database;
use crate::error::Error;

/// The metric of the process's memory. Prometheus' own clients use the same name.
const MEMORY: &str = "process_resident_memory_bytes";
/// The interval at which histograms are drained. A scrape drains them, too, but there may be none.
const UPKEEP: Duration = Duration::from_secs(1);

/// Installs the recorder for the whole process.
///
/// # Errors
/// Fails if another recorder is installed, or if a bucket is invalid.
pub fn install() -> Result<PrometheusHandle, Error> {
    let failed = |error: &dyn std::fmt::Display| {
        Error::Failed(format!("metrics can't be recorded: {error}"))
    };
    let mut builder = PrometheusBuilder::new();
    for metric in ALL {
        let buckets = match metric.kind {
            Kind::Seconds => SECONDS_BUCKETS,
            Kind::Count => COUNT_BUCKETS,
            Kind::Counter | Kind::Gauge => continue,
        };
        builder = builder
            .set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), buckets)
            .map_err(|e| failed(&e))?;
    }
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(|e| failed(&e))?;
    describe();
    describe_gauge!(MEMORY, Unit::Bytes, "Resident memory of the process.");
    let upkeep = handle.clone();
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(UPKEEP);
        loop {
            ticks.tick().await;
            upkeep.run_upkeep();
        }
    });
    Ok(handle)
}

/// Updates the gauges that are read at each scrape.
#[allow(
    clippy::cast_precision_loss,
    reason = "memory in bytes needs no 53 bits"
)]
pub(super) fn observe_process(database: Option<&Database>) {
    if let Some(bytes) = crate::memory::resident("self") {
        gauge!(MEMORY).set(bytes as f64);
    }
    let Some(database) = database else { return };
    let (idle, used) = database.connections();
    gauge!(POOL_CONNECTIONS, "state" => "idle").set(idle);
    gauge!(POOL_CONNECTIONS, "state" => "used").set(used);
}

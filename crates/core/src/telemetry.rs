//! Metrics and logs: the table of metrics, label values, text from outside, and throttled log lines.

pub(crate) mod gauges;
pub mod label;
pub mod log_throttle;
pub mod metrics;
pub mod plain;

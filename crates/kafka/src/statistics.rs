//! Metrics of the brokers and lanes, with the same names as for other transports.
//!
//! | metric | from |
//! | --- | --- |
//! | `jobwire_broker_unconfirmed_messages` | the producer's own queue (librdkafka's statistics) |
//! | `jobwire_broker_round_trip_seconds{direction="publish"}` | the producer's average since the last report |
//! | `jobwire_broker_round_trip_seconds{direction="receive"}` | one request for the group's committed offsets |
//! | `jobwire_lane_waiting_messages` | the ends of the lane's partitions minus the group's committed offsets |
//! | `jobwire_lane_unsettled_messages` | the messages that this node holds |

use std::sync::Arc;
use std::time::Duration;

use jobwire_core::telemetry::metrics::{
    BROKER_ROUND_TRIP, BROKER_UNCONFIRMED, LANE_UNSETTLED, LANE_WAITING,
};
use rdkafka::statistics::Statistics;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::lane_client::LaneState;
use crate::settled::Settled;

/// Records the statistics of a client.
pub(crate) fn record(statistics: &Statistics) {
    if statistics.client_type != "producer" {
        // A consumer's round trips are long polls.
        return;
    }
    metrics::gauge!(BROKER_UNCONFIRMED).set(statistics.msg_cnt as f64);
    let trips = statistics.brokers.values().filter_map(|b| b.rtt.as_ref());
    let longest = trips.filter(|rtt| rtt.cnt > 0).map(|rtt| rtt.avg).max();
    if let Some(micros) = longest.and_then(|micros| u64::try_from(micros).ok()) {
        let trip = Duration::from_micros(micros);
        metrics::histogram!(BROKER_ROUND_TRIP, "direction" => "publish").record(trip.as_secs_f64());
    }
}

/// Counts the waiting messages of the lanes that a receiver receives.
pub(crate) struct Census {
    pub(crate) lanes: Vec<Arc<LaneState>>,
    pub(crate) settled: Arc<Settled>,
    pub(crate) every: Duration,
}

impl Census {
    pub(crate) async fn run(&self, stop: CancellationToken) {
        let mut due = tokio::time::interval(self.every);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                _ = due.tick() => {}
            }
            for lane in &self.lanes {
                let held = lane.assignment().held();
                let name = || lane.lane.to_string();
                metrics::gauge!(LANE_UNSETTLED, "lane" => name()).set(held as f64);
                let counted = tokio::select! {
                    () = stop.cancelled() => break,
                    counted = self.settled.count(&lane.lane) => counted,
                };
                match counted {
                    Ok(count) => {
                        metrics::gauge!(LANE_WAITING, "lane" => name()).set(count.waiting as f64);
                        metrics::histogram!(BROKER_ROUND_TRIP, "direction" => "receive")
                            .record(count.round_trip.as_secs_f64());
                    }
                    Err(problem) => {
                        // An unknown count is NaN, not the last value.
                        metrics::gauge!(LANE_WAITING, "lane" => name()).set(f64::NAN);
                        tracing::debug!(
                            lane = %lane.lane,
                            %problem,
                            "the waiting messages of the lane can't be counted"
                        );
                    }
                }
            }
        }
        for lane in &self.lanes {
            for gauge in [LANE_UNSETTLED, LANE_WAITING] {
                metrics::gauge!(gauge, "lane" => lane.lane.to_string()).set(f64::NAN);
            }
        }
    }
}

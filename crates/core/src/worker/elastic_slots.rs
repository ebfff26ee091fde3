//! The task that adapts the slots of a node with [elastic](crate::worker::elastic) concurrency.

use std::sync::Arc;

use tokio::time::Instant;

use crate::telemetry::metrics as m;
use crate::worker::context::NodeContext;
use crate::worker::elastic::{Pace, follow};
use crate::worker::processor::ProcessorUse;

/// Adapts the number of slots until the node drains.
pub(crate) async fn adapt(node: Arc<NodeContext>) {
    let draining = node.signals.draining.clone();
    let Some(elastic) = node.options.elastic else {
        return draining.cancelled().await;
    };
    let gauge = node.gauges.of_node(m::ELASTIC_SLOTS);
    let mut processor = ProcessorUse::default();
    let of_node = &node.slots.of_node;
    let follows = follow(
        Pace::new(elastic, node.options.concurrency, Instant::now()),
        || of_node.taken(),
        || processor.percent(std::time::Instant::now()),
        |slots| {
            of_node.limit_to(slots);
            gauge.set(slots as f64);
        },
    );
    tokio::select! {
        biased;
        () = draining.cancelled() => {}
        () = follows => {}
    }
}

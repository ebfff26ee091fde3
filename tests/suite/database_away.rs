//! The database stops, hangs, is full or is replaced by another one, and the nodes continue when it
//! can be used again. [`faults`](crate::faults) covers restarts, crashes and terminated
//! connections.
//!
//! Budget: 110 s, most of it deadlines that must pass and servers that start.

mod blocked;
mod clock;
mod crash;
mod fences;
mod full;
mod half_open;
mod named;
mod outlasted;
mod pooler;
mod slow;
mod standby;

use std::time::Duration;

use jobwire_core::NewJob;
use jobwire_tests::{Running, eventually, http};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

fn event(case: &str, position: i64) -> NewJob {
    let event = NewJob::of("event", &json!({ "position": position }));
    // A fault of the database spends no attempt: one that did would be the last one.
    event.instance(case).element("step").max_attempts(1)
}

/// Waits until the node is ready and returns its HTTP address.
async fn endpoint(node: &Running) -> String {
    http::address_in(&node.wait_for_line("is ready", SOON).await)
}

/// Waits until the health names a problem of this part, and returns it.
async fn until_problem(endpoint: &str, part: &str) -> String {
    eventually(&format!("/readyz to name {part}"), SOON, async || {
        let answer = http::get(endpoint, "/readyz").await.ok()?;
        let health: Value = serde_json::from_str(&answer.body).ok()?;
        let problem = health["problems"][part].as_str()?;
        (answer.status == 503).then(|| problem.to_owned())
    })
    .await
}

async fn until_ready(endpoint: &str) {
    eventually("/readyz to report no problem", SOON, async || {
        let answer = http::get(endpoint, "/readyz").await.ok()?;
        (answer.status == 200).then_some(())
    })
    .await;
}

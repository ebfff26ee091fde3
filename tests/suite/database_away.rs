//! The database goes, hangs, is full or becomes another one, and the nodes go on when it can be used again.
//! Restarts, crashes and terminated connections are in [`faults`](crate::faults).
//!
//! Budget: 90 s, most of it deadlines that have to pass and servers that start.

mod blocked;
mod crash;
mod fences;
mod full;
mod half_open;
mod pooler;
mod standby;

use std::time::Duration;

use jobwire_core::NewJob;
use jobwire_tests::{Running, eventually, http};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(60);

fn event(case: &str, position: i64) -> NewJob {
    let event = NewJob::of("event", &json!({ "position": position }));
    // An insert that the database did not answer costs an attempt.
    event.instance(case).element("step").max_attempts(1_000)
}

/// Where a node that is ready answers.
async fn endpoint(node: &Running) -> String {
    http::address_in(&node.wait_for_line("is ready", SOON).await)
}

/// What is wrong with a node, until it says what is expected.
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
    eventually("/readyz to say that all is well", SOON, async || {
        let answer = http::get(endpoint, "/readyz").await.ok()?;
        (answer.status == 200).then_some(())
    })
    .await;
}

//! The jobs that other nodes address to this node over the control channel: rescued ones
//! ([`rescue`](crate::leader::rescue)) and forwarded ones ([`forward`](super::forward)).
//!
//! One task takes them from the start of the node to its end. It waits for nothing else, so a slow
//! database does not make it miss messages. While the node stops, it publishes the jobs: other nodes
//! learn of the stop a moment after it has begun.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;

use crate::fleet::SILENCE;
use crate::hint::Ready;
use crate::producer::commit_hook::Cause;
use crate::transport::Control;
use crate::worker::context::NodeContext;

/// The time for which a node that stops waits for jobs that were addressed to it before the others
/// knew of its stop.
const LATE: Duration = Duration::from_millis(250);

/// Takes the jobs that are addressed to this node, until no job runs here any more.
pub(crate) async fn take_all(node: Arc<NodeContext>) {
    let mut control = node.transport.listen();
    let ended = async {
        node.signals.ended.cancelled().await;
        if node.fleet.hears_others(node.id, SILENCE) {
            tokio::time::sleep(LATE).await;
        }
    };
    tokio::pin!(ended);
    loop {
        tokio::select! {
            // A flood of messages does not delay the end.
            biased;
            () = &mut ended => return,
            heard = control.recv() => match heard {
                Ok(message) => take(&node, message),
                Err(RecvError::Lagged(messages)) => tell_of_lost(&node, messages),
                Err(RecvError::Closed) => return,
            },
        }
    }
}

fn take(node: &Arc<NodeContext>, message: Control) {
    let (to, jobs, rescued) = match message {
        Control::Rescued { node, jobs } => (node, jobs, true),
        Control::Forwarded { node, jobs } => (node, jobs, false),
        _ => return,
    };
    if to != node.id {
        return;
    }
    if node.signals.draining.is_cancelled() {
        pass_on(node, jobs);
    } else if rescued {
        take_rescued(node, jobs);
    } else {
        take_forwarded(node, jobs);
    }
}

/// Takes jobs whose holders have died.
pub(crate) fn take_rescued(node: &NodeContext, jobs: Vec<Ready>) {
    let received = |ready: &Ready| node.options.receives(&ready.lane);
    let (here, mut elsewhere): (Vec<_>, Vec<_>) = jobs.into_iter().partition(received);
    for ready in here {
        elsewhere.extend(node.inbox.rescue_here(ready));
    }
    node.hook.publish(Cause::Sweep, elsewhere);
}

fn take_forwarded(node: &NodeContext, jobs: Vec<Ready>) {
    let received = |ready: &Ready| node.options.receives(&ready.lane);
    let refused = jobs.into_iter().filter(received);
    let refused = refused.filter_map(|ready| node.inbox.forwarded_here(ready));
    let refused: Vec<Ready> = refused.collect();
    if node.inbox.is_closed() {
        node.hook.publish(Cause::Requeue, refused);
    } else if !refused.is_empty() {
        tracing::info!(
            jobs = refused.len(),
            "no room for forwarded jobs; the sweeper publishes their hints again"
        );
    }
}

fn tell_of_lost(node: &NodeContext, messages: u64) {
    if let Some(more) = node.reports.throttled_lines.now("addressed: lost") {
        tracing::info!(
            messages,
            more,
            "control messages came faster than they were read; the sweeper hints the jobs among \
             them again"
        );
    }
}

/// Publishes jobs that were addressed to this node, which stops.
fn pass_on(node: &NodeContext, mut jobs: Vec<Ready>) {
    jobs.retain(|ready| node.options.receives(&ready.lane));
    tracing::debug!(
        jobs = jobs.len(),
        "jobs were addressed to this node while it stops; they go to the broker"
    );
    node.hook.publish(Cause::Requeue, jobs);
}

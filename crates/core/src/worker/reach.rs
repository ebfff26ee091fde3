//! Follows what can be run through the store, and limits the scope of the node to it.
//!
//! The nodes of a process engine may have some of its deployments only. A job that none of them can
//! run is not locked here: its hint is refused, or forwarded to a node that reaches more, and the
//! sweeper hints the job when a node does.

use std::sync::Arc;

use tokio::sync::watch;

use crate::job::scope::Scope;
use crate::worker::context::NodeContext;

/// Applies each change until the node stops taking work.
pub(crate) async fn follow(node: Arc<NodeContext>, mut reach: watch::Receiver<Scope>) {
    let draining = &node.signals.draining;
    loop {
        let now = Scope::clone(&reach.borrow_and_update());
        node.served.set_reach(now);
        tokio::select! {
            () = draining.cancelled() => return,
            changed = reach.changed() => {
                if changed.is_err() {
                    // The store reports nothing more.
                    return draining.cancelled().await;
                }
            }
        }
    }
}

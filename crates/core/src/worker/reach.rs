//! Follows the reach of the store, and limits the scope of the node to it.
//!
//! The nodes of a process engine may have some of its deployments only. This node does not lock a
//! job that none of them can run. It refuses the hint of such a job, or forwards it to a node that
//! reaches more. The sweeper hints the job when a node reaches it.

use std::sync::Arc;

use tokio::sync::watch;

use crate::job::scope::Scope;
use crate::worker::context::NodeContext;

/// Applies each change until the node takes no more work.
pub(crate) async fn follow(node: Arc<NodeContext>, mut reach: watch::Receiver<Scope>) {
    let draining = &node.signals.draining;
    loop {
        let now = Scope::clone(&reach.borrow_and_update());
        node.served.set_reach(now);
        tokio::select! {
            () = draining.cancelled() => return,
            changed = reach.changed() => {
                if changed.is_err() {
                    // The store reports no more changes.
                    return draining.cancelled().await;
                }
            }
        }
    }
}

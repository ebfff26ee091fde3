//! The release of locks whose jobs do not run on this node.

use std::sync::Arc;

use crate::job::LockToken;
use crate::producer::commit_hook::Cause;
use crate::store::Release;
use crate::worker::context::NodeContext;

/// Releases locks whose jobs do not run here. No attempt of theirs has ended, so they keep their
/// strikes. If this fails, the next look finds them.
pub(crate) async fn release(node: &Arc<NodeContext>, held: Vec<LockToken>) {
    if held.is_empty() {
        return;
    }
    let released: Vec<Release> = held.iter().cloned().map(Release::without_attempt).collect();
    match node.store.release(node.id, &released).await {
        Ok(released) => {
            if let Some(teller) = node.teller() {
                for id in &released.cancelled {
                    teller.cancelled(*id);
                }
            }
            let ready = released.ready;
            node.hook
                .announce(&*node.store, Cause::Requeue, ready)
                .await;
        }
        Err(error) => {
            tracing::warn!(
                jobs = held.len(),
                %error,
                "could not release locks; the next search for lost leases releases them"
            );
            node.leases.doubt(node.store.outcome_within());
        }
    }
    node.leases.do_not_expect(&held);
}

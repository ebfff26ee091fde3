//! The lock owner of a job in the engine's tables: `jobwire:NODE:FENCE`.
//!
//! The engine only compares lock owners as texts. Because of the fence, no two locks have the same
//! owner, so the text is the guard of one lock.

use jobwire_core::{Fence, NodeId};

/// The prefix of the owners that Jobwire writes. No engine writes it.
pub(crate) const PREFIX: &str = "jobwire:";

/// Returns the owner of a lock.
pub(crate) fn owner(node: NodeId, fence: Fence) -> String {
    format!("{PREFIX}{node}:{fence}")
}

/// Returns the node and the fence that an owner names; `None` for an owner of the engine.
pub(crate) fn parse(owner: &str) -> Option<(NodeId, Fence)> {
    let (node, fence) = owner.strip_prefix(PREFIX)?.split_once(':')?;
    Some((node.parse().ok()?, Fence::new(fence.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_names_its_node_and_fence_and_an_engines_own_names_none() {
        let node = NodeId::generate();
        let text = owner(node, Fence::new(17));
        assert!(text.len() <= 255);
        assert_eq!(parse(&text), Some((node, Fence::new(17))));
        for foreign in [
            "",
            "jobwire:",
            "0198c0de-7777-7000-8000-000000000001",
            "jobwire:x:1",
        ] {
            assert_eq!(parse(foreign), None, "{foreign}");
        }
    }
}

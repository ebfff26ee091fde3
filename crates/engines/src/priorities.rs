//! Ranges of priorities: no node of an engine has one, because an engine's rows are locked without
//! a look at their priority.

use jobwire_core::StoreError;
use jobwire_core::store::Membership;

/// Refuses a node that takes a range of priorities only.
pub(crate) fn check(node: &Membership) -> Result<(), StoreError> {
    if node.scope.limits_priorities() {
        return Err(StoreError::Config(
            "the jobs of an engine are taken at every priority; remove `min_priority` and \
             `max_priority`"
                .to_owned(),
        ));
    }
    Ok(())
}

//! The guards of statements that need a lock: the ids and the fences of the jobs.

use uuid::Uuid;

use crate::job::LockToken;

/// Returns ids and fences of these lock tokens, as the arrays of a guard.
pub(super) fn guards<'a>(held: impl Iterator<Item = &'a LockToken>) -> (Vec<Uuid>, Vec<i64>) {
    held.map(|h| (h.id.0, h.fence.0)).unzip()
}

//! The choice of the keys of one request.

use tokio::time::Instant;

use super::{Book, Extent};
use crate::store::permits::PermitKey;

impl Book {
    /// Chooses the keys of one request among those that are due: one that is sent apart, or all
    /// others. Both have their turns.
    pub(super) fn choose(
        &mut self,
        due: Vec<(PermitKey, i32)>,
        extent: Extent,
        now: Instant,
    ) -> Vec<(PermitKey, i32)> {
        let from = |key: &PermitKey| self.keys.get(key)?.apart.map(|apart| apart.from);
        let (apart, mut together): (Vec<_>, Vec<_>) =
            due.into_iter().partition(|(key, _)| from(key).is_some());
        let ready = |(key, _): &&(PermitKey, i32)| {
            extent == Extent::Back || from(key).is_some_and(|from| from <= now)
        };
        let next = apart.iter().filter(ready);
        let next = next.min_by_key(|(key, _)| from(key)).cloned();
        let others_first = extent == Extent::Back || self.was_apart;
        let takes_apart = next.is_some() && (together.is_empty() || !others_first);
        let ready = apart.iter().filter(ready).count();
        let has_more = if takes_apart {
            ready > 1 || !together.is_empty()
        } else {
            ready > 0
        };
        let passed_over = if takes_apart {
            std::mem::take(&mut together)
        } else {
            Vec::new()
        };
        for (key, _) in apart.iter().chain(&passed_over) {
            if let Some(of) = self.keys.get_mut(key) {
                of.unsure = true;
            }
        }
        self.was_apart = takes_apart;
        self.has_more = has_more;
        match next {
            Some(next) if takes_apart => vec![next],
            _ => together,
        }
    }
}

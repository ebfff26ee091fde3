//! Reading the places of jobs in the node's start order, before hints are picked.

use std::collections::HashMap;
use std::time::Duration;

use super::Consumer;
use crate::job::JobId;
use crate::lane::start_order::{Place, Rank};
use crate::store;

/// The jobs whose places were asked for, and the answer.
pub(super) type Read = (Vec<JobId>, store::Result<Option<Vec<(JobId, Rank)>>>);

/// The maximum number of jobs whose places are read at once. Further ones are read before the next
/// batch.
const RANKED_AT_ONCE: usize = 4_096;
/// The maximum wait for the statement. The consumer receives nothing meanwhile. A later answer is used
/// by the next call.
const RANKED_WITHIN: Duration = Duration::from_secs(1);

impl Consumer {
    /// Sorts the waiting hints by the start order of the node. Does nothing without one, and while
    /// there is a slot for each hint.
    pub(super) async fn rank_pending(&mut self) {
        let order = self.node.options.start_order;
        if order.is_arrival() {
            return;
        }
        let free = self.node.slots.of_node.free() + usize::from(self.slot.is_some());
        if self.pending.len() <= free {
            return;
        }
        let mut reading = match self.reading_ranks.take() {
            Some(late) if late.is_finished() => late,
            Some(late) => {
                self.reading_ranks = Some(late);
                return;
            }
            None => {
                let asked = self.pending.unranked(RANKED_AT_ONCE);
                if asked.is_empty() {
                    return;
                }
                let node = self.node.clone();
                // A task of its own runs the statement to its end. The connection of a dropped statement
                // is not suspected.
                tokio::spawn(async move {
                    let ranks = node.store.ranks(&asked).await;
                    (asked, ranks)
                })
            }
        };
        let draining = self.node.signals.draining.clone();
        let ranks = tokio::select! {
            biased;
            () = draining.cancelled() => return,
            ranks = tokio::time::timeout(RANKED_WITHIN, &mut reading) => ranks,
        };
        match ranks {
            Ok(Ok((asked, Ok(ranks)))) => {
                let ranks = ranks.unwrap_or_default().into_iter();
                let places: HashMap<JobId, Place> =
                    ranks.map(|(job, rank)| (job, order.place(&rank))).collect();
                self.pending.rank(&asked, &places);
            }
            // The lock statement that follows reports the database. Until the places can be read,
            // jobs start in the order of arrival.
            Ok(Ok((_, Err(error)))) => tracing::debug!(%error, "could not read the ranks of jobs"),
            Ok(Err(error)) => tracing::debug!(%error, "could not read the ranks of jobs"),
            Err(_) => {
                tracing::debug!("the ranks of jobs were not read within {RANKED_WITHIN:?}");
                self.reading_ranks = Some(reading);
            }
        }
    }
}

//! Claiming the jobs of types with a limit of their own: each type apart, as many jobs as slots of the
//! type are free.
//!
//! A page of all types would lock more jobs of such a type than can start. So the slots of the type
//! are taken first, and the page asks for as many jobs of this type only. Between the passes of a
//! woken node, a slot of the type that becomes free is followed by the next page, until the lane has
//! no more jobs of the type. A pass does not wait for these slots, so the jobs of other types do not
//! wait for them either.

use std::time::Duration;

use tokio::time::Instant;

use super::claimer::Claimer;
use super::page::claim_page;
use crate::store::{ClaimOf, ClaimPage, LockTerms, StoreError};
use crate::worker::context::NodeContext;
use crate::worker::slot_pool::Slot;
use crate::worker::slots::TypeSlot;

/// The pause after a page that could not be asked for.
const PAUSE: Duration = Duration::from_secs(1);

/// Returns the terms for jobs of all types, without those of which no slot is free. They suit a page
/// of the few jobs with strikes: one that finds no slot is released.
pub(super) fn free_terms(node: &NodeContext) -> LockTerms {
    let (mut types, limited) = node.served.by_limit();
    let free = limited.into_iter().filter(|of| free(node, of) > 0);
    let free: Vec<String> = free.collect();
    if !free.is_empty() {
        types = types.iter().cloned().chain(free).collect();
    }
    node.terms().of(types)
}

fn free(node: &NodeContext, job_type: &str) -> usize {
    node.type_slots(job_type).map_or(0, |slots| slots.free())
}

impl Claimer {
    /// Returns whether something can be claimed, and the earliest time.
    pub(super) fn next(&self) -> (bool, Instant) {
        let limited = self.wants_limited().then_some(self.limited_from);
        let pass = self.claims().then(|| self.pace.at());
        let next = limited.into_iter().chain(pass).min();
        (next.is_some(), next.unwrap_or(self.limited_from))
    }

    /// Returns whether a page of the current pass is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.claims() && self.pace.at() <= now
    }

    fn types_with_more(&self) -> impl Iterator<Item = &String> {
        let lanes = self.lanes.iter().filter(|lane| lane.claims_limited());
        lanes.flat_map(|lane| lane.limited.keys())
    }

    /// Returns whether there may be jobs of a type with a limit for which a slot is free.
    pub(super) fn wants_limited(&self) -> bool {
        self.types_with_more().any(|of| free(&self.node, of) > 0)
    }

    /// Returns whether there may be jobs of a type with a limit for which no slot is free.
    pub(super) fn misses_slots(&self) -> bool {
        self.types_with_more().any(|of| free(&self.node, of) == 0)
    }

    fn may_take_limited(&self, now: Instant) -> bool {
        now >= self.limited_from && self.wants_limited()
    }

    /// Returns how many of the slots a pass leaves to the types with a limit: at most half of them. A
    /// single one goes to both in turn.
    pub(super) fn kept_for_limited(&mut self, slots: usize) -> usize {
        let now = Instant::now();
        if !self.may_take_limited(now) {
            return 0;
        }
        if !self.is_due(now) {
            return slots;
        }
        if slots > 1 {
            return slots / 2;
        }
        self.limited_next = !self.limited_next;
        usize::from(self.limited_next).min(slots)
    }

    /// Claims jobs of types with a limit.
    pub(super) async fn take_limited(&mut self, slots: &mut Vec<Slot>) {
        if slots.is_empty() || !self.may_take_limited(Instant::now()) {
            return;
        }
        let (_, types) = self.node.served.by_limit();
        let served = |of: &String| types.binary_search(of).is_ok();
        for lane in &mut self.lanes {
            lane.limited.retain(|of, _| served(of));
        }
        for job_type in &types {
            if let Err(error) = self.take_of_type(job_type, slots).await {
                if let Some(more) = self.failures.now() {
                    tracing::warn!(%error, more, "could not claim jobs; retrying");
                }
                self.limited_from = Instant::now() + PAUSE;
                return;
            }
        }
    }

    /// Claims jobs of one type with a limit from the lanes that may have some.
    async fn take_of_type(
        &mut self,
        job_type: &str,
        slots: &mut Vec<Slot>,
    ) -> Result<(), StoreError> {
        let Some(of_type) = self.node.type_slots(job_type) else {
            return Ok(());
        };
        let most = slots.len().min(self.size.limit());
        let taken = std::iter::from_fn(|| of_type.try_take()).take(most);
        let mut taken: Vec<TypeSlot> = taken.collect();
        let shares = self.shares(taken.len(), |lane| {
            lane.claims_limited() && lane.limited.contains_key(job_type)
        });
        let shares = shares.into_iter().enumerate();
        for (at, share) in shares.filter(|(_, share)| *share > 0) {
            // Each slot of the node carries one of the type.
            let mut both: Vec<Slot> = slots.split_off(slots.len().saturating_sub(share));
            for slot in &mut both {
                slot.of_type = taken.pop();
            }
            let claimed = self.claim_of_type(at, job_type, &mut both).await;
            for slot in &mut both {
                slot.of_type = None;
            }
            slots.append(&mut both);
            claimed?;
        }
        Ok(())
    }

    /// Claims a page of one type with a limit from a lane, as many jobs as there are slots.
    async fn claim_of_type(
        &mut self,
        at: usize,
        job_type: &str,
        slots: &mut Vec<Slot>,
    ) -> Result<(), StoreError> {
        let node = self.node.clone();
        let share = slots.len();
        let Some(lane) = self.lanes.get_mut(at) else {
            return Ok(());
        };
        let Some(cursor) = lane.limited.get_mut(job_type) else {
            return Ok(());
        };
        let sent = Instant::now();
        let place = cursor.next(sent);
        let page = ClaimPage {
            lane: lane.lane.clone(),
            of: ClaimOf::Next {
                after: place.after,
                look_at: place.look_at,
            },
            at_most: i64::try_from(share).unwrap_or(i64::MAX),
        };
        let terms = node.terms().of([job_type.to_owned()].into());
        let (size, refused) = (&mut self.size, &mut self.refused);
        let claimed = claim_page(&node, &terms, &page, slots, size, refused).await;
        let count = claimed.as_ref().map_or(0, |(count, _)| *count);
        self.pace.answered(count, sent.elapsed());
        for _ in count..share {
            self.schedule.requeue(at);
        }
        let (_, after) = claimed?;
        if cursor.looked(place, count, after) {
            lane.limited.remove(job_type);
        }
        lane.taken += count as u64;
        if let Some(turn) = lane.turn.as_mut().filter(|turn| turn.passes()) {
            turn.answered(count, sent.elapsed());
        }
        Ok(())
    }
}

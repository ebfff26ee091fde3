//! Hints that were received and are not decided yet, first-in-first-out in each lane.
//!
//! When a marker is at the front, all items before it have been decided or tried. A hint that was
//! busy or refused is tried again behind later arrivals.
//!
//! Woken jobs, for which permits are reserved, wait in a queue of their own. While both wait, that
//! queue and the lane's items take turns: each start of a woken job wakes another one, so the others
//! would never start behind them, and the permits would stand idle behind a backlog.
//!
//! Hints of types without a free slot are set aside ([`full`](super::full)), by lane and type. The
//! other hints and the markers of their lanes pass them.
//!
//! Rescued jobs come before all other items of their lane while the node may start more of them.
//!
//! With a start order, the hints between two markers are sorted by the places of their jobs, once
//! these are known. No hint passes a marker, so a job waits at most for those that were published
//! before the next one. Rescued and woken jobs have no place, and pass markers.
//!
//! The transport bounds the size: unsettled messages do not exceed the prefetch, of which each lane
//! has its share.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::waiting::{Arrival, Ranked, Waiting};
use crate::hint::{Hint, Marker, Ready};
use crate::job::{JobId, Lane};
use crate::lane::start_order::Place;
use crate::transport::Ticket;

enum Item {
    Hint(Waiting),
    Marker(Marker, Ticket),
}

struct LaneQueue {
    lane: Lane,
    rescued: VecDeque<Waiting>,
    woken: VecDeque<Waiting>,
    items: VecDeque<Item>,
    /// Whether the last hint was that of a woken job, so that an item is next.
    was_woken: bool,
    /// The hints that wait for a slot of their type, by type.
    full: BTreeMap<String, VecDeque<Waiting>>,
    /// Whether the first item can't be set aside, because too many hints are.
    blocked: bool,
    /// The time since which only other lanes got slots.
    passed_over: Option<Instant>,
}

impl LaneQueue {
    /// Returns the hint at the front of the items.
    fn first_item(&self) -> Option<&Waiting> {
        match self.items.front() {
            Some(Item::Hint(waiting)) => Some(waiting),
            _ => None,
        }
    }

    /// Like [`first_item`](Self::first_item), if the lane is not blocked.
    fn next_item(&self) -> Option<&Waiting> {
        self.first_item().filter(|_| !self.blocked)
    }

    /// Sorts the hints between two markers by their places. Those without a place stay behind the
    /// others, in their order.
    fn sort(&mut self) {
        let items = self.items.make_contiguous();
        let is_marker = |item: &Item| matches!(item, Item::Marker(..));
        for between in items.split_mut(is_marker) {
            between.sort_by_key(|item| match item {
                Item::Hint(waiting) => waiting.of.rank,
                Item::Marker(..) => Ranked::Unread,
            });
        }
    }
}

/// Items that are requeued or published again, undecided.
#[derive(Default)]
pub(super) struct Undecided {
    /// Messages, each once.
    pub(super) tickets: Vec<Ticket>,
    /// The number of hints in these messages.
    pub(super) hints: usize,
    /// Own hints.
    pub(super) own: Vec<Ready>,
}

/// See the [module](self).
pub(super) struct Pending {
    lanes: Vec<LaneQueue>,
    items: usize,
    markers: usize,
    /// Waiting rescued jobs, each once.
    rescued: HashSet<JobId>,
    /// Waiting woken jobs, each once.
    woken: HashSet<JobId>,
    /// Waiting forwarded jobs, each once.
    forwarded: HashSet<JobId>,
    /// The jobs of the hints that wait for a slot of their type, each once.
    full: HashSet<JobId>,
}

impl Pending {
    pub(super) fn new(lanes: impl Iterator<Item = Lane>) -> Self {
        let queue = |lane| LaneQueue {
            lane,
            rescued: VecDeque::new(),
            woken: VecDeque::new(),
            items: VecDeque::new(),
            was_woken: false,
            full: BTreeMap::new(),
            blocked: false,
            passed_over: None,
        };
        Self {
            lanes: lanes.map(queue).collect(),
            items: 0,
            markers: 0,
            rescued: HashSet::new(),
            woken: HashSet::new(),
            forwarded: HashSet::new(),
            full: HashSet::new(),
        }
    }

    /// Returns the number of hints and markers, without rescued jobs and hints that wait for a slot
    /// of their type.
    pub(super) fn len(&self) -> usize {
        self.items + self.woken.len()
    }

    /// Returns the number of hints and markers, without those of blocked lanes.
    pub(super) fn ready(&self) -> usize {
        let blocked = self.lanes.iter().filter(|queue| queue.blocked);
        let blocked: usize = blocked.map(|queue| queue.items.len()).sum();
        self.len().saturating_sub(blocked)
    }

    /// Returns the number of waiting rescued jobs.
    pub(super) fn rescued(&self) -> usize {
        self.rescued.len()
    }

    /// Returns the number of hints that wait for a slot of their type.
    pub(super) fn full(&self) -> usize {
        self.full.len()
    }

    /// Returns the number of hints of a lane that wait for a slot of their type.
    pub(super) fn full_of(&self, place: usize) -> usize {
        let queue = self.lanes.get(place).into_iter();
        queue
            .flat_map(|queue| queue.full.values().map(VecDeque::len))
            .sum()
    }

    /// Keeps the items of a lane from being taken, until [`unblock`](Self::unblock).
    pub(super) fn block(&mut self, place: usize) {
        if let Some(queue) = self.lanes.get_mut(place) {
            queue.blocked = true;
        }
    }

    /// Ends the block of a lane. Returns whether there was one.
    pub(super) fn unblock(&mut self, place: usize) -> bool {
        let queue = self.lanes.get_mut(place);
        queue.is_some_and(|queue| std::mem::take(&mut queue.blocked))
    }

    pub(super) fn has_markers(&self) -> bool {
        self.markers > 0
    }

    /// Returns the position of a lane. A lane that the node did not subscribe to shares the last
    /// position and is decided like any other.
    pub(super) fn place(&self, lane: &Lane) -> usize {
        let last = self.lanes.len().saturating_sub(1);
        let before = self.lanes.iter().take(last);
        before
            .enumerate()
            .find(|(_, queue)| queue.lane == *lane)
            .map_or(last, |(place, _)| place)
    }

    pub(super) fn lane(&self, place: usize) -> Lane {
        self.lanes
            .get(place)
            .map_or_else(Lane::default, |queue| queue.lane.clone())
    }

    fn push(&mut self, place: usize, item: Item) {
        if let Some(queue) = self.lanes.get_mut(place) {
            queue.items.push_back(item);
            self.items += 1;
        }
    }

    pub(super) fn push_hint(&mut self, hint: Hint, of: Arrival) {
        self.push(of.lane, Item::Hint(Waiting { hint, of }));
    }

    /// Puts a hint that could not be locked at the end of its lane, or of the woken jobs. A rescued
    /// job stays at the front.
    pub(super) fn push_again(&mut self, mut waiting: Waiting) {
        waiting.of.full_since = None;
        if waiting.of.rescued {
            self.put_back(waiting);
        } else if waiting.of.woken {
            self.push_woken(waiting.hint, waiting.of);
        } else {
            self.push(waiting.of.lane, Item::Hint(waiting));
        }
    }

    /// Adds a rescued job behind the other rescued jobs of its lane. A job that already waits is
    /// skipped.
    pub(super) fn push_rescued(&mut self, hint: Hint, of: Arrival) {
        if let Some(queue) = self.lanes.get_mut(of.lane)
            && self.rescued.insert(hint.id)
        {
            queue.rescued.push_back(Waiting { hint, of });
        }
    }

    /// Adds a woken job behind the other woken jobs of its lane. A job that already waits is skipped.
    pub(super) fn push_woken(&mut self, hint: Hint, of: Arrival) {
        if let Some(queue) = self.lanes.get_mut(of.lane)
            && self.woken.insert(hint.id)
        {
            queue.woken.push_back(Waiting { hint, of });
        }
    }

    /// Adds a forwarded job at the end of its lane. A job that already waits is skipped. Returns
    /// false if `most` forwarded jobs wait.
    pub(super) fn push_forwarded(&mut self, hint: Hint, of: Arrival, most: usize) -> bool {
        if self.forwarded.contains(&hint.id) {
            return true;
        }
        if self.forwarded.len() >= most {
            return false;
        }
        self.forwarded.insert(hint.id);
        self.push_hint(hint, of);
        true
    }

    pub(super) fn push_marker(&mut self, place: usize, marker: Marker, ticket: Ticket) {
        self.push(place, Item::Marker(marker, ticket));
        self.markers += 1;
    }

    /// Returns whether this lane has a hint that [`pop`](Self::pop) returns. Rescued jobs count only
    /// if there is room for more of them.
    pub(super) fn waits(&self, place: usize, rescue_room: usize) -> bool {
        let Some(queue) = self.lanes.get(place) else {
            return false;
        };
        let rescued = rescue_room > 0 && !queue.rescued.is_empty();
        rescued || !queue.woken.is_empty() || queue.next_item().is_some()
    }

    /// Returns the time for which the oldest of the next hints of this lane has waited since it was
    /// published; zero without one.
    pub(super) fn waited(&self, place: usize, now: DateTime<Utc>) -> Duration {
        let queue = self.lanes.get(place).into_iter();
        let next =
            queue.flat_map(|queue| queue.first_item().into_iter().chain(queue.woken.front()));
        let since = next.map(|waiting| waiting.of.published_at.unwrap_or(waiting.of.received_at));
        let Some(since) = since.min() else {
            return Duration::ZERO;
        };
        (now - since).to_std().unwrap_or_default()
    }

    /// Removes and returns the next hint of this lane. Only rescued and woken jobs pass a marker.
    pub(super) fn pop(&mut self, place: usize, rescue_room: usize) -> Option<Waiting> {
        let queue = self.lanes.get_mut(place)?;
        if rescue_room > 0
            && let Some(waiting) = queue.rescued.pop_front()
        {
            self.rescued.remove(&waiting.hint.id);
            return Some(waiting);
        }
        let items_turn = queue.was_woken && queue.next_item().is_some();
        if !items_turn && let Some(waiting) = queue.woken.pop_front() {
            queue.was_woken = true;
            self.woken.remove(&waiting.hint.id);
            return Some(waiting);
        }
        if queue.blocked {
            return None;
        }
        match queue.items.pop_front()? {
            Item::Hint(waiting) => {
                queue.was_woken = false;
                self.items -= 1;
                if waiting.of.forwarded {
                    self.forwarded.remove(&waiting.hint.id);
                }
                Some(waiting)
            }
            marker @ Item::Marker(..) => {
                queue.items.push_front(marker);
                None
            }
        }
    }

    /// Puts a hint back at the front of its lane. Put several hints back in reverse order.
    pub(super) fn put_back(&mut self, waiting: Waiting) {
        let Some(queue) = self.lanes.get_mut(waiting.of.lane) else {
            return;
        };
        if waiting.of.rescued {
            if self.rescued.insert(waiting.hint.id) {
                queue.rescued.push_front(waiting);
            }
        } else if waiting.of.woken {
            if self.woken.insert(waiting.hint.id) {
                queue.woken.push_front(waiting);
            }
        } else {
            if waiting.of.forwarded {
                self.forwarded.insert(waiting.hint.id);
            }
            queue.items.push_front(Item::Hint(waiting));
            self.items += 1;
        }
    }

    /// Returns jobs whose places were not read, at most `most`: of each lane in turn those that come
    /// first. Rescued and woken jobs have no place.
    pub(super) fn unranked(&self, most: usize) -> Vec<JobId> {
        let lanes = self.lanes.len().max(1);
        let each = most.div_ceil(lanes);
        let of_lane = |queue: &LaneQueue| {
            let waiting = queue.items.iter().filter_map(|item| match item {
                Item::Hint(waiting) if waiting.of.rank == Ranked::Unread => Some(waiting.hint.id),
                _ => None,
            });
            waiting.take(each).collect::<Vec<_>>()
        };
        self.lanes.iter().flat_map(of_lane).collect()
    }

    /// Notes the places of `asked` jobs, and sorts the hints between two markers by their places.
    /// Those without a place stay behind the others, in their order.
    pub(super) fn rank(&mut self, asked: &[JobId], places: &HashMap<JobId, Place>) {
        let asked: HashSet<&JobId> = asked.iter().collect();
        for queue in &mut self.lanes {
            let mut changed = false;
            for item in &mut queue.items {
                if let Item::Hint(waiting) = item
                    && waiting.of.rank == Ranked::Unread
                    && asked.contains(&waiting.hint.id)
                {
                    let place = places.get(&waiting.hint.id).copied();
                    waiting.of.rank = place.map_or(Ranked::Nowhere, Ranked::At);
                    changed = true;
                }
            }
            if changed {
                queue.sort();
            }
        }
    }

    /// Sets an own hint aside until a slot of its type is free. A job that already waits for one is
    /// skipped.
    pub(super) fn set_aside(&mut self, mut waiting: Waiting) {
        let Some(queue) = self.lanes.get_mut(waiting.of.lane) else {
            return;
        };
        let Some(job_type) = waiting.hint.job_type.clone() else {
            return;
        };
        if !self.full.insert(waiting.hint.id) {
            return;
        }
        let was_before = waiting.of.is_full();
        if !was_before {
            waiting.of.full_since = Some(Instant::now());
        }
        let of_type = queue.full.entry(job_type).or_default();
        // Rescued jobs come first, then woken ones. One that was set aside before goes before those
        // that were not.
        let place = |waiting: &Waiting| {
            let of = &waiting.of;
            (!of.rescued, !of.rescued && !of.woken, of.rank)
        };
        let mine = place(&waiting);
        let at = if was_before {
            of_type.partition_point(|other| place(other) < mine)
        } else {
            of_type.partition_point(|other| place(other) <= mine)
        };
        of_type.insert(at, waiting);
    }

    /// Moves hints that wait for a slot of their type to the front of their lane: of each lane as
    /// many as slots of the type are `free`, and the rescued jobs before them.
    pub(super) fn try_again(&mut self, free: impl Fn(&str) -> usize) {
        for place in 0..self.lanes.len() {
            self.try_lane_again(place, &free);
        }
    }

    fn try_lane_again(&mut self, place: usize, free: impl Fn(&str) -> usize) {
        let Some(queue) = self.lanes.get_mut(place) else {
            return;
        };
        let mut again = Vec::new();
        for (job_type, of_type) in &mut queue.full {
            let free = free(job_type);
            // Rescued jobs do not count: there may be no room for them.
            let mut counted = 0;
            let taken = of_type.iter().take_while(|waiting| {
                let goes = counted < free;
                counted += usize::from(!waiting.of.rescued);
                goes
            });
            let taken = taken.count();
            again.extend(of_type.drain(..taken));
        }
        if again.is_empty() {
            return;
        }
        queue.full.retain(|_, of_type| !of_type.is_empty());
        let is_ranked = again
            .iter()
            .any(|waiting| waiting.of.rank != Ranked::Unread);
        for waiting in again.into_iter().rev() {
            self.full.remove(&waiting.hint.id);
            self.put_back(waiting);
        }
        if is_ranked && let Some(queue) = self.lanes.get_mut(place) {
            queue.sort();
        }
    }

    /// Removes and returns hints of a lane that have waited for a slot of their type since `before`
    /// or earlier: those that would start last. Of each type, the first ones stay, as many as `keep`
    /// returns, and woken jobs, whose permits are reserved here.
    pub(super) fn take_full(
        &mut self,
        place: usize,
        before: Instant,
        keep: impl Fn(&str) -> usize,
    ) -> Vec<Ready> {
        let mut taken = Vec::new();
        let Some(queue) = self.lanes.get_mut(place) else {
            return taken;
        };
        for (job_type, of_type) in &mut queue.full {
            let kept = of_type.len().min(keep(job_type));
            let mut left = VecDeque::with_capacity(of_type.len());
            while of_type.len() > kept
                && let Some(waiting) = of_type.pop_back()
            {
                let is_old = waiting.of.full_since.is_some_and(|since| since <= before);
                if is_old && !waiting.of.woken {
                    self.full.remove(&waiting.hint.id);
                    let lane = queue.lane.clone();
                    let hint = waiting.hint;
                    taken.push(Ready { lane, hint });
                } else {
                    left.push_front(waiting);
                }
            }
            of_type.append(&mut left);
        }
        queue.full.retain(|_, of_type| !of_type.is_empty());
        taken.reverse();
        taken
    }

    /// Removes and returns a marker with nothing undecided before it in its lane.
    pub(super) fn decided_marker(&mut self) -> Option<(Lane, Marker, Ticket)> {
        if self.markers == 0 {
            return None;
        }
        for queue in &mut self.lanes {
            if let Some(&Item::Marker(marker, ticket)) = queue.items.front() {
                queue.items.pop_front();
                self.items -= 1;
                self.markers -= 1;
                return Some((queue.lane.clone(), marker, ticket));
            }
        }
        None
    }

    /// Returns the jobs of one lane whose own hints arrived at `since` or later, and those that wait
    /// for a slot of a type that only this node serves.
    pub(super) fn own(
        &self,
        place: usize,
        since: DateTime<Utc>,
        serves_alone: impl Fn(&str) -> bool,
    ) -> impl Iterator<Item = JobId> {
        let queues = self.lanes.get(place).into_iter();
        queues.flat_map(move |queue| {
            let full = queue.full.iter().flat_map(|(job_type, of_type)| {
                let alone = serves_alone(job_type);
                of_type.iter().map(move |waiting| (alone, waiting))
            });
            let waiting = queue.items.iter().filter_map(|item| match item {
                Item::Hint(waiting) if waiting.of.ticket.is_none() => Some(waiting),
                _ => None,
            });
            let others = waiting.chain(&queue.rescued).chain(&queue.woken);
            let own = others.map(|waiting| (false, waiting)).chain(full);
            let own = own.filter(move |(alone, waiting)| *alone || waiting.of.received_at >= since);
            own.map(|(_, waiting)| waiting.hint.id).collect::<Vec<_>>()
        })
    }

    /// Removes and returns the rescued, woken and forwarded jobs of all lanes. Call it when no other
    /// item waits.
    pub(super) fn take_addressed(&mut self) -> Vec<Ready> {
        self.rescued.clear();
        self.woken.clear();
        self.forwarded.clear();
        self.items = 0;
        let mut taken = Vec::new();
        for queue in &mut self.lanes {
            let lane = &queue.lane;
            let forwarded = queue.items.drain(..).filter_map(|item| match item {
                Item::Hint(waiting) => Some(waiting),
                Item::Marker(..) => None,
            });
            let first = queue.rescued.drain(..).chain(queue.woken.drain(..));
            let waiting = first.chain(forwarded);
            taken.extend(waiting.map(|waiting| Ready {
                lane: lane.clone(),
                hint: waiting.hint,
            }));
        }
        taken
    }

    /// Removes and returns all items of one lane except rescued, woken and forwarded jobs, which hold
    /// no message of the broker.
    pub(super) fn take(&mut self, place: usize) -> Undecided {
        let mut undecided = Undecided::default();
        self.try_lane_again(place, |_| usize::MAX);
        let Some(queue) = self.lanes.get_mut(place) else {
            return undecided;
        };
        (queue.passed_over, queue.blocked) = (None, false);
        // The hints of a message need not be adjacent.
        let mut tickets = HashSet::new();
        let is_forwarded = |item: &Item| matches!(item, Item::Hint(of) if of.of.forwarded);
        let items = std::mem::take(&mut queue.items);
        let (forwarded, items): (VecDeque<Item>, VecDeque<Item>) =
            items.into_iter().partition(is_forwarded);
        queue.items = forwarded;
        self.items -= items.len();
        for item in items {
            let ticket = match item {
                Item::Hint(Waiting { hint, of }) => match of.ticket {
                    Some(ticket) => {
                        undecided.hints += 1;
                        ticket
                    }
                    None => {
                        let lane = queue.lane.clone();
                        undecided.own.push(Ready { lane, hint });
                        continue;
                    }
                },
                Item::Marker(_, ticket) => {
                    self.markers -= 1;
                    ticket
                }
            };
            if tickets.insert(ticket) {
                undecided.tickets.push(ticket);
            }
        }
        undecided
    }

    /// Records that the lanes in `served` got slots. Returns a lane that has waited for one since
    /// `before` or earlier.
    pub(super) fn passed_over(
        &mut self,
        now: Instant,
        before: Instant,
        served: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        let mut overdue = None;
        for (place, queue) in self.lanes.iter_mut().enumerate() {
            if served(place) || queue.next_item().is_none() {
                queue.passed_over = None;
            } else if *queue.passed_over.get_or_insert(now) <= before {
                overdue = Some(place);
            }
        }
        overdue
    }
}

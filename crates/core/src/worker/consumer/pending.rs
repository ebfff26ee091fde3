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

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use crate::hint::{Hint, Marker, Ready};
use crate::job::{JobId, Lane};
use crate::lane::start_order::Place;
use crate::transport::Ticket;

/// A hint that waits for a slot.
pub(super) struct Waiting {
    pub(super) hint: Hint,
    pub(super) of: Arrival,
}

/// The arrival of a hint, and earlier tries to lock its job.
#[derive(Clone, Copy)]
pub(super) struct Arrival {
    /// The position of the lane in the setting.
    pub(super) lane: usize,
    /// The ticket of the message; `None` for an own hint.
    pub(super) ticket: Option<Ticket>,
    pub(super) received_at: DateTime<Utc>,
    /// The time of the hint's publication by the publisher's clock, if it is known.
    pub(super) published_at: Option<DateTime<Utc>>,
    /// Whether the job's holder has died.
    pub(super) rescued: bool,
    /// Whether a permit is reserved for the job.
    pub(super) woken: bool,
    /// Whether the hint was forwarded by a node that does not serve the job.
    pub(super) forwarded: bool,
    pub(super) tried: Tried,
    /// The place of the job in the node's start order, once it is known.
    pub(super) rank: Ranked,
}

/// The last tries to lock the job of a hint.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tried {
    /// None was made.
    Never,
    /// Every try since then found the row busy.
    Busy(Instant),
    /// Every try since then found no free slot of the type.
    Full(Instant),
    /// The database refused to lock this job alone, when this number of statements had locked jobs.
    Refused(u64),
}

/// The known place of a job in the start order. Hints with a smaller value come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ranked {
    /// The place of the job.
    At(Place),
    /// The job was not ready when its place was read; the lock will tell.
    Nowhere,
    /// The place was not read yet.
    Unread,
}

impl Arrival {
    /// Returns whether the hint was set aside because its type had no free slot.
    pub(super) fn is_full(&self) -> bool {
        matches!(self.tried, Tried::Full(_))
    }
}

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
    pub(super) fn push_again(&mut self, waiting: Waiting) {
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
            waiting.of.tried = Tried::Full(Instant::now());
        }
        let of_type = queue.full.entry(job_type).or_default();
        // One that was set aside before goes before those that were not.
        let rank = waiting.of.rank;
        let at = if was_before {
            of_type.partition_point(|other| other.of.rank < rank)
        } else {
            of_type.partition_point(|other| other.of.rank <= rank)
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
    /// returns.
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
                let is_old = matches!(waiting.of.tried, Tried::Full(since) if since <= before);
                if is_old {
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

    /// Returns the jobs of one lane whose own hints arrived at `since` or later.
    pub(super) fn own(&self, place: usize, since: DateTime<Utc>) -> impl Iterator<Item = JobId> {
        let queues = self.lanes.get(place).into_iter();
        queues.flat_map(move |queue| {
            let waiting = queue.items.iter().filter_map(|item| match item {
                Item::Hint(waiting) if waiting.of.ticket.is_none() => Some(waiting),
                _ => None,
            });
            let full = queue.full.values().flatten();
            let own = waiting
                .chain(&queue.rescued)
                .chain(&queue.woken)
                .chain(full);
            let own = own.filter(move |waiting| waiting.of.received_at >= since);
            own.map(|waiting| waiting.hint.id)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobId, NodeId};
    use crate::lane::start_order::{Rank, StartOrder};

    fn pending() -> Pending {
        let lanes = ["high", "low"].map(|name| Lane(name.to_owned()));
        Pending::new(lanes.into_iter())
    }

    fn ticket(number: u64) -> Ticket {
        Ticket { epoch: 1, number }
    }

    fn arrival(lane: usize, number: u64) -> Arrival {
        Arrival {
            lane,
            ticket: (number > 0).then(|| ticket(number)),
            received_at: Utc::now(),
            published_at: None,
            rescued: false,
            woken: false,
            forwarded: false,
            tried: Tried::Never,
            rank: Ranked::Unread,
        }
    }

    fn wake(pending: &mut Pending, lane: usize) -> JobId {
        let hint = Hint::new(JobId::generate());
        let id = hint.id;
        let of = Arrival {
            woken: true,
            ..arrival(lane, 0)
        };
        pending.push_woken(hint, of);
        id
    }

    fn push(pending: &mut Pending, lane: usize, number: u64) -> JobId {
        let hint = Hint::new(JobId::generate());
        let id = hint.id;
        pending.push_hint(hint, arrival(lane, number));
        id
    }

    fn marker(number: u64) -> Marker {
        Marker {
            number,
            node: NodeId::generate(),
        }
    }

    fn place(priority: i64) -> Place {
        let rank = Rank {
            priority,
            timer: false,
            due_at: Utc::now(),
        };
        StartOrder::default().by_priority().place(&rank)
    }

    fn pop(pending: &mut Pending, lane: usize) -> Option<JobId> {
        pending.pop(lane, 0).map(|waiting| waiting.hint.id)
    }

    #[test]
    fn each_lane_is_first_in_first_out() {
        let mut pending = pending();
        let high = [push(&mut pending, 0, 1), push(&mut pending, 0, 2)];
        let low = push(&mut pending, 1, 3);
        assert_eq!(pending.len(), 3);
        assert_eq!(pop(&mut pending, 1), Some(low));
        assert_eq!(pop(&mut pending, 1), None);
        assert_eq!(pop(&mut pending, 0), Some(high[0]));
        assert_eq!(pop(&mut pending, 0), Some(high[1]));
        assert_eq!(pending.len(), 0);
    }

    #[test]
    fn the_age_of_a_lane_is_that_of_its_next_hint_since_its_publication() {
        let mut pending = pending();
        let now = Utc::now();
        let mut of = arrival(0, 1);
        (of.received_at, of.published_at) = (now, Some(now - Duration::from_secs(90)));
        pending.push_hint(Hint::new(JobId::generate()), of);
        of.published_at = None;
        pending.push_hint(Hint::new(JobId::generate()), of);
        assert_eq!(pending.waited(0, now), Duration::from_secs(90));
        assert_eq!(pending.waited(1, now), Duration::ZERO);
        pop(&mut pending, 0);
        assert_eq!(pending.waited(0, now), Duration::ZERO, "received now");
        // A publisher whose clock is fast.
        of.published_at = Some(now + Duration::from_secs(5));
        pop(&mut pending, 0);
        pending.push_hint(Hint::new(JobId::generate()), of);
        assert_eq!(pending.waited(0, now), Duration::ZERO);
    }

    #[test]
    fn hints_are_sorted_by_their_places_and_pass_no_marker() {
        let mut pending = pending();
        let before: Vec<JobId> = (1..=3).map(|n| push(&mut pending, 0, n)).collect();
        pending.push_marker(0, marker(1), ticket(4));
        let after: Vec<JobId> = (5..=6).map(|n| push(&mut pending, 0, n)).collect();
        let asked = pending.unranked(100);
        assert_eq!(asked, [before.clone(), after.clone()].concat());
        assert_eq!(pending.unranked(4), asked[..2], "two of each lane");
        // Of the first three, the second has no place; of the others, the last one comes first.
        let priorities = [(before[0], 1), (before[2], 2), (after[0], 8), (after[1], 9)];
        let places = priorities.map(|(id, priority)| (id, place(priority)));
        pending.rank(&asked, &places.into());
        assert!(pending.unranked(100).is_empty());
        // Hints that arrive later have no place yet.
        let late = push(&mut pending, 0, 7);
        assert_eq!(pending.unranked(100), [late]);
        for expected in [before[2], before[0], before[1]] {
            assert_eq!(pop(&mut pending, 0), Some(expected));
        }
        assert_eq!(pop(&mut pending, 0), None, "a marker");
        assert!(pending.decided_marker().is_some());
        for expected in [after[1], after[0], late] {
            assert_eq!(pop(&mut pending, 0), Some(expected));
        }
    }

    #[test]
    fn a_message_whose_hints_were_sorted_apart_is_requeued_once() {
        let mut pending = pending();
        let ids = [1, 2, 1].map(|n| push(&mut pending, 0, n));
        let places = [(ids[0], place(3)), (ids[1], place(2)), (ids[2], place(1))];
        pending.rank(&ids, &places.into());
        let undecided = pending.take(0);
        assert_eq!(undecided.tickets, [ticket(1), ticket(2)]);
        assert_eq!((undecided.hints, pending.len()), (3, 0));
    }

    #[test]
    fn a_rescued_job_is_the_first_of_its_lane_while_there_is_room_for_it() {
        let mut pending = pending();
        let waits = push(&mut pending, 0, 1);
        let rescued = [Hint::new(JobId::generate()), Hint::new(JobId::generate())];
        let of = Arrival {
            rescued: true,
            ..arrival(0, 0)
        };
        for hint in rescued.iter().chain(&rescued) {
            pending.push_rescued(hint.clone(), of);
        }
        assert_eq!(pending.rescued(), 2, "each waits once");
        assert!(!pending.waits(1, 9), "of its own lane only");
        let first = pending.pop(0, 2).expect("it comes first");
        assert_eq!(first.hint.id, rescued[0].id);
        pending.put_back(first);
        assert_eq!(pending.pop(0, 2).expect("again").hint.id, rescued[0].id);
        assert_eq!(pop(&mut pending, 0), Some(waits), "no room for the next");
        assert!(!pending.waits(0, 0) && pending.waits(0, 1));
        assert!(pending.take(0).own.is_empty(), "they wait on");
        assert_eq!(pending.take_addressed().len(), 1);
        assert_eq!((pending.rescued(), pending.len()), (0, 0));
    }

    #[test]
    fn woken_jobs_and_the_others_of_their_lane_take_turns() {
        let mut pending = pending();
        let others = [(); 2].map(|()| push(&mut pending, 0, 1));
        // The first exchange wakes two jobs, the next one wakes another two.
        let mut woken = vec![wake(&mut pending, 0), wake(&mut pending, 0)];
        assert_eq!(pop(&mut pending, 0), Some(woken[0]));
        woken.extend([wake(&mut pending, 0), wake(&mut pending, 0)]);
        assert_eq!(pending.len(), 5);
        for expected in [others[0], woken[1], others[1], woken[2], woken[3]] {
            assert_eq!(pop(&mut pending, 0), Some(expected));
        }
        assert_eq!((pop(&mut pending, 0), pending.len()), (None, 0));
    }

    #[test]
    fn what_arrives_behind_many_woken_jobs_starts_within_two_turns() {
        let mut pending = pending();
        for _ in 0..100 {
            wake(&mut pending, 0);
        }
        pop(&mut pending, 0);
        pop(&mut pending, 0);
        let late = push(&mut pending, 0, 1);
        // Each start of a woken job wakes another one.
        let first = [(); 2].map(|()| {
            wake(&mut pending, 0);
            pop(&mut pending, 0)
        });
        assert!(first.contains(&Some(late)));
    }

    #[test]
    fn a_woken_job_waits_once_and_passes_a_marker() {
        let mut pending = pending();
        pending.push_marker(0, marker(1), ticket(1));
        let [first, second] = [(); 2].map(|()| wake(&mut pending, 0));
        let waiting = pending.pop(0, 0).expect("it passes the marker");
        assert_eq!(waiting.hint.id, first);
        // It is woken again while it waits for the answer of the database.
        let (hint, of) = (waiting.hint.clone(), waiting.of);
        pending.put_back(waiting);
        pending.push_woken(hint, of);
        assert_eq!(pending.len(), 3);
        let busy = pending.pop(0, 0).expect("it was put back at the front");
        assert_eq!(busy.hint.id, first);
        pending.push_again(busy);
        assert_eq!(pop(&mut pending, 0), Some(second));
        assert_eq!(pop(&mut pending, 0), Some(first), "a busy one comes last");
        assert_eq!((pop(&mut pending, 0), pending.len()), (None, 1));
    }

    #[test]
    fn woken_jobs_stay_when_a_lane_leaves_and_count_as_held() {
        let mut pending = pending();
        push(&mut pending, 0, 1);
        let woken = [(); 2].map(|()| wake(&mut pending, 0));
        let past = Utc::now() - Duration::from_secs(1);
        assert_eq!(pending.own(0, past).collect::<Vec<_>>(), woken);
        let left = pending.take(0);
        assert_eq!((left.tickets.len(), left.own.len()), (1, 0));
        assert!(pending.waits(0, 0) && !pending.waits(1, 0));
        assert!(pending.waited(0, Utc::now() + Duration::from_secs(9)) > Duration::from_secs(8));
        assert_eq!(pop(&mut pending, 0), Some(woken[0]));
        assert_eq!(pending.take_addressed().len(), 1);
        assert_eq!(pending.len(), 0);
        let again = wake(&mut pending, 0);
        assert_eq!(pop(&mut pending, 0), Some(again));
    }

    #[test]
    fn so_many_forwarded_jobs_wait_each_once_and_longer_than_what_came_from_the_broker() {
        let mut pending = pending();
        push(&mut pending, 0, 1);
        let mut of = arrival(0, 0);
        of.forwarded = true;
        let [first, second] = [(); 2].map(|()| Hint::new(JobId::generate()));
        for _ in 0..2 {
            assert!(pending.push_forwarded(first.clone(), of, 1));
        }
        assert!(!pending.push_forwarded(second.clone(), of, 1), "no room");
        assert_eq!(pending.len(), 2);
        let past = of.received_at - Duration::from_secs(1);
        assert_eq!(pending.own(0, past).collect::<Vec<_>>(), [first.id]);
        let future = of.received_at + Duration::from_secs(1);
        assert_eq!(pending.own(0, future).count(), 0, "for a while only");
        let taken = pending.take(0);
        assert_eq!((taken.tickets.len(), taken.own.len()), (1, 0));
        assert_eq!(pop(&mut pending, 0), Some(first.id));
        assert!(pending.push_forwarded(second, of, 1));
        assert_eq!(pending.take_addressed().len(), 1);
        assert_eq!(pending.len(), 0);
    }

    fn of_type(job_type: &str) -> Hint {
        Hint {
            job_type: Some(job_type.to_owned()),
            ..Hint::new(JobId::generate())
        }
    }

    #[test]
    fn what_waits_for_a_slot_of_its_type_is_passed_and_keeps_its_turn() {
        let mut pending = pending();
        let full: Vec<Hint> = ["mail", "mail", "fax", "mail"].map(of_type).into();
        for hint in &full {
            pending.push_hint(hint.clone(), arrival(0, 0));
        }
        pending.push_marker(0, marker(1), ticket(1));
        for _ in 0..full.len() {
            let waiting = pending.pop(0, 0).unwrap();
            pending.set_aside(waiting);
        }
        pending.set_aside(Waiting {
            hint: full[0].clone(),
            of: arrival(0, 0),
        });
        assert_eq!((pending.len(), pending.full()), (1, 4), "each once");
        assert!(pending.decided_marker().is_some(), "nothing holds it up");
        let free = |job_type: &str| usize::from(job_type == "mail") * 2;
        pending.try_again(free);
        let first = pending.pop(0, 0).unwrap();
        assert_eq!(first.hint.id, full[0].id);
        let second = pending.pop(0, 0).unwrap();
        assert_eq!(second.hint.id, full[1].id);
        assert!(pending.pop(0, 0).is_none());
        // Both slots were taken meanwhile.
        pending.set_aside(second);
        pending.set_aside(first);
        pending.try_again(free);
        assert_eq!(pop(&mut pending, 0), Some(full[0].id));
        let left = pending.take(0);
        assert_eq!((left.own.len(), left.tickets.len()), (3, 0));
        assert_eq!((pending.len(), pending.full()), (0, 0));
    }

    #[test]
    fn the_youngest_of_those_that_wait_for_a_slot_of_their_type_are_left_to_others() {
        let mut pending = pending();
        let hints = ["mail"; 5].map(of_type);
        for hint in &hints {
            let of = arrival(1, 0);
            let hint = hint.clone();
            pending.set_aside(Waiting { hint, of });
        }
        let forwarded = Arrival {
            forwarded: true,
            ..arrival(1, 0)
        };
        let addressed = of_type("mail");
        pending.set_aside(Waiting {
            hint: addressed.clone(),
            of: forwarded,
        });
        let now = Instant::now();
        let young = now - Duration::from_secs(3);
        assert!(pending.take_full(1, young, |_| 0).is_empty(), "too young");
        let past = Utc::now() - Duration::from_secs(60);
        assert_eq!(pending.own(1, past).count(), 6, "they count as held");
        let taken = pending.take_full(1, now, |_| 3);
        let taken: Vec<JobId> = taken.iter().map(|ready| ready.hint.id).collect();
        assert_eq!(taken, [hints[3].id, hints[4].id, addressed.id]);
        assert_eq!(pending.full(), 3);
        pending.try_again(|_| 1);
        assert_eq!(pop(&mut pending, 1), Some(hints[0].id));
        assert_eq!(pending.take_full(1, now, |_| 0).len(), 2);
        assert_eq!(pending.full(), 0);
    }

    #[test]
    fn a_blocked_lane_holds_up_no_other_lane_and_no_rescued_or_woken_job() {
        let mut pending = pending();
        push(&mut pending, 0, 1);
        let other = push(&mut pending, 1, 2);
        pending.block(0);
        assert_eq!((pending.ready(), pending.len()), (1, 2));
        assert!(!pending.waits(0, 1) && pending.waits(1, 1));
        assert_eq!(
            (pop(&mut pending, 0), pop(&mut pending, 1)),
            (None, Some(other))
        );
        let woken = wake(&mut pending, 0);
        assert_eq!(pop(&mut pending, 0), Some(woken));
        assert!(pending.unblock(0) && !pending.unblock(0));
        assert!(pop(&mut pending, 0).is_some());
        pending.block(0);
        pending.take(0);
        assert!(!pending.unblock(0), "a lane that leaves is not blocked");
    }

    #[test]
    fn a_rescued_job_that_waits_for_a_slot_of_its_type_takes_no_other_ones_turn() {
        let mut pending = pending();
        let [first, second, third] = ["mail"; 3].map(of_type);
        for (hint, rescued) in [(&first, true), (&second, false), (&third, false)] {
            let of = Arrival {
                rescued,
                ..arrival(0, 0)
            };
            let hint = hint.clone();
            pending.set_aside(Waiting { hint, of });
        }
        pending.try_again(|_| 1);
        assert_eq!((pending.rescued(), pending.full()), (1, 1));
        let next = pending.pop(0, 0).map(|waiting| waiting.hint.id);
        assert_eq!(next, Some(second.id), "there is no room for a rescued one");
        let next = pending.pop(0, 1).map(|waiting| waiting.hint.id);
        assert_eq!(next, Some(first.id));
    }

    #[test]
    fn a_marker_waits_for_its_own_lane_only() {
        let mut pending = pending();
        push(&mut pending, 0, 1);
        pending.push_marker(0, marker(7), ticket(2));
        pending.push_marker(1, marker(8), ticket(3));
        let later = push(&mut pending, 1, 4);
        let (lane, decided, _) = pending.decided_marker().expect("nothing stands before it");
        assert_eq!((lane.0.as_str(), decided.number), ("low", 8));
        assert!(pending.decided_marker().is_none());
        assert_eq!(pop(&mut pending, 1), Some(later));
        // A hint that is put back delays the marker again.
        let waiting = pending.pop(0, 0).expect("a hint");
        assert!(!pending.waits(0, 0), "a marker is not passed");
        assert!(pending.pop(0, 0).is_none());
        pending.put_back(waiting);
        assert!(pending.decided_marker().is_none());
        pop(&mut pending, 0);
        assert_eq!(pending.decided_marker().expect("decided").1.number, 7);
        assert_eq!(pending.len(), 0);
    }

    #[test]
    fn what_is_tried_again_keeps_its_place() {
        let mut pending = pending();
        let ids: Vec<JobId> = (1..=4).map(|n| push(&mut pending, 0, n)).collect();
        let batch: Vec<Waiting> = (0..3).filter_map(|_| pending.pop(0, 0)).collect();
        for waiting in batch.into_iter().rev() {
            pending.put_back(waiting);
        }
        let again: Vec<JobId> = std::iter::from_fn(|| pop(&mut pending, 0)).collect();
        assert_eq!(again, ids);
    }

    #[test]
    fn a_lane_leaves_with_each_message_once_and_its_own_hints() {
        let mut pending = pending();
        for number in [1, 1, 2, 0] {
            push(&mut pending, 1, number);
        }
        pending.push_marker(1, marker(1), ticket(3));
        let other = push(&mut pending, 0, 9);
        let left = pending.take(1);
        assert_eq!(left.tickets, [ticket(1), ticket(2), ticket(3)]);
        assert_eq!((left.hints, left.own.len()), (3, 1));
        assert_eq!(left.own[0].lane.0, "low");
        assert_eq!(pending.len(), 1);
        assert!(pending.decided_marker().is_none());
        assert_eq!(pop(&mut pending, 0), Some(other));
    }

    #[test]
    fn a_lane_that_waits_in_vain_is_named_and_one_that_is_served_is_not() {
        let mut pending = pending();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        push(&mut pending, 0, 1);
        push(&mut pending, 1, 2);
        let high_only = |place| place == 0;
        // Nothing is overdue yet: a lane must have waited for three seconds.
        assert_eq!(pending.passed_over(at(10), at(7), high_only), None);
        assert_eq!(pending.passed_over(at(12), at(9), high_only), None);
        assert_eq!(pending.passed_over(at(13), at(10), high_only), Some(1));
        // A lane that was served once starts to wait again.
        assert_eq!(pending.passed_over(at(13), at(10), |_| true), None);
        assert_eq!(pending.passed_over(at(14), at(11), high_only), None);
        pop(&mut pending, 1);
        assert_eq!(pending.passed_over(at(30), at(27), high_only), None);
    }

    #[test]
    fn a_lane_that_nobody_asked_for_is_decided_with_the_last() {
        let pending = pending();
        assert_eq!(pending.place(&Lane("high".to_owned())), 0);
        assert_eq!(pending.place(&Lane("low".to_owned())), 1);
        assert_eq!(pending.place(&Lane("other".to_owned())), 1);
    }
}

//! The slots of a process: room for its running jobs, shared by its nodes.
//!
//! A node that has the pool for itself takes any free slot. Nodes of several databases in one
//! process share a pool by three rules:
//!
//! * **A slot for each.** A node that runs no job always finds one free slot, if the pool has at
//!   least as many slots as nodes. So a database with long jobs never blocks another one.
//! * **Equal parts of scarce slots.** While several nodes need more slots, each may take its part
//!   of the pool, and a free slot goes to the node that holds the fewest. Slots that a node does
//!   not need are free for the others. Running jobs are never interrupted: a node that needs its
//!   part again gets the slots as jobs end.
//! * **All slots for one job.** A job that must run alone in the process waits for every slot of
//!   the pool. Nothing else starts meanwhile.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use metrics::gauge;
use tokio::sync::oneshot;

use crate::telemetry::metrics as m;
use crate::transport::Transport;
use crate::worker::slot_limit::SlotLimit;
use crate::worker::slots::TypeSlot;

/// The slots of a process, for [nodes](crate::Node) of several databases. Each node takes at most
/// [`concurrency`](crate::NodeOptions::concurrency) of them.
///
/// A free slot goes to the node that holds the fewest, and a node that runs nothing always finds a
/// slot. Clones share the same slots.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use jobwire_core::{InProcessTransport, Node, SlotPool, SqliteStore};
///
/// # async fn example() -> Result<(), jobwire_core::Error> {
/// let slots = SlotPool::new(64);
/// let orders = SqliteStore::connect("sqlite:orders.db").await?;
/// let orders = Node::builder(orders, Arc::new(InProcessTransport::new()))
///     .slots(&slots)
///     .start()
///     .await?;
/// let invoices = SqliteStore::connect("sqlite:invoices.db").await?;
/// let invoices = Node::builder(invoices, Arc::new(InProcessTransport::new()))
///     .slots(&slots)
///     .start()
///     .await?;
/// # orders.stop().await;
/// # invoices.stop().await;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct SlotPool(Arc<Pool>);

impl SlotPool {
    /// Creates a pool of `slots` slots, at least one.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        let slots = slots.max(1);
        let state = State {
            free: slots,
            ..State::default()
        };
        Self(Arc::new(Pool {
            slots,
            state: Mutex::new(state),
        }))
    }

    /// Returns the number of slots, free or not.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.0.slots
    }

    /// Adds a node that takes at most `most` slots at once, and at most as many as `limit` says at
    /// the time. Returns `None` if another node of this
    /// pool uses the transport: the hints of one database would reach the node of another.
    pub(crate) fn join(
        &self,
        most: usize,
        limit: Option<SlotLimit>,
        transport: &Arc<dyn Transport>,
    ) -> Option<Share> {
        let mut state = self.0.state();
        let taken = state.members.values().any(|member| {
            let theirs = member.transport.as_ref().and_then(Weak::upgrade);
            theirs.is_some_and(|theirs| Arc::ptr_eq(&theirs, transport))
        });
        if taken {
            return None;
        }
        let member = state.next_number();
        state.members.insert(
            member,
            Member {
                most: most.min(self.0.slots),
                limit,
                transport: Some(Arc::downgrade(transport)),
                ..Member::default()
            },
        );
        gauge!(m::SLOTS).set(self.0.slots as f64);
        drop(state);
        Some(Share {
            pool: self.0.clone(),
            member,
        })
    }
}

#[derive(Debug)]
struct Pool {
    slots: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    free: usize,
    members: BTreeMap<u64, Member>,
    /// Requests for slots, in the order of arrival.
    waiting: BTreeMap<u64, Request>,
    next: u64,
}

#[derive(Debug, Default)]
struct Member {
    held: usize,
    most: usize,
    limit: Option<SlotLimit>,
    /// Whether the node needs more slots: it has found none since it last had nothing to start.
    wants: bool,
    /// The transport of the node; `None` once the node has left. Its last slots come back later.
    transport: Option<Weak<dyn Transport>>,
}

impl Member {
    /// Returns the number of slots that the node may have now.
    fn cap(&self) -> usize {
        let limit = self.limit.as_ref().map_or(self.most, SlotLimit::slots);
        self.most.min(limit)
    }
}

#[derive(Debug)]
struct Request {
    member: u64,
    all: bool,
    grant: oneshot::Sender<Slot>,
}

/// A slot on its way to the request that gets it. Sent after the state is unlocked, because a
/// refused slot comes back.
type Grant = (oneshot::Sender<Slot>, Slot);

impl Pool {
    /// Locks the state. A poisoned lock means that a thread panicked between whole operations; the
    /// state is right.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unlocks the state after a change and serves the requests that it allows.
    fn serve(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        let mut grants = Vec::new();
        while let Some(grant) = state.grant_one(self) {
            grants.push(grant);
        }
        state.note_wishes();
        drop(state);
        for (request, slot) in grants {
            // A request that was given up meanwhile drops its slot here.
            drop(request.send(slot));
        }
    }
}

impl State {
    fn next_number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Returns the number of slots that this node may take now.
    fn room(&self, me: u64, slots: usize) -> usize {
        let Some(mine) = self.members.get(&me) else {
            return 0;
        };
        if self.waiting.values().any(|request| request.all) {
            return 0;
        }
        let mut room = self.free.min(mine.cap().saturating_sub(mine.held));
        if self.members.len() == 1 || room == 0 {
            return room;
        }
        let others = || {
            let others = self.members.iter().filter(|(member, _)| **member != me);
            others.map(|(_, other)| other)
        };
        if slots >= self.members.len() {
            let idle = others().filter(|other| other.held == 0 && other.cap() > 0);
            room = room.min(self.free.saturating_sub(idle.count()));
        }
        let want = || others().filter(|other| other.wants && other.held < other.cap());
        let part = slots / (want().count() + 1);
        let owed: usize = want()
            .map(|other| part.min(other.cap()).saturating_sub(other.held))
            .sum();
        let fewest = want().all(|other| mine.held <= other.held);
        room.min(self.free.saturating_sub(owed).max(usize::from(fewest)))
    }

    /// Records that the nodes whose requests wait need more slots.
    fn note_wishes(&mut self) {
        for request in self.waiting.values() {
            if let Some(member) = self.members.get_mut(&request.member) {
                member.wants = true;
            }
        }
    }

    fn take(&mut self, member: u64, count: usize) {
        self.free = self.free.saturating_sub(count);
        if let Some(member) = self.members.get_mut(&member) {
            member.held += count;
        }
    }

    /// Takes slots for one of the requests, if one can be served.
    fn grant_one(&mut self, pool: &Arc<Pool>) -> Option<Grant> {
        self.waiting.retain(|_, request| !request.grant.is_closed());
        let all = self.waiting.iter().find(|(_, request)| request.all);
        let (number, count) = match all {
            Some((number, _)) if self.free == pool.slots => (*number, pool.slots),
            Some(_) => return None,
            None => {
                let held = |request: &Request| self.members.get(&request.member).map(|m| m.held);
                let served = self.waiting.iter();
                let served = served.filter(|(_, r)| self.room(r.member, pool.slots) > 0);
                let (number, _) = served.min_by_key(|(number, r)| (held(r), **number))?;
                (*number, 1)
            }
        };
        let request = self.waiting.remove(&number)?;
        self.take(request.member, count);
        let slot = Slot {
            pool: pool.clone(),
            member: request.member,
            count,
            of_type: None,
        };
        Some((request.grant, slot))
    }
}

/// The slots that a node has taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) slots: usize,
    /// Whether the node has found no slot since it last had nothing to start.
    pub(crate) wants_more: bool,
}

/// A node's access to the pool.
#[derive(Debug)]
pub(crate) struct Share {
    pool: Arc<Pool>,
    member: u64,
}

impl Share {
    /// Returns the number of slots that this node may take now.
    pub(crate) fn free(&self) -> usize {
        self.pool.state().room(self.member, self.pool.slots)
    }

    /// Returns the slots that this node has taken.
    pub(crate) fn taken(&self) -> Taken {
        let state = self.pool.state();
        let me = state.members.get(&self.member);
        Taken {
            slots: me.map_or(0, |me| me.held),
            wants_more: me.is_some_and(|me| me.wants),
        }
    }

    /// Returns the number of slots that this node may take at once.
    pub(crate) fn cap(&self) -> usize {
        let state = self.pool.state();
        state.members.get(&self.member).map_or(0, Member::cap)
    }

    /// Sets the number of slots that this node may take at once, if it has a limit. Slots that are
    /// taken stay so.
    pub(crate) fn limit_to(&self, slots: usize) {
        let state = self.pool.state();
        if let Some(limit) = state
            .members
            .get(&self.member)
            .and_then(|me| me.limit.as_ref())
        {
            limit.set(slots);
        }
        self.pool.serve(state);
    }

    /// Returns whether no job runs in the whole process.
    pub(crate) fn is_idle(&self) -> bool {
        self.pool.state().free == self.pool.slots
    }

    /// Returns whether a node of the process needs more slots.
    pub(crate) fn is_wanted(&self) -> bool {
        self.pool
            .state()
            .members
            .values()
            .any(|member| member.wants)
    }

    /// Takes a slot, if this node may take one now. Otherwise notes that the node needs more slots, until it
    /// has nothing to start.
    pub(crate) fn try_take(&self) -> Option<Slot> {
        let slot = self.try_take_spare();
        if slot.is_none()
            && let Some(me) = self.pool.state().members.get_mut(&self.member)
        {
            me.wants = true;
        }
        slot
    }

    /// Takes a slot, if this node may take one now. If not, the caller can do without.
    pub(crate) fn try_take_spare(&self) -> Option<Slot> {
        let mut state = self.pool.state();
        if state.room(self.member, self.pool.slots) == 0 {
            return None;
        }
        state.take(self.member, 1);
        drop(state);
        Some(Slot {
            pool: self.pool.clone(),
            member: self.member,
            count: 1,
            of_type: None,
        })
    }

    /// Waits for a slot. Cancel-safe.
    pub(crate) async fn take(&self) -> Slot {
        self.request(false).await
    }

    /// Waits for every slot of the process. Nothing starts meanwhile. Cancel-safe.
    pub(crate) async fn take_all(&self) -> Slot {
        self.request(true).await
    }

    /// Records that the caller has nothing to start: the node's part is free for the others, unless
    /// it waits for a slot.
    pub(crate) fn wants_none(&self) {
        let mut state = self.pool.state();
        let mut requests = state.waiting.values();
        if requests.any(|request| request.member == self.member) {
            return;
        }
        let me = state.members.get_mut(&self.member);
        if me.is_some_and(|me| mem::take(&mut me.wants)) {
            self.pool.serve(state);
        }
    }

    async fn request(&self, all: bool) -> Slot {
        let (granted, _waits) = self.enqueue(all);
        match granted.await {
            Ok(slot) => slot,
            // The pool keeps the request until it is granted or given up.
            Err(_) => std::future::pending().await,
        }
    }

    fn enqueue(&self, all: bool) -> (oneshot::Receiver<Slot>, Waits<'_>) {
        let (grant, granted) = oneshot::channel();
        let mut state = self.pool.state();
        let number = state.next_number();
        let request = Request {
            member: self.member,
            all,
            grant,
        };
        state.waiting.insert(number, request);
        self.pool.serve(state);
        let waits = Waits {
            pool: &self.pool,
            number,
        };
        (granted, waits)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        let held = state.members.get_mut(&self.member).map_or(0, |me| {
            (me.transport, me.wants, me.most) = (None, false, 0);
            me.held
        });
        if held == 0 {
            state.members.remove(&self.member);
        }
        let members = state.members.values();
        if members.clone().all(|member| member.transport.is_none()) {
            gauge!(m::SLOTS).set(0.0);
        }
        self.pool.serve(state);
    }
}

/// A request that waits. Dropping it gives the request up, so that others are served.
struct Waits<'a> {
    pool: &'a Arc<Pool>,
    number: u64,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state();
        if state.waiting.remove(&self.number).is_some() {
            self.pool.serve(state);
        }
    }
}

/// Slots that a job holds: one, or all of them if it must run alone. Dropping it frees them.
#[derive(Debug)]
pub(crate) struct Slot {
    pool: Arc<Pool>,
    member: u64,
    count: usize,
    /// The slot of the job's type, if the type has its own limit and the slot was taken before the
    /// lock. The job takes it out when it starts.
    pub(crate) of_type: Option<TypeSlot>,
}

impl Slot {
    /// Keeps one slot and frees the others.
    pub(crate) fn into_one(mut self) -> Self {
        let freed = self.count.saturating_sub(1);
        self.give_back(freed);
        self
    }

    fn give_back(&mut self, count: usize) {
        if count == 0 {
            return;
        }
        self.count -= count;
        let mut state = self.pool.state();
        state.free += count;
        let left = state.members.get_mut(&self.member).is_some_and(|member| {
            member.held = member.held.saturating_sub(count);
            member.held == 0 && member.transport.is_none()
        });
        if left {
            state.members.remove(&self.member);
        }
        self.pool.serve(state);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.give_back(self.count);
    }
}

#[cfg(test)]
mod tests;

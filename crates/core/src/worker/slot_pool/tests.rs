use std::time::Duration;

use super::*;
use crate::InProcessTransport;

fn transport() -> Arc<dyn Transport> {
    Arc::new(InProcessTransport::new())
}

/// A pool with this many nodes, each of which may take all slots.
fn shared(slots: usize, nodes: usize) -> (Vec<Share>, Vec<Arc<dyn Transport>>) {
    let pool = SlotPool::new(slots);
    let transports: Vec<_> = (0..nodes).map(|_| transport()).collect();
    let shares = transports.iter().map(|transport| {
        pool.join(slots, None, transport)
            .expect("another transport")
    });
    (shares.collect(), transports)
}

fn take_until_full(share: &Share) -> Vec<Slot> {
    std::iter::from_fn(|| share.try_take()).collect()
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    let soon = tokio::time::timeout(Duration::from_secs(5), future).await;
    soon.expect("a slot within five seconds")
}

#[test]
fn a_node_alone_takes_every_slot() {
    let (shares, _kept) = shared(4, 1);
    let slots = take_until_full(&shares[0]);
    assert_eq!((slots.len(), shares[0].free()), (4, 0));
    drop(slots);
    assert!(shares[0].is_idle());
}

#[test]
fn a_node_takes_no_more_than_its_own_limit() {
    let pool = SlotPool::new(8);
    let (first, second) = (transport(), transport());
    let small = pool.join(2, None, &first).expect("a share");
    let large = pool.join(8, None, &second).expect("a share");
    assert_eq!(take_until_full(&small).len(), 2);
    assert_eq!(take_until_full(&large).len(), 6);
}

#[test]
fn a_busy_node_leaves_a_slot_to_each_idle_one() {
    let (shares, _kept) = shared(8, 3);
    let long = take_until_full(&shares[0]);
    assert_eq!(long.len(), 6);
    let (second, third) = (shares[1].try_take(), shares[2].try_take());
    assert!(second.is_some() && third.is_some());
    assert!(shares[1].try_take().is_none());
}

#[test]
fn a_free_slot_goes_to_the_node_that_holds_the_fewest() {
    let (shares, _kept) = shared(8, 2);
    let mut busy = take_until_full(&shares[0]);
    let mut other = take_until_full(&shares[1]);
    assert_eq!((busy.len(), other.len()), (7, 1));
    // Both want more: as slots become free, the other node reaches its half, and no more.
    while !busy.is_empty() {
        busy.pop();
        busy.extend(shares[0].try_take());
        other.extend(shares[1].try_take());
        if busy.len() == 4 {
            break;
        }
    }
    assert_eq!((busy.len(), other.len()), (4, 4));
    busy.pop();
    assert!(
        shares[1].try_take().is_none(),
        "this slot is the busy node's part"
    );
    assert!(shares[0].try_take().is_some());
}

#[test]
fn what_a_node_does_not_want_is_free_for_the_others() {
    let (shares, _kept) = shared(8, 2);
    let busy = take_until_full(&shares[0]);
    let other = take_until_full(&shares[1]);
    drop(other);
    drop(busy);
    // Both found the pool full, so each leaves the other its half until that one wants none.
    let half = take_until_full(&shares[0]);
    assert_eq!(half.len(), 4);
    shares[1].wants_none();
    assert_eq!(half.len() + take_until_full(&shares[0]).len(), 7);
}

#[test]
fn a_slot_that_a_node_can_do_without_is_no_need() {
    let (shares, _kept) = shared(8, 2);
    let busy = take_until_full(&shares[0]);
    shares[0].wants_none();
    let spare: Vec<Slot> = std::iter::from_fn(|| shares[1].try_take_spare()).collect();
    assert_eq!((busy.len(), spare.len()), (7, 1));
    assert!(!shares[1].taken().wants_more);
    drop((busy, spare));
    assert_eq!(
        take_until_full(&shares[0]).len(),
        7,
        "all but the slot of the idle node"
    );
}

#[tokio::test]
async fn a_job_that_runs_alone_waits_for_the_jobs_of_every_node() {
    let (shares, _kept) = shared(4, 2);
    let (mine, other) = (shares[0].try_take(), shares[1].try_take());
    let all = shares[0].take_all();
    tokio::pin!(all);
    assert!(futures_util::poll!(&mut all).is_pending());
    assert!(shares[1].try_take().is_none(), "nothing new starts");
    drop(mine);
    assert!(futures_util::poll!(&mut all).is_pending());
    drop(other);
    let all = soon(all).await;
    assert!(shares[1].try_take().is_none() && shares[0].try_take().is_none());
    let one = all.into_one();
    assert!(shares[1].try_take().is_some());
    drop(one);
}

#[tokio::test]
async fn a_request_that_is_given_up_stops_no_other() {
    let (shares, _kept) = shared(4, 2);
    let running = shares[0].try_take();
    {
        let all = shares[0].take_all();
        tokio::pin!(all);
        assert!(futures_util::poll!(&mut all).is_pending());
        assert!(shares[1].try_take().is_none());
    }
    assert!(shares[1].try_take().is_some());
    drop(running);
}

#[tokio::test]
async fn a_granted_slot_that_no_one_takes_comes_back() {
    let (shares, _kept) = shared(1, 1);
    let running = shares[0].try_take();
    {
        let waits = shares[0].take();
        tokio::pin!(waits);
        assert!(futures_util::poll!(&mut waits).is_pending());
        // Granted now, and dropped before it is polled again.
        drop(running);
    }
    assert!(shares[0].is_idle());
}

#[tokio::test]
async fn requests_are_served_when_a_node_leaves() {
    let (mut shares, _kept) = shared(2, 2);
    let leaves = shares.pop().expect("two shares");
    let slot = shares[0].try_take();
    let waits = shares[0].take();
    tokio::pin!(waits);
    let waiting = futures_util::poll!(&mut waits).is_pending();
    assert!(waiting, "the last slot is for the idle node");
    drop(leaves);
    drop(soon(waits).await);
    drop(slot);
}

#[test]
fn two_nodes_do_not_share_a_transport() {
    let pool = SlotPool::new(2);
    let transport = transport();
    let first = pool.join(2, None, &transport);
    assert!(first.is_some());
    assert!(pool.join(2, None, &transport).is_none());
    drop(first);
    assert!(pool.join(2, None, &transport).is_some());
}

/// A sequence of numbers that is the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }
}

/// No order of steps loses or invents a slot, and a node that runs nothing finds one.
#[test]
fn slots_are_neither_lost_nor_invented() {
    for seed in 0..500 {
        let mut numbers = Numbers(seed);
        let slots = 4 + numbers.below(16);
        let (shares, _kept) = shared(slots, 4);
        let mut shares: Vec<_> = shares.into_iter().map(Some).collect();
        let mut held: Vec<Vec<Slot>> = (0..4).map(|_| Vec::new()).collect();
        for _ in 0..200 {
            let node = numbers.below(4);
            match (numbers.below(8), &shares[node]) {
                (0..=3, Some(share)) => {
                    let taken = share.try_take();
                    let idle = held[node].is_empty();
                    assert!(
                        taken.is_some() || !idle,
                        "seed {seed}: an idle node found no slot"
                    );
                    held[node].extend(taken);
                }
                (4, Some(share)) => share.wants_none(),
                (5, Some(_)) if node == 3 => drop(shares[node].take()),
                _ => drop(held[node].pop()),
            }
            assert!(
                held.iter().map(Vec::len).sum::<usize>() <= slots,
                "seed {seed}"
            );
        }
        held.clear();
        let share = shares
            .iter()
            .flatten()
            .next()
            .expect("three nodes never leave");
        assert!(share.is_idle(), "seed {seed}");
    }
}

#[tokio::test]
async fn a_limit_that_grows_frees_slots_and_one_that_shrinks_takes_none_away() {
    let pool = SlotPool::new(8);
    let (transport, limit) = (transport(), SlotLimit::new(2));
    let share = pool.join(8, Some(limit.clone()), &transport);
    let share = share.expect("a share");
    let mut slots = take_until_full(&share);
    assert_eq!(slots.len(), 2);
    limit.set(100);
    slots.extend(take_until_full(&share));
    assert_eq!(slots.len(), 8);
    limit.set(3);
    for left in (3..8).rev() {
        slots.pop();
        assert_eq!((slots.len(), share.free()), (left, 0));
    }
    let waits = share.take();
    tokio::pin!(waits);
    assert!(futures_util::poll!(&mut waits).is_pending());
    slots.pop();
    drop(soon(waits).await);
}

/// Slots that its own limit keeps a node from taking stay free for the others.
#[tokio::test]
async fn no_slot_is_kept_for_a_node_beyond_its_limit() {
    let pool = SlotPool::new(16);
    let (one, two, limit) = (transport(), transport(), SlotLimit::new(2));
    let limited = pool.join(16, Some(limit), &one).expect("a share");
    let other = pool.join(16, None, &two).expect("a share");
    let held = take_until_full(&limited);
    assert_eq!(held.len(), 2);
    let waits = limited.take();
    tokio::pin!(waits);
    assert!(futures_util::poll!(&mut waits).is_pending());
    assert_eq!(take_until_full(&other).len(), 14);
}

#[tokio::test]
async fn a_node_that_waits_for_a_slot_wants_it_whatever_else_it_has_not_to_start() {
    let (shares, _kept) = shared(1, 1);
    let me = &shares[0];
    let slot = me.try_take();
    let mut request = Box::pin(me.take());
    assert!(futures_util::poll!(&mut request).is_pending());
    me.wants_none();
    assert!(me.taken().wants_more);
    drop(slot);
    let slot = soon(request).await;
    me.wants_none();
    assert!(!me.taken().wants_more);
    drop(slot);
}

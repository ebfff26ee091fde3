//! The process instances whose exclusive jobs this node runs. The node refuses hints for these
//! instances without asking the database.
//!
//! A hint for an instance that is held is refused, because the end of the holder takes the next job
//! ([`Refusal::InstanceHeld`]). While the holder is a job of this node, the node decides about the
//! hint by itself:
//!
//! * **The holder runs** under a lease that the node trusts. The hinted job was committed before
//!   the statement that will end the holder is sent, so the snapshot of that statement shows the
//!   job to the handoff. The hint is refused.
//! * **The end of the holder is under way.** Its statement may be older than the hinted job. The
//!   hint is refused, but it is *owed*: if the end passes the instance to no job of this node, it
//!   has not seen the hinted job, and the hint is tried again.
//! * **The lock turns out to be lost.** Another node may have ended the holder long ago. Every
//!   refused hint is owed.
//!
//! One owed hint for each instance and lane is enough: it starts the first job in turn, and the end
//! of that job takes the next. There is one for each lane, because a hint in a deep lane would
//! delay the others, and any client that may publish can write one. If the node dies before it has
//! tried the owed hints, the sweeper finds their jobs, like those of all hints that a dead node had
//! received.
//!
//! [`Refusal::InstanceHeld`]: crate::store::Refusal::InstanceHeld

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::hint::{Hint, Ready};
use crate::job::{Lane, LockToken};

/// The instances that jobs of this node hold. See the [module](self).
#[derive(Default)]
pub(crate) struct HeldInstances(Mutex<HashMap<String, HeldInstance>>);

struct HeldInstance {
    held: LockToken,
    /// The statement that ends the holder is about to be sent, or is under way.
    ends: bool,
    /// The owed hints, at most one for each lane of this node.
    owed: Vec<Owed>,
}

/// A hint that this node refused.
struct Owed {
    /// The place of its lane.
    place: usize,
    ready: Ready,
    /// The hint was refused while the end of the holder was under way.
    late: bool,
}

/// The end of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The outcome is committed, and this node has taken the next job of the instance.
    PassedOn,
    /// The outcome is committed, and this node has taken no next job.
    Over,
    /// The outcome is unknown, or the lock is lost.
    Unsure,
}

impl HeldInstances {
    /// Locks the map. A poisoned lock means that a thread panicked between whole operations; the
    /// map is still right.
    fn instances(&self) -> MutexGuard<'_, HashMap<String, HeldInstance>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a job was locked. Drops the hints that the previous holder owed: the end of
    /// this job sees their jobs. An answer with a smaller fence than the current holder's is late,
    /// and its lock is lost.
    pub(crate) fn hold(&self, held: &LockToken) {
        let Some(instance) = &held.instance else {
            return;
        };
        let holder = HeldInstance {
            held: held.clone(),
            ends: false,
            owed: Vec::new(),
        };
        let mut instances = self.instances();
        let newer = instances.get(instance);
        if newer.is_none_or(|newer| newer.held.fence < held.fence) {
            instances.insert(instance.clone(), holder);
        }
    }

    /// Records that the statements which end these holders are about to be sent.
    pub(crate) fn end_soon<'a>(&self, held: impl Iterator<Item = &'a LockToken>) {
        for (held, instance) in held.filter_map(|held| Some((held, held.instance.as_ref()?))) {
            if let Some(holder) = self.instances().get_mut(instance)
                && holder.held.fence == held.fence
            {
                holder.ends = true;
            }
        }
    }

    /// Returns whether this hint is refused, because a job of its instance runs here under a
    /// trusted lease.
    pub(crate) fn refuses(
        &self,
        hint: &Hint,
        place: usize,
        lane: impl FnOnce() -> Lane,
        trusts: impl FnOnce(&LockToken) -> bool,
    ) -> bool {
        let Some(instance) = &hint.instance else {
            return false;
        };
        let mut instances = self.instances();
        let Some(holder) = instances.get_mut(instance) else {
            return false;
        };
        if hint.id == holder.held.id || !trusts(&holder.held) {
            return false;
        }
        // One hint is enough, and one late hint: hints that came before the end began are owed only
        // if the lock is lost.
        let known = holder.owed.iter().position(|owed| owed.place == place);
        if known.is_some_and(|at| !holder.ends || holder.owed.get(at).is_some_and(|owed| owed.late))
        {
            return true;
        }
        if let Some(at) = known {
            holder.owed.swap_remove(at);
        }
        holder.owed.push(Owed {
            place,
            ready: Ready {
                lane: lane(),
                hint: hint.clone(),
            },
            late: holder.ends,
        });
        true
    }

    /// Removes a holder that has ended. Returns the owed hints.
    pub(crate) fn end(&self, held: &LockToken, end: End) -> Vec<Ready> {
        let Some(instance) = &held.instance else {
            return Vec::new();
        };
        let mut instances = self.instances();
        let is_it = |holder: &HeldInstance| holder.held.fence == held.fence;
        if !instances.get(instance).is_some_and(is_it) {
            return Vec::new();
        }
        let owed = instances.remove(instance).map(|holder| holder.owed);
        let owed = owed.into_iter().flatten().filter(|owed| match end {
            End::PassedOn => false,
            End::Over => owed.late,
            End::Unsure => true,
        });
        owed.map(|owed| owed.ready).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Fence, JobId};

    fn held(fence: i64) -> LockToken {
        LockToken {
            id: JobId::generate(),
            fence: Fence(fence),
            instance: Some("order-1".to_owned()),
        }
    }

    fn hint(instance: &str) -> Hint {
        Hint {
            instance: Some(instance.to_owned()),
            ..Hint::new(JobId::generate())
        }
    }

    fn refuses(held: &HeldInstances, hint: &Hint) -> bool {
        held.refuses(hint, 0, Lane::default, |_| true)
    }

    fn hints(ready: Vec<Ready>) -> Vec<Hint> {
        ready.into_iter().map(|ready| ready.hint).collect()
    }

    #[test]
    fn a_hint_in_another_lane_is_owed_beside_those_that_anybody_wrote() {
        let (instances, holder) = (HeldInstances::default(), held(1));
        instances.hold(&holder);
        instances.end_soon([&holder].into_iter());
        let bulk = || Lane("bulk".to_owned());
        for _ in 0..1_000 {
            assert!(instances.refuses(&hint("order-1"), 1, bulk, |_| true));
        }
        let honest = hint("order-1");
        assert!(instances.refuses(&honest, 0, Lane::default, |_| true));
        let owed = instances.end(&holder, End::Over);
        assert_eq!(owed.len(), 2, "one for each lane");
        let urgent = owed.iter().find(|ready| ready.lane == Lane::default());
        assert_eq!(urgent.map(|ready| &ready.hint), Some(&honest));
    }

    /// The forged hint names the wrong instance; the job's own hint is decided independently of it.
    #[test]
    fn a_hint_that_names_a_wrong_instance_says_nothing_of_its_job() {
        let (instances, holder) = (HeldInstances::default(), held(1));
        instances.hold(&holder);
        let honest = hint("order-2");
        let forged = Hint {
            id: honest.id,
            ..hint("order-1")
        };
        assert!(refuses(&instances, &forged));
        assert!(!refuses(&instances, &honest));
    }

    #[test]
    fn only_an_instance_that_is_held_under_a_trusted_lease_is_refused() {
        let (instances, holder) = (HeldInstances::default(), held(1));
        let sibling = hint("order-1");
        assert!(!refuses(&instances, &sibling));
        instances.hold(&holder);
        assert!(refuses(&instances, &sibling));
        assert!(!refuses(&instances, &hint("order-2")));
        assert!(!refuses(&instances, &Hint::new(sibling.id)));
        assert!(!instances.refuses(&sibling, 0, Lane::default, |_| false));
        instances.end(&holder, End::Over);
        assert!(!refuses(&instances, &sibling));
    }

    /// A hint for the holder itself goes to the database, which answers that the job is locked.
    #[test]
    fn the_holders_own_hint_is_asked_for() {
        let (instances, holder) = (HeldInstances::default(), held(1));
        instances.hold(&holder);
        let own = Hint {
            id: holder.id,
            ..hint("order-1")
        };
        assert!(!refuses(&instances, &own));
    }

    #[test]
    fn a_hint_that_came_while_the_job_ran_is_seen_by_its_end() {
        let (instances, holder) = (HeldInstances::default(), held(1));
        instances.hold(&holder);
        assert!(refuses(&instances, &hint("order-1")));
        instances.end_soon([&holder].into_iter());
        assert_eq!(instances.end(&holder, End::Over), []);
    }

    #[test]
    fn a_hint_that_came_while_the_end_was_under_way_is_owed() {
        let (instances, holder) = (HeldInstances::default(), held(1));
        let (early, late) = (hint("order-1"), hint("order-1"));
        instances.hold(&holder);
        assert!(refuses(&instances, &early));
        instances.end_soon([&holder].into_iter());
        assert!(refuses(&instances, &late) && refuses(&instances, &hint("order-1")));
        let owed = hints(instances.end(&holder, End::Over));
        assert_eq!(owed, [late]);
        assert_eq!(instances.end(&holder, End::Over), [], "once");
    }

    #[test]
    fn nothing_is_owed_where_the_next_one_runs_here() {
        let (instances, holder) = (HeldInstances::default(), held(1));
        instances.hold(&holder);
        instances.end_soon([&holder].into_iter());
        assert!(refuses(&instances, &hint("order-1")));
        assert_eq!(instances.end(&holder, End::PassedOn), []);
    }

    #[test]
    fn a_lost_lock_owes_what_was_refused_under_it() {
        let (instances, holder) = (HeldInstances::default(), held(1));
        let early = hint("order-1");
        instances.hold(&holder);
        assert!(refuses(&instances, &early));
        let owed = hints(instances.end(&holder, End::Unsure));
        assert_eq!(owed, [early]);
    }

    #[test]
    fn a_lock_whose_answer_comes_late_replaces_no_newer_one() {
        let (instances, late, new) = (HeldInstances::default(), held(1), held(2));
        instances.hold(&new);
        instances.end_soon([&new].into_iter());
        let owed = hint("order-1");
        assert!(refuses(&instances, &owed));
        instances.hold(&late);
        let ended = hints(instances.end(&new, End::Over));
        assert_eq!(ended, [owed]);
    }

    #[test]
    fn an_old_holder_does_not_end_a_newer_one() {
        let (instances, old, new) = (HeldInstances::default(), held(1), held(2));
        instances.hold(&old);
        instances.hold(&new);
        instances.end_soon([&old].into_iter());
        assert_eq!(instances.end(&old, End::Unsure), []);
        assert!(refuses(&instances, &hint("order-1")));
        assert_eq!(
            instances.end(&new, End::Over),
            [],
            "its end is not under way"
        );
    }
}

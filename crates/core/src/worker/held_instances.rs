//! The instances whose exclusive job this node runs, and what it may say of them without the database.
//!
//! A hint for an instance that is held is refused: whoever finishes takes the next ([`Refusal::InstanceHeld`]). While
//! the holder is a job of this node, the node knows that by itself:
//!
//! * **Its job runs**, under a lease that is trusted: a job whose hint is here was committed before the statement that
//!   will end the holder is even sent, so that statement's snapshot shows it to whoever is passed the instance.
//!   Refused.
//! * **Its end is under way**: that statement may be older than the hinted job. Refused, too, but the hint is *owed*:
//!   if nobody took the instance over, the end has not seen the job, and the hint is looked at again.
//! * **The lock turns out to be lost**: another node may have ended the holder long ago. Whatever was refused is owed.
//!
//! One owed hint an instance and lane is enough: any of them starts the first job in turn, and that one's end takes the
//! next. One for each lane, since a hint in a deep lane, which anybody may have written, would delay the others. A
//! node that dies in between leaves what it owed to the sweeper, like any hint that a dead node had taken.
//!
//! [`Refusal::InstanceHeld`]: crate::store::Refusal::InstanceHeld

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::hint::{Hint, Ready};
use crate::job::{Lane, LockToken};

/// See the [module](self).
#[derive(Default)]
pub(crate) struct HeldInstances(Mutex<HashMap<String, HeldInstance>>);

struct HeldInstance {
    held: LockToken,
    /// The statement that ends the holder is about to be sent, or under way.
    ends: bool,
    /// At most one for each lane of this node.
    owed: Vec<Owed>,
}

/// A hint that was refused here.
struct Owed {
    /// The place of its lane.
    place: usize,
    ready: Ready,
    /// While the holder's end was under way.
    late: bool,
}

/// How a holder ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Its outcome is committed, and the next job of its instance is ours, too.
    PassedOn,
    /// Its outcome is committed, and nothing follows here.
    Over,
    /// Not known, or its lock was lost.
    Unsure,
}

impl HeldInstances {
    /// A poisoned lock only means that a thread panicked between whole operations; the map is still right.
    fn instances(&self) -> MutexGuard<'_, HashMap<String, HeldInstance>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A job was locked. What its forerunner owed, its own end will see. An answer that comes late is of a lock that is
    /// lost.
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

    /// The statements that end these are about to be sent.
    pub(crate) fn end_soon<'a>(&self, held: impl Iterator<Item = &'a LockToken>) {
        for (held, instance) in held.filter_map(|held| Some((held, held.instance.as_ref()?))) {
            if let Some(holder) = self.instances().get_mut(instance)
                && holder.held.fence == held.fence
            {
                holder.ends = true;
            }
        }
    }

    /// Is this hint refused, since a job of its instance runs here under a lease that is trusted?
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
        // The first one is enough, and the first late one: of those that came before nothing is owed unless the lock is
        // lost.
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

    /// A holder has ended. Returns the hints that are owed.
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

    /// The job of the hint is another one: its own hint is decided by itself.
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

    /// The database says of it what it is: locked, and not held by a sibling.
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

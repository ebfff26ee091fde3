//! The instances whose exclusive job this node runs, and what it may say of them without the database.
//!
//! A hint for an instance that is held is refused: whoever finishes takes the next ([`Refusal::InstanceHeld`]). While the
//! holder is a job of this node, the node knows that by itself:
//!
//! * **Its job runs**, under a lease that is trusted: a job whose hint is here was committed before the statement that
//!   will end the holder is even sent, so that statement's snapshot shows it to whoever is passed the instance. Refused.
//! * **Its end is under way**: that statement may be older than the hinted job. Refused, too, but the hint is *owed*: if
//!   nobody took the instance over, the end has not seen the job, and the hint is looked at again.
//! * **The lock turns out to be lost**: another node may have ended the holder long ago. Whatever was refused is owed.
//!
//! One owed hint an instance is enough: any of them starts the first job in turn, and that one's end takes the next. A
//! node that dies in between leaves what it owed to the sweeper, like any hint that a dead node had taken.
//!
//! [`Refusal::InstanceHeld`]: crate::store::Refusal::InstanceHeld

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::hint::{Hint, Ready};
use crate::job::{Held, Lane};

/// See the [module](self).
#[derive(Default)]
pub(crate) struct HeldInstances(Mutex<HashMap<String, HeldInstance>>);

struct HeldInstance {
    held: Held,
    /// The statement that ends the holder is about to be sent, or under way.
    ends: bool,
    owed: Option<Owed>,
}

/// A hint that was refused here.
struct Owed {
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

    /// A job was locked. What its forerunner owed, its own end will see. An answer that comes late is of a lock that is lost.
    pub(crate) fn hold(&self, held: &Held) {
        let Some(instance) = &held.instance else {
            return;
        };
        let holder = HeldInstance {
            held: held.clone(),
            ends: false,
            owed: None,
        };
        let mut instances = self.instances();
        let newer = instances.get(instance);
        if newer.is_none_or(|newer| newer.held.fence < held.fence) {
            instances.insert(instance.clone(), holder);
        }
    }

    /// The statements that end these are about to be sent.
    pub(crate) fn end_soon<'a>(&self, held: impl Iterator<Item = &'a Held>) {
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
        lane: impl FnOnce() -> Lane,
        trusts: impl FnOnce(&Held) -> bool,
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
        // The first one is enough, and the first late one: of those that came before nothing is owed unless the lock is lost.
        if holder
            .owed
            .as_ref()
            .is_none_or(|owed| holder.ends && !owed.late)
        {
            holder.owed = Some(Owed {
                ready: Ready {
                    lane: lane(),
                    hint: hint.clone(),
                },
                late: holder.ends,
            });
        }
        true
    }

    /// A holder has ended. Returns the hint that is owed, if any.
    pub(crate) fn end(&self, held: &Held, end: End) -> Option<Ready> {
        let instance = held.instance.as_ref()?;
        let mut instances = self.instances();
        if instances.get(instance)?.held.fence != held.fence {
            return None;
        }
        let owed = instances.remove(instance)?.owed?;
        match end {
            End::PassedOn => None,
            End::Over if !owed.late => None,
            End::Over | End::Unsure => Some(owed.ready),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Fence, JobId};

    fn held(fence: i64) -> Held {
        Held {
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
        held.refuses(hint, Lane::default, |_| true)
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
        assert!(!instances.refuses(&sibling, Lane::default, |_| false));
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
        assert_eq!(instances.end(&holder, End::Over), None);
    }

    #[test]
    fn a_hint_that_came_while_the_end_was_under_way_is_owed() {
        let (instances, holder) = (HeldInstances::default(), held(1));
        let (early, late) = (hint("order-1"), hint("order-1"));
        instances.hold(&holder);
        assert!(refuses(&instances, &early));
        instances.end_soon([&holder].into_iter());
        assert!(refuses(&instances, &late) && refuses(&instances, &hint("order-1")));
        let owed = instances.end(&holder, End::Over).map(|ready| ready.hint);
        assert_eq!(owed, Some(late));
        assert_eq!(instances.end(&holder, End::Over), None, "once");
    }

    #[test]
    fn nothing_is_owed_where_the_next_one_runs_here() {
        let (instances, holder) = (HeldInstances::default(), held(1));
        instances.hold(&holder);
        instances.end_soon([&holder].into_iter());
        assert!(refuses(&instances, &hint("order-1")));
        assert_eq!(instances.end(&holder, End::PassedOn), None);
    }

    #[test]
    fn a_lost_lock_owes_what_was_refused_under_it() {
        let (instances, holder) = (HeldInstances::default(), held(1));
        let early = hint("order-1");
        instances.hold(&holder);
        assert!(refuses(&instances, &early));
        let owed = instances.end(&holder, End::Unsure).map(|ready| ready.hint);
        assert_eq!(owed, Some(early));
    }

    #[test]
    fn a_lock_whose_answer_comes_late_replaces_no_newer_one() {
        let (instances, late, new) = (HeldInstances::default(), held(1), held(2));
        instances.hold(&new);
        instances.end_soon([&new].into_iter());
        let owed = hint("order-1");
        assert!(refuses(&instances, &owed));
        instances.hold(&late);
        let ended = instances.end(&new, End::Over).map(|ready| ready.hint);
        assert_eq!(ended, Some(owed));
    }

    #[test]
    fn an_old_holder_does_not_end_a_newer_one() {
        let (instances, old, new) = (HeldInstances::default(), held(1), held(2));
        instances.hold(&old);
        instances.hold(&new);
        instances.end_soon([&old].into_iter());
        assert_eq!(instances.end(&old, End::Unsure), None);
        assert!(refuses(&instances, &hint("order-1")));
        assert_eq!(
            instances.end(&new, End::Over),
            None,
            "its end is not under way"
        );
    }
}

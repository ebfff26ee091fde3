//! Why lanes can't be received although the connection lives: the node of a queue is down, or a right is
//! missing.
//!
//! Other lanes of the same connection deliver meanwhile, so neither the connection nor the next message
//! tells anything about such a lane.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use jobwire_core::job::Lane;

/// The problems of the lanes of all receivers.
#[derive(Clone, Default)]
pub(crate) struct Troubles(Arc<Mutex<Vec<Weak<Trouble>>>>);

/// The problem of one receiver with a lane, if it has one.
pub(crate) struct Trouble {
    lane: Lane,
    problem: Mutex<Option<String>>,
}

impl Troubles {
    /// Returns the place for the problem of a new receiver. It is forgotten with the receiver.
    pub(crate) fn of(&self, lane: &Lane) -> Arc<Trouble> {
        let trouble = Arc::new(Trouble {
            lane: lane.clone(),
            problem: Mutex::default(),
        });
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|trouble| trouble.strong_count() > 0);
        all.push(Arc::downgrade(&trouble));
        trouble
    }

    /// Returns the problem of a receiver with this lane.
    pub(crate) fn with(&self, lane: &Lane) -> Option<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut of_lane = all
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|trouble| trouble.lane == *lane);
        of_lane.find_map(|trouble| trouble.get())
    }
}

impl Trouble {
    fn get(&self) -> Option<String> {
        let problem = self.problem.lock().unwrap_or_else(PoisonError::into_inner);
        problem.clone()
    }

    pub(crate) fn set(&self, problem: Option<String>) {
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_has_the_problem_of_any_of_its_receivers() {
        let troubles = Troubles::default();
        let (lane, other) = (Lane::default(), Lane::new("other").unwrap());
        let (one, two) = (troubles.of(&lane), troubles.of(&lane));
        assert_eq!(troubles.with(&lane), None);
        two.set(Some("no such queue".to_owned()));
        assert_eq!(troubles.with(&lane).as_deref(), Some("no such queue"));
        assert_eq!(troubles.with(&other), None);
        one.set(None);
        assert!(troubles.with(&lane).is_some());
        drop(two);
        assert_eq!(troubles.with(&lane), None);
    }
}

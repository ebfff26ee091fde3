//! The lanes that a publisher has opened, and those that were refused lately.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::{OwnLanes, TransportError};
use crate::job::Lane;

/// The time for which a refusal is remembered before the broker is asked again.
const REMEMBER_REFUSAL: Duration = Duration::from_secs(5);
/// The number of known lanes above which no further refusal is remembered.
const MOST_LANES: usize = 1_024;

/// The open and refused lanes of a publisher. `T` is the state of an open lane.
///
/// A refusal is remembered for five seconds, so that the broker is not asked for each hint. The
/// number of lanes is bounded, because a job row may name any lane.
#[derive(Debug)]
pub(super) struct KnownLanes<T>(HashMap<Lane, Known<T>>);

#[derive(Debug)]
enum Known<T> {
    Open(T),
    Refused(TransportError, Instant),
}

impl<T> Known<T> {
    fn is_outdated(&self) -> bool {
        matches!(self, Self::Refused(_, since) if since.elapsed() >= REMEMBER_REFUSAL)
    }
}

impl<T> Default for KnownLanes<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> KnownLanes<T> {
    /// Returns the open lane, or the error with which it was refused lately. `None` if the broker
    /// has to be asked, also about a lane without receivers that this process receives by now.
    pub(super) fn get(&self, lane: &Lane, own: &OwnLanes) -> Option<Result<&T, TransportError>> {
        let known = self.0.get(lane).filter(|known| !known.is_outdated())?;
        match known {
            Known::Open(open) => Some(Ok(open)),
            Known::Refused(TransportError::NoReceiver(_), _) if own.contains(lane) => None,
            Known::Refused(problem, _) => Some(Err(problem.clone())),
        }
    }

    /// Records an open lane.
    pub(super) fn open(&mut self, lane: Lane, open: T) {
        self.0.insert(lane, Known::Open(open));
    }

    /// Records that the broker refused a lane.
    pub(super) fn refuse(&mut self, lane: &Lane, problem: &TransportError) {
        if self.0.len() >= MOST_LANES {
            self.0.retain(|_, known| !known.is_outdated());
        }
        if self.0.len() < MOST_LANES {
            let refused = Known::Refused(problem.clone(), Instant::now());
            self.0.insert(lane.clone(), refused);
        }
    }

    /// Forgets a lane. Returns its state, if it was open.
    pub(super) fn forget(&mut self, lane: &Lane) -> Option<T> {
        match self.0.remove(lane)? {
            Known::Open(open) => Some(open),
            Known::Refused(..) => None,
        }
    }

    /// Returns the open lanes.
    pub(super) fn all_open(&self) -> impl Iterator<Item = (&Lane, &T)> {
        self.0.iter().filter_map(|(lane, known)| match known {
            Known::Open(open) => Some((lane, open)),
            Known::Refused(..) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(name: &str) -> Lane {
        Lane(name.to_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_remembered_for_five_seconds() {
        let (own, lane) = (OwnLanes::default(), lane("reports"));
        let mut known = KnownLanes::<()>::default();
        assert!(known.get(&lane, &own).is_none());
        known.refuse(&lane, &TransportError::Full);
        tokio::time::advance(REMEMBER_REFUSAL - Duration::from_millis(1)).await;
        assert!(matches!(
            known.get(&lane, &own),
            Some(Err(TransportError::Full))
        ));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(known.get(&lane, &own).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lane_without_receivers_is_asked_for_again_once_this_process_receives_it() {
        let (own, lane) = (OwnLanes::default(), lane("reports"));
        let mut known = KnownLanes::<()>::default();
        known.refuse(&lane, &TransportError::NoReceiver(lane.clone()));
        assert!(matches!(
            known.get(&lane, &own),
            Some(Err(TransportError::NoReceiver(_)))
        ));
        own.add(std::slice::from_ref(&lane));
        assert!(known.get(&lane, &own).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_remembered_refusals_is_bounded_and_open_lanes_stay() {
        let own = OwnLanes::default();
        let mut known = KnownLanes::default();
        known.open(lane("open"), 1);
        for number in 0..2 * MOST_LANES {
            known.refuse(&lane(&format!("lane-{number}")), &TransportError::Full);
        }
        assert_eq!(known.0.len(), MOST_LANES);
        tokio::time::advance(REMEMBER_REFUSAL).await;
        known.refuse(&lane("new"), &TransportError::Full);
        assert!(known.get(&lane("new"), &own).is_some());
        assert_eq!(known.0.len(), 2);
        assert_eq!(known.all_open().collect::<Vec<_>>(), [(&lane("open"), &1)]);
        assert_eq!(known.forget(&lane("open")), Some(1));
    }
}

//! The lanes that a publisher has opened in the current session, and those that were refused.
//!
//! Each lane has its own gate while it is opened, so a slow queue or topic delays no other lane.
//! Refusals are remembered for some seconds ([`KnownLanes`]), so that the broker is not asked for
//! each hint.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::known_lanes::KnownLanes;
use super::{OwnLanes, TransportError};
use crate::job::Lane;

/// The state of an open lane.
pub trait OpenLane {
    /// Returns whether the state is still valid. If not, the lane is opened again.
    fn is_usable(&self) -> bool;
}

/// The lanes of the newest session. The number of a session only grows. A transport without
/// sessions always passes the same number.
#[derive(Debug)]
pub struct OpenLanes<P>(Mutex<Lanes<P>>);

#[derive(Debug)]
struct Lanes<P> {
    session: u64,
    known: KnownLanes<Arc<P>>,
    /// The gates of the lanes that are being opened.
    gates: HashMap<Lane, Arc<tokio::sync::Mutex<()>>>,
}

/// The knowledge about a lane.
enum Known<P> {
    Answer(Result<Arc<P>, TransportError>),
    /// Nothing; the holder of the gate may open the lane.
    Nothing(Arc<tokio::sync::Mutex<()>>),
}

impl<P> Default for OpenLanes<P> {
    fn default() -> Self {
        Self(Mutex::new(Lanes::of(0)))
    }
}

impl<P> Lanes<P> {
    fn of(session: u64) -> Self {
        Self {
            session,
            known: KnownLanes::default(),
            gates: HashMap::new(),
        }
    }
}

impl<P: OpenLane> OpenLanes<P> {
    /// Returns the lane in this session. If it is not open, calls `open` with the former, unusable
    /// state, and remembers the answer. Returns a remembered refusal; a lane without a receiver is
    /// tried again once this process receives it (`own`).
    ///
    /// # Errors
    /// The remembered refusal, or the error of `open`.
    pub async fn get<F>(
        &self,
        session: u64,
        lane: &Lane,
        own: &OwnLanes,
        open: impl FnOnce(Option<Arc<P>>) -> F,
    ) -> Result<Arc<P>, TransportError>
    where
        F: Future<Output = Result<Arc<P>, TransportError>>,
    {
        let gate = match self.look(session, lane, own) {
            Known::Answer(answer) => return answer,
            Known::Nothing(gate) => gate,
        };
        let _turn = gate.lock().await;
        // Another publish may have opened the lane meanwhile.
        if let Known::Answer(answer) = self.look(session, lane, own) {
            return answer;
        }
        let former = self.lock().known.forget(lane);
        let opened = open(former).await;
        self.note(session, lane, &opened);
        opened
    }

    /// Forgets a lane. The next publish opens it.
    pub fn forget(&self, lane: &Lane) {
        self.lock().known.forget(lane);
    }

    /// Returns the open lanes.
    #[must_use]
    pub fn open(&self) -> Vec<(Lane, Arc<P>)> {
        let lanes = self.lock();
        let open = lanes.known.all_open();
        open.map(|(lane, open)| (lane.clone(), open.clone()))
            .collect()
    }

    /// Returns a lane, if it is open.
    #[must_use]
    pub fn get_open(&self, lane: &Lane) -> Option<Arc<P>> {
        let lanes = self.lock();
        let mut open = lanes.known.all_open();
        open.find(|(open, _)| *open == lane)
            .map(|(_, publisher)| publisher.clone())
    }

    fn look(&self, session: u64, lane: &Lane, own: &OwnLanes) -> Known<P> {
        let mut lanes = self.lock();
        if session > lanes.session {
            *lanes = Lanes::of(session);
        } else if session < lanes.session {
            let ended = "the session of this publish has ended".to_owned();
            return Known::Answer(Err(TransportError::Unreachable(ended)));
        }
        match lanes.known.get(lane, own) {
            Some(Ok(publisher)) if publisher.is_usable() => {
                return Known::Answer(Ok(publisher.clone()));
            }
            Some(Err(problem)) => return Known::Answer(Err(problem)),
            _ => {}
        }
        // Publishes that were dropped leave gates that nothing holds.
        lanes.gates.retain(|_, gate| Arc::strong_count(gate) > 1);
        Known::Nothing(lanes.gates.entry(lane.clone()).or_default().clone())
    }

    fn note(&self, session: u64, lane: &Lane, opened: &Result<Arc<P>, TransportError>) {
        let mut lanes = self.lock();
        // An answer of a former session is of no use to this one.
        if lanes.session != session {
            return;
        }
        match opened {
            Ok(publisher) => lanes.known.open(lane.clone(), publisher.clone()),
            Err(problem) if is_remembered(problem) => lanes.known.refuse(lane, problem),
            Err(_) => {}
        }
    }

    fn lock(&self) -> MutexGuard<'_, Lanes<P>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether a refusal stays until an operator acts or a node receives the lane.
#[must_use]
pub fn is_remembered(problem: &TransportError) -> bool {
    matches!(problem, TransportError::NoReceiver(_)) || !problem.is_transient()
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::FutureExt;

    use super::*;

    struct Line(bool);

    impl OpenLane for Line {
        fn is_usable(&self) -> bool {
            self.0
        }
    }

    type Opened = Result<Arc<Line>, TransportError>;

    fn lane(name: &str) -> Lane {
        Lane(name.to_owned())
    }

    fn usable() -> Opened {
        Ok(Arc::new(Line(true)))
    }

    #[tokio::test]
    async fn a_lane_that_is_slow_to_open_delays_no_other_lane() {
        let lanes = OpenLanes::default();
        let never = &OwnLanes::default();
        let (slow_lane, quick_lane) = (lane("slow"), lane("quick"));
        let slow = lanes.get(1, &slow_lane, never, |_| pending::<Opened>());
        let mut slow = Box::pin(slow);
        assert!((&mut slow).now_or_never().is_none());

        let quick = lanes.get(1, &quick_lane, never, |_| ready(usable()));
        assert!(quick.now_or_never().expect("it does not wait").is_ok());
        // The same lane waits for its gate.
        let same = lanes.get(1, &slow_lane, never, |_| ready(usable()));
        let mut same = Box::pin(same);
        assert!((&mut same).now_or_never().is_none());
        drop(slow);
        assert!(same.now_or_never().expect("the gate is free").is_ok());
    }

    #[tokio::test]
    async fn a_lane_is_opened_once_for_publishes_that_wait_together() {
        let (lanes, a) = (OpenLanes::default(), lane("a"));
        let never = &OwnLanes::default();
        let (sender, opened) = tokio::sync::oneshot::channel::<Opened>();
        let first = lanes.get(1, &a, never, |_| async {
            opened.await.expect("it is sent")
        });
        let mut first = Box::pin(first);
        assert!((&mut first).now_or_never().is_none());
        let second = lanes.get(1, &a, never, |_| ready(Err(TransportError::Closed)));
        let mut second = Box::pin(second);
        assert!((&mut second).now_or_never().is_none());
        assert!(sender.send(usable()).is_ok());
        assert!(first.await.is_ok());
        assert!(second.await.is_ok(), "the first one has opened it");
    }

    #[tokio::test]
    async fn a_lane_without_a_receiver_is_tried_again_once_this_process_receives_it() {
        let (lanes, own, a) = (OpenLanes::default(), OwnLanes::default(), lane("a"));
        let refused = || ready(Opened::Err(TransportError::NoReceiver(lane("a"))));
        assert!(lanes.get(1, &a, &own, |_| refused()).await.is_err());
        let again = lanes.get(1, &a, &own, |_| ready(usable())).await;
        assert!(again.is_err(), "it is remembered");
        own.add(std::slice::from_ref(&a));
        let retried = lanes.get(1, &a, &own, |_| ready(usable())).await;
        assert!(retried.is_ok());
    }

    #[tokio::test]
    async fn a_new_session_and_an_unusable_line_open_the_lane_again() {
        let lanes = OpenLanes::default();
        let (a, never) = (lane("a"), &OwnLanes::default());
        let open = |line: bool| move |_: Option<Arc<Line>>| ready(Ok(Arc::new(Line(line))));
        assert!(lanes.get(1, &a, never, open(true)).await.is_ok());
        let other = lanes.get(2, &a, never, |former: Option<Arc<Line>>| {
            assert!(former.is_none(), "it is of another session");
            open(false)(former)
        });
        assert!(!other.await.expect("it opens").is_usable());
        let third = lanes.get(2, &a, never, |former: Option<Arc<Line>>| {
            assert!(former.is_some(), "to be closed");
            open(true)(former)
        });
        assert!(third.await.expect("it opens").is_usable());
        assert_eq!(lanes.open().len(), 1);
        assert!(lanes.get_open(&a).is_some() && lanes.get_open(&lane("b")).is_none());
    }
}

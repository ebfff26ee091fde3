//! The change of the lanes between hints and claims, and the markers that end the claims.

use tokio::time::Instant;

use super::claimer::{Claimer, FIRST_MARKER};
use super::cursor::Cursor;
use super::pace::Pace;
use super::watch::{Seen, Step};
use crate::hint::Marker;
use crate::job::Lane;
use crate::transport::TransportError;

impl Claimer {
    /// Checks the transport's health for each lane.
    pub(super) fn look(&mut self) {
        let node = self.node.clone();
        let publisher = node.transport.publisher();
        let deaf = node.reports.problem_of("consumer");
        for (at, lane) in self.lanes.iter_mut().enumerate() {
            let health = publisher.health_of(&lane.lane);
            let joining = health.joining;
            let seen = Seen {
                joining,
                problem: health.trouble().or_else(|| deaf.clone()),
                failing_since: node.hook.failing_since(&lane.lane),
            };
            match lane.watch.look(Instant::now(), seen) {
                Step::Nothing => {}
                Step::Begin(problem) => {
                    if joining {
                        tracing::info!(
                            lane = %lane.lane, problem,
                            "no hints arrive yet: jobs of this lane are claimed from the database \
                             until they do"
                        );
                    } else {
                        tracing::warn!(
                            lane = %lane.lane, problem,
                            "hints can't be received or published: jobs of this lane are claimed \
                             from the database until they can"
                        );
                    }
                    (lane.cursor, lane.rescued_at) = (Cursor::default(), None);
                    (lane.done, lane.taken) = (false, 0);
                    lane.look_for_limited(&node.served.limited());
                    node.reports.claiming(&lane.lane, true);
                    self.pace = Pace::new(Instant::now());
                }
                Step::SendMarker => {
                    let number = self.next_marker;
                    self.next_marker += 1;
                    // Recorded before the publication, because the marker may be back at once.
                    lane.watch.sent(number);
                    let marker = Marker {
                        number,
                        node: node.id,
                    };
                    let (publisher, to) = (publisher.clone(), lane.lane.clone());
                    let leaving = async move { (at, publisher.publish_marker(&to, marker).await) };
                    self.leaving.push(Box::pin(leaving));
                }
            }
        }
    }

    pub(super) fn marker_left(&mut self, at: usize, left: Result<(), TransportError>) {
        let Some(lane) = self.lanes.get_mut(at) else {
            return;
        };
        match left {
            Ok(()) => self.node.hook.published(&lane.lane),
            Err(error) => {
                lane.watch.not_sent();
                tracing::debug!(lane = %lane.lane, %error, "could not send a marker; retrying");
            }
        }
    }

    pub(super) fn marker_back(&mut self, of: &Lane, marker: Marker) {
        if marker.node != self.node.id || marker.number < FIRST_MARKER {
            return;
        }
        for lane in self.lanes.iter_mut().filter(|lane| lane.lane == *of) {
            if let Some(since) = lane.watch.back(marker.number) {
                tracing::info!(
                    lane = %lane.lane, claimed = lane.taken, seconds = since.elapsed().as_secs_f64(),
                    "a marker is back: jobs of this lane come by hints again"
                );
                self.node.reports.claiming(&lane.lane, false);
            }
        }
    }
}

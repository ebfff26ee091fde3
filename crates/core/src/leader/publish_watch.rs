//! A leader that cannot publish resigns in favour of a node that can.
//!
//! The leader moves timers and finds jobs without a hint, and publishes their hints. A leader that
//! is cut off from the broker finds these jobs and cannot publish their hints, while its lease in
//! the database keeps other nodes from leading. So it resigns after some seconds, and waits for
//! another node to try. If no other node can publish either, it leads again, because nodes in
//! fallback need a leader that moves timers. From then on it resigns at growing intervals.
//!
//! The same holds for a leader that lacks a broker of the fleet, and so can't publish to a lane that
//! other nodes receive.

use std::time::Duration;

use tokio::time::Instant;

/// The bounds of the time for which publishing may be impossible before the leader resigns.
const FIRST_PATIENCE: Duration = Duration::from_secs(5);
const LONGEST_PATIENCE: Duration = Duration::from_secs(300);

/// Decides when the leader resigns. See the [module](self). Pure logic: the caller passes the time.
pub(super) struct PublishWatch {
    lost: Option<Instant>,
    patience: Duration,
    /// Beats of other nodes were received before publishing failed. A leader that is cut off
    /// receives none later.
    others: bool,
}

impl Default for PublishWatch {
    fn default() -> Self {
        Self {
            lost: None,
            patience: FIRST_PATIENCE,
            others: false,
        }
    }
}

impl PublishWatch {
    /// Returns whether it is time to resign in favour of another node. `publishing`: this leader
    /// can publish. `others`: it receives beats of other nodes. A leader that leads again after it
    /// has resigned does not resign until it receives another beat.
    pub(super) fn makes_room(&mut self, now: Instant, publishing: bool, others: bool) -> bool {
        if publishing {
            *self = Self {
                others,
                ..Self::default()
            };
            return false;
        }
        self.others |= others;
        if !self.others {
            return false;
        }
        if now - *self.lost.get_or_insert(now) < self.patience {
            return false;
        }
        self.lost = None;
        self.others = false;
        self.patience = (self.patience * 2).min(LONGEST_PATIENCE);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn room_is_made_more_and_more_rarely_until_publishing_works() {
        let now = Instant::now();
        let mut watch = PublishWatch::default();
        let mut rooms = Vec::new();
        for second in 0..100 {
            if watch.makes_room(now + seconds(second), false, true) {
                rooms.push(second);
            }
        }
        // After 5, 10, 20 and 40 seconds, each counted from the call that follows.
        assert_eq!(rooms, [5, 16, 37, 78]);
        let later = now + seconds(200);
        assert!(!watch.makes_room(later, true, true));
        assert!(!watch.makes_room(later + seconds(4), false, true));
        assert!(!watch.makes_room(later + seconds(8), false, true));
        assert!(watch.makes_room(later + seconds(9), false, true));
    }

    #[test]
    fn room_is_made_once_for_nodes_that_were_heard_before_the_silence() {
        let now = Instant::now();
        let mut watch = PublishWatch::default();
        assert!(!watch.makes_room(now, true, true));
        let silent =
            (1..100).filter(|second| watch.makes_room(now + seconds(*second), false, false));
        assert_eq!(silent.collect::<Vec<_>>(), [6]);
    }

    #[test]
    fn a_node_that_never_heard_another_makes_no_room() {
        let now = Instant::now();
        let mut watch = PublishWatch::default();
        assert!(!watch.makes_room(now, true, false));
        assert!((1..100).all(|second| !watch.makes_room(now + seconds(second), false, false)));
    }
}

//! A leader that can't publish makes room for one that can.
//!
//! Whoever leads moves timers and heals, and what it finds leaves as hints. Cut off from the broker, it would find
//! everything and tell nobody, while its lease in the database keeps the others from leading. So it resigns after
//! a while, and stands aside long enough for another to try. Where nobody else can publish either, it leads again:
//! claiming nodes need timers that move. Then it stands aside more and more rarely.

use std::time::Duration;

use tokio::time::Instant;

/// Publishing may be impossible for so long before the leader makes room: at first, and at most.
const FIRST_PATIENCE: Duration = Duration::from_secs(5);
const LONGEST_PATIENCE: Duration = Duration::from_secs(300);

/// See the [module](self). Plain logic: the caller brings the time.
pub(super) struct PublishWatch {
    lost: Option<Instant>,
    patience: Duration,
    /// Other nodes were heard before the leader lost its voice. A leader that is cut off hears none of them later.
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
    /// Can this leader publish, and does it hear other nodes? True when it is time to make room for one of those; none
    /// is left where it leads again, until it is heard.
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
        let mut voice = PublishWatch::default();
        let mut rooms = Vec::new();
        for second in 0..100 {
            if voice.makes_room(now + seconds(second), false, true) {
                rooms.push(second);
            }
        }
        // After 5, 10, 20 and 40 seconds, each counted from the look that follows.
        assert_eq!(rooms, [5, 16, 37, 78]);
        let later = now + seconds(200);
        assert!(!voice.makes_room(later, true, true));
        assert!(!voice.makes_room(later + seconds(4), false, true));
        assert!(!voice.makes_room(later + seconds(8), false, true));
        assert!(voice.makes_room(later + seconds(9), false, true));
    }

    #[test]
    fn room_is_made_once_for_nodes_that_were_heard_before_the_silence() {
        let now = Instant::now();
        let mut voice = PublishWatch::default();
        assert!(!voice.makes_room(now, true, true));
        let silent =
            (1..100).filter(|second| voice.makes_room(now + seconds(*second), false, false));
        assert_eq!(silent.collect::<Vec<_>>(), [6]);
    }

    #[test]
    fn a_node_that_never_heard_another_makes_no_room() {
        let now = Instant::now();
        let mut voice = PublishWatch::default();
        assert!(!voice.makes_room(now, true, false));
        assert!((1..100).all(|second| !voice.makes_room(now + seconds(second), false, false)));
    }
}

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
pub(super) struct Voice {
    lost: Option<Instant>,
    patience: Duration,
}

impl Default for Voice {
    fn default() -> Self {
        Self {
            lost: None,
            patience: FIRST_PATIENCE,
        }
    }
}

impl Voice {
    /// Can this leader publish? True when it is time to make room.
    pub(super) fn makes_room(&mut self, now: Instant, publishing: bool) -> bool {
        if publishing {
            *self = Self::default();
            return false;
        }
        if now - *self.lost.get_or_insert(now) < self.patience {
            return false;
        }
        self.lost = None;
        self.patience = (self.patience * 2).min(LONGEST_PATIENCE);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_more_and_more_rarely_until_publishing_works() {
        let now = Instant::now();
        let mut voice = Voice::default();
        let mut rooms = Vec::new();
        for second in 0..100 {
            if voice.makes_room(now + Duration::from_secs(second), false) {
                rooms.push(second);
            }
        }
        // After 5, 10, 20 and 40 seconds, each counted from the look that follows.
        assert_eq!(rooms, [5, 16, 37, 78]);
        let later = now + Duration::from_secs(200);
        assert!(!voice.makes_room(later, true));
        assert!(!voice.makes_room(later + Duration::from_secs(4), false));
        assert!(!voice.makes_room(later + Duration::from_secs(8), false));
        assert!(voice.makes_room(later + Duration::from_secs(9), false));
    }
}

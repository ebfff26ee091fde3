//! The position at which claiming continues in a lane: by key, a page at a time, and from the front
//! again after the end.
//!
//! Jobs also become ready behind the cursor: a retry keeps its old id, and a creator's clock may be
//! behind. So every [`FRONT`] a page is taken from the front, without moving the cursor. If rows
//! cannot be taken (of another lane, of another node, gated), pages look at more and more rows.

use std::time::Duration;

use tokio::time::Instant;

use crate::job::JobId;

/// The number of rows that a page looks at: initial and maximum.
const LOOK_AT: i64 = 1_000;
const MOST: i64 = 32_000;
/// The interval between pages from the front.
const FRONT: Duration = Duration::from_secs(2);

/// See the [module](self).
#[derive(Default)]
pub(super) struct Cursor {
    after: Option<JobId>,
    /// The number of consecutive pages without a job.
    in_vain: u32,
    front: Option<Instant>,
}

/// The beginning of a page, and the number of rows that it looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) after: Option<JobId>,
    pub(super) look_at: i64,
    /// Whether the cursor follows the page.
    moves: bool,
}

impl Cursor {
    /// Returns the place of the next page.
    pub(super) fn next(&mut self, now: Instant) -> Place {
        let due = self.front.is_none_or(|last| now - last >= FRONT);
        if self.after.is_none() || due {
            self.front = Some(now);
        }
        if self.after.is_some() && due {
            return Place {
                after: None,
                look_at: LOOK_AT,
                moves: false,
            };
        }
        Place {
            after: self.after,
            look_at: (LOOK_AT << self.in_vain.min(16)).min(MOST),
            moves: true,
        }
    }

    /// Records a page that gave `jobs` jobs and ended at `after`. Returns true if it reached the
    /// lane's end.
    pub(super) fn looked(&mut self, place: Place, jobs: usize, after: Option<JobId>) -> bool {
        if !place.moves {
            return false;
        }
        self.after = after;
        self.in_vain = if jobs == 0 && after.is_some() {
            self.in_vain.saturating_add(1)
        } else {
            0
        };
        after.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_follow_each_other_and_begin_at_the_front_after_the_end() {
        let (mut cursor, now) = (Cursor::default(), Instant::now());
        let first = cursor.next(now);
        assert_eq!(first.after, None);
        let id = JobId::generate();
        assert!(!cursor.looked(first, 10, Some(id)));
        let second = cursor.next(now);
        assert_eq!(second.after, Some(id));
        assert!(cursor.looked(second, 3, None));
        assert_eq!(cursor.next(now).after, None);
    }

    #[test]
    fn the_front_is_looked_at_now_and_then_and_the_cursor_stays() {
        let (mut cursor, now) = (Cursor::default(), Instant::now());
        let first = cursor.next(now);
        let id = JobId::generate();
        cursor.looked(first, 10, Some(id));
        let front = cursor.next(now + FRONT);
        assert_eq!(front.after, None);
        assert!(!cursor.looked(front, 0, None), "the front is not the end");
        assert_eq!(cursor.next(now + FRONT).after, Some(id));
    }

    #[test]
    fn what_can_not_be_taken_is_passed_in_growing_steps() {
        let (mut cursor, now) = (Cursor::default(), Instant::now());
        let mut steps = Vec::new();
        for _ in 0..7 {
            let place = cursor.next(now);
            steps.push(place.look_at);
            cursor.looked(place, 0, Some(JobId::generate()));
        }
        assert_eq!(steps, [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 32_000]);
        let place = cursor.next(now);
        cursor.looked(place, 1, Some(JobId::generate()));
        assert_eq!(cursor.next(now).look_at, LOOK_AT);
    }
}

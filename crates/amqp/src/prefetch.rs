//! The limit of messages of a lane that may be on their way to this node (ADR 0033).
//!
//! A lane's share is counted in hints: twice the number of slots. The broker counts messages, and a
//! message holds one hint or hundreds. If messages wait long, the limit is the share divided by the
//! average number of hints in a message.
//!
//! If they do not wait long, the limit is larger, up to one message for each hint of the share.
//! Messages that are decided within [`WORK`] keep no other node waiting, and a node with short jobs
//! never waits for the broker. The limit for messages of one hint each is always the share.
//!
//! A limit that is wrong by less than [`FACTOR`] stays: a change costs a few round trips.

use std::time::Duration;

use tokio::time::Instant;

/// Messages that are decided within this time do not count as waiting. It is longer than any round
/// trip.
const WORK: Duration = Duration::from_millis(250);
/// The limit changes when it is wrong by this factor.
const FACTOR: u16 = 2;
/// The shortest time between two changes of the limit.
const CALM: Duration = Duration::from_secs(1);
/// The smallest limit: one message is being decided, another one waits.
const LEAST: u16 = 2;
/// The approximate number of messages that an average covers.
const MEMORY: f64 = 8.0;
/// The shortest and the longest time without a received or decided message after which the held
/// messages are taken to wait for something other than a slot.
const STALLED: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(30)];

/// See the [module](self).
pub(crate) struct Prefetch {
    share: u16,
    limit: u16,
    /// Average number of hints in a message.
    hints: f64,
    /// Average time until a message is decided, in seconds.
    held: f64,
    /// The time of the last change of the limit.
    since: Instant,
    /// The time at which a message was last received or decided.
    moved_at: Instant,
}

impl Prefetch {
    pub(crate) fn new(share: u16) -> Self {
        let now = Instant::now();
        Self {
            share,
            limit: share,
            hints: 1.0,
            held: 0.0,
            since: now,
            moved_at: now,
        }
    }

    /// Sets the share. The limit follows when it is wrong by [`FACTOR`].
    pub(crate) fn set_share(&mut self, share: u16) {
        self.share = share;
    }

    /// Records a received message and its number of hints. A marker has none and does not change
    /// the average.
    pub(crate) fn note_received(&mut self, hints: u16, now: Instant) {
        self.moved_at = now;
        if hints > 0 {
            self.hints += (f64::from(hints) - self.hints) / MEMORY;
        }
    }

    /// Records that a message received at `came_at` was settled or requeued.
    pub(crate) fn note_decided(&mut self, came_at: Instant, now: Instant) {
        self.moved_at = now;
        let held = now.saturating_duration_since(came_at).as_secs_f64();
        self.held += (held - self.held) / MEMORY;
    }

    /// Returns the number of messages that may be undecided.
    pub(crate) fn limit(&self) -> usize {
        usize::from(self.limit)
    }

    /// Returns whether the limit should change.
    pub(crate) fn is_outdated(&mut self, undecided: usize, now: Instant) -> bool {
        self.forget_if_stalled(undecided, now);
        let wanted = self.wanted();
        now.saturating_duration_since(self.since) >= CALM
            && (wanted >= self.limit.saturating_mul(FACTOR)
                || self.limit >= wanted.saturating_mul(FACTOR))
    }

    /// Returns whether a consumer with the wanted limit may start. The broker does not count the
    /// messages that are undecided from before.
    pub(crate) fn has_room(&mut self, undecided: usize, now: Instant) -> bool {
        self.forget_if_stalled(undecided, now);
        undecided <= usize::from(self.wanted() / 2)
    }

    /// Resets the averages after a stall, so that the whole share is wanted. Hints that wait for no
    /// slot, because their rows are busy or the database refuses them, may occupy all messages that
    /// the limit allows.
    fn forget_if_stalled(&mut self, undecided: usize, now: Instant) {
        let [least, most] = STALLED;
        let stalled = Duration::from_secs_f64((self.held * 2.0).min(most.as_secs_f64())).max(least);
        if undecided > 0 && now.saturating_duration_since(self.moved_at) >= stalled {
            (self.hints, self.held, self.moved_at) = (1.0, 0.0, now);
        }
    }

    /// Sets the limit to the wanted one and returns it.
    pub(crate) fn renew(&mut self, now: Instant) -> u16 {
        self.limit = self.wanted();
        self.since = now;
        self.limit
    }

    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is between zero and the share"
    )]
    fn wanted(&self) -> u16 {
        let share = f64::from(self.share);
        let for_slots = share / self.hints.max(1.0);
        let at_once = f64::from(self.limit) * WORK.as_secs_f64() / self.held.max(f64::EPSILON);
        let wanted = for_slots.max(at_once).round();
        wanted.clamp(f64::from(LEAST.min(self.share)), share) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    /// Returns the limit after a hundred messages with this number of hints, each held for `held`.
    fn after(prefetch: &mut Prefetch, hints: u16, held: Duration) -> u16 {
        let now = Instant::now() + MINUTE;
        for _ in 0..100 {
            prefetch.note_received(hints, now);
            prefetch.note_decided(now.checked_sub(held).unwrap(), now);
        }
        if prefetch.is_outdated(1, now) {
            prefetch.renew(now - CALM);
        }
        prefetch.limit
    }

    fn settled(share: u16, hints: u16, held: Duration) -> u16 {
        after(&mut Prefetch::new(share), hints, held)
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn the_limit_is_the_share_in_hints_where_messages_wait() {
        assert_eq!(settled(32, 16, LONG), 2);
        assert_eq!(settled(64, 16, LONG), 4);
        assert_eq!(settled(16, 4, LONG), 4);
        assert_eq!(settled(4_096, 64, LONG), 64);
        assert_eq!(settled(30, 7, LONG), 4, "rounded");
    }

    #[test]
    fn messages_of_one_hint_are_limited_by_the_share() {
        for share in [1, 2, 3, 16, 4_096] {
            assert_eq!(settled(share, 1, LONG), share);
            assert_eq!(settled(share, 0, LONG), share, "markers");
        }
    }

    #[test]
    fn short_jobs_are_not_limited_and_middling_ones_by_time() {
        assert_eq!(settled(32, 16, Duration::from_millis(100)), 32);
        assert_eq!(settled(32, 16, Duration::from_secs(1)), 8);
    }

    #[test]
    fn the_limit_follows_another_share() {
        let mut prefetch = Prefetch::new(16);
        assert_eq!(after(&mut prefetch, 1, LONG), 16);
        prefetch.set_share(20);
        assert_eq!(after(&mut prefetch, 1, LONG), 16, "not twice as many");
        prefetch.set_share(64);
        assert_eq!(after(&mut prefetch, 1, LONG), 64);
        prefetch.set_share(8);
        assert_eq!(after(&mut prefetch, 1, LONG), 8);
    }

    #[test]
    fn two_messages_are_on_their_way_at_least() {
        assert_eq!(settled(16, 512, LONG), 2);
        assert_eq!(settled(2, 16, LONG), 2);
        assert_eq!(settled(1, 16, LONG), 1);
    }

    #[test]
    fn the_limit_rises_when_messages_hold_less_or_wait_less() {
        let mut prefetch = Prefetch::new(32);
        assert_eq!(after(&mut prefetch, 16, LONG), 2);
        assert_eq!(after(&mut prefetch, 1, LONG), 32);
        assert_eq!(after(&mut prefetch, 16, LONG), 2);
        assert_eq!(after(&mut prefetch, 16, Duration::from_millis(10)), 32);
    }

    #[test]
    fn a_limit_holds_for_a_while_and_does_not_follow_each_message() {
        let mut prefetch = Prefetch::new(32);
        let start = prefetch.since;
        for _ in 0..100 {
            prefetch.note_received(16, start + LONG);
            prefetch.note_decided(start, start + LONG);
        }
        assert!(!prefetch.is_outdated(0, start + CALM / 2));
        assert!(prefetch.is_outdated(0, start + CALM));
        assert_eq!(prefetch.renew(start + CALM), 2);
        assert!(!prefetch.is_outdated(0, start + CALM * 3 / 2));
        prefetch.note_received(1, start + LONG);
        assert!(!prefetch.is_outdated(0, start + LONG), "one of many");
    }

    #[test]
    fn messages_that_wait_for_no_slot_do_not_keep_others_from_arriving() {
        let mut prefetch = Prefetch::new(32);
        assert_eq!(after(&mut prefetch, 16, LONG), 2);
        let moved = prefetch.moved_at;
        let [_, most] = STALLED;
        assert!(!prefetch.is_outdated(0, moved + most * 2), "nothing waits");
        assert!(!prefetch.is_outdated(2, moved + LONG));
        assert!(prefetch.is_outdated(2, moved + most));
        assert_eq!(prefetch.renew(moved + most), 32);
        // The same while the next consumer waits for room.
        let mut prefetch = Prefetch::new(32);
        assert_eq!(after(&mut prefetch, 16, LONG), 2);
        let moved = prefetch.moved_at;
        assert!(!prefetch.has_room(2, moved + LONG));
        assert!(prefetch.has_room(2, moved + most));
    }

    #[test]
    fn a_new_consumer_begins_when_half_of_its_limit_is_free() {
        let mut prefetch = Prefetch::new(32);
        after(&mut prefetch, 16, LONG);
        let now = prefetch.moved_at;
        assert!(prefetch.has_room(1, now) && !prefetch.has_room(2, now));
        after(&mut prefetch, 1, LONG);
        let now = prefetch.moved_at;
        assert!(prefetch.has_room(16, now) && !prefetch.has_room(17, now));
    }
}

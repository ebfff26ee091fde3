//! The database's clock, as the leader knows it.
//!
//! Leases end by the database's clock. When that clock jumps ahead (it was set, the virtual machine slept,
//! a standby with another clock took over), every lease seems to have ended although its holder lives. So
//! the leader compares what the clock shows with its own monotonic one: while the two disagree, and for
//! one lease after that, it takes no lock off anybody, and the living renew theirs (protocol rule 25).
//!
//! Every node compares so with what the leader says in its beats, and doubts for itself: a doubt does not end with the leader
//! that had it. A beat also says for how long the leader doubts, for nodes that have come since. One that shows less than
//! expected was long on its way, and says nothing of the clock. A node that has heard no beat believes what it sees.
//!
//! While the database is away nobody renews. So a node that can't tell that the database has answered without a gap,
//! since it was away, or since the node has just started, waits for one renewal period after the first answer.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use crate::store::ClockWindow;

/// Clocks are steered a little, and a statement may wait a little before it runs.
const TOLERANCE: Duration = Duration::from_secs(1);
/// A beat may be so long on its way.
const LONGEST_BEAT: Duration = Duration::from_secs(3);
/// Two clocks may drift apart by half the tolerance in so long.
const MEMORY: Duration = Duration::from_secs(600);

/// What one turn saw.
#[derive(Clone, Copy, Debug)]
struct Seen {
    now: DateTime<Utc>,
    /// The statement was sent, and its answer was here: it looked at the clock between these.
    sent: Instant,
    received: Instant,
}

/// What is known of the database's clock.
#[derive(Debug, Default)]
pub(crate) struct DatabaseClock {
    last: Option<Seen>,
    /// When the database is known to have answered last: this node, or the leader that was heard.
    answered: Option<Instant>,
    doubted_until: Option<Instant>,
}

impl DatabaseClock {
    /// What it shows now, as far as is known.
    pub(crate) fn now(&self) -> DateTime<Utc> {
        self.last
            .map_or_else(Utc::now, |seen| later(seen.now, seen.sent.elapsed()))
    }

    /// What it may show to a statement that is sent now. A statement that waits longer than the tolerance
    /// finds itself outside, and takes no locks; the next one will.
    pub(crate) fn window(&self) -> Option<ClockWindow> {
        self.recent().map(|seen| ClockWindow {
            from: earlier(later(seen.now, seen.received.elapsed()), TOLERANCE),
            until: later(seen.now, seen.sent.elapsed() + TOLERANCE),
        })
    }

    /// What was seen long ago, before another node led, says nothing: clocks drift.
    fn recent(&self) -> Option<Seen> {
        self.last.filter(|seen| seen.received.elapsed() < MEMORY)
    }

    /// The database has answered this node.
    pub(crate) fn answered(&mut self) {
        self.answered = Some(Instant::now());
    }

    /// So long ago the database has answered this node or the leader; as far as is known.
    pub(crate) fn age(&self) -> Option<Duration> {
        self.answered.map(|at| at.elapsed())
    }

    /// For so long, or ever, nothing is known of an answer of the database: it may have been away.
    pub(crate) fn is_unanswered_for(&self, time: Duration) -> bool {
        self.age().is_none_or(|age| age > time)
    }

    /// The database has answered another node so long ago.
    pub(crate) fn answered_before(&mut self, age: Duration) {
        let at = Instant::now().checked_sub(age);
        self.answered = self.answered.max(at);
    }

    /// The leader said that it shows this, and that the database had answered it so long ago. Returns by how much it jumped
    /// ahead, if it did: then it is doubted for one lease.
    pub(crate) fn heard(
        &mut self,
        now: DateTime<Utc>,
        age: Duration,
        lease: Duration,
    ) -> Option<chrono::Duration> {
        self.answered_before(age);
        let received = Instant::now();
        let seen = Seen {
            now,
            sent: received.checked_sub(LONGEST_BEAT).unwrap_or(received),
            received,
        };
        let jump = self.recent().and_then(|last| last.jump_to(&seen));
        let is_late = jump.is_some_and(|jump| jump < chrono::Duration::zero());
        if is_late {
            return None;
        }
        self.last = Some(seen);
        if jump.is_some() {
            self.doubt_for(lease);
        }
        jump
    }

    /// The database was away, or its clock has jumped: for this time not every holder may have renewed.
    pub(crate) fn doubt_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        self.doubted_until = Some(self.doubted_until.map_or(until, |other| other.max(until)));
    }

    /// The leader doubts it for so long still.
    pub(crate) fn leader_doubts(&mut self, time: Duration, lease: Duration) {
        self.doubt_for(time.min(lease));
    }

    /// The clock jumped or the database was away a short while ago, and not every holder may have renewed since.
    pub(crate) fn is_doubted(&self) -> bool {
        self.doubted_until().is_some()
    }

    /// When the doubt ends.
    pub(crate) fn doubted_until(&self) -> Option<Instant> {
        self.doubted_until.filter(|until| Instant::now() < *until)
    }

    /// A turn saw it. Returns by how much it jumped, if it did: then it is doubted for one lease.
    pub(crate) fn saw(
        &mut self,
        now: DateTime<Utc>,
        sent: Instant,
        lease: Duration,
    ) -> Option<chrono::Duration> {
        let received = Instant::now();
        let seen = Seen {
            now,
            sent,
            received,
        };
        let last = self.recent();
        self.last = Some(seen);
        let jump = last?.jump_to(&seen)?;
        self.doubt_for(lease);
        Some(jump)
    }
}

impl Seen {
    /// By how much the clock shows more, or less, than it may after this.
    fn jump_to(&self, next: &Self) -> Option<chrono::Duration> {
        let least = next.sent.saturating_duration_since(self.received);
        let earliest = earlier(later(self.now, least), TOLERANCE);
        let latest = later(self.now, (next.received - self.sent) + TOLERANCE);
        if next.now > latest {
            Some(next.now - latest)
        } else if next.now < earliest {
            Some(next.now - earliest)
        } else {
            None
        }
    }
}

fn later(at: DateTime<Utc>, by: Duration) -> DateTime<Utc> {
    chrono::Duration::from_std(by)
        .ok()
        .and_then(|by| at.checked_add_signed(by))
        .unwrap_or(DateTime::<Utc>::MAX_UTC)
}

fn earlier(at: DateTime<Utc>, by: Duration) -> DateTime<Utc> {
    chrono::Duration::from_std(by)
        .ok()
        .and_then(|by| at.checked_sub_signed(by))
        .unwrap_or(DateTime::<Utc>::MIN_UTC)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_700_000_000 + seconds, 0).unwrap_or_default()
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_goes_with_ours_is_believed() {
        let mut clock = DatabaseClock::default();
        assert!(clock.window().is_none() && !clock.is_doubted());
        for turn in 0..5 {
            let sent = Instant::now();
            assert_eq!(clock.saw(at(turn * 10), sent, LEASE), None);
            tokio::time::advance(Duration::from_secs(10)).await;
            let window = clock.window().unwrap();
            assert!(window.from < at(turn * 10 + 10) && at(turn * 10 + 10) < window.until);
            assert_eq!(clock.now(), at(turn * 10 + 10));
        }
        assert!(!clock.is_doubted());
    }

    #[tokio::test(start_paused = true)]
    async fn a_jump_is_outside_the_window_and_doubted_for_one_lease() {
        for jump in [60, -60] {
            let mut clock = DatabaseClock::default();
            clock.saw(at(0), Instant::now(), LEASE);
            tokio::time::advance(Duration::from_secs(10)).await;
            let shown = at(10 + jump);
            let window = clock.window().unwrap();
            assert!(shown < window.from || shown > window.until);
            let by = clock.saw(shown, Instant::now(), LEASE).unwrap();
            assert_eq!(by.num_seconds().signum(), jump.signum());
            assert!(clock.is_doubted());
            tokio::time::advance(LEASE - Duration::from_secs(1)).await;
            assert!(clock.is_doubted());
            tokio::time::advance(Duration::from_secs(2)).await;
            assert!(!clock.is_doubted());
            // From its new time on it is believed again.
            assert_eq!(clock.saw(at(41 + jump), Instant::now(), LEASE), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_leader_compares_with_the_last_ones_beat() {
        let mut clock = DatabaseClock::default();
        clock.heard(at(0), Duration::ZERO, LEASE);
        tokio::time::advance(Duration::from_secs(20)).await;
        // The beat was two seconds on its way.
        assert_eq!(clock.saw(at(22), Instant::now(), LEASE), None);
        let mut clock = DatabaseClock::default();
        clock.heard(at(0), Duration::ZERO, LEASE);
        tokio::time::advance(Duration::from_secs(20)).await;
        let window = clock.window().unwrap();
        assert!(at(80) > window.until);
        assert!(clock.saw(at(80), Instant::now(), LEASE).is_some());
        assert!(clock.is_doubted());
    }

    #[tokio::test(start_paused = true)]
    async fn a_doubt_does_not_end_with_the_leader_that_had_it() {
        let mut follower = DatabaseClock::default();
        assert_eq!(follower.heard(at(0), Duration::ZERO, LEASE), None);
        tokio::time::advance(Duration::from_secs(10)).await;
        // The clock jumps by a minute. The leader says so, and dies.
        assert!(follower.heard(at(70), Duration::ZERO, LEASE).is_some());
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(follower.saw(at(75), Instant::now(), LEASE), None);
        assert!(follower.is_doubted(), "the living have not renewed yet");
        tokio::time::advance(LEASE).await;
        assert!(!follower.is_doubted());
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_came_after_a_jump_doubts_as_long_as_the_leader() {
        let mut clock = DatabaseClock::default();
        clock.heard(at(0), Duration::ZERO, LEASE);
        assert!(!clock.is_doubted());
        clock.leader_doubts(LEASE / 2, LEASE);
        tokio::time::advance(LEASE / 3).await;
        assert!(clock.is_doubted());
        tokio::time::advance(LEASE / 3).await;
        assert!(!clock.is_doubted());
        // Anybody who may publish can say this.
        clock.leader_doubts(LEASE * 100, LEASE);
        tokio::time::advance(LEASE).await;
        assert!(!clock.is_doubted());
    }

    #[tokio::test(start_paused = true)]
    async fn a_beat_that_was_long_on_its_way_says_nothing() {
        let mut clock = DatabaseClock::default();
        clock.heard(at(0), Duration::ZERO, LEASE);
        tokio::time::advance(Duration::from_secs(40)).await;
        // The broker was away: old beats come first, then those of now.
        for late in [10, 20, 30] {
            assert_eq!(clock.heard(at(late), Duration::ZERO, LEASE), None);
        }
        assert_eq!(clock.heard(at(40), Duration::ZERO, LEASE), None);
        assert_eq!(clock.saw(at(40), Instant::now(), LEASE), None);
        assert!(!clock.is_doubted());
    }

    #[tokio::test(start_paused = true)]
    async fn a_gap_between_answers_is_known_whoever_was_answered() {
        let mut clock = DatabaseClock::default();
        let period = Duration::from_secs(15);
        assert!(clock.is_unanswered_for(period), "it has just started");
        clock.answered();
        tokio::time::advance(Duration::from_secs(10)).await;
        // The leader was answered four seconds before its beat.
        clock.heard(at(10), Duration::from_secs(4), LEASE);
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(!clock.is_unanswered_for(period));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert!(clock.is_unanswered_for(period));
        clock.answered_before(Duration::from_secs(15));
        assert!(!clock.is_unanswered_for(period));
        clock.answered_before(Duration::from_secs(60));
        assert!(
            !clock.is_unanswered_for(period),
            "an older answer says nothing"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_is_no_jump() {
        let mut clock = DatabaseClock::default();
        let sent = Instant::now();
        tokio::time::advance(Duration::from_secs(8)).await;
        // It looked at the clock at the very beginning of its eight seconds …
        assert_eq!(clock.saw(at(0), sent, LEASE), None);
        let sent = Instant::now();
        tokio::time::advance(Duration::from_secs(8)).await;
        // … and the next one at the very end of its own.
        assert_eq!(clock.saw(at(16), sent, LEASE), None);
        assert!(!clock.is_doubted());
    }
}

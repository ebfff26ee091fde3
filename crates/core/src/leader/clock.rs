//! The leader's view of the database's clock.
//!
//! Leases end by the database's clock. When that clock jumps ahead (it was set, the virtual machine
//! slept, a standby with another clock took over), every lease seems to have expired although its
//! holder lives. So the leader compares the database's clock with its own monotonic clock. While
//! the two disagree, and for one lease after that, the clock is in doubt: the leader ends no lease,
//! and living nodes renew theirs (protocol rule 25).
//!
//! Every node makes the same comparison with the leader's beats and has its own doubt, which does
//! not end with the leader. A beat also contains the remaining time of the leader's doubt, for
//! nodes that started later. A beat that shows less time than expected was delayed, and is ignored.
//! The answer to a node that asks which node leads contains the time as well, so a node knows the
//! clock before it can follow a leader, although it has received no beat.
//!
//! While the database is away, no node renews. So after an absence of the database, and after its
//! own start, a node ends no lease for one renewal period after the first answer.

use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use crate::store::ClockWindow;

/// The accepted deviation: clocks are adjusted in small steps, and a statement may wait before it
/// runs.
const TOLERANCE: Duration = Duration::from_secs(1);
/// The longest expected delay of a beat.
const LONGEST_BEAT: Duration = Duration::from_secs(3);
/// The time for which an observation is used. In this time two clocks drift apart by at most half
/// the tolerance.
const MEMORY: Duration = Duration::from_secs(600);

/// One observation of the database's clock.
#[derive(Clone, Copy, Debug)]
struct Seen {
    now: DateTime<Utc>,
    /// The statement was sent at `sent` and its answer arrived at `received`; it read the clock in
    /// between.
    sent: Instant,
    received: Instant,
}

/// The observations of the database's clock.
#[derive(Debug, Default)]
pub(crate) struct DatabaseClock {
    last: Option<Seen>,
    /// The latest known answer of the database, to this node or to the leader whose beat was
    /// received.
    answered: Option<Instant>,
    doubted_until: Option<Instant>,
}

impl DatabaseClock {
    /// Returns the expected time of the database's clock.
    pub(crate) fn now(&self) -> DateTime<Utc> {
        self.last
            .map_or_else(Utc::now, |seen| later(seen.now, seen.sent.elapsed()))
    }

    /// Returns the least time that the database's clock shows now. For the leader's beat: a time that is ahead,
    /// since a statement waited for its connection, would look like a jump to a node with a precise observation.
    pub(crate) fn at_least(&self) -> Option<DateTime<Utc>> {
        self.last
            .map(|seen| later(seen.now, seen.received.elapsed()))
    }

    /// Returns the range that the clock may show to a statement that is sent now. A statement that
    /// runs later than that by more than the tolerance finds the clock outside this range and ends
    /// no lease. The leader then repeats it at once. The wait for a connection does not count.
    pub(crate) fn window(&self) -> Option<ClockWindow> {
        self.recent().map(|seen| ClockWindow {
            from: earlier(later(seen.now, seen.received.elapsed()), TOLERANCE),
            until: later(seen.now, seen.sent.elapsed() + TOLERANCE),
        })
    }

    /// Returns the last observation, unless it is too old: clocks drift.
    fn recent(&self) -> Option<Seen> {
        self.last.filter(|seen| seen.received.elapsed() < MEMORY)
    }

    /// Records that the database has answered this node.
    pub(crate) fn answered(&mut self) {
        self.answered = Some(Instant::now());
    }

    /// Returns the age of the latest known answer of the database, to this node or to the leader.
    pub(crate) fn age(&self) -> Option<Duration> {
        self.answered.map(|at| at.elapsed())
    }

    /// Returns whether the last known answer of the database is older than `time`, so that it may
    /// have been away.
    pub(crate) fn is_unanswered_for(&self, time: Duration) -> bool {
        self.age().is_none_or(|age| age > time)
    }

    /// Records that the database answered another node `age` ago.
    pub(crate) fn answered_before(&mut self, age: Duration) {
        let at = Instant::now().checked_sub(age);
        self.answered = self.answered.max(at);
    }

    /// Records the leader's beat: the database's clock shows `now`, and the database answered the
    /// leader `age` ago. If the clock jumped ahead, doubts it for one lease and returns the length
    /// of the jump.
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

    /// Doubts the clock for `time`, in which not every holder may have renewed: the database was
    /// away, or its clock has jumped.
    pub(crate) fn doubt_for(&mut self, time: Duration) {
        let until = Instant::now() + time;
        self.doubted_until = Some(self.doubted_until.map_or(until, |other| other.max(until)));
    }

    /// Records that the leader doubts the clock for `time` more. The doubt lasts for one lease at
    /// most.
    pub(crate) fn leader_doubts(&mut self, time: Duration, lease: Duration) {
        self.doubt_for(time.min(lease));
    }

    /// Returns whether the clock is in doubt: it jumped or the database was away recently, and not
    /// every holder may have renewed since.
    pub(crate) fn is_doubted(&self) -> bool {
        self.doubted_until().is_some()
    }

    /// Returns the end of the doubt.
    pub(crate) fn doubted_until(&self) -> Option<Instant> {
        self.doubted_until.filter(|until| Instant::now() < *until)
    }

    /// Records the clock as the answer of a leader cycle shows it, whether this node leads or not. If the clock
    /// jumped, doubts it for one lease and returns the length of the jump.
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
        let jump = last.and_then(|last| last.jump_to(&seen));
        // A slow answer says less than an earlier quick one.
        let is_vague = last.is_some_and(|last| last.takes() + TOLERANCE < seen.takes());
        if jump.is_some() || !is_vague {
            self.last = Some(seen);
        }
        if jump.is_some() {
            self.doubt_for(lease);
        }
        jump
    }
}

/// Logs a jump that a node which does not lead has seen.
pub(super) fn log_jump(source: &'static str, jump: Option<chrono::Duration>) {
    if let Some(jump) = jump {
        let seconds = jump.num_milliseconds() as f64 / 1e3;
        tracing::info!(seconds, source, "the database's clock jumped");
    }
}

impl Seen {
    /// Returns the time in which the clock was read.
    fn takes(&self) -> Duration {
        self.received.saturating_duration_since(self.sent)
    }

    /// Returns the distance of the clock in `next` from the range that is possible after this
    /// observation.
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
            // The clock is trusted again from its new time on.
            assert_eq!(clock.saw(at(41 + jump), Instant::now(), LEASE), None);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_leader_compares_with_the_last_ones_beat() {
        let mut clock = DatabaseClock::default();
        clock.heard(at(0), Duration::ZERO, LEASE);
        tokio::time::advance(Duration::from_secs(20)).await;
        // The beat was delayed by two seconds.
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
        // The clock jumps by a minute. The leader's beat shows it, and the leader dies.
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
        // Any client that may publish can send this.
        clock.leader_doubts(LEASE * 100, LEASE);
        tokio::time::advance(LEASE).await;
        assert!(!clock.is_doubted());
    }

    #[tokio::test(start_paused = true)]
    async fn a_beat_that_was_long_on_its_way_says_nothing() {
        let mut clock = DatabaseClock::default();
        clock.heard(at(0), Duration::ZERO, LEASE);
        tokio::time::advance(Duration::from_secs(40)).await;
        // The broker was away: old beats arrive first, then current ones.
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
    async fn a_slow_answer_hides_no_jump_that_follows() {
        let mut clock = DatabaseClock::default();
        clock.saw(at(0), Instant::now(), LEASE);
        let sent = Instant::now();
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(clock.saw(at(5), sent, LEASE), None);
        // The clock jumped by six seconds.
        tokio::time::advance(Duration::from_secs(10)).await;
        assert!(clock.saw(at(26), Instant::now(), LEASE).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_answer_is_no_jump() {
        let mut clock = DatabaseClock::default();
        let sent = Instant::now();
        tokio::time::advance(Duration::from_secs(8)).await;
        // The statement read the clock at the beginning of its eight seconds,
        assert_eq!(clock.saw(at(0), sent, LEASE), None);
        let sent = Instant::now();
        tokio::time::advance(Duration::from_secs(8)).await;
        // and the next one at the end of its eight seconds.
        assert_eq!(clock.saw(at(16), sent, LEASE), None);
        assert!(!clock.is_doubted());
    }
}

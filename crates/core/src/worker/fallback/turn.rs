//! Decides when a woken node claims the jobs of a lane. Plain logic: the caller passes the time.
//!
//! A wake reaches all nodes, and its jobs fill the slots of few. So the nodes take **turns**: the
//! number that comes with the wake puts them in an order that each node computes for itself, and
//! the first ones claim at once, as many as the jobs need by the free slots of their last beats.
//! The others claim a moment later, in case the first ones have died or are full. While they find
//! nothing, the moment grows.
//!
//! A pass goes through the lane to its end, page by page, and waits for free slots in between. A
//! wake during a pass is followed by another pass, because jobs may be ready behind it.

use std::time::Duration;

use tokio::time::Instant;

use crate::transport::Wake;

/// The bounds of the wait of a node that is not among the first.
const FIRST_DELAY: Duration = Duration::from_millis(20);
const LONGEST_DELAY: Duration = Duration::from_millis(250);
/// The rest after a pass that found nothing, as a multiple of the time for which it kept the
/// database busy, and its maximum. A wake does not shorten it.
const REST: u32 = 4;
const LONGEST_REST: Duration = Duration::from_secs(10);
/// The same for passes because the leader saw waiting jobs. These may be jobs that no node takes.
const LONG_REST: u32 = 50;
const LONGEST_LONG_REST: Duration = Duration::from_secs(300);

/// The place of a node in the order of a wake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Whether the node is among the first.
    pub(super) is_first: bool,
    /// A part of a tenth of a second that differs from node to node.
    pub(super) spread: Duration,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Turn {
    /// The time of the next pass, if one is wanted.
    due: Option<Instant>,
    /// Whether the node has let others go first with the wanted pass.
    lets_go: bool,
    /// Whether the wanted pass looks for jobs with strikes, too. They are few, and the leader
    /// addresses most of them to a node.
    wants_struck: bool,
    passes: bool,
    looks: bool,
    /// Whether the node has let others go first with the current pass.
    let_go: bool,
    /// The wait of the next wake for which other nodes are first.
    delay: Duration,
    /// The earliest time of the next pass.
    rested: Instant,
    /// The earliest time at which the leader's wake is followed.
    long_rested: Instant,
    /// The number of jobs that the current pass found, and the time that the database took.
    found: usize,
    took: Duration,
}

impl Turn {
    /// Creates the turn of a node that has just started, and claims at once.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            due: Some(now),
            lets_go: false,
            wants_struck: true,
            passes: false,
            looks: false,
            let_go: false,
            delay: FIRST_DELAY,
            rested: now,
            long_rested: now,
            found: 0,
            took: Duration::ZERO,
        }
    }

    /// Wants a pass at this time, or earlier, because wakes may have been lost.
    pub(super) fn want(&mut self, at: Instant) {
        self.wants_struck = true;
        self.want_next(at);
    }

    fn want_next(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
        self.lets_go = false;
    }

    /// Takes the joined wakes of a lane.
    pub(super) fn woken(&mut self, now: Instant, wake: &Wake, place: Place) {
        let follows = wake.waiting && now >= self.long_rested;
        self.wants_struck |= follows || (wake.waiting && wake.at_once);
        if wake.at_once || (wake.jobs > 0 && place.is_first) {
            return self.want_next(now);
        }
        let at = if wake.jobs > 0 {
            now + self.delay
        } else if follows {
            now + place.spread
        } else {
            return;
        };
        self.lets_go = wake.jobs > 0 && (self.lets_go || self.due.is_none());
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Returns whether a pass is under way.
    pub(super) fn passes(&self) -> bool {
        self.passes
    }

    /// Returns whether the current pass looks for jobs with strikes.
    pub(super) fn looks_for_struck(&self) -> bool {
        self.looks
    }

    /// Returns the time at which the wanted pass begins.
    pub(super) fn begins_at(&self) -> Option<Instant> {
        let due = self.due.filter(|_| !self.passes)?;
        Some(due.max(self.rested))
    }

    /// Begins the wanted pass if it is time. Returns whether it has begun.
    pub(super) fn begin(&mut self, now: Instant) -> bool {
        if self.begins_at().is_none_or(|at| now < at) {
            return false;
        }
        self.due = None;
        self.let_go = std::mem::take(&mut self.lets_go);
        self.looks = std::mem::take(&mut self.wants_struck);
        self.passes = true;
        (self.found, self.took) = (0, Duration::ZERO);
        true
    }

    /// Records a page that gave `jobs` jobs.
    pub(super) fn answered(&mut self, jobs: usize, took: Duration) {
        self.found += jobs;
        self.took += took;
    }

    /// Ends the pass: the lane was searched to its end.
    pub(super) fn ended(&mut self, now: Instant) {
        self.passes = false;
        if self.found > 0 {
            self.delay = FIRST_DELAY;
            return;
        }
        if self.let_go {
            self.delay = (self.delay * 2).min(LONGEST_DELAY);
        }
        self.rested = now + (self.took * REST).min(LONGEST_REST);
        self.long_rested = now + (self.took * LONG_REST).min(LONGEST_LONG_REST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    fn place(is_first: bool) -> Place {
        Place {
            is_first,
            spread: 30 * MILLI,
        }
    }

    fn elsewhere() -> Wake {
        Wake {
            jobs: 1,
            ..Wake::default()
        }
    }

    /// A node that has passed through the empty lane at its start.
    fn started() -> (Turn, Instant) {
        let now = Instant::now();
        let mut turn = Turn::new(now);
        assert!(turn.begin(now));
        turn.ended(now);
        assert_eq!(turn.begins_at(), None, "it asks nothing more by itself");
        (turn, now)
    }

    #[test]
    fn the_first_nodes_claim_at_once_and_the_others_later_and_later() {
        let (mut turn, now) = started();
        turn.woken(now, &elsewhere(), place(true));
        assert!(turn.begin(now));
        turn.ended(now);
        let mut waits = Vec::new();
        for _ in 0..6 {
            turn.woken(now, &elsewhere(), place(false));
            let at = turn.begins_at().expect("wanted");
            waits.push((at - now).as_millis());
            assert!(!turn.begin(at - MILLI) && turn.begin(at));
            turn.ended(at);
        }
        assert_eq!(waits, [20, 40, 80, 160, 250, 250]);
        // A later node that found a job was needed.
        let later = now + LONGEST_DELAY;
        turn.woken(later, &elsewhere(), place(false));
        assert!(turn.begin(later + LONGEST_DELAY));
        turn.answered(1, MILLI);
        turn.ended(later);
        turn.woken(later, &elsewhere(), place(false));
        assert_eq!(turn.begins_at(), Some(later + FIRST_DELAY));
        // Jobs that become ready here do not wait for others.
        let here = Wake {
            at_once: true,
            ..elsewhere()
        };
        turn.woken(later, &here, place(false));
        assert!(turn.begin(later));
    }

    #[test]
    fn a_wake_during_a_pass_is_followed_by_another_pass() {
        let (mut turn, now) = started();
        turn.want(now);
        assert!(turn.begin(now));
        turn.woken(now, &elsewhere(), place(true));
        assert!(turn.passes() && turn.begins_at().is_none());
        turn.answered(5, MILLI);
        turn.ended(now);
        assert!(turn.begin(now));
    }

    #[test]
    fn a_pass_in_vain_is_followed_by_a_rest_that_wakes_do_not_shorten() {
        let (mut turn, now) = started();
        turn.want(now);
        assert!(turn.begin(now));
        turn.answered(0, 100 * MILLI);
        turn.ended(now);
        turn.woken(now, &elsewhere(), place(true));
        assert_eq!(turn.begins_at(), Some(now + 400 * MILLI));
        assert!(turn.begin(now + 400 * MILLI));
        turn.answered(0, 100 * MILLI);
        turn.ended(now);
        let waiting = Wake {
            waiting: true,
            ..Wake::default()
        };
        turn.woken(now + 4_999 * MILLI, &waiting, place(true));
        assert_eq!(turn.begins_at(), None);
        turn.woken(now + 5_000 * MILLI, &waiting, place(true));
        assert_eq!(turn.begins_at(), Some(now + 5_030 * MILLI));
    }
}

//! Decides when a lane's jobs are claimed, and when they come by hints again. Plain logic: the
//! caller passes the time and the transport's health.

use std::time::Duration;

use tokio::time::Instant;

/// The initial and the maximum interval between two markers while none is back. A marker that is
/// lost, or whose return is lost, makes the node claim for at most the maximum longer.
const FIRST_SPACING: Duration = Duration::from_secs(5);
const LONGEST_SPACING: Duration = Duration::from_secs(30);
/// The time that a node waits before it claims while it joins the broker's group. Joining is no
/// fault, and may take long (Kafka's `group.initial.rebalance.delay.ms`).
const JOINING: Duration = Duration::from_secs(1);

/// The observed state of a lane.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// The reason why receiving or publishing is impossible.
    pub(super) problem: Option<String>,
    /// Whether the problem is that this node is still joining the broker's group.
    pub(super) joining: bool,
    /// The time since which every publication has failed, regardless of the transport's reported
    /// health.
    pub(super) failing_since: Option<Instant>,
}

/// The next action for a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Nothing,
    /// Start to claim, for this reason.
    Begin(String),
    SendMarker,
}

enum Phase {
    /// Jobs come by hints. `impossible` is the time since which hints fail.
    Hints { impossible: Option<Instant> },
    Claims {
        since: Instant,
        /// The first marker that was sent after the problem ended. The return of any later one
        /// counts, too.
        first: Option<u64>,
        next_marker: Instant,
        spacing: Duration,
    },
}

/// See the [module](self).
pub(super) struct Watch {
    patience: Duration,
    phase: Phase,
}

impl Watch {
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            patience,
            phase: Phase::Hints { impossible: None },
        }
    }

    pub(super) fn claims(&self) -> bool {
        matches!(self.phase, Phase::Claims { .. })
    }

    pub(super) fn look(&mut self, now: Instant, seen: Seen) -> Step {
        match &mut self.phase {
            Phase::Hints { impossible } => {
                let since = match (&seen.problem, seen.failing_since) {
                    (None, None) => None,
                    (_, Some(failing)) => Some(impossible.map_or(failing, |i| i.min(failing))),
                    (Some(_), None) => Some(impossible.unwrap_or(now)),
                };
                *impossible = since;
                let patience = if seen.joining {
                    self.patience.min(JOINING)
                } else {
                    self.patience
                };
                if since.is_none_or(|since| now.saturating_duration_since(since) < patience) {
                    return Step::Nothing;
                }
                self.phase = Phase::Claims {
                    since: now,
                    first: None,
                    next_marker: now,
                    spacing: FIRST_SPACING,
                };
                let unconfirmed = || "the broker does not confirm what is published".to_owned();
                Step::Begin(seen.problem.unwrap_or_else(unconfirmed))
            }
            Phase::Claims {
                first,
                next_marker,
                spacing,
                ..
            } => {
                if seen.problem.is_some() {
                    // A marker that is under way proves nothing about the time after this problem.
                    *first = None;
                    (*next_marker, *spacing) = (now, FIRST_SPACING);
                    return Step::Nothing;
                }
                if now < *next_marker {
                    return Step::Nothing;
                }
                *next_marker = now + *spacing;
                *spacing = (*spacing * 2).min(LONGEST_SPACING);
                Step::SendMarker
            }
        }
    }

    /// Records that this marker is sent. Numbers grow.
    pub(super) fn sent(&mut self, number: u64) {
        if let Phase::Claims { first, .. } = &mut self.phase {
            first.get_or_insert(number);
        }
    }

    /// Records that a marker could not be sent: publishing is still impossible. The next try is
    /// soon.
    pub(super) fn not_sent(&mut self) {
        if let Phase::Claims { spacing, .. } = &mut self.phase {
            *spacing = FIRST_SPACING;
        }
    }

    /// Records that a marker came back. If this ends claiming, returns the time at which claiming
    /// began.
    pub(super) fn back(&mut self, number: u64) -> Option<Instant> {
        match &self.phase {
            Phase::Claims {
                since,
                first: Some(first),
                ..
            } if number >= *first => {
                let since = *since;
                self.phase = Phase::Hints { impossible: None };
                Some(since)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(5);
    const SECOND: Duration = Duration::from_secs(1);

    fn well() -> Seen {
        Seen::default()
    }

    fn away() -> Seen {
        Seen {
            problem: Some("blocked".to_owned()),
            ..Seen::default()
        }
    }

    fn claiming(now: Instant) -> Watch {
        let mut watch = Watch::new(PATIENCE);
        assert_eq!(watch.look(now, away()), Step::Nothing);
        let begins = watch.look(now + PATIENCE, away());
        assert_eq!(begins, Step::Begin("blocked".to_owned()));
        assert!(watch.claims());
        watch
    }

    #[test]
    fn a_short_absence_begins_nothing() {
        let (mut watch, now) = (Watch::new(PATIENCE), Instant::now());
        for second in 0..60 {
            // Away for four seconds, available for one.
            let seen = if second % 5 == 4 { well() } else { away() };
            assert_eq!(watch.look(now + second * SECOND, seen), Step::Nothing);
        }
        assert!(!watch.claims());
    }

    #[test]
    fn a_node_that_is_being_let_in_waits_a_second_and_no_longer_than_was_set() {
        let joining = || Seen {
            joining: true,
            ..away()
        };
        let now = Instant::now();
        for (patience, waits) in [(PATIENCE, SECOND), (SECOND / 4, SECOND / 4)] {
            let mut watch = Watch::new(patience);
            assert_eq!(watch.look(now, joining()), Step::Nothing);
            let soon = watch.look(now + waits - SECOND / 10, joining());
            assert_eq!(soon, Step::Nothing);
            let begins = watch.look(now + waits, joining());
            assert!(matches!(begins, Step::Begin(_)));
            // No marker is sent before the node has joined.
            assert_eq!(watch.look(now + 9 * SECOND, joining()), Step::Nothing);
            assert_eq!(watch.look(now + 10 * SECOND, well()), Step::SendMarker);
        }
    }

    #[test]
    fn a_marker_that_comes_back_ends_it() {
        let now = Instant::now();
        let mut watch = claiming(now);
        let back = now + 2 * PATIENCE;
        assert_eq!(watch.look(back, well()), Step::SendMarker);
        watch.sent(7);
        assert_eq!(watch.look(back + SECOND, well()), Step::Nothing);
        assert_eq!(watch.back(6), None);
        assert!(watch.claims());
        assert_eq!(watch.back(7), Some(now + PATIENCE));
        assert!(!watch.claims());
        assert_eq!(watch.back(7), None);
    }

    #[test]
    fn a_marker_from_before_another_absence_ends_nothing() {
        let now = Instant::now();
        let mut watch = claiming(now);
        let mut at = now + 2 * PATIENCE;
        assert_eq!(watch.look(at, well()), Step::SendMarker);
        watch.sent(7);
        at += SECOND;
        assert_eq!(watch.look(at, away()), Step::Nothing);
        assert_eq!(watch.back(7), None);
        assert!(watch.claims());
        assert_eq!(watch.look(at, well()), Step::SendMarker);
        watch.sent(8);
        assert!(watch.back(8).is_some());
    }

    #[test]
    fn a_lost_marker_is_followed_by_others_with_growing_spacing() {
        let now = Instant::now();
        let mut watch = claiming(now);
        let mut sent = Vec::new();
        for second in 5..=2_000 {
            if watch.look(now + second * SECOND, well()) == Step::SendMarker {
                watch.sent(u64::from(second));
                sent.push(second);
            }
        }
        let spacing: Vec<u32> = sent.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(spacing[..8], [5, 10, 20, 30, 30, 30, 30, 30]);
        assert!(
            watch.back(u64::from(sent[3])).is_some(),
            "any of them will do"
        );
    }

    #[test]
    fn publications_that_fail_count_from_the_first_one() {
        let (mut watch, now) = (Watch::new(PATIENCE), Instant::now());
        let failing = Seen {
            failing_since: Some(now),
            ..Seen::default()
        };
        assert_eq!(watch.look(now + 4 * SECOND, failing.clone()), Step::Nothing);
        let begins = watch.look(now + 5 * SECOND, failing.clone());
        assert!(matches!(begins, Step::Begin(_)));
        // Nothing else is published: the marker tests whether publishing is possible again.
        let tries = watch.look(now + 6 * SECOND, failing.clone());
        assert_eq!(tries, Step::SendMarker);
        watch.sent(1);
        watch.not_sent();
        assert_eq!(watch.look(now + 11 * SECOND, failing), Step::SendMarker);
    }
}

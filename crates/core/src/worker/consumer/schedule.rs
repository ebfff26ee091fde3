//! Decides which lane gets the next free slot.
//!
//! **Strict**: the first lane with waiting hints, in the order of the setting.
//!
//! **Aging**: like strict, but after nine starts the next one goes to the lane whose next hint has
//! waited longest, if it has waited longer than the limit. So under overload the first lanes keep
//! nine tenths of the starts, and the others end their oldest jobs with the rest.
//!
//! **Weighted**: stride scheduling. Each lane has a *pass*. A start advances it by a *stride*,
//! which is smaller for a larger weight. The lane with the smallest pass is next. So starts
//! interleave as evenly as possible, in proportion to the weights of the lanes that wait. A lane
//! without waiting hints joins at the current pass, so it gains and loses no turns meanwhile.
//!
//! A plain data structure: no clock, no randomness, no waiting.

use std::time::Duration;

use crate::lane::order::{LaneOrder, LaneShare};

/// The stride of weight 1. Whole numbers do not drift. At ten thousand starts a second a pass
/// overflows after fifty years.
const STRIDE: u64 = 1 << 20;

/// The number of turns of the first lanes before one of an old hint.
const TURNS_BEFORE_AGED: u32 = 9;

struct Turns {
    stride: u64,
    pass: u64,
}

/// See the [module](self).
pub(crate) struct Schedule {
    order: LaneOrder,
    lanes: Vec<Turns>,
    /// The pass of the last lane that had a turn.
    now: u64,
    /// The time after which a hint is old.
    aging: Duration,
    /// The number of turns since one of an old hint.
    turns: u32,
}

impl Schedule {
    pub(crate) fn new(lanes: &[LaneShare], order: LaneOrder, aging: Duration) -> Self {
        let turns = |share: &LaneShare| Turns {
            stride: STRIDE / u64::from(share.weight.max(1)),
            pass: 0,
        };
        Self {
            order,
            lanes: lanes.iter().map(turns).collect(),
            now: 0,
            aging,
            turns: 0,
        }
    }

    /// Returns the next lane among those that wait, and counts its turn. `waited` returns the age of
    /// the next hint of a lane; it is asked for before each tenth turn under [`LaneOrder::Aging`].
    pub(crate) fn next(
        &mut self,
        waits: impl Fn(usize) -> bool,
        waited: impl Fn(usize) -> Duration,
    ) -> Option<usize> {
        if self.lanes.len() == 1 || self.order == LaneOrder::Strict {
            return (0..self.lanes.len()).find(|lane| waits(*lane));
        }
        if self.order == LaneOrder::Aging {
            return self.next_or_old(waits, waited);
        }
        let present = |turns: &Turns| turns.pass.max(self.now);
        let waiting = self.lanes.iter().enumerate().filter(|(at, _)| waits(*at));
        // Among equal lanes, the first one in the setting is next.
        let (next, pass) = waiting
            .map(|(at, turns)| (at, present(turns)))
            .min_by_key(|(_, pass)| *pass)?;
        self.now = pass;
        if let Some(turns) = self.lanes.get_mut(next) {
            turns.pass = pass + turns.stride;
        }
        Some(next)
    }

    /// Returns the first lane that waits, or before each tenth turn that of the oldest hint.
    fn next_or_old(
        &mut self,
        waits: impl Fn(usize) -> bool,
        waited: impl Fn(usize) -> Duration,
    ) -> Option<usize> {
        let mut waiting = (0..self.lanes.len()).filter(|lane| waits(*lane));
        let first = waiting.next()?;
        self.turns = self.turns.saturating_add(1);
        if self.turns <= TURNS_BEFORE_AGED {
            return Some(first);
        }
        let others = waiting.map(|lane| (waited(lane), lane));
        let oldest = others.max_by_key(|(age, lane)| (*age, std::cmp::Reverse(*lane)));
        match oldest {
            Some((age, lane)) if age > self.aging && age > waited(first) => {
                self.turns = 0;
                Some(lane)
            }
            _ => Some(first),
        }
    }

    /// Takes back a turn that started no job, because its hint was refused.
    pub(crate) fn requeue(&mut self, lane: usize) {
        if let Some(turns) = self.lanes.get_mut(lane) {
            turns.pass = turns.pass.saturating_sub(turns.stride);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(weights: &[u32], order: LaneOrder) -> Schedule {
        let share = |(at, weight): (usize, &u32)| LaneShare::new(format!("lane-{at}"), *weight);
        let lanes: Vec<LaneShare> = weights.iter().enumerate().map(share).collect();
        Schedule::new(&lanes, order, Duration::from_secs(60))
    }

    /// Returns the turns while all these lanes wait, as a string of digits.
    fn turns(schedule: &mut Schedule, waiting: &[usize], count: usize) -> String {
        (0..count)
            .filter_map(|_| schedule.next(|lane| waiting.contains(&lane), |_| Duration::ZERO))
            .map(|lane| lane.to_string())
            .collect()
    }

    fn count(turns: &str, lane: char) -> usize {
        turns.matches(lane).count()
    }

    #[test]
    fn strict_takes_the_first_that_waits() {
        let mut schedule = schedule(&[1, 1, 1], LaneOrder::Strict);
        assert_eq!(turns(&mut schedule, &[0, 1, 2], 4), "0000");
        assert_eq!(turns(&mut schedule, &[1, 2], 3), "111");
        assert_eq!(turns(&mut schedule, &[2], 2), "22");
        assert_eq!(turns(&mut schedule, &[], 2), "");
        assert_eq!(turns(&mut schedule, &[0, 2], 2), "00");
    }

    #[test]
    fn with_aging_an_old_hint_gets_a_tenth_of_the_turns_and_a_young_one_none() {
        let mut schedule = schedule(&[1, 1, 1], LaneOrder::Aging);
        let mut turns = |waiting: &[usize], ages: [u64; 3]| -> String {
            let next = |_| {
                let waits = |lane| waiting.contains(&lane);
                schedule.next(waits, |lane: usize| Duration::from_secs(ages[lane]))
            };
            let lanes = (0..40).filter_map(next);
            lanes.map(|lane| lane.to_string()).collect()
        };
        assert_eq!(
            turns(&[0, 1, 2], [0, 60, 60]),
            "0".repeat(40),
            "none is old"
        );
        assert_eq!(turns(&[1, 2], [0, 0, 0]), "1".repeat(40));
        // The oldest of the old ones, with at most nine turns between.
        let old = turns(&[0, 1, 2], [5, 61, 62]);
        assert_eq!((count(&old, '2'), count(&old, '1')), (4, 0), "{old}");
        assert!(!old.contains("0000000000"), "{old}");
        // Of two equal ones the first in the setting.
        assert!(count(&turns(&[0, 1, 2], [5, 61, 61]), '1') == 4);
        // The first lane gets its own old hints in its own turns.
        assert_eq!(turns(&[0, 1], [70, 65, 0]), "0".repeat(40));
        assert_eq!(turns(&[], [99; 3]), "");
    }

    #[test]
    fn weights_share_the_turns_and_interleave_them() {
        let mut schedule = schedule(&[5, 3, 1], LaneOrder::Weighted);
        let all = turns(&mut schedule, &[0, 1, 2], 900);
        for (lane, expected) in [('0', 500), ('1', 300), ('2', 100)] {
            assert!(count(&all, lane).abs_diff(expected) <= 2, "{all}");
        }
        // In any nine consecutive turns each lane has about its share.
        for at in 0..all.len() - 9 {
            let nine = &all[at..at + 9];
            assert!((4..=6).contains(&count(nine, '0')), "{nine}");
            assert!((2..=4).contains(&count(nine, '1')), "{nine}");
            assert!(count(nine, '2') <= 2, "{nine}");
        }
    }

    #[test]
    fn equal_weights_take_turns() {
        let mut schedule = schedule(&[1, 1], LaneOrder::Weighted);
        assert_eq!(turns(&mut schedule, &[0, 1], 6), "010101");
    }

    #[test]
    fn a_lane_of_which_nothing_waits_costs_nothing_and_saves_nothing() {
        let mut schedule = schedule(&[1, 1, 1], LaneOrder::Weighted);
        assert_eq!(turns(&mut schedule, &[0, 1], 4), "0101");
        turns(&mut schedule, &[0], 1_000);
        // The other lanes had nothing waiting for a thousand turns. They do not catch up.
        let after = turns(&mut schedule, &[0, 1, 2], 30);
        for lane in ['0', '1', '2'] {
            assert!((9..=11).contains(&count(&after, lane)), "{after}");
        }
    }

    #[test]
    fn a_light_lane_waits_no_longer_than_its_share_says() {
        let mut schedule = schedule(&[1000, 1], LaneOrder::Weighted);
        let all = turns(&mut schedule, &[0, 1], 2_002);
        assert_eq!(count(&all, '1'), 2, "{}", count(&all, '1'));
        // A lane that rarely has a hint gets its turn soon.
        turns(&mut schedule, &[0], 2_000);
        assert!(turns(&mut schedule, &[0, 1], 2).contains('1'));
    }

    #[test]
    fn refused_hints_cost_no_turn() {
        let mut schedule = schedule(&[1, 1], LaneOrder::Weighted);
        let mut started = [0, 0];
        for _ in 0..300 {
            let Some(lane) = schedule.next(|_| true, |_| Duration::ZERO) else {
                continue;
            };
            // Only every second hint of the first lane starts a job.
            if lane == 0 && started[0] % 2 == 1 && started[1] % 2 == 0 {
                schedule.requeue(lane);
                started[1] += 1;
                continue;
            }
            started[lane] += 1;
        }
        assert!(i32::abs_diff(started[0], started[1]) <= 4, "{started:?}");
    }

    #[test]
    fn one_lane_is_always_next() {
        let mut schedule = schedule(&[7], LaneOrder::Weighted);
        assert_eq!(turns(&mut schedule, &[0], 3), "000");
        assert_eq!(turns(&mut schedule, &[], 3), "");
    }
}

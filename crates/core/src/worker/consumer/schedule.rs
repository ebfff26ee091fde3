//! Decides which lane gets the next free slot.
//!
//! **Strict**: the first lane with waiting hints, in the order of the setting.
//!
//! **Weighted**: stride scheduling. Each lane has a *pass*. A start advances it by a *stride*,
//! which is smaller for a larger weight. The lane with the smallest pass is next. So starts
//! interleave as evenly as possible, in proportion to the weights of the lanes that wait. A lane
//! without waiting hints joins at the current pass, so it gains and loses no turns meanwhile.
//!
//! A plain data structure: no clock, no randomness, no waiting.

use crate::lane::order::{LaneOrder, LaneShare};

/// The stride of weight 1. Whole numbers do not drift. At ten thousand starts a second a pass
/// overflows after fifty years.
const STRIDE: u64 = 1 << 20;

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
}

impl Schedule {
    pub(crate) fn new(lanes: &[LaneShare], order: LaneOrder) -> Self {
        let turns = |share: &LaneShare| Turns {
            stride: STRIDE / u64::from(share.weight.max(1)),
            pass: 0,
        };
        Self {
            order,
            lanes: lanes.iter().map(turns).collect(),
            now: 0,
        }
    }

    /// Returns the next lane among those that wait, and counts its turn.
    pub(crate) fn next(&mut self, waits: impl Fn(usize) -> bool) -> Option<usize> {
        if self.order == LaneOrder::Strict || self.lanes.len() == 1 {
            return (0..self.lanes.len()).find(|lane| waits(*lane));
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
        Schedule::new(&lanes, order)
    }

    /// Returns the turns while all these lanes wait, as a string of digits.
    fn turns(schedule: &mut Schedule, waiting: &[usize], count: usize) -> String {
        (0..count)
            .filter_map(|_| schedule.next(|lane| waiting.contains(&lane)))
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
            let Some(lane) = schedule.next(|_| true) else {
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

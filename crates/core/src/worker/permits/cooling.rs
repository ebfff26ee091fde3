//! The permits of a rate that cool down: each is free again a cool-down after the start of its job.
//!
//! Starts that lie close together are one entry, which ends with the last of them. So a queue has a
//! bounded number of entries, however large the limit is.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::store::permits::Cooling;

/// Starts within this part of a cool-down are one entry.
const PARTS: u32 = 4_096;
/// Maximum number of entries of a request.
const GROUPS: u32 = 64;

/// The end of the cool-down of some permits.
#[derive(Clone, Copy, Debug)]
struct Entry {
    ends: Instant,
    /// The first end of an entry that this one includes.
    first: Instant,
    number: i32,
}

/// The permits of one key that cool down, in the order of their ends.
#[derive(Debug, Default)]
pub(super) struct CoolingQueue(VecDeque<Entry>);

impl CoolingQueue {
    /// Adds a permit whose job has started now. Handlers of one key may have other cool-downs.
    pub(super) fn push(&mut self, cool_down: Duration, now: Instant) {
        let ends = now + cool_down;
        let at = match self.0.back() {
            Some(last) if last.ends > ends => self.0.partition_point(|entry| entry.ends <= ends),
            _ => self.0.len(),
        };
        let before = at.checked_sub(1).and_then(|at| self.0.get_mut(at));
        match before {
            Some(entry) if ends - entry.first <= cool_down / PARTS => {
                entry.ends = ends;
                entry.number = entry.number.saturating_add(1);
            }
            _ => self.0.insert(
                at,
                Entry {
                    ends,
                    first: ends,
                    number: 1,
                },
            ),
        }
    }

    /// Removes the permits that have cooled down. Returns their number.
    pub(super) fn take_cold(&mut self, now: Instant) -> i32 {
        let mut cold = 0_i32;
        while let Some(first) = self.0.pop_front_if(|first| first.ends <= now) {
            cold = cold.saturating_add(first.number);
        }
        cold
    }

    /// Adds the permits of another queue.
    pub(super) fn append(&mut self, other: &mut Self) {
        self.0.append(&mut other.0);
        self.0.make_contiguous().sort_by_key(|entry| entry.ends);
    }

    /// Returns when the next permit has cooled down.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.0.front().map(|first| first.ends)
    }

    /// Returns when all permits have cooled down.
    pub(super) fn last_end(&self) -> Option<Instant> {
        self.0.back().map(|last| last.ends)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of permits.
    pub(super) fn number(&self) -> i32 {
        let numbers = self.0.iter().map(|entry| entry.number);
        numbers.fold(0, i32::saturating_add)
    }

    /// Returns the permits with the time that each still needs, those of similar times together.
    pub(super) fn rests(&self, cool_down: Duration, now: Instant) -> Vec<Cooling> {
        let width = cool_down / GROUPS;
        let mut rests: Vec<Cooling> = Vec::new();
        let mut group_ends = None;
        for entry in &self.0 {
            let rest = entry.ends.saturating_duration_since(now);
            match rests.last_mut() {
                Some(last) if group_ends.is_some_and(|ends| rest <= ends) => {
                    last.number = last.number.saturating_add(entry.number);
                    last.rest = rest;
                }
                _ => {
                    group_ends = Some(rest + width);
                    rests.push(Cooling {
                        number: entry.number,
                        rest,
                    });
                }
            }
        }
        rests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_permit_is_cold_a_cool_down_after_its_start_and_no_sooner() {
        let mut queue = CoolingQueue::default();
        let second = Duration::from_secs(1);
        let begin = Instant::now();
        queue.push(second, begin);
        queue.push(second, begin + second / 2);
        assert_eq!(queue.number(), 2);
        assert_eq!(queue.take_cold(begin + second - Duration::from_nanos(1)), 0);
        assert_eq!(queue.take_cold(begin + second), 1);
        assert_eq!(queue.next_end(), Some(begin + second * 3 / 2));
        assert_eq!(queue.take_cold(begin + second * 2), 1);
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_cool_down_is_not_stretched_by_a_long_one() {
        let (second, day) = (Duration::from_secs(1), Duration::from_secs(86_400));
        let begin = Instant::now();
        let mut queue = CoolingQueue::default();
        queue.push(day, begin);
        queue.push(second, begin);
        queue.push(second, begin + second / 2);
        let mut handed = std::mem::take(&mut queue);
        queue.push(second, begin + second / 4);
        handed.append(&mut queue);
        let ends: Vec<Instant> = handed.0.iter().map(|entry| entry.ends).collect();
        assert!(ends.is_sorted(), "{ends:?}");
        assert_eq!(handed.last_end(), Some(begin + day));
        assert_eq!(handed.take_cold(begin + second), 1);
        assert_eq!(handed.take_cold(begin + second * 2), 2);
        assert_eq!(handed.take_cold(begin + day), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_million_starts_need_a_bounded_number_of_entries_and_none_is_cold_too_soon() {
        let mut queue = CoolingQueue::default();
        let second = Duration::from_secs(1);
        let begin = Instant::now();
        for start in 0..1_000_000 {
            queue.push(second, begin + Duration::from_micros(start));
        }
        assert!(queue.0.len() <= PARTS as usize + 1, "{}", queue.0.len());
        let rests = queue.rests(second, begin + second);
        assert!(rests.len() <= GROUPS as usize + 1, "{}", rests.len());
        let numbers: i32 = rests.iter().map(|of| of.number).sum();
        assert_eq!(numbers, 1_000_000);
        for after in (0..=1_000_000).step_by(997) {
            let cold = 1_000_000 - {
                let rest = queue.0.iter();
                let at = begin + second + Duration::from_micros(after);
                rest.filter(|entry| entry.ends > at)
                    .map(|entry| entry.number)
                    .sum::<i32>()
            };
            assert!(i64::from(cold) <= after as i64 + 1, "{cold} after {after}");
        }
    }
}

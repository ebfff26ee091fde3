//! Percentiles over all values of a measurement.

use std::fmt;

use serde::Serialize;

/// Percentiles, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// The value that 5 % exceed.
    pub p95: f64,
    /// The value that 1 % exceed.
    pub p99: f64,
    /// The largest value.
    pub max: f64,
}

impl Percentiles {
    /// Computes percentiles of microseconds by the nearest rank: the smallest value that is not
    /// exceeded by that share of the values. All are 0 without values.
    pub(super) fn of(mut micros: Vec<i64>) -> Percentiles {
        micros.sort_unstable();
        let at = |percent: usize| {
            let rank = (micros.len() * percent).div_ceil(100).max(1);
            micros.get(rank - 1).map_or(0.0, |it| *it as f64 / 1_000.0)
        };
        Percentiles {
            p50: at(50),
            p95: at(95),
            p99: at(99),
            max: at(100),
        }
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Percentiles { p50, p95, p99, max } = self;
        write!(
            f,
            "p50 {p50:.2} ms, p95 {p95:.2}, p99 {p99:.2}, max {max:.2}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_the_nearest() {
        let found = Percentiles::of((1..=200).rev().map(|n| n * 1_000).collect());
        let expected = Percentiles {
            p50: 100.0,
            p95: 190.0,
            p99: 198.0,
            max: 200.0,
        };
        assert_eq!(found, expected);
        assert_eq!(Percentiles::of(Vec::new()), Percentiles::default());
    }
}

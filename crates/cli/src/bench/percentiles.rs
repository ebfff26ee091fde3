//! Percentiles over all values of a run, not over a sample.

use std::fmt;

use serde::Serialize;

/// Percentiles, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Percentiles {
    pub(super) p50: f64,
    pub(super) p95: f64,
    pub(super) p99: f64,
    pub(super) p999: f64,
    pub(super) max: f64,
}

impl Percentiles {
    /// Computes percentiles of microseconds; `None` without values. Uses the nearest-rank method: a
    /// percentile is the smallest value that this share of the values does not exceed.
    pub(super) fn of(mut micros: Vec<i64>) -> Option<Self> {
        micros.sort_unstable();
        let count = micros.len();
        let at = |per_mille: usize| {
            let rank = (count * per_mille).div_ceil(1_000).max(1);
            micros.get(rank - 1).map(|value| *value as f64 / 1_000.0)
        };
        Some(Self {
            p50: at(500)?,
            p95: at(950)?,
            p99: at(990)?,
            p999: at(999)?,
            max: at(1_000)?,
        })
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "p50 {:.2} ms, p95 {:.2}, p99 {:.2}, p99.9 {:.2}, max {:.2}",
            self.p50, self.p95, self.p99, self.p999, self.max
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_the_nearest() {
        assert_eq!(Percentiles::of(Vec::new()), None);
        let found = Percentiles::of((1..=1_000).rev().map(|n| n * 1_000).collect());
        let expected = Percentiles {
            p50: 500.0,
            p95: 950.0,
            p99: 990.0,
            p999: 999.0,
            max: 1_000.0,
        };
        assert_eq!(found, Some(expected));
        assert_eq!(
            Percentiles::of(vec![7_000]).map(|p| (p.p50, p.max)),
            Some((7.0, 7.0))
        );
    }
}

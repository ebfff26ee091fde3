//! Metric label values that come from outside. A row may name any lane, and each new label value is
//! a new set of time series, in this process and in its scraper.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use crate::job::Lane;

/// The value that replaces all values beyond the limit.
pub const OTHER: &str = "other";
/// The number of lanes with their own label value, besides those that this process receives.
pub const MOST_LANES: usize = 256;

static LANES: LazyLock<Labels> = LazyLock::new(|| Labels::new(MOST_LANES));

struct Labels {
    known: RwLock<HashSet<Arc<str>>>,
    other: Arc<str>,
    most: usize,
}

impl Labels {
    fn new(most: usize) -> Self {
        Self {
            known: RwLock::default(),
            other: OTHER.into(),
            most,
        }
    }

    fn of(&self, name: &str) -> Arc<str> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(label) = known.get(name) {
            return label.clone();
        }
        if known.len() >= self.most || !Lane::is_valid(name) {
            return self.other.clone();
        }
        drop(known);
        self.keep(name)
    }

    /// Adds a value regardless of the limit.
    fn keep(&self, name: &str) -> Arc<str> {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(label) = known.get(name) {
            return label.clone();
        }
        let label: Arc<str> = name.into();
        known.insert(label.clone());
        label
    }
}

/// Returns the value of a lane in the label `lane`: its name, or [`OTHER`] for lanes beyond the
/// first [`MOST_LANES`].
#[must_use]
pub fn lane(lane: &Lane) -> Arc<str> {
    LANES.of(&lane.0)
}

/// Gives the lanes that this process receives their own values, regardless of other lanes.
pub(crate) fn receives(lanes: &[Lane]) {
    for lane in lanes {
        LANES.keep(&lane.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_the_limit_share_one_value() {
        let labels = Labels::new(3);
        for n in 0..1_000 {
            let label = labels.of(&format!("lane-{n}"));
            let wanted = if n < 3 {
                format!("lane-{n}")
            } else {
                OTHER.to_owned()
            };
            assert_eq!(*label, *wanted);
        }
        assert_eq!(labels.known.read().expect("unpoisoned").len(), 3);
        assert_eq!(*labels.of("lane-1"), *"lane-1");
    }

    #[test]
    fn a_lane_that_is_received_has_its_own_value_behind_any_flood() {
        let labels = Labels::new(1);
        labels.of("flood");
        labels.keep("mine");
        assert_eq!(*labels.of("mine"), *"mine");
    }

    #[test]
    fn what_is_no_name_of_a_lane_is_no_value() {
        assert_eq!(*Labels::new(3).of("a\nb"), *OTHER);
    }
}

//! Metric label values that come from outside. A row may name any lane and any type, and each new
//! label value is a new set of time series, in this process and in its scraper.

use std::collections::HashSet;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use crate::job::Lane;

/// The value that replaces all values beyond the limit.
pub const OTHER: &str = "other";
/// The number of lanes with their own label value, besides those that this process receives.
pub const MOST_LANES: usize = 256;
/// The number of types without a node that have their own label value.
pub const MOST_TYPES: usize = 256;

static LANES: LazyLock<Labels> = LazyLock::new(|| Labels::new(MOST_LANES, Lane::is_valid));
static TYPES: LazyLock<Labels> = LazyLock::new(|| Labels::new(MOST_TYPES, is_type));

struct Labels {
    known: RwLock<HashSet<Arc<str>>>,
    other: Arc<str>,
    most: usize,
    is_valid: fn(&str) -> bool,
}

impl Labels {
    fn new(most: usize, is_valid: fn(&str) -> bool) -> Self {
        Self {
            known: RwLock::default(),
            other: OTHER.into(),
            most,
            is_valid,
        }
    }

    fn of(&self, name: &str) -> Arc<str> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(label) = known.get(name) {
            return label.clone();
        }
        if known.len() >= self.most || !(self.is_valid)(name) {
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

/// Returns the value of a type that no node takes in the label `type`: its name, or [`OTHER`] for
/// types beyond the first [`MOST_TYPES`] and for texts that no job of the library can have as its
/// type. (Other metrics name types of handlers, which are as many as a program has.)
#[must_use]
pub fn unserved_type(job_type: &str) -> Arc<str> {
    TYPES.of(job_type)
}

fn is_type(name: &str) -> bool {
    (1..=255).contains(&name.len()) && !name.chars().any(char::is_control)
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
        let labels = Labels::new(3, Lane::is_valid);
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
        let labels = Labels::new(1, Lane::is_valid);
        labels.of("flood");
        labels.keep("mine");
        assert_eq!(*labels.of("mine"), *"mine");
    }

    #[test]
    fn what_is_no_name_of_a_lane_is_no_value() {
        assert_eq!(*Labels::new(3, Lane::is_valid).of("a\nb"), *OTHER);
    }

    #[test]
    fn a_type_may_have_more_characters_than_a_lane() {
        let labels = Labels::new(3, is_type);
        for name in ["mail:send", "Rechnung prüfen"] {
            assert_eq!(*labels.of(name), *name);
        }
        for none in ["", "a\nb", &"x".repeat(256)] {
            assert_eq!(*labels.of(none), *OTHER, "{none}");
        }
    }
}

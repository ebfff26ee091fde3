//! Elastic concurrency: a node uses more slots while hints wait and its handlers mostly wait, too,
//! and fewer after a quiet time.
//!
//! The rule, once a second:
//!
//! * **Grow** by a quarter, at least by one, up to `concurrency`: while every slot in use is taken,
//!   hints wait for more, and the process uses less than `cpu_below` of the processors.
//! * **Shrink** to the number of slots that were taken at once at most during the last `idle_after`,
//!   but not below `min`: if no hint waited for a slot in this time.
//!
//! Running jobs are never interrupted. The prefetch follows the number of slots, so that a node that
//! has shrunk leaves the hints to others.

use std::time::Duration;

use tokio::time::Instant;

use crate::worker::slot_pool::Taken;

/// The interval at which the number of slots is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The bounds and the pace of a node whose number of slots changes with its load
/// ([`NodeOptions::elastic`](crate::NodeOptions::elastic)). The largest number is
/// [`concurrency`](crate::NodeOptions::concurrency). The metric `jobwire_elastic_slots` has the
/// number in use.
///
/// ```
/// use jobwire_core::{Elastic, NodeOptions};
///
/// let options = NodeOptions::default().concurrency(64).elastic(Some(Elastic::from_min(8)));
/// assert!(options.validate().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Elastic {
    /// The smallest number of slots, and the number at the start. At least 1, at most
    /// `concurrency`.
    pub min: usize,
    /// The time without a waiting hint after which slots that no job takes are given up. Default
    /// 30 s, at least 1 s.
    pub idle_after: Duration,
    /// The use of the processors by the whole process, in percent, at which the node does not grow
    /// any more. Read on Linux; elsewhere the node grows whatever the use. Default 80, 1 to 100.
    pub cpu_below: u8,
}

impl Elastic {
    /// Creates the options of a node that has at least this many slots.
    #[must_use]
    pub fn from_min(min: usize) -> Self {
        Self {
            min,
            idle_after: Duration::from_secs(30),
            cpu_below: 80,
        }
    }

    /// Returns the first mistake, for a node of this concurrency.
    pub(crate) fn mistake(&self, concurrency: usize) -> Option<(&'static str, String)> {
        if !(1..=concurrency).contains(&self.min) {
            let problem =
                format!("must be at least 1 and at most `concurrency`, which is {concurrency}");
            return Some(("concurrency_min", problem));
        }
        if self.idle_after < LOOK {
            return Some(("concurrency_idle", "must be at least 1s".to_owned()));
        }
        if !(1..=100).contains(&self.cpu_below) {
            return Some(("concurrency_cpu", "must be 1 to 100 percent".to_owned()));
        }
        None
    }
}

crate::setters! {
    Elastic {
        min: usize,
        idle_after: Duration,
        cpu_below: u8,
    }
}

/// The number of slots, and what was seen since it last shrank.
pub(crate) struct Pace {
    options: Elastic,
    most: usize,
    slots: usize,
    /// The largest number of slots that were taken at once since `since`.
    peak: usize,
    /// The time of the last look at which a hint waited, or of the last shrinking.
    since: Instant,
}

impl Pace {
    pub(crate) fn new(options: Elastic, most: usize, now: Instant) -> Self {
        Self {
            options,
            most,
            slots: options.min.min(most),
            peak: 0,
            since: now,
        }
    }

    /// Returns the number of slots after a look. `cpu` is the use of the processors in percent, if
    /// it is known.
    fn look(&mut self, taken: Taken, cpu: Option<f64>, now: Instant) -> usize {
        self.peak = self.peak.max(taken.slots);
        if taken.wants_more {
            (self.peak, self.since) = (taken.slots, now);
            let idles = cpu.is_none_or(|cpu| cpu < f64::from(self.options.cpu_below));
            if taken.slots >= self.slots && idles {
                self.slots = (self.slots + (self.slots / 4).max(1)).min(self.most);
            }
        } else if now.saturating_duration_since(self.since) >= self.options.idle_after {
            let needed = self.peak.max(self.options.min).min(self.most);
            self.slots = self.slots.min(needed);
            (self.peak, self.since) = (taken.slots, now);
        }
        self.slots
    }
}

/// Sets the number of slots once a second, by what `taken` and `cpu` return, until it is dropped.
pub(crate) async fn follow(
    mut pace: Pace,
    taken: impl Fn() -> Taken,
    mut cpu: impl FnMut() -> Option<f64>,
    set: impl Fn(usize),
) {
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let now = looks.tick().await;
        let before = pace.slots;
        let slots = pace.look(taken(), cpu(), now);
        if slots != before {
            tracing::debug!(before, slots, "changed the number of slots");
        }
        set(slots);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn taken(slots: usize, wants_more: bool) -> Taken {
        Taken { slots, wants_more }
    }

    /// Lets the number of slots follow a load for some seconds of virtual time. `load` returns what
    /// is taken and the use of the processors, from the second and the number of slots. Returns the
    /// number of slots after each second.
    async fn run(
        elastic: Elastic,
        most: usize,
        seconds: u64,
        load: impl Fn(u64, usize) -> (Taken, Option<f64>),
    ) -> Vec<usize> {
        let begun = Instant::now();
        let slots = Mutex::new(elastic.min);
        let seen = Mutex::new(Vec::new());
        let now = || load(begun.elapsed().as_secs(), *slots.lock().unwrap());
        let pace = Pace::new(elastic, most, begun);
        let follows = follow(
            pace,
            || now().0,
            || now().1,
            |new| {
                *slots.lock().unwrap() = new;
                seen.lock().unwrap().push(new);
            },
        );
        let time = Duration::from_secs(seconds) + LOOK / 2;
        assert!(tokio::time::timeout(time, follows).await.is_err());
        seen.into_inner().unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn slots_grow_while_hints_wait_and_shrink_after_a_quiet_time() {
        let elastic = Elastic::from_min(4).idle_after(Duration::from_secs(10));
        let seen = run(elastic, 12, 60, |second, slots| match second {
            // Hints wait, and the handlers wait for something else.
            0..20 => (taken(slots, true), Some(5.0)),
            // Six jobs at a time.
            20..40 => (taken(6, false), Some(5.0)),
            _ => (taken(0, false), Some(1.0)),
        })
        .await;
        assert_eq!(seen[..8], [5, 6, 7, 8, 10, 12, 12, 12]);
        // The last hint waited at second 19; ten seconds later the peak counts, of all slots.
        assert_eq!(seen[28], 12);
        assert!(seen[20..].is_sorted_by(|a, b| a >= b), "{seen:?}");
        assert_eq!(seen[39], 6, "{seen:?}");
        assert_eq!(seen[60], 4, "{seen:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn busy_processors_and_free_slots_end_the_growth() {
        let elastic = Elastic::from_min(2).cpu_below(80);
        let busy = run(elastic, 100, 30, |_, slots| {
            (
                taken(slots, true),
                Some(if slots < 10 { 50.0 } else { 80.0 }),
            )
        })
        .await;
        assert_eq!(busy.last(), Some(&10), "{busy:?}");
        let unknown = run(elastic, 100, 30, |_, slots| (taken(slots, true), None)).await;
        assert_eq!(unknown.last(), Some(&100));
        // Other nodes of the process hold the pool's slots: more of them would not help.
        let others = run(elastic, 100, 30, |_, _| (taken(1, true), Some(1.0))).await;
        assert_eq!(others.last(), Some(&2));
    }

    #[test]
    fn bounds_that_contradict_each_other_are_named() {
        let name = |elastic: Elastic| elastic.mistake(8).map(|(setting, _)| setting);
        assert_eq!(name(Elastic::from_min(8)), None);
        assert_eq!(name(Elastic::from_min(9)), Some("concurrency_min"));
        assert_eq!(name(Elastic::from_min(0)), Some("concurrency_min"));
        let short = Elastic::from_min(1).idle_after(Duration::ZERO);
        assert_eq!(name(short), Some("concurrency_idle"));
        let none = Elastic::from_min(1).cpu_below(0);
        assert_eq!(name(none), Some("concurrency_cpu"));
    }
}

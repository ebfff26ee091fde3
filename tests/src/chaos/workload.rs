//! The jobs of a chaos run: their types, their work and their proportions.

use super::options::Options;
use crate::ServerClock;
use crate::history::permits::Bound;
use chrono::{DateTime, Utc};
use jobwire_core::NewJob;
use rand::Rng;
use rand::rngs::SmallRng;
use serde_json::json;
use std::time::Duration;

/// Every job type of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Does nothing.
    Noop,
    /// Takes a part of the lease; created in floods only.
    Long,
    /// Takes longer than a third of the lease, or than the lease.
    Slow,
    /// Fails one to three times. Three failures make it a dead letter; otherwise it is then done.
    Failing,
    /// Fails as unrecoverable: a dead letter at once.
    Doomed,
    /// Panics once or twice, then is done.
    Panicking,
    /// Hangs until its timeout once or twice, then is done.
    Hanging,
    /// Snoozes until a given time.
    Snoozing,
    /// Writes a row in the transaction that completes it.
    Effect,
    /// Creates jobs in the transaction that completes it.
    Parent,
    /// Creates a job in a transaction of its own.
    Outside,
    /// Exclusive in its process instance.
    Exclusive,
    /// Exclusive in its process instance; writes a row in the transaction that completes it.
    ExclusiveEffect,
    /// Repeats.
    Repeating,
    /// Served by one node only; created where nodes differ.
    Rare,
    /// Runs alone among the jobs of its key.
    Limited,
    /// Due at the same time as many others of its key, of which a number runs at once. It is so large
    /// that nodes borrow permits ahead.
    Crowded,
    /// A limited number of them starts in a period.
    Rated,
    /// The same, with bursts of more than that number.
    Burst,
    /// Runs alone among the jobs of its key, whose parts take turns.
    Fair,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 20] = [
        Kind::Noop,
        Kind::Long,
        Kind::Slow,
        Kind::Failing,
        Kind::Doomed,
        Kind::Panicking,
        Kind::Hanging,
        Kind::Snoozing,
        Kind::Effect,
        Kind::Parent,
        Kind::Outside,
        Kind::Exclusive,
        Kind::ExclusiveEffect,
        Kind::Repeating,
        Kind::Rare,
        Kind::Limited,
        Kind::Rated,
        Kind::Crowded,
        Kind::Burst,
        Kind::Fair,
    ];

    /// The kinds that nodes hold by row locks: some end at once; others outlast the row lock and
    /// get leases.
    pub const BY_ROW: [Kind; 5] = [
        Kind::Noop,
        Kind::Slow,
        Kind::Failing,
        Kind::Panicking,
        Kind::Snoozing,
    ];

    /// Returns the job type.
    #[must_use]
    pub fn job_type(self) -> &'static str {
        match self {
            Kind::Noop => "chaos-noop",
            Kind::Long => "chaos-long",
            Kind::Slow => "chaos-slow",
            Kind::Failing => "chaos-failing",
            Kind::Doomed => "chaos-doomed",
            Kind::Panicking => "chaos-panicking",
            Kind::Hanging => "chaos-hanging",
            Kind::Snoozing => "chaos-snoozing",
            Kind::Effect => "chaos-effect",
            Kind::Parent => "chaos-parent",
            Kind::Outside => "chaos-outside",
            Kind::Exclusive => "chaos-exclusive",
            Kind::ExclusiveEffect => "chaos-exclusive-effect",
            Kind::Repeating => "chaos-repeating",
            Kind::Rare => "chaos-rare",
            Kind::Limited => "chaos-limited",
            Kind::Crowded => "chaos-crowded",
            Kind::Rated => "chaos-rated",
            Kind::Burst => "chaos-burst",
            Kind::Fair => "chaos-fair",
        }
    }

    /// Returns the kind of a job type.
    #[must_use]
    pub fn of(job_type: &str) -> Option<Kind> {
        Kind::ALL
            .into_iter()
            .find(|kind| kind.job_type() == job_type)
    }

    /// Returns whether it runs in the transaction that completes it.
    #[must_use]
    pub fn in_transaction(self) -> bool {
        matches!(self, Kind::Effect | Kind::Parent | Kind::ExclusiveEffect)
    }

    /// Returns its limit in the fleet, for each [key](keys) of the payload.
    #[must_use]
    pub fn bound(self) -> Option<Bound> {
        match self {
            Kind::Limited | Kind::Fair => Some(Bound::Running(1)),
            Kind::Crowded => Some(Bound::Running(24)),
            Kind::Rated => Some(Bound::Rate {
                number: RATE.0,
                millis: RATE.1,
            }),
            // A burst takes longer to come back than the period.
            Kind::Burst => Some(Bound::Rate {
                number: BURST,
                millis: RATE.1 * BURST as i64 / RATE.0 as i64,
            }),
            _ => None,
        }
    }

    /// Returns its weight, in thousandths of all jobs. With `deploys` the weights add up to
    /// slightly more.
    fn weight(self, deploys: bool) -> u32 {
        match self {
            Kind::Noop => 260,
            // The keys of the first two let about twice as many of each start, and fewer while nodes die.
            // So some of them wait, and all are done in the end. The third wait when they are due.
            Kind::Limited | Kind::Rated | Kind::Crowded => 60,
            Kind::Burst | Kind::Fair => 30,
            Kind::Long => 0,
            Kind::Slow => 20,
            Kind::Failing => 60,
            Kind::Doomed => 5,
            Kind::Panicking => 10,
            Kind::Hanging => 5,
            Kind::Snoozing => 20,
            Kind::Effect => 150,
            Kind::Parent => 30,
            Kind::Outside => 20,
            Kind::Exclusive => 200,
            Kind::ExclusiveEffect => 70,
            Kind::Repeating => 10,
            Kind::Rare => {
                if deploys {
                    60
                } else {
                    0
                }
            }
        }
    }
}

/// The number of starts of [`Kind::Rated`] and [`Kind::Burst`] in a period, and the period in milliseconds.
pub(super) const RATE: (usize, i64) = (4, 2_000);
/// The burst of [`Kind::Burst`].
pub(super) const BURST: usize = 6;

/// The number of parts of a key of [`Kind::Fair`].
const PARTS: u32 = 3;

/// Returns the number of keys of limited jobs at this rate of all jobs a second: each key gets one job
/// of a type a second.
#[must_use]
pub fn keys(rate: u32) -> u32 {
    (rate / 20).max(2)
}

/// Returns the number of keys of [`Kind::Crowded`]: at any rate each has time to run its jobs until the
/// next ones are due.
fn crowds(rate: u32) -> u32 {
    (rate / 150).max(1)
}

/// Jobs of [`Kind::Crowded`] are due at full multiples of this time. At the rate of the tests about forty
/// become due at once.
const CROWDS_EVERY: i64 = 20;

/// The timeout of an attempt of [`Kind::Hanging`].
pub const TIMEOUT: Duration = Duration::from_millis(1_500);

/// The duration of the longest job where nodes are deployed: many deployments happen while it runs.
const LONGEST_MS: f64 = 60_000.0;

/// Makes jobs from a seed.
#[derive(Debug)]
pub struct Maker {
    random: SmallRng,
    lease: Duration,
    deploys: bool,
    /// The database's clock, which due dates use.
    clock: ServerClock,
    /// The prefix of process instances. Instances change over time, so that each has a few dozen
    /// jobs.
    prefix: String,
    made: u64,
    /// The number of keys of limited jobs.
    keys: u32,
    /// The number of keys of crowded jobs.
    crowds: u32,
}

/// The number of instances that exclusive jobs use at the same time.
const INSTANCES_AT_ONCE: u64 = 24;
/// The number of exclusive jobs after which the instances change.
const INSTANCES_LAST: u64 = 480;

impl Maker {
    /// Creates the maker of one producer.
    #[must_use]
    pub fn new(random: SmallRng, producer: usize, options: &Options, clock: ServerClock) -> Maker {
        Maker {
            random,
            lease: options.lease,
            deploys: options.deploys,
            clock,
            prefix: format!("p{producer}"),
            made: 0,
            keys: keys(options.rate),
            crowds: crowds(options.rate),
        }
    }

    /// Makes the next job. Some are due later.
    pub fn make(&mut self) -> NewJob {
        let kind = self.kind();
        let random = &mut self.random;
        let payload = match kind {
            Kind::Slow if self.deploys => {
                let ms: f64 = LONGEST_MS.powf(random.random());
                json!({ "ms": ms.round() })
            }
            Kind::Slow => {
                let lease = self.lease.as_millis().max(300) as f64;
                let times: f64 = if random.random_bool(0.3) {
                    random.random_range(1.1..1.8)
                } else {
                    random.random_range(0.35..0.8)
                };
                json!({ "ms": (lease * times).round() })
            }
            // A job has three attempts.
            Kind::Failing => json!({ "fails": random.random_range(1..=3) }),
            Kind::Panicking | Kind::Hanging => json!({ "fails": random.random_range(1..=2) }),
            Kind::Snoozing => {
                let until = Utc::now().timestamp_micros() + random.random_range(100_000..1_500_000);
                json!({ "until": until })
            }
            Kind::Parent => json!({ "children": random.random_range(1..=3) }),
            Kind::Exclusive => json!({ "ms": random.random_range(0..15) }),
            Kind::Limited => {
                json!({ "ms": random.random_range(0..1_000), "key": random.random_range(0..self.keys) })
            }
            Kind::Crowded => {
                json!({ "ms": random.random_range(500..1_000), "key": random.random_range(0..self.crowds) })
            }
            Kind::Rated => json!({ "key": random.random_range(0..self.keys) }),
            Kind::Burst => json!({ "key": random.random_range(0..self.keys / 2) }),
            Kind::Fair => json!({
                "ms": random.random_range(0..1_000),
                "key": random.random_range(0..self.keys / 2),
                "part": random.random_range(0..PARTS),
            }),
            _ => json!({}),
        };
        let mut job = NewJob::of(kind.job_type(), &payload);
        match kind {
            Kind::Exclusive | Kind::ExclusiveEffect => {
                self.made += 1;
                let era = self.made / INSTANCES_LAST;
                let one = random.random_range(0..INSTANCES_AT_ONCE);
                job = job
                    .instance(format!("{}-{era}-{one}", self.prefix))
                    .exclusive();
            }
            Kind::Failing | Kind::Panicking | Kind::Hanging => {
                job = job.retry_policy_text("PT0.2S,PT0.5S");
            }
            Kind::Repeating => job = job.repeat_text("R3/PT1S"),
            _ => {}
        }
        if kind == Kind::Crowded {
            let crowd = self.clock.now().timestamp() / CROWDS_EVERY + 1;
            let due = DateTime::from_timestamp(crowd * CROWDS_EVERY, 0);
            job = job.due(due.unwrap_or_default());
        } else if random.random_bool(0.04) {
            let wait = Duration::from_millis(random.random_range(200..4_000));
            job = job.due(self.clock.now() + wait);
        }
        job
    }

    fn kind(&mut self) -> Kind {
        let deploys = self.deploys;
        let total: u32 = Kind::ALL.iter().map(|kind| kind.weight(deploys)).sum();
        let mut point = self.random.random_range(0..total);
        for kind in Kind::ALL {
            match point.checked_sub(kind.weight(deploys)) {
                Some(rest) => point = rest,
                None => return kind,
            }
        }
        Kind::Noop
    }

    /// Returns the source of random choices, from the same seed.
    pub fn random(&mut self) -> &mut SmallRng {
        &mut self.random
    }
}

/// Returns the time in the payload of a [`Kind::Snoozing`] job.
#[must_use]
pub fn moment(micros: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_micros(micros).unwrap_or_default()
}

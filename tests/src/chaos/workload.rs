//! The jobs of a chaos run: their types, what each does, and in what proportion they are made.

use super::options::Options;
use crate::ServerClock;
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
    /// Takes a part of the lease; comes in floods only.
    Long,
    /// Takes longer than a third of the lease, or than the lease.
    Slow,
    /// Fails some times, then is done; or fails until it is a dead letter.
    Failing,
    /// Must never be tried again: a dead letter at once.
    Doomed,
    /// Panics some times, then is done.
    Panicking,
    /// Hangs until its timeout some times, then is done.
    Hanging,
    /// Snoozes until a moment has come.
    Snoozing,
    /// Writes a row in the transaction that completes it.
    Effect,
    /// Creates jobs in the transaction that completes it.
    Parent,
    /// Creates a job in a transaction of its own.
    Outside,
    /// Exclusive in its process instance.
    Exclusive,
    /// The same, writing a row in the transaction that completes it.
    ExclusiveEffect,
    /// Comes again.
    Repeating,
    /// Served by one node only; comes where nodes differ.
    Rare,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 15] = [
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
    ];

    /// Those that nodes hold by locks of their rows: some end within moments, and some outlast that and get leases.
    pub const BY_ROW: [Kind; 5] = [
        Kind::Noop,
        Kind::Slow,
        Kind::Failing,
        Kind::Panicking,
        Kind::Snoozing,
    ];

    /// The handler type.
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
        }
    }

    /// The kind of a handler type.
    #[must_use]
    pub fn of(job_type: &str) -> Option<Kind> {
        Kind::ALL
            .into_iter()
            .find(|kind| kind.job_type() == job_type)
    }

    /// Whether it runs in the transaction that completes it.
    #[must_use]
    pub fn in_transaction(self) -> bool {
        matches!(self, Kind::Effect | Kind::Parent | Kind::ExclusiveEffect)
    }

    /// Of a thousand jobs, so many; where nodes differ, of a few more.
    fn weight(self, deploys: bool) -> u32 {
        match self {
            Kind::Noop => 400,
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

/// How long an attempt of [`Kind::Hanging`] may take.
pub const TIMEOUT: Duration = Duration::from_millis(1_500);

/// The longest job where nodes are deployed: many deployments see it.
const LONGEST_MS: f64 = 60_000.0;

/// Makes jobs from a seed.
#[derive(Debug)]
pub struct Maker {
    random: SmallRng,
    lease: Duration,
    deploys: bool,
    /// The database's: due dates go by it.
    clock: ServerClock,
    /// Names the process instances; they change as time goes by, so that each has a few dozen jobs.
    prefix: String,
    made: u64,
}

/// Exclusive jobs that share an instance come from so many neighbours.
const INSTANCES_AT_ONCE: u64 = 24;
/// And after so many exclusive jobs the instances are others.
const INSTANCES_LAST: u64 = 480;

impl Maker {
    /// For one producer.
    #[must_use]
    pub fn new(random: SmallRng, producer: usize, options: &Options, clock: ServerClock) -> Maker {
        Maker {
            random,
            lease: options.lease,
            deploys: options.deploys,
            clock,
            prefix: format!("p{producer}"),
            made: 0,
        }
    }

    /// The next job. Some are due later.
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
            // Of three attempts.
            Kind::Failing => json!({ "fails": random.random_range(1..=3) }),
            Kind::Panicking | Kind::Hanging => json!({ "fails": random.random_range(1..=2) }),
            Kind::Snoozing => {
                let until = Utc::now().timestamp_micros() + random.random_range(100_000..1_500_000);
                json!({ "until": until })
            }
            Kind::Parent => json!({ "children": random.random_range(1..=3) }),
            Kind::Exclusive => json!({ "ms": random.random_range(0..15) }),
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
        if random.random_bool(0.04) {
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

    /// Chance and choice, from the same seed.
    pub fn random(&mut self) -> &mut SmallRng {
        &mut self.random
    }
}

/// The payload of a [`Kind::Snoozing`] job as a moment.
#[must_use]
pub fn moment(micros: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_micros(micros).unwrap_or_default()
}

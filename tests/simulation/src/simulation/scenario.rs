//! A scenario: all choices that a seed determines before the run.

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::Who;
use super::handler::{Deed, Work};

/// The way in which jobs are created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Creation {
    /// With a hint from the creator's hook.
    Hinted,
    /// The creator dies between its commit and the hint.
    HintLost,
    /// By plain SQL, without a hint.
    BySql,
    /// The transaction is rolled back.
    RolledBack,
}

/// An event from outside.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Create(Creation, Vec<Work>),
    /// A node dies, and its successor starts `away` milliseconds later.
    Crash {
        node: usize,
        away: u64,
    },
    /// A node shuts down, and its successor starts `away` milliseconds later.
    Stop {
        node: usize,
        away: u64,
    },
    /// A node freezes.
    Freeze {
        node: usize,
        millis: u64,
    },
    /// Statements fail, are late or slow, lose their answers or find rows busy.
    BadDatabase {
        millis: u64,
        kind: u8,
    },
    /// No statement reaches the database.
    DatabaseAway {
        millis: u64,
    },
    /// The broker loses, doubles and reorders messages, and loses settlements and confirms.
    BadBroker {
        millis: u64,
    },
    /// The broker is away.
    BrokerAway {
        millis: u64,
    },
    /// All messages at the broker are deleted.
    Purge,
    /// The database's clock is set ahead.
    ClockAhead {
        millis: u64,
    },
    /// An instance is suspended and activated again.
    Suspend {
        instance: u8,
        millis: u64,
    },
}

impl Step {
    /// Returns its duration in milliseconds.
    fn lasts(&self) -> u64 {
        match self {
            Step::Create(..) | Step::Purge | Step::ClockAhead { .. } => 0,
            // A clean stop may take some seconds, and a successor may need several attempts.
            Step::Crash { away, .. } | Step::Stop { away, .. } => away + 1_000,
            Step::Freeze { millis, .. }
            | Step::BadDatabase { millis, .. }
            | Step::DatabaseAway { millis }
            | Step::BadBroker { millis }
            | Step::BrokerAway { millis }
            | Step::Suspend { millis, .. } => *millis,
        }
    }

    /// Returns whether it is a fault.
    pub(super) fn is_fault(&self) -> bool {
        !matches!(self, Step::Create(..))
    }
}

/// See the [module](self).
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) seed: u64,
    pub(super) who: Who,
    pub(super) nodes: usize,
    pub(super) concurrency: usize,
    pub(super) lease: u64,
    pub(super) sweep: u64,
    pub(super) suspect_after: u64,
    /// The time that running jobs have to end when their node is stopped, in milliseconds.
    pub(super) patience: u64,
    /// The steps, with their times in milliseconds.
    pub(super) steps: Vec<(u64, Step)>,
    /// No hint can be lost or wait behind another consumer, so the sweeper must hint no job.
    pub(super) exact: bool,
}

/// The last time at which jobs are created, in milliseconds.
const CREATING: u64 = 7_000;
/// The last time at which a fault begins, in milliseconds.
const FAULTS: u64 = 9_000;

impl Scenario {
    /// Returns the scenario of this seed.
    pub(super) fn of(seed: u64) -> Scenario {
        let mut dice = SmallRng::seed_from_u64(seed);
        // One in eight has no fault: there the sweeper must find no job to hint.
        let exact = dice.random_ratio(1, 8);
        // One in four has a single instance whose holders lose it and return too late.
        if !exact && dice.random_ratio(2, 7) {
            return Scenario::one_instance(seed, dice);
        }
        let nodes = if exact { 1 } else { dice.random_range(2..=3) };
        let mut scenario = Scenario {
            seed,
            who: Who::Fleet,
            nodes,
            concurrency: *[1, 2, 4].choose(&mut dice).unwrap_or(&2),
            lease: dice.random_range(2_000..=5_000),
            sweep: dice.random_range(400..=2_000),
            suspect_after: dice.random_range(500..=2_500),
            patience: dice.random_range(100..=3_000),
            steps: Vec::new(),
            exact,
        };
        let jobs = dice.random_range(3..=12);
        let instances = dice.random_range(1..=3);
        let mut left = jobs;
        while left > 0 {
            let count = dice.random_range(1..=left.min(4));
            left -= count;
            let at = dice.random_range(0..CREATING);
            let how = match dice.random_range(0..10) {
                _ if exact => Creation::Hinted,
                0 => Creation::HintLost,
                1 => Creation::BySql,
                2 => Creation::RolledBack,
                _ => Creation::Hinted,
            };
            let works = (0..count).map(|_| scenario.work(&mut dice, instances));
            let works = works.collect();
            scenario.steps.push((at, Step::Create(how, works)));
        }
        let faults = if exact { 0 } else { dice.random_range(0..=6) };
        for _ in 0..faults {
            let at = dice.random_range(0..FAULTS);
            let step = scenario.fault(&mut dice, instances);
            scenario.steps.push((at, step));
        }
        scenario.steps.sort_by_key(|(at, _)| *at);
        scenario
    }

    /// Returns a scenario with one instance. The eldest job fails first, so that it returns from
    /// its retry while a younger one runs, whose node is frozen or does not reach the database.
    fn one_instance(seed: u64, mut dice: SmallRng) -> Scenario {
        let lease = dice.random_range(1_500..=3_000);
        let mut scenario = Scenario {
            seed,
            who: Who::Fleet,
            nodes: 2,
            concurrency: *[1, 2].choose(&mut dice).unwrap_or(&2),
            lease,
            sweep: dice.random_range(1_000..=5_000),
            suspect_after: dice.random_range(500..=1_500),
            patience: dice.random_range(0..=1_000),
            steps: Vec::new(),
            exact: false,
        };
        let jobs = dice.random_range(3..=5);
        let works = (0..jobs).map(|number| Work {
            instance: Some(0),
            concurrent: false,
            deed: match number {
                0 => Deed::Fails(dice.random_range(1..=2)),
                _ => Deed::Done,
            },
            millis: match number {
                0 => dice.random_range(0..500),
                _ => dice.random_range(200..2 * lease),
            },
            due_in: None,
            repeat: None,
            ..scenario.work(&mut dice, 1)
        });
        let works = works.collect();
        scenario
            .steps
            .push((0, Step::Create(Creation::Hinted, works)));
        for _ in 0..dice.random_range(1..=5) {
            let at = dice.random_range(0..3 * lease);
            let node = dice.random_range(0..2);
            let millis = dice.random_range(lease..3 * lease);
            let step = match dice.random_range(0..6) {
                0..=2 => {
                    // Stopped while it is frozen, the node releases jobs that it has lost.
                    if dice.random_bool(0.4) {
                        let stop = Step::Stop { node, away: 1_000 };
                        scenario
                            .steps
                            .push((at + dice.random_range(0..lease), stop));
                    }
                    Step::Freeze { node, millis }
                }
                3 => Step::Stop { node, away: 1_000 },
                _ => Step::BadDatabase {
                    millis,
                    kind: dice.random_range(1..4),
                },
            };
            scenario.steps.push((at, step));
        }
        scenario.steps.sort_by_key(|(at, _)| *at);
        scenario
    }

    /// Returns a scenario with a single node whose database is away for at least a lease, once or
    /// twice.
    pub(super) fn of_an_embedded_node(seed: u64) -> Scenario {
        let mut dice = SmallRng::seed_from_u64(seed);
        let lease = dice.random_range(2_000..=5_000);
        let mut scenario = Scenario {
            seed,
            who: Who::EmbeddedNode,
            nodes: 1,
            concurrency: *[1, 2, 4].choose(&mut dice).unwrap_or(&2),
            lease,
            // May be longer than an outage of the database.
            sweep: dice.random_range(400..=4 * lease),
            suspect_after: dice.random_range(500..=2_500),
            patience: dice.random_range(100..=3_000),
            steps: Vec::new(),
            exact: false,
        };
        let mut at = 0;
        for _ in 0..dice.random_range(1..=2) {
            for _ in 0..dice.random_range(2..=8) {
                let moment = at + dice.random_range(0..lease);
                let work = Work {
                    deed: Deed::Done,
                    millis: dice.random_range(0..2 * lease),
                    due_in: None,
                    repeat: None,
                    ..scenario.work(&mut dice, 3)
                };
                let create = Step::Create(Creation::Hinted, vec![work]);
                scenario.steps.push((moment, create));
            }
            at += dice.random_range(0..2 * lease);
            let millis = dice.random_range(lease..=3 * lease);
            scenario.steps.push((at, Step::DatabaseAway { millis }));
            at += millis + 3 * lease;
        }
        scenario.steps.sort_by_key(|(at, _)| *at);
        scenario
    }

    /// Returns the time at which the last fault has ended, in milliseconds.
    pub(super) fn healed_at(&self) -> u64 {
        let ends = self.steps.iter().map(|(at, step)| at + step.lasts());
        ends.max().unwrap_or(0)
    }

    fn work(&self, dice: &mut SmallRng, instances: u8) -> Work {
        let instance = dice
            .random_bool(0.6)
            .then(|| dice.random_range(0..instances));
        let millis = match dice.random_range(0..10) {
            // Longer than a lease: needs renewals.
            0 => self.lease + dice.random_range(0..3 * self.lease),
            1..=3 => dice.random_range(200..2_500),
            _ => dice.random_range(0..200),
        };
        let deed = match dice.random_range(0..24) {
            0 | 1 => Deed::Fails(dice.random_range(1..=2)),
            2 => Deed::Hopeless,
            3 => Deed::GivesUp,
            4 => Deed::Snoozes,
            5 => Deed::Panics,
            _ => Deed::Done,
        };
        let timer = dice.random_bool(0.2);
        let repeats = timer && dice.random_bool(0.5) && !matches!(deed, Deed::Snoozes);
        Work {
            job_type: [0, 0, 0, 0, 1, 2, 3]
                .choose(dice)
                .map_or(Work::TYPES[0], |at| Work::TYPES[*at]),
            instance,
            concurrent: dice.random_bool(0.2),
            millis,
            deed,
            obeys: dice.random_bool(0.7),
            due_in: timer.then(|| dice.random_range(0..3_000)),
            repeat: repeats.then(|| {
                let (times, every) = (dice.random_range(2..=3), dice.random_range(1..=3));
                format!("R{times}/PT{every}S")
            }),
        }
    }

    fn fault(&self, dice: &mut SmallRng, instances: u8) -> Step {
        let node = dice.random_range(0..self.nodes);
        let away = dice.random_range(50..5_000);
        let millis = dice.random_range(300..4_000);
        match dice.random_range(0..14) {
            0..=2 => Step::Crash { node, away },
            3 => Step::Stop { node, away },
            4 | 5 => Step::Freeze {
                node,
                millis: dice.random_range(200..3 * self.lease),
            },
            6..=8 => Step::BadDatabase {
                millis,
                kind: dice.random_range(0..5),
            },
            9 | 10 => Step::BadBroker { millis },
            11 => Step::BrokerAway { millis },
            12 => match dice.random_range(0..2) {
                0 => Step::Purge,
                _ => Step::ClockAhead {
                    millis: dice.random_range(100..2 * self.lease),
                },
            },
            _ => Step::Suspend {
                instance: dice.random_range(0..instances),
                millis,
            },
        }
    }
}

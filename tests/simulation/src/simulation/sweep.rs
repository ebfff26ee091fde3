//! Runs many seeds, on one thread for each core of the machine, up to eight.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Bug, Outcome, Simulation};

/// The number of a trace's last lines that are shown for a failure.
const END: usize = 120;

/// The result of many seeds.
#[derive(Debug)]
pub struct Swept {
    /// The number of seeds.
    pub seeds: u64,
    /// The duration.
    pub took: Duration,
    /// Jobs that were created and committed.
    pub jobs: u64,
    /// Locks that were granted.
    pub locks: u64,
    /// Locks that were taken over from dead nodes.
    pub takeovers: u64,
    /// The number of faults.
    pub faults: u64,
    /// The longest virtual time from the last fault until everything was done, and its seed.
    pub slowest: (Duration, u64),
    /// The failure with the lowest seed, with its trace.
    pub failed: Option<Box<Outcome>>,
}

impl fmt::Display for Swept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Swept {
            seeds,
            took,
            jobs,
            locks,
            takeovers,
            faults,
            slowest: (drained, slow),
            failed,
        } = self;
        let rate = *seeds as f64 / took.as_secs_f64().max(0.001);
        writeln!(
            f,
            "{seeds} seeds in {took:.1?} ({rate:.0} a second): {jobs} jobs, {locks} locks, {takeovers} takeovers, \
             {faults} faults; the longest time from the last fault to the end was {drained:.1?} (seed {slow})"
        )?;
        if let Some(failed) = failed {
            write!(f, "{}", describe(failed))?;
        }
        Ok(())
    }
}

/// Runs `count` seeds, beginning with `from`. Stops at the first failure.
#[must_use]
pub fn sweep(from: u64, count: u64, bug: Option<Bug>) -> Swept {
    let started = Instant::now();
    let next = AtomicU64::new(from);
    let end = AtomicU64::new(from + count);
    let swept = Mutex::new(Swept {
        seeds: 0,
        took: Duration::ZERO,
        jobs: 0,
        locks: 0,
        takeovers: 0,
        faults: 0,
        slowest: (Duration::ZERO, from),
        failed: None,
    });
    let threads = std::thread::available_parallelism()
        .map_or(2, usize::from)
        .min(8);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end.load(Ordering::Relaxed) {
                        return;
                    }
                    let outcome = Simulation {
                        bug,
                        ..Simulation::of(seed)
                    };
                    let outcome = outcome.run();
                    let mut swept = swept.lock().expect("no thread panics while it counts");
                    swept.count(&outcome);
                    if !outcome.holds() {
                        // Lower seeds still run to their end, so that the first failure is always
                        // the same.
                        end.fetch_min(seed, Ordering::Relaxed);
                        if swept.failed.as_ref().is_none_or(|other| other.seed > seed) {
                            swept.failed = Some(Box::new(outcome));
                        }
                    }
                }
            });
        }
    });
    let mut swept = swept
        .into_inner()
        .expect("no thread panics while it counts");
    swept.took = started.elapsed();
    if let Some(failed) = &swept.failed {
        let again = Simulation {
            bug,
            traced: true,
            ..Simulation::of(failed.seed)
        };
        swept.failed = Some(Box::new(again.run()));
    }
    swept
}

impl Swept {
    fn count(&mut self, outcome: &Outcome) {
        let counts = &outcome.report.counts;
        self.seeds += 1;
        self.jobs += counts.committed;
        self.locks += counts.locks;
        self.takeovers += counts.takeovers;
        self.faults += outcome.faults as u64;
        self.slowest = self.slowest.max((outcome.drained_after, outcome.seed));
    }
}

fn describe(outcome: &Outcome) -> String {
    let lines: Vec<&str> = outcome.trace.lines().collect();
    let end = lines
        .get(lines.len().saturating_sub(END)..)
        .unwrap_or_default();
    format!(
        "seed {} fails (JOBWIRE_TEST_SEED={} replays it): {:?}\n{}the end of its trace:\n{}\n",
        outcome.seed,
        outcome.seed,
        outcome.problems,
        outcome.report,
        end.join("\n")
    )
}

/// Runs one seed and prints its trace. Returns whether it holds.
#[must_use]
pub fn replay(simulation: Simulation) -> bool {
    let outcome = Simulation {
        traced: true,
        ..simulation
    }
    .run();
    println!(
        "{}\n{:?}\n{}",
        outcome.trace, outcome.problems, outcome.report
    );
    outcome.holds()
}

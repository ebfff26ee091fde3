//! Runs seeds of the simulation, or replays one: see docs/internals/simulation.md.
//!
//! ```text
//! simulate FROM COUNT    run COUNT seeds, beginning with FROM
//! simulate SEED          run one and print its trace
//! simulate               find every seeded bug
//! ```
#![allow(clippy::print_stdout, reason = "it is a program")]

use jobwire_simulation::simulation::{Bug, Simulation, replay, sweep};

fn main() -> std::process::ExitCode {
    let numbers: Vec<u64> = std::env::args()
        .skip(1)
        .filter_map(|arg| arg.parse().ok())
        .collect();
    let ok = match numbers[..] {
        [seed] => replay(Simulation::of(seed)),
        [from, count] => {
            let swept = sweep(from, count, None);
            println!("{swept}");
            swept.failed.is_none()
        }
        [] => {
            let missed = Bug::ALL.iter().filter(|bug| {
                let swept = sweep(1, 3_000, Some(**bug));
                let broken = swept
                    .failed
                    .as_ref()
                    .map(|failed| (failed.seed, failed.invariants()));
                println!("{bug:?}: {broken:?}");
                broken.is_none()
            });
            // `count` also tries the bugs after one that was missed.
            missed.count() == 0
        }
        _ => {
            println!("usage: simulate | simulate SEED | simulate FROM COUNT");
            false
        }
    };
    if ok {
        std::process::ExitCode::SUCCESS
    } else {
        std::process::ExitCode::FAILURE
    }
}

//! The simulation: real nodes in a simulated world, replayed from a seed.
//!
//! Everything of `jobwire_core` above the two traits is real and runs as in production: consumer,
//! executor, leases and their renewal, completion, commit hook, leader, timers, sweeper, shutdown.
//! Simulated are the database ([`Database`], tested by the store conformance suite), the broker,
//! the deaths, freezes and clean stops of processes, and time, which tokio's paused clock advances
//! when no task can run. A whole run is one thread, so the seed determines the run.
//!
//! See docs/internals/simulation.md for how to run and replay it.

mod bug;
mod clock;
mod database;
mod fault_injector;
mod handler;
mod link;
mod scenario;
mod schedules;
mod store;
mod sweep;
mod takeovers;
mod trace;
mod transport;
mod world;

use std::time::Duration;

pub use bug::Bug;
pub use database::Database;
pub use schedules::{Days, Kept};
pub use store::MemoryStore;
pub use sweep::{Swept, replay, sweep};
pub use takeovers::Death;
pub use world::Outcome;

use scenario::Scenario;
use world::World;

/// The nodes of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Nodes that share a broker.
    Fleet,
    /// One node with an in-process transport.
    EmbeddedNode,
}

/// One run of a seed.
#[derive(Clone, Copy, Debug)]
pub struct Simulation {
    /// The nodes.
    pub who: Who,
    /// The seed, which determines everything.
    pub seed: u64,
    /// A seeded bug that the run should find.
    pub bug: Option<Bug>,
    /// Whether to record a trace.
    pub traced: bool,
    /// The time after which the broker confirms a marker, if it is slow.
    pub slow_markers: Option<Duration>,
}

impl Simulation {
    /// Returns the run of this seed, without a bug.
    #[must_use]
    pub fn of(seed: u64) -> Simulation {
        Simulation {
            who: Who::Fleet,
            seed,
            bug: None,
            traced: false,
            slow_markers: None,
        }
    }

    /// Returns the run of this seed with an embedded node whose database fails.
    #[must_use]
    pub fn of_an_embedded_node(seed: u64) -> Simulation {
        Simulation {
            who: Who::EmbeddedNode,
            ..Simulation::of(seed)
        }
    }

    /// Runs the simulation.
    #[must_use]
    pub fn run(self) -> Outcome {
        let scenario = match self.who {
            Who::Fleet => Scenario::of(self.seed),
            Who::EmbeddedNode => Scenario::of_an_embedded_node(self.seed),
        };
        in_virtual_time(async { World::new(scenario, self).run().await })
    }
}

/// Runs a world on one thread, in a time that advances when no task can run.
fn in_virtual_time<T>(world: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without I/O needs nothing of the machine");
    // Other tests of the process record metrics of their own nodes.
    metrics::with_local_recorder(&metrics::NoopRecorder, || runtime.block_on(world))
}

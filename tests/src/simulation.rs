//! The simulation: real nodes in a simulated world, replayed from a seed.
//!
//! What is real: everything of `jobwire_core` above the two traits, as it runs in production: consumer,
//! executor, leases and their renewal, completion, commit hook, leader, timers, sweeper, shutdown. What is
//! simulated: the database ([`Database`], held to the store conformance suite), the broker, the processes'
//! deaths, freezes and clean stops, and time, which tokio's paused clock moves on when nothing can happen
//! any more. A whole run is one thread, so a seed decides everything, and the same seed is the same run.
//!
//! docs/internals/simulation.md says how to run and replay it.

mod bug;
mod clock;
mod database;
mod handler;
mod link;
mod scenario;
mod store;
mod sweep;
mod trace;
mod transport;
mod weather;
mod world;

pub use bug::Bug;
pub use database::Database;
pub use store::MemoryStore;
pub use sweep::{Swept, replay, sweep};
pub use world::Outcome;

use scenario::Scenario;
use world::World;

/// Who works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Nodes that share a broker.
    Fleet,
    /// One node, within whose process hints stay.
    EmbeddedNode,
}

/// One run of a seed.
#[derive(Clone, Copy, Debug)]
pub struct Simulation {
    /// Who works in it.
    pub who: Who,
    /// Decides everything.
    pub seed: u64,
    /// A mistake to be found.
    pub bug: Option<Bug>,
    /// Write down all that happens.
    pub traced: bool,
}

impl Simulation {
    /// This seed, without a mistake.
    #[must_use]
    pub fn of(seed: u64) -> Simulation {
        Simulation {
            who: Who::Fleet,
            seed,
            bug: None,
            traced: false,
        }
    }

    /// This seed, of a node without a broker whose database goes away.
    #[must_use]
    pub fn of_an_embedded_node(seed: u64) -> Simulation {
        Simulation {
            who: Who::EmbeddedNode,
            ..Simulation::of(seed)
        }
    }

    /// Run it.
    #[must_use]
    pub fn run(self) -> Outcome {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without I/O needs nothing of the machine");
        let scenario = match self.who {
            Who::Fleet => Scenario::of(self.seed),
            Who::EmbeddedNode => Scenario::of_an_embedded_node(self.seed),
        };
        // Other tests of the process count their own nodes.
        metrics::with_local_recorder(&metrics::NoopRecorder, || {
            runtime.block_on(async { World::new(scenario, self.bug, self.traced).run().await })
        })
    }
}

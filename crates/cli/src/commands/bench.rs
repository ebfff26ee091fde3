//! `jobwire bench`: measures this machine, database and broker.

use std::net::SocketAddr;

use clap::{Args, Subcommand, ValueEnum};

use crate::bench;
use crate::error::Error;
use crate::settings::Settings;

/// Arguments.
#[derive(Clone, Debug, Args)]
pub struct BenchArgs {
    /// What to measure
    #[command(subcommand)]
    pub workload: Workload,
    /// Print the report as JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// The workloads.
#[derive(Clone, Debug, Subcommand)]
pub enum Workload {
    /// Work off jobs that wait already, with their hints in the broker
    Drain(DrainArgs),
    /// Run jobs that arrive at a fixed rate, each in a transaction of its own
    Steady(SteadyArgs),
    /// Run jobs that are committed all at once while the nodes idle
    Burst(BurstArgs),
    /// Create jobs as fast as it goes, and run them meanwhile
    Continuous(ContinuousArgs),
    /// Run jobs that are due at one moment, or within some seconds
    Timers(TimersArgs),
    /// Work off jobs of process instances, one at a time and in order
    Exclusive(ExclusiveArgs),
    /// Work off the first jobs of backlogs of several sizes
    Backlog(BacklogArgs),
    /// Do the same with several numbers of nodes
    Fleet(FleetArgs),
    /// See what nodes cost that have nothing to do
    Idle(IdleArgs),
    /// A node of a bench
    #[command(hide = true)]
    Node(NodeArgs),
}

/// Who works.
#[derive(Clone, Copy, Debug, Args)]
pub struct Crew {
    /// Node processes that work
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub nodes: u16,
}

/// Arguments of `drain`.
#[derive(Clone, Debug, Args)]
pub struct DrainArgs {
    /// Jobs to work off
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub jobs: u32,
    /// Who works
    #[command(flatten)]
    pub crew: Crew,
    /// Lose every hint before the nodes start, as when somebody deletes the queue: the sweeper heals
    #[arg(long)]
    pub lose_hints: bool,
}

/// Arguments of `steady`.
#[derive(Clone, Debug, Args)]
pub struct SteadyArgs {
    /// Jobs a second
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,
    /// How long to measure, in seconds; two more go before to warm up
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub seconds: u32,
    /// Who works
    #[command(flatten)]
    pub crew: Crew,
}

/// Arguments of `burst`.
#[derive(Clone, Debug, Args)]
pub struct BurstArgs {
    /// Jobs that are committed at once
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub jobs: u32,
    /// Clients that create them, each on a connection of its own
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub clients: u16,
    /// Jobs in a transaction
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batch: u32,
    /// Who works
    #[command(flatten)]
    pub crew: Crew,
}

/// Clients of `continuous`, where nobody says how many.
pub const CLIENTS: u16 = 4;
/// Jobs in a transaction of `continuous`, where nobody says how many.
pub const BATCH: u32 = 100;
/// Jobs that may wait in `continuous`, where nobody says how many.
pub const AHEAD: u32 = 20_000;

/// Arguments of `continuous`.
#[derive(Clone, Debug, Args)]
pub struct ContinuousArgs {
    /// How long to create jobs, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub seconds: u32,
    /// Jobs that may wait: with so many, the clients pause
    #[arg(long, value_name = "N", default_value_t = AHEAD, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub ahead: u32,
    /// Clients that create them, each on a connection of its own
    #[arg(long, value_name = "N", default_value_t = CLIENTS, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub clients: u16,
    /// Jobs in a transaction
    #[arg(long, value_name = "N", default_value_t = BATCH, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batch: u32,
    /// Who works
    #[command(flatten)]
    pub crew: Crew,
}

/// Arguments of `timers`.
#[derive(Clone, Copy, Debug, Args)]
pub struct TimersArgs {
    /// Jobs with a due date
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub jobs: u32,
    /// The first is due after so many seconds [default: 10, and one for every 10,000 jobs]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub ahead: Option<u32>,
    /// Spread the due dates evenly over so many seconds; 0: all are due at one moment
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=3_600))]
    pub spread: u32,
    /// Who works
    #[command(flatten)]
    pub crew: Crew,
}

/// Arguments of `exclusive`.
#[derive(Clone, Debug, Args)]
pub struct ExclusiveArgs {
    /// Process instances
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub instances: u32,
    /// Jobs of each
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub jobs: u32,
    /// Who works
    #[command(flatten)]
    pub crew: Crew,
}

/// Arguments of `backlog`.
#[derive(Clone, Debug, Args)]
pub struct BacklogArgs {
    /// Jobs that wait, one run for each number, separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [10_000, 1_000_000], value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub waiting: Vec<u32>,
    /// How many of them to measure; the others are worked off too
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub jobs: u32,
    /// Who works
    #[command(flatten)]
    pub crew: Crew,
}

/// What a fleet has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Load {
    /// As `bench drain`
    Drain,
    /// As `bench continuous`
    Continuous,
}

/// Arguments of `fleet`.
#[derive(Clone, Debug, Args)]
pub struct FleetArgs {
    /// Node processes, one run for each number, separated by commas; ratios are to the first
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16], value_parser = clap::value_parser!(u16).range(1..=64))]
    pub nodes: Vec<u16>,
    /// What they have to do
    #[arg(long, value_enum, default_value_t = Load::Drain)]
    pub load: Load,
    /// Jobs to work off, with `--load drain`
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub jobs: u32,
    /// How long to create jobs, in seconds, with `--load continuous`
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub seconds: u32,
}

/// Arguments of `idle`.
#[derive(Clone, Debug, Args)]
pub struct IdleArgs {
    /// Node processes that idle
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub nodes: u16,
    /// How long to look, in seconds; ten more go before
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
}

/// Arguments of a node of a bench.
#[derive(Clone, Debug, Args)]
pub struct NodeArgs {
    /// Where to tell what started
    #[arg(long, value_name = "ADDRESS")]
    pub report: SocketAddr,
    /// Begin when the input ends
    #[arg(long)]
    pub held: bool,
    /// Begin with the hints of everything that waits
    #[arg(long)]
    pub adopt: bool,
}

pub(crate) async fn run(settings: Settings, args: BenchArgs) -> Result<(), Error> {
    bench::run(settings, args).await
}

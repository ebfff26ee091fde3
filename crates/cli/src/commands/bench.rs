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
    /// Run jobs that wait already, with their hints in the broker
    Drain(DrainArgs),
    /// Run jobs that arrive at a fixed rate, each in its own transaction
    Steady(SteadyArgs),
    /// Run jobs that are committed all at once while the nodes idle
    Burst(BurstArgs),
    /// Create jobs as fast as possible, and run them meanwhile
    Continuous(ContinuousArgs),
    /// Run jobs that are due at one moment, or within some seconds
    Timers(TimersArgs),
    /// Run jobs of process instances, one at a time and in order
    Exclusive(ExclusiveArgs),
    /// Run the first jobs of backlogs of several sizes
    Backlog(BacklogArgs),
    /// Run the same load on several numbers of nodes
    Fleet(FleetArgs),
    /// Measure the cost of nodes without work
    Idle(IdleArgs),
    /// A node of a bench
    #[command(hide = true)]
    Node(NodeArgs),
}

/// The nodes of a run.
#[derive(Clone, Copy, Debug, Args)]
pub struct Crew {
    /// Node processes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub nodes: u16,
}

/// Arguments of `drain`.
#[derive(Clone, Debug, Args)]
pub struct DrainArgs {
    /// Jobs to run
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub jobs: u32,
    /// Node processes
    #[command(flatten)]
    pub crew: Crew,
    /// Delete every hint before the nodes start: the sweeper hints the jobs again
    #[arg(long)]
    pub lose_hints: bool,
}

/// Arguments of `steady`.
#[derive(Clone, Debug, Args)]
pub struct SteadyArgs {
    /// Jobs a second
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,
    /// How long to measure, in seconds, after two seconds to warm up
    #[arg(long, value_name = "SECONDS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub seconds: u32,
    /// Create the jobs without hints, like plain SQL: the commit tap of the nodes hints them
    #[arg(long)]
    pub sql: bool,
    /// Node processes
    #[command(flatten)]
    pub crew: Crew,
}

/// Arguments of `burst`.
#[derive(Clone, Debug, Args)]
pub struct BurstArgs {
    /// Jobs that are committed at once
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub jobs: u32,
    /// Clients that create them, each on its own connection
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub clients: u16,
    /// Jobs in a transaction
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batch: u32,
    /// Node processes
    #[command(flatten)]
    pub crew: Crew,
}

/// The default number of clients of `continuous`.
pub const CLIENTS: u16 = 4;
/// The default number of jobs in a transaction of `continuous`.
pub const BATCH: u32 = 100;
/// The default number of jobs that may wait in `continuous`.
pub const AHEAD: u32 = 20_000;

/// Arguments of `continuous`.
#[derive(Clone, Debug, Args)]
pub struct ContinuousArgs {
    /// How long to create jobs, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub seconds: u32,
    /// Jobs that may wait before the clients pause
    #[arg(long, value_name = "N", default_value_t = AHEAD, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub ahead: u32,
    /// Clients that create them, each on its own connection
    #[arg(long, value_name = "N", default_value_t = CLIENTS, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub clients: u16,
    /// Jobs in a transaction
    #[arg(long, value_name = "N", default_value_t = BATCH, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batch: u32,
    /// Node processes
    #[command(flatten)]
    pub crew: Crew,
}

/// Arguments of `timers`.
#[derive(Clone, Copy, Debug, Args)]
pub struct TimersArgs {
    /// Jobs with a due date
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub jobs: u32,
    /// Seconds until the first is due [default: 10, and one for every 10,000 jobs]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub ahead: Option<u32>,
    /// Seconds over which the due dates are spread evenly; 0: all are due at one moment
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=3_600))]
    pub spread: u32,
    /// Node processes
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
    /// Node processes
    #[command(flatten)]
    pub crew: Crew,
}

/// Arguments of `backlog`.
#[derive(Clone, Debug, Args)]
pub struct BacklogArgs {
    /// Jobs that wait, one run for each number, separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [10_000, 1_000_000], value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub waiting: Vec<u32>,
    /// How many of them to measure; the others run too
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub jobs: u32,
    /// Node processes
    #[command(flatten)]
    pub crew: Crew,
}

/// The load of a fleet.
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
    /// The load
    #[arg(long, value_enum, default_value_t = Load::Drain)]
    pub load: Load,
    /// Jobs to run, with `--load drain`
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
    /// How long to measure, in seconds, after ten seconds to settle
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub seconds: u32,
}

/// Arguments of a node of a bench.
#[derive(Clone, Debug, Args)]
pub struct NodeArgs {
    /// Address that receives the report of each start
    #[arg(long, value_name = "ADDRESS")]
    pub report: SocketAddr,
    /// Start when the input ends
    #[arg(long)]
    pub held: bool,
    /// Start with the hints of all waiting jobs
    #[arg(long)]
    pub adopt: bool,
}

pub(crate) async fn run(settings: Settings, args: BenchArgs) -> Result<(), Error> {
    bench::run(settings, args).await
}

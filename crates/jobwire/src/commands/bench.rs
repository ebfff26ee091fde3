//! `jobwire bench`: measures this machine, database and broker.

use std::net::SocketAddr;

use clap::{Args, Subcommand};

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
    /// A node of a bench
    #[command(hide = true)]
    Node(NodeArgs),
}

/// Arguments of `drain`.
#[derive(Clone, Debug, Args)]
pub struct DrainArgs {
    /// Jobs to work off
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub jobs: u32,
    /// Node processes that work
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub nodes: u16,
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
    /// Node processes that work
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub nodes: u16,
}

/// Arguments of a node of a bench.
#[derive(Clone, Debug, Args)]
pub struct NodeArgs {
    /// Where to tell what started
    #[arg(long, value_name = "ADDRESS")]
    pub report: SocketAddr,
}

pub(crate) async fn run(settings: Settings, args: BenchArgs) -> Result<(), Error> {
    bench::run(settings, args).await
}

//! The arguments of the command: the workloads. Each workload has its arguments in its own file.

use clap::{Args, Subcommand};

use super::backlog::BacklogArgs;
use super::burst::BurstArgs;
use super::continuous::ContinuousArgs;
use super::drain::DrainArgs;
use super::exclusive::ExclusiveArgs;
use super::fleet::FleetArgs;
use super::idle::IdleArgs;
use super::limits::LimitsArgs;
use super::node::NodeArgs;
use super::steady::SteadyArgs;
use super::timers::TimersArgs;

/// Arguments.
#[derive(Clone, Debug, Args)]
pub struct BenchArgs {
    /// The workload to measure
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
    /// Run waiting jobs without a limit, with a limit of one key, and with limits of many keys
    Limits(LimitsArgs),
    /// Measure the cost of nodes without work
    Idle(IdleArgs),
    /// A node of a bench
    #[command(hide = true)]
    Node(NodeArgs),
}

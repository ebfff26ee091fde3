//! The arguments of the command.

use std::path::PathBuf;

use clap::Args;

use super::speed::Speed;

/// Arguments.
#[derive(Clone, Debug, Args)]
pub struct DemoArgs {
    /// Permit applications to handle
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub instances: u32,
    /// Replay this event log (JSON lines with `type`, `process_instance`, `sequence`, `at`)
    /// instead; `-` reads standard input
    #[arg(long, value_name = "FILE", conflicts_with = "instances")]
    pub input: Option<PathBuf>,
    /// Speed of the replay as a multiple of real time, or `max`
    #[arg(long, value_name = "FACTOR", default_value = "max", requires = "input")]
    pub speed: Speed,
    /// Node processes for the replay, started on the given database and broker; 0: one node in this
    /// process
    #[arg(long, value_name = "N", default_value_t = 0, requires = "input", value_parser = clap::value_parser!(u16).range(0..=100))]
    pub nodes: u16,
    /// Keep the jobs and event rows that the database already has, and run beside them
    #[arg(long)]
    pub keep: bool,
    /// Print the account as JSON
    #[arg(long)]
    pub json: bool,
}

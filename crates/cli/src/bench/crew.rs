//! The nodes of a run.

use clap::Args;

/// The nodes of a run.
#[derive(Clone, Copy, Debug, Args)]
pub struct Crew {
    /// Node processes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub nodes: u16,
}

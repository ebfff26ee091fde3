//! The signals of a node's shutdown.

use tokio_util::sync::CancellationToken;

/// The signals of a shutdown, in the order in which they are given.
#[derive(Default)]
pub(crate) struct Signals {
    /// The node executes one job that an operator has named. It drains from its start.
    pub(crate) one_job: CancellationToken,
    /// Phase one: take nothing more.
    pub(crate) draining: CancellationToken,
    /// Phase two: running jobs are asked to stop.
    pub(crate) stop_jobs: CancellationToken,
    /// No job runs any more. The remaining outcomes are committed.
    pub(crate) ended: CancellationToken,
}

//! `jobwire bench`: measures this machine, database and broker.

use crate::bench;
use crate::error::Error;
use crate::settings::Settings;

pub use crate::bench::BenchArgs;

pub(crate) async fn run(settings: Settings, args: BenchArgs) -> Result<(), Error> {
    bench::run(settings, args).await
}

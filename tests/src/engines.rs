//! Process engines for tests: the programs of `tests/engines`, each on a database of its own.
//!
//! `scripts/setup engine NAME` builds a program from Maven's artifacts when its sources have
//! changed. The database holds the table `jobwire_effect`, with one row for each run of an activity.
//!
//! ```no_run
//! # use jobwire_tests::{EngineServer, EngineSettings, shared};
//! # async fn example() {
//! let database = shared::postgres().await.create_database().await;
//! let engine = EngineServer::start(EngineSettings::flowable7(&database)).await;
//! let instances = engine.start_instances("one", 10, &[]).await;
//! assert_eq!(instances.len(), 10);
//! # }
//! ```

mod program;
mod requests;
mod server;
mod settings;

pub use program::EngineProgram;
pub use requests::HintCounts;
pub use server::EngineServer;
pub use settings::{EngineSettings, JobExecutor};

//! The light part of the test harness: PostgreSQL, supervised processes, scratch directories, and
//! waiting for conditions. Needs no client of a broker, so tests of stores compile quickly. The
//! package `jobwire-tests` has the rest, and passes these names on.
//!
//! | for | use |
//! | --- | --- |
//! | a fresh database on the shared PostgreSQL | [`shared::postgres`]`().await.create_database().await` |
//! | the same with Jobwire's tables | [`shared::postgres`]`().await.migrated_database().await` |
//! | a private PostgreSQL to stop, kill and start again | [`Postgres::start`] |
//! | a standby to promote | [`Postgres::start_standby`] |
//! | a PostgreSQL whose clock jumps | [`Postgres::start_with_clock`] |
//! | a pooler in front of a PostgreSQL | [`PgBouncer::start`] |
//! | certificates for TLS, trusted or not | [`Authority::new`] |
//! | a disk to fill | [`SmallDisk::mount`] |
//! | a database, a transport in the process and a client, for tests of nodes | [`world::World::new`] |
//! | ordered events of cases, created and then checked | [`Cases`] |
//! | waiting for a condition | [`eventually`], the only place where a test may pause |
//!
//! `JOBWIRE_TEST_POSTGRES_URL` (a superuser's URL) points [`shared`] at a server that already runs.
//!
//! All functions report failures by panicking: a harness that cannot do its work must fail the
//! test, never skip it. Whatever a test starts ends with the test process, also if it crashes or is
//! killed with `-9` (see `reaper.rs`).
#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic is how a test reports its failure"
)]

pub mod cases;
pub mod certificates;
pub mod database;
pub mod lines;
pub mod need;
pub mod pgbouncer;
pub mod port;
pub mod postgres;
mod processes;
pub mod reaper;
pub mod scratch;
pub mod server;
pub mod server_clock;
pub mod shared;
pub mod small_disk;
pub mod wait;
pub mod world;

pub use cases::Cases;
pub use certificates::{Authority, Identity};
pub use nix::sys::signal::Signal;
pub use pgbouncer::{PgBouncer, Pooling};
pub use postgres::{Postgres, Stop};
pub use scratch::Scratch;
pub use server::Server;
pub use server_clock::ServerClock;
pub use small_disk::SmallDisk;
pub use wait::eventually;

//! # The `jobwire` program
//!
//! Commands, settings and the HTTP endpoints around [`jobwire_core`].
//!
//! | module | content |
//! | --- | --- |
//! | [`cli`] | the command line: commands and flags |
//! | [`settings`] | all settings, from file, environment and flags |
//! | [`connect`] | connecting to the database and the broker |
//! | [`commands`] | one file for each command |
//! | [`handlers`] | the built-in handler types |
//! | [`demo`] | the demonstration |
//! | [`mod@bench`] | measurements |
//! | [`http`] | `/metrics`, `/healthz`, `/readyz` |
//! | [`error`] | errors and exit codes |
//!
//! Exit codes: 0 for success, 1 for a failure, 2 for invalid arguments or settings.

pub mod bench;
mod calendars;
pub mod cli;
pub mod commands;
pub mod connect;
pub mod demo;
pub mod error;
pub mod handlers;
pub mod http;
pub mod logging;
mod memory;
mod nodes;
pub mod output;
pub mod settings;
pub mod signals;
mod tables;

pub use cli::main;
pub use error::Error;
pub use settings::Settings;

//! # The `jobwire` program
//!
//! Commands, settings and the HTTP endpoints around [`jobwire_core`].
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`cli`] | the command line: which commands and flags there are |
//! | [`settings`] | every setting, from file, environment and flags |
//! | [`connect`] | from settings to a database and a transport |
//! | [`commands`] | one file a command |
//! | [`handlers`] | the built-in handler types |
//! | [`demo`] | the demonstration |
//! | [`mod@bench`] | measuring |
//! | [`http`] | `/metrics`, `/healthz`, `/readyz` |
//! | [`error`] | what can go wrong, exit codes |
//!
//! Exit codes: 0 done, 1 failed, 2 called wrongly (arguments or settings).

pub mod bench;
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

pub use cli::main;
pub use error::Error;
pub use settings::Settings;

//! Jobwire's own tables beside the tables of an engine: the leader, the nodes and the fences, in
//! the schema `jobwire_engine` of the engine's database.
//!
//! The command `jobwire engine init` creates the schema. `jobwire engine release` removes the rows of its
//! engine, and with those of the last engine the schema. A node does not start without it.

pub(crate) mod leader;
pub(crate) mod nodes;
pub mod schema;

//! Jobwire's own tables beside the tables of an engine: the leader, the nodes and the fences, in
//! the schema `jobwire_engine` of the engine's database.
//!
//! The command `jobwire engine init` creates the schema, and `jobwire engine release` removes it. A
//! node does not start without it.

pub(crate) mod leader;
pub(crate) mod nodes;
pub mod schema;

//! What Jobwire keeps beside the tables of an engine: the leader, the nodes and the numbers of
//! locks, in the schema `jobwire_engine` of the engine's database.
//!
//! A command creates the schema (`migrate`) and removes it. A node without it
//! refuses to start.

pub(crate) mod leader;
pub(crate) mod nodes;
pub mod schema;

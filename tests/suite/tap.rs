//! The commit tap: the stream of committed rows, and the jobs of plain SQL that the leader hints
//! with it. Budget: 90 s.

mod command;
mod fleets;
mod hints;
mod needs;
mod outages;
mod stream;
mod world;

//! Lanes: which lane a job gets, and in which order a node takes hints from its lanes.

pub mod order;
pub mod rule;

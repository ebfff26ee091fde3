//! Lanes: the rules by which jobs get a lane, and the order in which a node serves its lanes.

pub mod order;
pub mod priority;
pub mod rule;
pub mod start_order;

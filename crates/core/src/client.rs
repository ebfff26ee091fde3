//! Operations on jobs from outside a node.

pub mod lane_move;

//! The commands, one file each.

pub mod bench;
pub mod config;
pub mod demo;
pub mod doctor;
pub mod engine;
pub mod enqueue;
pub mod jobs;
pub mod lanes;
pub mod migrate;
pub mod nodes;
pub mod order;
pub mod periodic;
pub mod run;
pub mod sweep;
pub mod tap;

//! The commands, one file each.

pub mod batches;
pub mod bench;
pub mod config;
mod definition_key;
pub mod demo;
pub mod doctor;
pub mod engine;
pub mod enqueue;
pub mod events;
pub mod jobs;
pub mod lanes;
pub mod migrate;
pub mod nodes;
pub mod order;
pub mod periodic;
pub mod priorities;
pub mod purge;
pub mod run;
pub mod suspension;
pub mod sweep;
pub mod tap;

/// Reads the id of a batch or a node, or a correlation id on the command line.
fn id<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| "write a UUID, for example 0198c0de-7777-7000-8000-000000000001".to_owned())
}

/// Reads a date on the command line.
fn date(text: &str) -> Result<chrono::DateTime<chrono::Utc>, String> {
    text.parse().map_err(|_| {
        "write a date and time with time zone, for example 2027-01-31T08:00:00Z".to_owned()
    })
}

//! Every kind of job runs, or a sentence says that it does not: docs/engines has the tables.

mod batches;
mod cases;
mod history;
mod suspended;
mod timers;
mod workers;

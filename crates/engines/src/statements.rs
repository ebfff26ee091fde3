//! The reading statements of a dialect.

use std::time::Duration;

/// The statements of operators' queries.
#[derive(Debug)]
pub(crate) struct Queries {
    /// Selects the jobs that match: the columns of [`Decoder::view`](crate::decode::Decoder::view).
    /// `$1` to `$15` are those of `count`, `$16` the offset, `$17` the limit.
    pub(crate) find: &'static str,
    /// Counts the jobs that match. `$1`: the zone, `$2` to `$12`: the fields of the filter, `$13`:
    /// the lane of the engine, `$14`: the type of other handlers, `$15`: the known handlers.
    pub(crate) count: &'static str,
    /// Selects the stack of the last failure of the job `$1`.
    pub(crate) stack: &'static str,
}

/// The reading statements of the leader.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// Selects the orphans in the order of their ids: `id_`, `process_instance_id_`,
    /// `handler_type_`, and `is_free`, which is false for a row that another transaction has
    /// locked. A statement that reads only a part of the table has a column `read_to`: the id after
    /// which to continue, or NULL at the end. Then a row without an id is no orphan.
    ///
    /// `$1`: the zone, `$2`: after this id, `$3`: the horizon, `$4`: a moment, `$5`: ids whose hints
    /// are known, `$6`: maximum number, `$7`: whether to mark, `$8`: the groups of nodes, as JSON.
    pub(crate) orphans: &'static str,
    /// Counts the jobs: locked (among 100,000 rows), executable, timers, dead letters; the oldest
    /// ready job; the next due date; and an estimate of the executable jobs, or NULL. `$1`: the
    /// zone, `$2`: the limit of counting.
    pub(crate) backlog: &'static str,
    /// Counts the unlocked jobs that no group of nodes takes, by handler and by the deployment or
    /// category that the job needs, the largest numbers first. `$1`: the zone, `$2`: the groups as
    /// JSON, `$3`: maximum number of rows.
    pub(crate) unserved: &'static str,
}

/// The statement of a dry run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DryRun {
    /// Counts the jobs, in the order of the fields of
    /// [`Sweepable`](jobwire_core::job::query::Sweepable). `$1`: the zone, `$2`: the patience,
    /// `$3`: the engine, `$4`: the groups of nodes, as JSON, or NULL if each takes all jobs.
    pub(crate) sql: &'static str,
    /// The maximum time for which an expired lock stays while a transaction may be its execution.
    pub(crate) patience: Duration,
}

//! What a run cost: the database's own counters, and the processors.

use serde::Serialize;
use sqlx::Row;

use crate::connect::Database;
use crate::error::Error;

/// Counters at a moment.
pub(super) struct Mark {
    /// Calls of statements that name our tables, over all connections; none without the extension.
    statements: Option<i64>,
    wal_bytes: Option<i64>,
    /// Of the whole machine, in ticks of a hundredth of a second.
    machine: Option<u64>,
    nodes: u64,
}

/// What lies between two moments.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Cost {
    /// Statements a job, where `pg_stat_statements` counts them.
    pub(super) statements_per_job: Option<f64>,
    pub(super) wal_bytes_per_job: Option<f64>,
    /// Of all processes on this machine, whoever they belong to.
    pub(super) machine_cpu_micros_per_job: Option<f64>,
    pub(super) nodes_cpu_micros_per_job: Option<f64>,
    /// The largest node's resident memory at the end.
    pub(super) node_memory_mib: Option<f64>,
}

const TICK_MICROS: f64 = 10_000.0;

impl Mark {
    pub(super) async fn take(database: &Database, nodes: &[u32]) -> Result<Self, Error> {
        let (statements, wal_bytes) = match database {
            Database::Postgres(store) => {
                let pool = store.pool();
                let wal = sqlx::query(
                    "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint",
                )
                .fetch_one(pool)
                .await
                .map_err(read)?;
                // Not there, or not to be read: then it is not measured.
                let statements = sqlx::query(
                    "SELECT coalesce(sum(s.calls), 0)::bigint FROM pg_stat_statements s \
                     JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = current_database()",
                )
                .fetch_one(pool)
                .await
                .ok();
                (
                    statements.and_then(|row| row.try_get(0).ok()),
                    wal.try_get(0).ok(),
                )
            }
            Database::Sqlite(_) => (None, None),
        };
        Ok(Self {
            statements,
            wal_bytes,
            machine: machine(),
            nodes: nodes.iter().filter_map(|id| ticks_of(*id)).sum(),
        })
    }

    /// What this run cost until `later`, for each of its jobs.
    pub(super) fn until(&self, later: &Self, jobs: u32, nodes: &[u32]) -> Cost {
        let per_job = |amount: f64| amount / f64::from(jobs);
        let between = |from: Option<i64>, to: Option<i64>| Some(per_job((to? - from?) as f64));
        let ticks = |from: u64, to: u64| per_job(to.saturating_sub(from) as f64 * TICK_MICROS);
        Cost {
            // The two questions of the marks themselves are left out.
            statements_per_job: between(self.statements.map(|n| n + 2), later.statements),
            wal_bytes_per_job: between(self.wal_bytes, later.wal_bytes),
            machine_cpu_micros_per_job: self
                .machine
                .zip(later.machine)
                .map(|(from, to)| ticks(from, to)),
            nodes_cpu_micros_per_job: (!nodes.is_empty()).then(|| ticks(self.nodes, later.nodes)),
            node_memory_mib: nodes
                .iter()
                .filter_map(crate::memory::resident)
                .max()
                .map(|bytes| bytes as f64 / 1_048_576.0),
        }
    }
}

fn read(error: sqlx::Error) -> Error {
    Error::Failed(format!("the database's counters can't be read: {error}"))
}

/// User and system time of all processors.
fn machine() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let fields = stat.lines().next()?.split_whitespace().skip(1);
    let times: Vec<u64> = fields.filter_map(|field| field.parse().ok()).collect();
    // user, nice, system, (idle, iowait), irq, softirq
    Some([0, 1, 2, 5, 6].iter().filter_map(|at| times.get(*at)).sum())
}

fn ticks_of(process: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name in parentheses may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_and_this_machine_can_be_read() {
        let id = std::process::id();
        assert!(super::machine().is_some() && super::ticks_of(id).is_some());
    }
}

//! What a run cost: the database's own counters, processors, memory.

use serde::Serialize;

use super::groups::Groups;
use super::observer::{Observer, Statements};
use super::processors::Processors;

/// Counters at a moment.
pub(super) struct Mark {
    statements: Option<Statements>,
    wal_bytes: Option<i64>,
    processors: Processors,
}

/// What lies between two moments: statements, bytes, microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spent {
    pub(super) statements: Option<u64>,
    /// Those of them that no job asks for.
    pub(super) housekeeping: Option<u64>,
    pub(super) wal_bytes: Option<u64>,
    pub(super) machine: Option<u64>,
    pub(super) database: Option<u64>,
    pub(super) broker: Option<u64>,
    pub(super) nodes: Option<u64>,
    pub(super) bench: Option<u64>,
    /// The largest node's resident memory at the later moment, and the most that one ever had.
    pub(super) memory: Option<u64>,
    pub(super) peak_memory: Option<u64>,
}

/// The same for each job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Cost {
    /// Every call of every statement, where `pg_stat_statements` counts them.
    pub(super) statements_per_job: Option<f64>,
    /// The same without those of the transactions that created the jobs.
    pub(super) statements_per_job_after_creation: Option<f64>,
    /// How much of that no job asks for: the leader's turns, and the settings of new connections. It grows with time,
    /// not with jobs.
    pub(super) housekeeping_statements_per_job: Option<f64>,
    pub(super) wal_bytes_per_job: Option<f64>,
    pub(super) database_cpu_micros_per_job: Option<f64>,
    pub(super) broker_cpu_micros_per_job: Option<f64>,
    pub(super) nodes_cpu_micros_per_job: Option<f64>,
    /// Of this process: it creates the jobs, and is told of each start.
    pub(super) bench_cpu_micros_per_job: Option<f64>,
    /// Of all processes on this machine, whoever they belong to.
    pub(super) machine_cpu_micros_per_job: Option<f64>,
    /// The largest node's resident memory at the end.
    pub(super) node_memory_mib: Option<f64>,
    /// The most that a node ever had.
    pub(super) node_peak_memory_mib: Option<f64>,
}

impl Mark {
    pub(super) async fn take(observer: &mut Observer, groups: Groups, nodes: &[u32]) -> Self {
        Self {
            statements: observer.statements().await,
            wal_bytes: observer.wal_bytes().await,
            processors: groups.look(nodes),
        }
    }

    /// What was spent until `later`, by nodes among others. Counters that were reset show nothing.
    pub(super) fn until(&self, later: &Self, nodes: &[u32]) -> Spent {
        let counted =
            |from: Option<i64>, to: Option<i64>| u64::try_from(to?.checked_sub(from?)?).ok();
        let between = |from: Option<u64>, to: Option<u64>| to?.checked_sub(from?);
        let statements =
            |of: fn(Statements) -> i64| counted(self.statements.map(of), later.statements.map(of));
        let (from, to) = (&self.processors, &later.processors);
        let most = |of: fn(&u32) -> Option<u64>| nodes.iter().filter_map(of).max();
        Spent {
            statements: statements(|counted| counted.all),
            housekeeping: statements(|counted| counted.housekeeping),
            wal_bytes: counted(self.wal_bytes, later.wal_bytes),
            machine: between(from.machine, to.machine),
            database: between(from.database, to.database),
            broker: between(from.broker, to.broker),
            // Where there is a machine's account, there are those of the nodes.
            nodes: between(to.machine.map(|_| from.nodes), Some(to.nodes)),
            bench: between(from.bench, to.bench),
            memory: most(|id| crate::memory::resident(id)),
            peak_memory: most(|id| crate::memory::peak(id)),
        }
    }
}

impl Spent {
    /// For each of so many jobs, created meanwhile by transactions of so many statements in all; `None` where
    /// nobody knows how many those were.
    pub(super) fn per_job(&self, jobs: u32, creating: Option<u64>) -> Cost {
        let per_job = |amount: Option<u64>| {
            amount
                .filter(|_| jobs > 0)
                .map(|a| a as f64 / f64::from(jobs))
        };
        let after_creation = self
            .statements
            .zip(creating)
            .and_then(|(all, creating)| all.checked_sub(creating));
        Cost {
            statements_per_job: per_job(self.statements),
            statements_per_job_after_creation: per_job(after_creation),
            housekeeping_statements_per_job: per_job(self.housekeeping),
            wal_bytes_per_job: per_job(self.wal_bytes),
            database_cpu_micros_per_job: per_job(self.database),
            broker_cpu_micros_per_job: per_job(self.broker),
            nodes_cpu_micros_per_job: per_job(self.nodes),
            bench_cpu_micros_per_job: per_job(self.bench),
            machine_cpu_micros_per_job: per_job(self.machine),
            node_memory_mib: self.memory.map(mebibytes),
            node_peak_memory_mib: self.peak_memory.map(mebibytes),
        }
    }
}

pub(super) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / 1_048_576.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(statements: Option<i64>, database: Option<u64>) -> Mark {
        Mark {
            statements: statements.map(|all| Statements {
                all,
                housekeeping: all / 10,
            }),
            wal_bytes: Some(1_000),
            processors: Processors {
                database,
                ..Processors::default()
            },
        }
    }

    #[test]
    fn what_was_not_measured_stays_unknown() {
        let spent = mark(Some(-3), Some(500)).until(&mark(Some(97), None), &[]);
        let expected = Spent {
            statements: Some(100),
            housekeeping: Some(9),
            wal_bytes: Some(0),
            ..Spent::default()
        };
        assert_eq!(spent, expected);
        let reset = mark(Some(9), None).until(&mark(Some(2), None), &[]);
        assert_eq!(reset.statements, None);
    }

    #[test]
    fn the_creating_transactions_are_told_apart() {
        let spent = Spent {
            statements: Some(100),
            housekeeping: Some(5),
            nodes: Some(500),
            memory: Some(3 << 20),
            ..Spent::default()
        };
        let cost = spent.per_job(20, Some(80));
        assert_eq!(cost.statements_per_job, Some(5.0));
        assert_eq!(cost.statements_per_job_after_creation, Some(1.0));
        assert_eq!(cost.housekeeping_statements_per_job, Some(0.25));
        assert_eq!(cost.nodes_cpu_micros_per_job, Some(25.0));
        assert_eq!(
            (cost.node_memory_mib, cost.wal_bytes_per_job),
            (Some(3.0), None)
        );
        let unknown = spent.per_job(20, None);
        assert_eq!(unknown.statements_per_job_after_creation, None);
        assert_eq!(spent.per_job(0, Some(0)).statements_per_job, None);
    }
}

//! The cost of a run: the database's own counters, processor time, memory.

use serde::Serialize;

use super::groups::Groups;
use super::observer::{Observer, Statements};
use super::processors::Processors;

/// The counters at one time.
pub(super) struct Mark {
    statements: Option<Statements>,
    wal_bytes: Option<i64>,
    processors: Processors,
}

/// The differences between two marks, in statements, bytes and microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spent {
    pub(super) statements: Option<u64>,
    /// The statements that serve no job.
    pub(super) housekeeping: Option<u64>,
    pub(super) wal_bytes: Option<u64>,
    pub(super) machine: Option<u64>,
    pub(super) database: Option<u64>,
    pub(super) broker: Option<u64>,
    pub(super) nodes: Option<u64>,
    pub(super) bench: Option<u64>,
    /// The resident memory of the largest node at the later mark, and the peak of any node.
    pub(super) memory: Option<u64>,
    pub(super) peak_memory: Option<u64>,
}

/// The cost per job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Cost {
    /// Calls of all statements, if `pg_stat_statements` counts them.
    pub(super) statements_per_job: Option<f64>,
    /// The same without the transactions that created the jobs.
    pub(super) statements_per_job_after_creation: Option<f64>,
    /// The statements that serve no job: leader cycles, and the settings of new connections. They
    /// grow with time, not with jobs.
    pub(super) housekeeping_statements_per_job: Option<f64>,
    pub(super) wal_bytes_per_job: Option<f64>,
    pub(super) database_cpu_micros_per_job: Option<f64>,
    pub(super) broker_cpu_micros_per_job: Option<f64>,
    pub(super) nodes_cpu_micros_per_job: Option<f64>,
    /// Processor time of this process, which creates the jobs and receives the reports of starts.
    pub(super) bench_cpu_micros_per_job: Option<f64>,
    /// Processor time of all processes on this machine.
    pub(super) machine_cpu_micros_per_job: Option<f64>,
    /// The resident memory of the largest node at the end.
    pub(super) node_memory_mib: Option<f64>,
    /// The peak of the resident memory of any node.
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

    /// Returns the differences to the mark `later`. A counter that was reset meanwhile gives
    /// `None`.
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
            // The nodes' times are known if the machine's time is known.
            nodes: between(to.machine.map(|_| from.nodes), Some(to.nodes)),
            bench: between(from.bench, to.bench),
            memory: most(|id| crate::memory::resident(id)),
            peak_memory: most(|id| crate::memory::peak(id)),
        }
    }
}

impl Spent {
    /// Divides by the number of jobs. `creating` is the number of statements of the transactions
    /// that created them; `None` if unknown.
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

//! What a drain takes: processor time by process, as Linux counts it, and transactions and WAL, as
//! the database counts them.
//!
//! Processor time is counted in hundredths of a second, so only a drain of many jobs has exact
//! figures. The database's time is that of the sessions, by the name of their application; writers
//! and checkpoints in the background are not counted.

use std::fmt;
use std::fs;

use serde::Serialize;
use sqlx::PgPool;

/// Ticks of a second in the files of processes. Linux shows the same number on every machine.
const TICKS: f64 = 100.0;

const SESSIONS: &str = "SELECT pid, application_name FROM pg_stat_activity
WHERE datname = current_database() AND application_name IN ('engine', 'jobwire')";

const COUNTERS: &str = "SELECT xact_commit + xact_rollback, pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint
FROM pg_stat_database WHERE datname = current_database()";

/// The cost until a moment; processor time in ticks.
#[derive(Debug, Default)]
pub(super) struct Spent {
    engine: u64,
    node: u64,
    /// Of each session: its process, whether it is the engine's, and its time.
    sessions: Vec<(i32, bool, u64)>,
    transactions: i64,
    wal: i64,
}

/// What a job took. Processor time in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Cost {
    /// The engine's nodes.
    pub engine: f64,
    /// The database for the engine.
    pub engine_database: f64,
    /// The node of Jobwire.
    pub node: f64,
    /// The database for the node of Jobwire.
    pub node_database: f64,
    /// Transactions of all, also of the bench.
    pub transactions: f64,
    /// Bytes of WAL.
    pub wal: f64,
}

impl Spent {
    /// Returns what these processes and their sessions have spent until now.
    pub(super) async fn now(pool: &PgPool, engines: Vec<u32>, node: Option<u32>) -> Spent {
        let sessions: Vec<(i32, String)> = sqlx::query_as(SESSIONS)
            .fetch_all(pool)
            .await
            .unwrap_or_else(|error| panic!("the sessions of the database: {error}"));
        let (transactions, wal): (i64, i64) = sqlx::query_as(COUNTERS)
            .fetch_one(pool)
            .await
            .unwrap_or_else(|error| panic!("the counters of the database: {error}"));
        let sessions = sessions.into_iter().map(|(pid, name)| {
            let ticks = u32::try_from(pid).map_or(0, ticks);
            (pid, name == "engine", ticks)
        });
        Spent {
            engine: engines.into_iter().map(ticks).sum(),
            node: node.map_or(0, ticks),
            sessions: sessions.collect(),
            transactions,
            wal,
        }
    }

    /// Returns what each of `jobs` jobs took since `before`. Sessions that have ended meanwhile are
    /// not counted.
    pub(super) fn since(&self, before: &Spent, jobs: usize) -> Cost {
        let jobs = jobs.max(1) as f64;
        let millis = |ticks: u64| ticks as f64 / TICKS * 1e3 / jobs;
        let database = |of_engine: bool| {
            let own = self.sessions.iter().filter(|it| it.1 == of_engine);
            let spent = own.map(|(pid, _, ticks)| {
                let known = before.sessions.iter().find(|it| it.0 == *pid);
                ticks.saturating_sub(known.map_or(0, |it| it.2))
            });
            millis(spent.sum())
        };
        Cost {
            engine: millis(self.engine.saturating_sub(before.engine)),
            engine_database: database(true),
            node: millis(self.node.saturating_sub(before.node)),
            node_database: database(false),
            transactions: (self.transactions - before.transactions) as f64 / jobs,
            wal: (self.wal - before.wal) as f64 / jobs,
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "engine {:.2} + {:.2} ms, node {:.2} + {:.2} ms, {:.1} transactions, {:.0} bytes of WAL",
            self.engine,
            self.engine_database,
            self.node,
            self.node_database,
            self.transactions,
            self.wal
        )
    }
}

/// Returns the processor time of a process; 0 if it has ended.
fn ticks(process: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    time_in(&stat)
}

/// Reads the time in user mode and in the kernel: the 14th and the 15th field. The second field, the
/// name in parentheses, may contain spaces.
fn time_in(stat: &str) -> u64 {
    let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let times = behind_name.split_whitespace().skip(11).take(2);
    times.filter_map(|it| it.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_costs_the_difference_of_its_drain() {
        let before = Spent {
            engine: 100,
            sessions: vec![(7, true, 50)],
            transactions: 10,
            ..Spent::default()
        };
        let after = Spent {
            engine: 300,
            node: 20,
            sessions: vec![(7, true, 80), (8, false, 10)],
            transactions: 60,
            wal: 5_000,
        };
        let cost = after.since(&before, 10);
        assert_eq!((cost.engine, cost.engine_database), (200.0, 30.0));
        assert_eq!((cost.node, cost.node_database), (20.0, 10.0));
        assert_eq!((cost.transactions, cost.wal), (5.0, 500.0));
    }

    #[test]
    fn the_time_of_a_process_is_found_behind_its_name() {
        let stat = "17 (a (b) c) S 1 17 17 0 -1 4194560 900 0 0 0 123 45 6 7 20 0";
        assert_eq!(time_in(stat), 168);
        assert_eq!(time_in(""), 0);
    }
}

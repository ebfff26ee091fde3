//! Processor time by group of processes: database, broker, nodes, the bench itself. It comes from
//! Linux's /proc, and is not available on other systems.
//!
//! Servers are found by the names of their executables, so other servers of the same name on this
//! machine are included. The time of ended children is counted for their parent, so the end of a
//! PostgreSQL session does not reduce the sum.

use super::groups::Groups;
use super::processes::{TICK_MICROS, processes};

/// Processor time so far, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Processors {
    /// The sum over all processes of this machine.
    pub(super) machine: Option<u64>,
    pub(super) database: Option<u64>,
    pub(super) broker: Option<u64>,
    pub(super) nodes: u64,
    pub(super) bench: Option<u64>,
}

impl Groups {
    /// Reads the processor time of all processes.
    pub(super) fn look(&self, nodes: &[u32]) -> Processors {
        let mut found = Processors {
            machine: machine(),
            database: self.database.map(|_| 0),
            broker: self.broker.map(|_| 0),
            ..Processors::default()
        };
        let this = std::process::id();
        for process in processes() {
            if nodes.contains(&process.id) {
                found.nodes += process.own;
            } else if process.id == this {
                found.bench = Some(process.own);
            }
            let name = Some(process.name.as_str());
            for (group, account) in [
                (self.database, &mut found.database),
                (self.broker, &mut found.broker),
            ] {
                if group == name {
                    *account = account.map(|so_far| so_far + process.own + process.children);
                }
            }
        }
        found
    }
}

/// Returns the user and system time of all processors, in microseconds.
pub(super) fn machine() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    let fields = stat.lines().next()?.split_whitespace().skip(1);
    let times: Vec<u64> = fields.filter_map(|field| field.parse().ok()).collect();
    // user, nice, system, (idle, iowait), irq, softirq
    let ticks: u64 = [0, 1, 2, 5, 6].iter().filter_map(|at| times.get(*at)).sum();
    Some(ticks * TICK_MICROS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_and_this_machine_are_found() {
        let this = std::process::id();
        let groups = Groups {
            database: None,
            broker: None,
        };
        let found = groups.look(&[]);
        assert!(found.machine.is_some() && found.bench.is_some());
        assert_eq!((found.database, found.broker, found.nodes), (None, None, 0));
        assert!(processes().any(|process| process.id == this));
    }
}

//! Processor time by group of processes: database, broker, nodes, the bench itself. From Linux's
//! /proc; not available on other systems.
//!
//! Servers are found by the names of their executables, so another server of the same name on this
//! machine is included. The time of ended children is counted for their parent, so a PostgreSQL
//! session that ends does not reduce the sum.

use super::groups::Groups;

/// A tick of the kernel's processor times on Linux.
const TICK_MICROS: u64 = 10_000;

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

/// A process with its processor time in microseconds.
#[derive(Debug, PartialEq)]
pub(super) struct Process {
    id: u32,
    pub(super) name: String,
    own: u64,
    /// The time of its children that have ended.
    children: u64,
}

pub(super) fn processes() -> impl Iterator<Item = Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        // The process may have ended since.
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        parse(id, &stat)
    })
}

/// Parses `id (name) state …`; the name may contain any characters.
fn parse(id: u32, stat: &str) -> Option<Process> {
    let (head, fields) = stat.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    let mut times = fields.split_whitespace().skip(11).take(4);
    let mut both = || {
        let user: u64 = times.next()?.parse().ok()?;
        let system: u64 = times.next()?.parse().ok()?;
        Some((user + system) * TICK_MICROS)
    };
    Some(Process {
        id,
        name: name.to_owned(),
        own: both()?,
        children: both()?,
    })
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
    fn a_process_is_read_whatever_it_is_called() {
        let stat = "42 (a ) b (c) S 1 42 42 0 -1 4194560 1 2 3 4 7 3 20 5 20 0 1 0 100 0 0";
        let process = Process {
            id: 42,
            name: "a ) b (c".to_owned(),
            own: 100_000,
            children: 250_000,
        };
        assert_eq!(parse(42, stat), Some(process));
        assert_eq!(parse(42, "42 (cut) S 1"), None);
    }

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

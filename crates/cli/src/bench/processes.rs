//! The processes of this machine, with their processor time, from Linux's /proc. Empty on other
//! systems.

/// A tick of the kernel's processor times on Linux.
pub(super) const TICK_MICROS: u64 = 10_000;

/// A process with its processor time in microseconds.
#[derive(Debug, PartialEq)]
pub(super) struct Process {
    pub(super) id: u32,
    pub(super) name: String,
    pub(super) own: u64,
    /// The processor time of its ended children.
    pub(super) children: u64,
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
}

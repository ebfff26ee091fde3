//! The memory of a process, from Linux's /proc. It is not available on other systems.

use std::fmt::Display;

/// Returns the resident memory of a process in bytes. The process is an id or `self`.
pub(crate) fn resident(process: impl Display) -> Option<u64> {
    read(process, "VmRSS:")
}

/// Returns the maximum of its resident memory so far, in bytes.
pub(crate) fn peak(process: impl Display) -> Option<u64> {
    read(process, "VmHWM:")
}

fn read(process: impl Display, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    #[test]
    #[cfg(target_os = "linux")]
    fn memory_is_read_in_bytes() {
        for process in ["self".to_owned(), std::process::id().to_string()] {
            let resident = super::resident(&process);
            assert!(resident.is_some_and(|bytes| bytes > 1 << 20));
            assert!(super::peak(&process).is_some_and(|bytes| bytes > 1 << 20));
        }
    }
}

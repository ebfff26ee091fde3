//! Other processes of this machine, read from `/proc`.

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

/// Returns the processes whose parent is `parent`.
pub(crate) fn children_of(parent: u32) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.map(Pid::from_raw)
        .filter(|&id| stat(id).is_some_and(|(_, of)| of == parent))
        .collect()
}

/// Returns whether a process runs. A zombie does not: it only waits for its parent to read its exit
/// status.
pub(crate) fn is_running(id: Pid) -> bool {
    stat(id).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

pub(crate) fn kill(id: Pid) {
    let _ = signal::kill(id, Signal::SIGKILL);
}

/// Returns the state and the parent of a process.
fn stat(id: Pid) -> Option<(char, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The format is `pid (name) state parent …`, and the name may contain any character.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.next()?.parse().ok()?))
}

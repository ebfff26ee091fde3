//! A lock on a file that ends with the process, and so proves the death of the node in it.
//!
//! A node whose transport reaches no other process serves its database alone. It holds this lock
//! and writes its id to the file. When the next process gets the lock, the node that the file names
//! has died, and its leases end at once instead of expiring (protocol rule 33). If the lock is
//! taken, the process of that node lives, and a second node is refused at once. Without the lock,
//! leases expire, as on every other store.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use crate::job::NodeId;

/// Maximum number of bytes that are read from the file; more than an id and [`DROPPED`] have.
const NAME_AT_MOST: u64 = 64;
/// Follows the id of a node that was dropped in a process that lives on.
const DROPPED: &str = "dropped";

/// The holder of the lock.
#[derive(Debug)]
pub enum Succession {
    /// This node. Keep the lock until the node has ended: it proves the node's death to the next
    /// one.
    Ours(ProcessLock),
    /// This other node, whose process lives.
    HeldBy(NodeId),
    /// Unknown: there is no such lock, or the file does not show whether its holder still runs
    /// jobs.
    Unknown,
}

/// The lock, held until it is dropped, or, after `keep`, until the process ends.
#[derive(Debug)]
pub struct ProcessLock(File);

impl ProcessLock {
    /// Takes the lock, unless another process or another node of this process has it.
    ///
    /// # Errors
    /// The file can't be opened, or its file system does not support locks.
    pub(crate) fn take(path: &Path) -> io::Result<Succession> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Succession::Ours(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(match named(&file) {
                Some((holder, false)) => Succession::HeldBy(holder),
                _ => Succession::Unknown,
            }),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Returns the node that held the lock before and did not release it.
    pub(crate) fn predecessor(&self) -> Option<NodeId> {
        named(&self.0).map(|(node, _)| node)
    }

    /// Writes the id of the node that holds the lock from now on.
    pub(crate) fn name(&mut self, node: NodeId) -> io::Result<()> {
        self.write(&node.to_string())
    }

    fn write(&mut self, name: &str) -> io::Result<()> {
        self.0.set_len(0)?;
        self.0.rewind()?;
        self.0.write_all(name.as_bytes())
    }

    /// Releases the lock of a node that has ended and whose jobs have ended.
    pub(crate) fn release(mut self) {
        let _ = self.write("");
    }

    /// Keeps the lock until the process ends. Jobs of the node may still run, and only the end of
    /// the process proves their end. The node no longer leads, so another node may follow it when
    /// its leases have ended.
    pub(crate) fn keep(mut self) {
        if let Some(node) = self.predecessor() {
            let _ = self.write(&format!("{node} {DROPPED}"));
        }
        std::mem::forget(self);
    }
}

/// Returns the node that the file names, and whether it was dropped.
fn named(mut file: &File) -> Option<(NodeId, bool)> {
    let mut name = String::new();
    file.rewind().ok()?;
    file.take(NAME_AT_MOST).read_to_string(&mut name).ok()?;
    let mut words = name.split_whitespace();
    let node = words.next()?.parse().ok().map(NodeId)?;
    Some((node, words.next() == Some(DROPPED)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(path: &Path) -> ProcessLock {
        match ProcessLock::take(path).unwrap() {
            Succession::Ours(lock) => lock,
            other => panic!("the lock is free: {other:?}"),
        }
    }

    #[test]
    fn a_lock_is_one_holder_s_until_it_is_released_and_names_one_that_did_not() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("node");
        let mut first = take(&path);
        assert_eq!(first.predecessor(), None);
        let node = NodeId::generate();
        first.name(node).unwrap();
        let second = ProcessLock::take(&path).unwrap();
        assert!(
            matches!(second, Succession::HeldBy(holder) if holder == node),
            "{second:?}"
        );
        first.release();
        let forsaken = take(&path);
        drop(forsaken);
        let mut second = take(&path);
        assert_eq!(second.predecessor(), None, "it ended in order");
        second.name(node).unwrap();
        second.keep();
        let third = ProcessLock::take(&path).unwrap();
        assert!(
            matches!(third, Succession::Unknown),
            "what it ran may still run, and it may be followed: {third:?}"
        );
    }

    #[test]
    fn a_node_that_was_dropped_is_a_predecessor_when_its_process_has_ended() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("node");
        let node = NodeId::generate();
        std::fs::write(&path, format!("{node} {DROPPED}")).unwrap();
        assert_eq!(take(&path).predecessor(), Some(node));
    }

    #[test]
    fn a_file_that_names_nothing_readable_proves_nothing() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("node");
        std::fs::write(&path, [0xff, 0x00].repeat(1000)).unwrap();
        let lock = take(&path);
        assert_eq!(lock.predecessor(), None);
        assert!(matches!(
            ProcessLock::take(&path).unwrap(),
            Succession::Unknown
        ));
    }
}

//! A lock on a file that ends with the process, and so proves its death.
//!
//! A node whose transport reaches no other process serves its database alone. It holds this lock and leaves its id in
//! the file. The next process that gets the lock knows that the node which is named there has died, and ends its leases
//! at once instead of waiting for them (protocol rule 33). Where the lock is taken, the process of the node that is
//! named there lives: a second node is refused at once. Without the lock, leases end by time, as on every other store.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use crate::job::NodeId;

/// More than an id and [`DROPPED`] have letters.
const NAME_AT_MOST: u64 = 64;
/// Stands behind the id of a node that was dropped in a process that lives on.
const DROPPED: &str = "dropped";

/// Who has the lock.
#[derive(Debug)]
pub enum Succession {
    /// This node. The proof of its death for the next one has to be kept until the node has ended.
    Ours(ProcessLock),
    /// This one, whose process lives.
    HeldBy(NodeId),
    /// Nobody knows: there is no such lock, or its holder does not say whether it still runs anything.
    Unknown,
}

/// LockToken until it is dropped, or, where it is kept, until the process ends.
#[derive(Debug)]
pub struct ProcessLock(File);

impl ProcessLock {
    /// Take the lock, where no other process, nor another node of this one, has it.
    ///
    /// # Errors
    /// The file can't be opened, or its file system knows no locks.
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

    /// The node that held the lock before and did not release it.
    pub(crate) fn predecessor(&self) -> Option<NodeId> {
        named(&self.0).map(|(node, _)| node)
    }

    /// Leave the id of the node that holds the lock from now on.
    pub(crate) fn name(&mut self, node: NodeId) -> io::Result<()> {
        self.write(&node.to_string())
    }

    fn write(&mut self, name: &str) -> io::Result<()> {
        self.0.set_len(0)?;
        self.0.rewind()?;
        self.0.write_all(name.as_bytes())
    }

    /// The node has ended, and left nothing behind that runs.
    pub(crate) fn release(mut self) {
        let _ = self.write("");
    }

    /// What the node ran may still run: only the end of the process proves that nothing does. The node itself leads no
    /// more, so that another one may follow it when its leases have ended.
    pub(crate) fn keep(mut self) {
        if let Some(node) = self.predecessor() {
            let _ = self.write(&format!("{node} {DROPPED}"));
        }
        std::mem::forget(self);
    }
}

/// The node that the file names, and whether it was dropped.
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

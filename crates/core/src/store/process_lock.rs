//! A lock on a file that ends with the process, and so proves its death.
//!
//! A node whose transport reaches no other process serves its database alone. It holds this lock and leaves its id in the
//! file. The next process that gets the lock knows that the node which is named there has died, and ends its leases at once
//! instead of waiting for them (protocol rule 33). Without the lock, leases end by time, as on every other store.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use crate::job::NodeId;

/// More than an id has letters.
const NAME_AT_MOST: u64 = 64;

/// Held until it is dropped, or, where it is kept, until the process ends.
#[derive(Debug)]
pub struct ProcessLock(File);

impl ProcessLock {
    /// Take the lock. `None` where another process, or another node of this one, has it.
    ///
    /// # Errors
    /// The file can't be opened, or its file system knows no locks.
    pub(crate) fn take(path: &Path) -> io::Result<Option<Self>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Self(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// The node that held the lock before and did not release it.
    pub(crate) fn predecessor(&mut self) -> Option<NodeId> {
        let mut name = String::new();
        self.0.rewind().ok()?;
        (&self.0)
            .take(NAME_AT_MOST)
            .read_to_string(&mut name)
            .ok()?;
        name.trim().parse().ok().map(NodeId)
    }

    /// Leave the id of the node that holds the lock from now on.
    pub(crate) fn name(&mut self, node: Option<NodeId>) -> io::Result<()> {
        self.0.set_len(0)?;
        self.0.rewind()?;
        match node {
            Some(node) => self.0.write_all(node.to_string().as_bytes()),
            None => Ok(()),
        }
    }

    /// The node has ended, and left nothing behind that runs.
    pub(crate) fn release(mut self) {
        let _ = self.name(None);
    }

    /// What the node ran may still run: only the end of the process proves that nothing does.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_one_holder_s_until_it_is_released_and_names_one_that_did_not() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("node");
        let mut first = ProcessLock::take(&path).unwrap().unwrap();
        assert_eq!(first.predecessor(), None);
        let node = NodeId::generate();
        first.name(Some(node)).unwrap();
        assert!(ProcessLock::take(&path).unwrap().is_none());
        first.release();
        let forsaken = ProcessLock::take(&path).unwrap().unwrap();
        drop(forsaken);
        let mut second = ProcessLock::take(&path).unwrap().unwrap();
        assert_eq!(second.predecessor(), None, "it ended in order");
        second.name(Some(node)).unwrap();
        second.keep();
        assert!(
            ProcessLock::take(&path).unwrap().is_none(),
            "what it ran may still run"
        );
    }

    #[test]
    fn a_file_that_names_nothing_readable_proves_nothing() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("node");
        std::fs::write(&path, [0xff, 0x00].repeat(1000)).unwrap();
        let mut lock = ProcessLock::take(&path).unwrap().unwrap();
        assert_eq!(lock.predecessor(), None);
    }
}

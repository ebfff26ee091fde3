//! Temporary directories.

use crate::reaper;
use std::path::{Path, PathBuf};

/// The free memory, in bytes, below which directories are not made in memory.
const ROOM: u64 = 4 << 30;

/// A directory of one test. It is removed when it is dropped or when the process ends, in any way.
#[derive(Debug)]
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    /// Creates an empty directory in the system's directory for temporary files.
    #[must_use]
    pub fn new() -> Scratch {
        Scratch::within(&std::env::temp_dir())
    }

    /// Creates a directory in memory, if possible and if there is room. A server that writes little
    /// then does not wait for a busy disk.
    #[must_use]
    pub fn in_memory() -> Scratch {
        let memory = Path::new("/dev/shm");
        let room = nix::sys::statvfs::statvfs(memory);
        let room = room.map_or(0, |found| found.blocks_available() * found.fragment_size());
        let is_writable = nix::unistd::access(memory, nix::unistd::AccessFlags::W_OK).is_ok();
        if is_writable && room >= ROOM {
            Scratch::within(memory)
        } else {
            Scratch::new()
        }
    }

    fn within(place: &Path) -> Scratch {
        let directory = tempfile::Builder::new()
            .prefix("jobwire-test-")
            .tempdir_in(place)
            .expect("a temporary directory can be made (is TMPDIR writable?)");
        reaper::remove_at_end(directory.path());
        Scratch(directory)
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns a path inside the directory.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    /// Writes a file inside the directory and returns its path.
    #[must_use]
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        std::fs::write(&path, content)
            .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        path
    }
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch::new()
    }
}

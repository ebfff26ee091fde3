//! Temporary directories.

use crate::reaper;
use std::path::{Path, PathBuf};

/// Less room in memory than this is left to others.
const ROOM: u64 = 4 << 30;

/// A directory of one test, removed when it is dropped or when the process ends,
/// however it ends.
#[derive(Debug)]
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    /// Makes an empty directory in the system's place for temporary files.
    #[must_use]
    pub fn new() -> Scratch {
        Scratch::within(&std::env::temp_dir())
    }

    /// The same in memory, where that can be done and has room: a server of which little is written
    /// does not wait for a disk that others keep busy.
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

    /// The directory itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A path inside the directory.
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

//! Temporary directories.

use crate::reaper;
use std::path::{Path, PathBuf};

/// A directory of one test, removed when it is dropped or when the process ends,
/// however it ends.
#[derive(Debug)]
pub struct Scratch(tempfile::TempDir);

impl Scratch {
    /// Makes an empty directory in the system's place for temporary files.
    #[must_use]
    pub fn new() -> Scratch {
        let directory = tempfile::Builder::new()
            .prefix("jobwire-test-")
            .tempdir()
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

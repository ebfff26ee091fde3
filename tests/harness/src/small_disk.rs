//! A small disk that a test can fill.

use crate::{Scratch, reaper};
use nix::unistd::Uid;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system in memory, mounted in its own directory, with room for a few megabytes. It is
/// unmounted when it is dropped and when the test process ends, in any way.
#[derive(Debug)]
pub struct SmallDisk {
    path: PathBuf,
    // The mount point.
    _scratch: Scratch,
}

impl SmallDisk {
    /// Mounts a small disk. Where mounting is not allowed (it needs root, and a container may
    /// forbid it), prints this to standard error and returns `None`; the caller then skips its
    /// test.
    #[must_use]
    pub fn mount(megabytes: u32) -> Option<SmallDisk> {
        if !Uid::effective().is_root() {
            eprintln!("skipped: mounting a small disk (tmpfs) needs root");
            return None;
        }
        let scratch = Scratch::new();
        let path = scratch.join("disk");
        std::fs::create_dir(&path).expect("a directory");
        reaper::unmount_at_end(&path);
        let size = format!("size={megabytes}m,mode=0755");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "tmpfs"])
            .arg(&path)
            .output()
            .unwrap_or_else(|error| panic!("cannot start mount: {error}"));
        if !mounted.status.success() {
            let said = String::from_utf8_lossy(&mounted.stderr);
            eprintln!("skipped: cannot mount a small disk (tmpfs): {said}");
            return None;
        }
        Some(SmallDisk {
            path,
            _scratch: scratch,
        })
    }

    /// Returns the path of the mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fills the free space.
    pub fn fill(&self) {
        let mut ballast = File::create(self.ballast()).expect("a file");
        let chunk = vec![1; 64 * 1024];
        loop {
            match ballast.write(&chunk) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => return,
                Err(error) => panic!("cannot fill {}: {error}", self.path.display()),
            }
        }
    }

    /// Frees the space that [`SmallDisk::fill`] took.
    pub fn make_room(&self) {
        std::fs::remove_file(self.ballast()).expect("it was filled");
    }

    fn ballast(&self) -> PathBuf {
        self.path.join("ballast")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a server that was just killed may still have files open there.
        let unmounted = Command::new("umount").arg("-l").arg(&self.path).status();
        if unmounted.is_ok_and(|status| status.success()) {
            reaper::unmounted(&self.path);
        }
    }
}

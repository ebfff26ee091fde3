//! A disk so small that a test can fill it.

use crate::{Scratch, reaper};
use nix::unistd::Uid;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system in memory, mounted in a directory of its own, with room for a few
/// megabytes. It is unmounted when it is dropped and when the test process ends,
/// however that ends.
#[derive(Debug)]
pub struct SmallDisk {
    path: PathBuf,
    // Empty behind the mount.
    _scratch: Scratch,
}

impl SmallDisk {
    /// Mounts one; where that is not allowed (it takes root, and a container may forbid it) it says so on
    /// standard error, and the test that asked is left out.
    #[must_use]
    pub fn mount(megabytes: u32) -> Option<SmallDisk> {
        if !Uid::effective().is_root() {
            eprintln!("left out: to mount a small disk (tmpfs) takes root");
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
            eprintln!("left out: a small disk (tmpfs) can't be mounted here: {said}");
            return None;
        }
        Some(SmallDisk {
            path,
            _scratch: scratch,
        })
    }

    /// Where it is mounted.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes what room is left.
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

    /// Gives back what [`SmallDisk::fill`] took.
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

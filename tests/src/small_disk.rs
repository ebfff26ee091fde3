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
    scratch: Scratch,
}

impl SmallDisk {
    /// Mounts one.
    ///
    /// # Panics
    /// If that is not allowed: on Linux it takes root.
    #[must_use]
    pub fn mount(megabytes: u32) -> SmallDisk {
        assert!(
            Uid::effective().is_root(),
            "a test that fills a disk mounts a small one (tmpfs), which takes root: run the \
             tests as root, in a container of your own for example, or leave this one out"
        );
        let scratch = Scratch::new();
        let path = scratch.join("disk");
        std::fs::create_dir(&path).expect("a directory");
        reaper::unmount_at_end(&path);
        let disk = SmallDisk { path, scratch };
        let size = format!("size={megabytes}m,mode=0755");
        disk.run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs"]);
        disk
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

    fn run(&self, program: &str, arguments: &[&str]) {
        let output = Command::new(program)
            .args(arguments)
            .arg(&self.path)
            .output();
        let output = output.unwrap_or_else(|error| panic!("cannot start {program}: {error}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{program} failed on {} (a container may forbid it): {said}",
            self.scratch.path().display()
        );
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

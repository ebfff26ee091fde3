//! Ends every child when the test process ends.
//!
//! `Drop` does not suffice: it does not run for statics, on Ctrl-C, on `kill -9` or on a crash. So
//! a test process first starts a *reaper*: a small shell (`reaper.sh`) that reads from a pipe whose
//! other end only this process holds. However this process ends, the kernel closes the pipe. The
//! reaper then kills every announced process group, and unmounts and removes every scratch
//! directory. It has its own process group, because Ctrl-C reaches the whole group of the test.
//!
//! A child announces itself between `fork` and `exec`, so the reaper has its group before the
//! program runs.
//!
//! `PR_SET_PDEATHSIG` is no alternative: it follows the *thread* that forked, is not inherited by
//! grandchildren, covers no directories, and exists on Linux only.

use nix::libc;
use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

struct Reaper {
    process: Child,
    pipe: Option<ChildStdin>,
}

static REAPER: LazyLock<Mutex<Reaper>> = LazyLock::new(|| {
    let mut process = Command::new("sh")
        .args(["-c", include_str!("reaper.sh"), "jobwire-test-reaper"])
        .stdin(Stdio::piped())
        // Not the test's own output: its reader waits until the last process has closed it.
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .current_dir("/")
        .process_group(0)
        .spawn()
        .expect("sh can be started");
    let pipe = process.stdin.take();
    #[allow(unsafe_code)]
    // SAFETY: `at_exit` is a plain function that uses statics which are never dropped.
    let registered = unsafe { libc::atexit(at_exit) };
    assert_eq!(registered, 0, "no exit handler can be registered");
    Mutex::new(Reaper { process, pipe })
});

fn reaper() -> MutexGuard<'static, Reaper> {
    REAPER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits at an ordinary end until the reaper has finished: when the test command returns,
/// everything is removed.
extern "C" fn at_exit() {
    let mut reaper = reaper();
    reaper.pipe = None;
    #[allow(unsafe_code)]
    // SAFETY: no handler is installed. With the signal ignored, the servers that the reaper ends
    // leave no zombies, which it would count as running processes.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
    }
    let _ = reaper.process.wait();
}

fn tell(notice: &str) {
    if let Some(pipe) = &mut reaper().pipe {
        pipe.write_all(notice.as_bytes())
            .expect("the reaper reads its pipe");
    }
}

/// Gives `command` its own process group, which ends with this process.
pub fn adopt(command: &mut Command) {
    let pipe = reaper().pipe.as_ref().map(AsRawFd::as_raw_fd);
    command.process_group(0);
    #[allow(unsafe_code)]
    // SAFETY: `announce` only makes system calls; it neither allocates nor locks.
    unsafe {
        command.pre_exec(move || pipe.map_or(Ok(()), announce));
    }
}

/// Announces the group. Runs in the forked child, where an allocation could deadlock.
fn announce(pipe: RawFd) -> std::io::Result<()> {
    let mut notice = [0_u8; 32];
    let free = {
        let mut rest = &mut notice[..];
        writeln!(rest, "group {}", std::process::id())?;
        rest.len()
    };
    let length = notice.len() - free;
    #[allow(unsafe_code)]
    // SAFETY: the buffer is ours and `length` bytes of it are written. A write to a pipe that is
    // this short is atomic.
    let written = unsafe { libc::write(pipe, notice.as_ptr().cast(), length) };
    if written < 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

/// Removes a process group that has ended: its id may be reused.
pub fn forget(group: u32) {
    tell(&format!("gone {group}\n"));
}

/// Removes a directory when this process ends.
pub(crate) fn remove_at_end(directory: &Path) {
    tell(&format!("directory {}\n", directory.display()));
}

/// Unmounts a file system when this process ends. The path has no space.
pub(crate) fn unmount_at_end(directory: &Path) {
    tell(&format!("mount {}\n", directory.display()));
}

/// Records that a file system has been unmounted.
pub(crate) fn unmounted(directory: &Path) {
    tell(&format!("unmounted {}\n", directory.display()));
}

//! A server's clock, which can be set ahead while the server runs.

use crate::{Scratch, need};
use chrono::{DateTime, Utc};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

const LIBRARY: &str = include_str!("server_clock.c");

/// The clock of a server. Cheap to clone. The default is always the correct time.
#[derive(Clone, Debug, Default)]
pub struct ServerClock(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The offset in seconds.
    ahead: AtomicI64,
    preloaded: Option<Preloaded>,
}

#[derive(Debug)]
struct Preloaded {
    library: PathBuf,
    /// The file with the clock's offset in seconds, in the machine's byte order.
    file: PathBuf,
}

impl ServerClock {
    /// Creates a clock that can jump, for a server that starts with its
    /// [`environment`](Self::environment). Compiles a library.
    ///
    /// # Panics
    /// If there is no C compiler.
    #[must_use]
    pub fn new(scratch: &Scratch) -> ServerClock {
        let source = scratch.write("server_clock.c", LIBRARY);
        let library = scratch.join("server_clock.so");
        let output = Command::new(need::directory_of("cc", "gcc", Vec::new).join("cc"))
            .args(["-O2", "-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .output()
            .unwrap_or_else(|error| panic!("cannot start cc: {error}"));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cc failed:\n{said}");
        let file = scratch.write("server_clock", 0_i64.to_ne_bytes());
        // The server runs as another user.
        for path in [&library, &file] {
            let readable = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(path, readable).expect("rights of our own file");
        }
        ServerClock(Arc::new(Inner {
            ahead: AtomicI64::new(0),
            preloaded: Some(Preloaded { library, file }),
        }))
    }

    /// Returns the environment variables that make a server's processes follow this clock.
    pub fn environment(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let preloaded = self.0.preloaded.iter();
        preloaded.flat_map(|preloaded| {
            [
                ("LD_PRELOAD", &preloaded.library),
                ("SERVER_CLOCK", &preloaded.file),
            ]
        })
    }

    /// Returns the server's time. During a jump it may return the later time a moment earlier than
    /// the server.
    #[must_use]
    pub fn now(&self) -> DateTime<Utc> {
        Utc::now() + chrono::Duration::seconds(self.0.ahead.load(Ordering::SeqCst))
    }

    /// Sets the clock ahead by `by`, in whole seconds.
    ///
    /// # Panics
    /// If it is the default clock.
    pub fn jump(&self, by: Duration) {
        let preloaded = self.0.preloaded.as_ref();
        let preloaded = preloaded.expect("a server that starts with this clock");
        let by = i64::try_from(by.as_secs()).expect("a short jump");
        let ahead = self.0.ahead.fetch_add(by, Ordering::SeqCst) + by;
        // In place: the servers have this file mapped.
        let file = std::fs::OpenOptions::new()
            .write(true)
            .open(&preloaded.file);
        let written = file.and_then(|file| file.write_all_at(&ahead.to_ne_bytes(), 0));
        written.expect("our own file can be written");
    }
}

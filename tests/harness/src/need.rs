//! Programs that the tests require.
//!
//! A missing program is installed if possible (`scripts/setup`, which supports Debian and needs
//! root). Otherwise the test fails with a message that says what to install. It is never skipped.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Returns the directory that holds `program`: searches `places`, then `PATH`. Installs the Debian
/// package if it is missing.
///
/// # Panics
/// If the program is missing and cannot be installed.
#[must_use]
pub fn directory_of(program: &str, package: &str, places: impl Fn() -> Vec<PathBuf>) -> PathBuf {
    // One installation at a time in this process; scripts/setup handles other processes.
    static INSTALLING: Mutex<()> = Mutex::new(());
    let find = || {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::split_paths(&path).collect::<Vec<_>>();
        let mut places = places().into_iter().chain(path);
        places.find(|place| is_program(&place.join(program)))
    };
    find().unwrap_or_else(|| {
        let _one = INSTALLING.lock();
        let said = find().is_none().then(|| install(package));
        find().unwrap_or_else(|| {
            let said = said.unwrap_or_default();
            panic!("the tests need the program `{program}`: install the Debian package {package}, or its equivalent on your system, and run the tests again.\n{said}")
        })
    })
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path)
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Installs a package, and returns the script's output, for the message if the program is still
/// missing.
fn install(package: &str) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/setup");
    match Command::new(script).args(["packages", package]).output() {
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => format!("{script}: {error}"),
    }
}

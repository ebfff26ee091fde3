//! Programs that the tests cannot do without.
//!
//! A missing program is installed where that is possible (`scripts/setup`, which
//! knows Debian and needs root); elsewhere the test fails with a sentence that says
//! what to install. It is never skipped.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// The directory that holds `program`: the first of `places`, then of `PATH`.
/// Installs the Debian package if there is none.
///
/// # Panics
/// If the program is missing and cannot be installed.
#[must_use]
pub fn directory_of(program: &str, package: &str, places: impl Fn() -> Vec<PathBuf>) -> PathBuf {
    // One installation at a time in this process; scripts/setup sees to the others.
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
            panic!("the tests need the program `{program}`: install the Debian package {package}, or its like on your system, and run them again.\n{said}")
        })
    })
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path)
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// Returns what the script said, for the message if the program is missing after all.
fn install(package: &str) -> String {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/setup");
    match Command::new(script).args(["packages", package]).output() {
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => format!("{script}: {error}"),
    }
}

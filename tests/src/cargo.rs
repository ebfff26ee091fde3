//! Calling cargo from a program that cargo runs.

use std::path::PathBuf;
use std::process::Command;

/// Removes the variables in which cargo describes this process's own package. Build scripts that
/// watch such variables (ring's does) would otherwise run again for each package.
pub fn forget_package(command: &mut Command) {
    const OURS: [&str; 5] = [
        "CARGO_PKG_",
        "CARGO_MANIFEST_",
        "CARGO_CRATE_",
        "CARGO_BIN_",
        "CARGO_PRIMARY_",
    ];
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if OURS.iter().any(|ours| name.starts_with(ours)) {
            command.env_remove(&*name);
        }
    }
}

/// Builds the program `name` of the workspace in this process's profile, and returns its path. An
/// up-to-date program is not built again.
///
/// # Panics
/// If it does not compile.
#[must_use]
pub fn build(name: &str) -> PathBuf {
    let this = std::env::current_exe()
        .unwrap_or_else(|error| panic!("cannot find this program's path: {error}"));
    // target/PROFILE/deps/suite-HASH for a test, target/PROFILE/servers for a program.
    let profile = this
        .ancestors()
        .skip(1)
        .find(|place| place.file_name().is_some_and(|name| name != "deps"))
        .unwrap_or_else(|| panic!("{} is not in a target directory", this.display()));
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    forget_package(&mut command);
    // `--workspace` gives dependencies the features that `cargo test --workspace` gives them, so
    // nothing is compiled twice.
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args([
        "build",
        "--quiet",
        "--locked",
        "--workspace",
        "--bin",
        name,
    ]);
    if let Some(target) = profile.parent() {
        command.arg("--target-dir").arg(target);
    }
    if profile.ends_with("release") {
        command.arg("--release");
    }
    let output = command.output();
    let output = output.unwrap_or_else(|error| panic!("cannot start cargo: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cannot build {name}:\n{said}");
    profile.join(name)
}

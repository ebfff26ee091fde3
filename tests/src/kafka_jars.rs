//! Apache Kafka's programs: the jars that `scripts/setup kafka` fetches, run by Java.

use crate::need;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns a command that runs a main class with the common options. `home` also holds the Java
/// virtual machine's temporary files.
///
/// # Panics
/// If Java or Kafka is missing and cannot be installed.
pub(crate) fn command(home: &Path, main_class: &str) -> Command {
    let mut command = Command::new(java("java", "default-jre-headless"));
    command
        .current_dir(home)
        // Java would apply these options, meant for other programs, and print them.
        .env_remove("JAVA_TOOL_OPTIONS")
        .env_remove("JDK_JAVA_OPTIONS")
        // Small and quick to start; no program runs long enough to profit from the optimizing
        // compiler.
        .args(["-Xms64m", "-Xmx384m", "-XX:+UseSerialGC"])
        .args(["-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"])
        .arg("-XX:+ExitOnOutOfMemoryError")
        .arg(format!("-Djava.io.tmpdir={}", home.display()))
        .arg(format!(
            "-Dlog4j2.configurationFile={}",
            home.join("log4j2.properties").display()
        ))
        .arg("-cp")
        .arg(directory().join("*"))
        .arg(main_class);
    command
}

/// Returns the path of a program of the JRE or JDK; `package` is its Debian package.
pub(crate) fn java(program: &str, package: &str) -> PathBuf {
    need::directory_of(program, package, java_home).join(program)
}

fn java_home() -> Vec<PathBuf> {
    let home = std::env::var_os("JAVA_HOME").filter(|home| !home.is_empty());
    home.map(|home| PathBuf::from(home).join("bin"))
        .into_iter()
        .collect()
}

/// Returns the directory of the jars. The first call fetches them.
fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| fetch(&["kafka"]))
}

/// Fetches or builds jars with `scripts/setup` and Maven, and returns their directory.
pub(crate) fn fetch(what: &[&str]) -> PathBuf {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/setup");
    let output = Command::new(script).args(what).output();
    let output = output.unwrap_or_else(|error| panic!("cannot start {script}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "`scripts/setup {}`, which the tests need, failed:\n{said}",
        what.join(" ")
    );
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}

//! What is published: each crate's package has what it compiles from, its licence and its README.
//! Budget: 20 s.

use std::collections::BTreeSet;
use std::process::Command;

use crate::docs::root;

/// The crates that are published, from the inside out.
const PUBLISHED: [&str; 6] = [
    "jobwire-core",
    "jobwire-amqp",
    "jobwire-kafka",
    "jobwire-engines",
    "jobwire",
    "jobwire-cli",
];

/// The files of a package, as `cargo package` lists them.
fn files(name: &str) -> BTreeSet<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let list = Command::new(cargo)
        .args([
            "package",
            "--list",
            "--allow-dirty",
            "--offline",
            "-p",
            name,
        ])
        .current_dir(root())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&list.stderr);
    assert!(list.status.success(), "{name}: {said}");
    let files = String::from_utf8(list.stdout).unwrap();
    files.lines().map(|line| line.replace('\\', "/")).collect()
}

#[test]
fn every_package_has_its_licences_and_its_readme() {
    for name in PUBLISHED {
        let files = files(name);
        for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            assert!(files.contains(file), "{name} lacks {file}");
        }
    }
}

/// They are linked into the crate, and the package has the files themselves.
#[test]
fn the_package_of_the_core_has_every_migration() {
    let files = files("jobwire-core");
    let migrations = crate::docs::files(".sql");
    let migrations = migrations.iter().filter_map(|path| {
        let path = path.to_string_lossy().into_owned();
        path.rsplit_once("/migrations/")
            .map(|(_, below)| format!("migrations/{below}"))
    });
    let migrations: BTreeSet<String> = migrations.collect();
    assert!(migrations.len() >= 12, "{migrations:?}");
    let missing: Vec<_> = migrations.difference(&files).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

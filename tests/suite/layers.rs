//! The folders of the core are its layers: no folder names one that is further out. ARCHITECTURE.md
//! names every folder of the repository. Budget: 1 s.

use std::collections::BTreeSet;
use std::path::Path;

use crate::docs::{files, root};

/// The folders of `crates/core/src`, from the inside out.
const LAYERS: [&str; 14] = [
    "job",
    "lane",
    "hint",
    "telemetry",
    "runtime",
    "event",
    "transport",
    "store",
    "producer",
    "fleet",
    "worker",
    "leader",
    "node",
    "testing",
];

/// The layer of a path below `crates/core/src`: `store/postgres.rs` and `store.rs` are of `store`.
fn layer(path: &Path) -> Option<usize> {
    let first = path.iter().next()?.to_str()?;
    let name = first.trim_end_matches(".rs");
    LAYERS.iter().position(|layer| *layer == name)
}

/// The layers that a line of code names.
fn named(line: &str) -> impl Iterator<Item = usize> {
    let code = line.split("//").next().unwrap_or_default();
    code.split("crate::").skip(1).filter_map(|rest| {
        let name = rest
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .next()?;
        LAYERS.iter().position(|layer| *layer == name)
    })
}

/// What a source file names that is further out than itself.
fn upward(path: &Path, source: &str) -> Vec<String> {
    let Some(own) = layer(path) else {
        return vec![format!("{}: of no layer", path.display())];
    };
    let mut wrong = Vec::new();
    for (at, line) in source.lines().enumerate() {
        let place = format!("{}:{}", path.display(), at + 1);
        // A group may begin here and end lines below.
        if line.contains("use crate::{") {
            wrong.push(format!("{place}: one `use` for each layer"));
        }
        // As many `super` as the path has parts lead to the root of the crate.
        let to_root = "super::".repeat(path.components().count());
        let code = line.split("//").next().unwrap_or_default();
        if (LAYERS.iter()).any(|name| code.contains(&format!("{to_root}{name}"))) {
            wrong.push(format!("{place}: name the layer from `crate`"));
        }
        let outward = named(line).filter(|other| *other > own);
        wrong.extend(outward.map(|other| format!("{place}: {}", LAYERS[other])));
    }
    wrong
}

#[test]
fn no_layer_of_the_core_names_one_that_is_further_out() {
    let core = root().join("crates/core/src");
    let sources = files(".rs")
        .into_iter()
        .filter(|path| path.starts_with(&core));
    let mut checked = 0;
    let mut wrong = Vec::new();
    for path in sources {
        let below = path.strip_prefix(&core).unwrap();
        if below == Path::new("lib.rs") {
            continue;
        }
        checked += 1;
        wrong.extend(upward(below, &std::fs::read_to_string(&path).unwrap()));
    }
    assert!(checked > 100, "only {checked} files were found");
    assert!(
        wrong.is_empty(),
        "imports that lead outward:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn an_import_that_leads_outward_is_found() {
    let said = |path: &str, source: &str| upward(Path::new(path), source);
    let inward = "use crate::job::JobId;\n// crate::node\n";
    assert!(said("store/lock.rs", inward).is_empty());
    let outward = "use crate::job::JobId;\n    crate::leader::sweeper::MOMENT\n";
    assert_eq!(said("store/lock.rs", outward), ["store/lock.rs:2: leader"]);
    assert_eq!(said("util/lock.rs", inward), ["util/lock.rs: of no layer"]);
    let chain = "use super::super::leader::sweeper;\n";
    assert_eq!(
        said("store/lock.rs", chain),
        ["store/lock.rs:1: name the layer from `crate`"]
    );
    let group = "use crate::{job::Job, leader};\n";
    assert_eq!(
        said("store.rs", group),
        ["store.rs:1: one `use` for each layer"]
    );
}

/// Every folder of the repository, from its root, without what is built, hidden or data.
fn folders() -> BTreeSet<String> {
    let root = root().canonicalize().unwrap();
    let mut found = BTreeSet::new();
    let mut open = vec![root.clone()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            // A link, as that of the core to the migrations, is no folder.
            if !path.is_dir() || path.is_symlink() || name == "target" || name.starts_with('.') {
                continue;
            }
            let below = path.strip_prefix(&root).unwrap();
            // Programs of others to compare with, and programs in another language.
            let foreign = ["benches/peers", "examples/jvm", "java", "tests/engines"];
            if foreign.iter().any(|place| below.starts_with(place)) {
                continue;
            }
            found.insert(below.to_string_lossy().into_owned());
            open.push(path);
        }
    }
    found
}

#[test]
fn the_architecture_names_every_folder() {
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let named: BTreeSet<&str> = page
        .split('`')
        .map(|span| span.trim_end_matches('/'))
        .collect();
    let folders = folders();
    assert!(
        folders.len() > 40,
        "only {} folders were found",
        folders.len()
    );
    let missing: Vec<&String> = folders
        .iter()
        .filter(|folder| !named.contains(folder.as_str()))
        .collect();
    assert!(
        missing.is_empty(),
        "ARCHITECTURE.md does not name {missing:?}"
    );
    let gone: Vec<&&str> = named
        .iter()
        .filter(|path| path.starts_with("crates/") && !path.contains(['*', '<', ' ']))
        .filter(|path| !root().join(path).exists())
        .collect();
    assert!(
        gone.is_empty(),
        "ARCHITECTURE.md names what does not exist: {gone:?}"
    );
}

//! Makes a module of each Rust snippet of the README, of getting-started, of the guides and of the
//! engines, as rustdoc makes a test of it: hidden lines count, and a snippet without `main` stands in one.

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

const PAGES: [&str; 4] = [
    "README.md",
    "docs/engines",
    "docs/getting-started",
    "docs/guides",
];

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut modules = String::new();
    for page in pages(&root)? {
        println!("cargo::rerun-if-changed={}", page.display());
        let name = page.file_stem().unwrap_or_default().to_string_lossy();
        let name = name.to_lowercase().replace('-', "_");
        for (number, snippet) in snippets(&fs::read_to_string(&page)?).iter().enumerate() {
            writeln!(modules, "mod {name}_{number} {{\n{snippet}}}")?;
        }
    }
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    Ok(fs::write(out.join("snippets.rs"), modules)?)
}

fn pages(root: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut pages = Vec::new();
    for page in PAGES.map(|page| root.join(page)) {
        if page.is_dir() {
            println!("cargo::rerun-if-changed={}", page.display());
            for entry in fs::read_dir(&page)? {
                pages.push(entry?.path());
            }
        } else {
            pages.push(page);
        }
    }
    pages.sort();
    Ok(pages)
}

fn snippets(page: &str) -> Vec<String> {
    let mut snippets = Vec::new();
    let mut rest = page;
    while let Some((_, after)) = rest.split_once("```rust,no_run\n") {
        let (snippet, next) = after.split_once("```").unwrap_or((after, ""));
        let lines = snippet.lines().map(|line| match line.trim_start() {
            "#" => "",
            shown => shown.strip_prefix("# ").unwrap_or(line),
        });
        let code: String = lines.flat_map(|line| [line, "\n"]).collect();
        snippets.push(if code.contains("fn main(") {
            code
        } else {
            format!("fn main() {{\n{code}}}\n")
        });
        rest = next;
    }
    snippets
}

//! A long chaos run:
//!
//! ```text
//! cargo run -p jobwire-tests --bin chaos -- --minutes 60 --seed 7 --broker rabbitmq --nodes 3 --rate 150 --report chaos.md
//! ```
//!
//! Exit codes: 0, every promise was kept; 1, a promise was broken (see the report); 2, wrong
//! arguments.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program of the tests"
)]

use jobwire_tests::chaos::{self, options};
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    let options = match options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("chaos: {problem}\nusage: chaos {}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    let file = options.report.clone();
    let outcome = chaos::run(options).await;
    let page = outcome.page();
    println!("{page}");
    if let Some(file) = file
        && let Err(error) = std::fs::write(&file, &page)
    {
        eprintln!("chaos: cannot write {}: {error}", file.display());
        return ExitCode::FAILURE;
    }
    if outcome.holds() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

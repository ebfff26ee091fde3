//! Measures the bridge beside the engines' own executors:
//!
//! ```text
//! scripts/bench engine [ARGUMENTS]
//! cargo run -p jobwire-tests --bin engine_bench -- --engines flowable --rates 100 --json
//! ```
//!
//! It starts a private PostgreSQL and the engines. See `tests/src/engine_bench.rs` for what it
//! measures. Exit codes: 0, measured; 2, wrong arguments; another one, a server or a check failed.
#![allow(
    clippy::expect_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program of the tests"
)]

use std::process::ExitCode;

use jobwire_tests::engine_bench;

#[tokio::main]
async fn main() -> ExitCode {
    let options = match engine_bench::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!(
                "engine_bench: {problem}\nusage: engine_bench {}",
                engine_bench::USAGE
            );
            return ExitCode::from(2);
        }
    };
    let report = engine_bench::run(&options).await;
    if options.json {
        let report = serde_json::to_string_pretty(&report).expect("a report is JSON");
        println!("{report}");
    } else {
        print!("{report}");
    }
    ExitCode::SUCCESS
}

//! The `jobwire` program. Everything is in the library of the same name.

use std::process::ExitCode;

fn main() -> ExitCode {
    jobwire::main()
}

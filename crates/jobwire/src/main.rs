//! The `jobwire` program. Everything is in the library of the same name.

use std::process::ExitCode;

/// Jobs are many small allocations on one thread that are freed on another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    jobwire::main()
}
